"""Values in a map's file: indices of a palette, grey values or colours, as they are stored.

A picture is decoded to be looked at: palettes become colours, grey values of 2 or 4 bits are stretched to 8, EXIF turns
it. All of that would change the classes, so maps are read here and not by `decode`.
"""

import dataclasses
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin, PpmImagePlugin, TiffImagePlugin, UnidentifiedImageError

from sslbench.data.decode.arrays import array_of
from sslbench.data.decode.files import orientation, strict_and_silent
from sslbench.data.decode.picture import UPRIGHT, UnreadableImage, check_size, declared_too_large
from sslbench.data.images import Files, OfFiles, digests_of
from sslbench.data.maps.types import RawMap
from sslbench.data.wording import one_line
from sslbench.preprocessing import MAX_PIXELS
from sslbench.targets.label_maps import Grid

_FORMATS = ("PNG", "TIFF", "GIF", "BMP", "PPM", "WEBP")
# The last ones are those of Pascal Context, SBD and COCO-Stuff, and of `numpy.savez` without a name.
_NAMES = ("labels", "label", "mask", "LabelMap", "Segmentation", "S", "arr_0")
_BITS = 24  # byte offset in the header of a PNG
_BITS_PER_SAMPLE = 258  # tag of a TIFF


@dataclasses.dataclass(frozen=True, eq=False)
class MapPixels:
    """Decoded file of a map.

    Attributes:
        path: its name in messages.
        array: (H, W) of indices or grey values, or (H, W, 3) of colours, uint8.
        palette: (n, 3) colours, if the array holds indices of them.
        white: largest value that the file can hold.
    """

    path: str
    array: npt.NDArray[Any]
    palette: npt.NDArray[np.uint8] | None = None
    white: int = 255

    @property
    def coloured(self) -> bool:
        """True if there are colours other than grey."""
        rgb = self.array
        return rgb.ndim == 3 and not ((rgb[..., 0] == rgb[..., 1]).all() and (rgb[..., 0] == rgb[..., 2]).all())

    def indices(self) -> Grid:
        """Return the values, (H, W). Grey stored as red, green and blue counts as one value."""
        if self.coloured:
            raise UnreadableImage(self.path, "a colour image, but every pixel should hold one number, its class")
        return (self.array if self.array.ndim == 2 else self.array[..., 0]).astype(np.int32)

    def colours(self) -> Grid:
        """Return the colours, (H, W), red + 256 green + 65536 blue, of palettes and of grey values too."""
        rgb = self.array
        if self.palette is not None:
            if rgb.size and int(rgb.max()) >= len(self.palette):
                raise UnreadableImage(self.path, f"the index {rgb.max()}, but the palette has {len(self.palette)}")
            rgb = self.palette[rgb]
        elif rgb.ndim == 2:
            if rgb.size and not 0 <= rgb.min() <= rgb.max() < 256:
                raise UnreadableImage(self.path, "grey values of more than 8 bits, where colours are expected")
            rgb = np.repeat(rgb[..., None], 3, axis=2)
        parts = rgb.astype(np.int32)
        return np.asarray(parts[..., 0] + 256 * parts[..., 1] + 65536 * parts[..., 2], dtype=np.int32)


def load(files: Files, index: int, max_pixels: int) -> MapPixels:
    """Read and decode one file of maps."""
    path = files.path(index)
    try:
        data = files.read(index)
    except OSError as error:
        raise UnreadableImage(path, f"cannot be read ({error.strerror or error})") from error
    return decode_pixels(data, path, max_pixels)


def decode_pixels(data: bytes, path: str, max_pixels: int) -> MapPixels:
    """Decode the pixels of an encoded file as they are stored; see `load`."""
    if not data:
        raise UnreadableImage(path, "empty file")
    if (values := array_of(data, path, _NAMES)) is not None:
        return MapPixels(path, _whole(values, path, max_pixels))
    with strict_and_silent(max_pixels):
        try:
            with Image.open(io.BytesIO(data)) as image:
                _check_kind(image, data, path)
                check_size(*image.size, path, max_pixels)
                codec, white = str(image.tile), white_of(image, data)  # emptied by load
                image.load()
                refuse_turned(image, path)
                return _pixels(image, path, codec, white)
        except UnreadableImage:
            raise
        except UnidentifiedImageError as error:
            raise UnreadableImage(path, "not an image, or damaged") from error
        except Image.DecompressionBombError as error:
            raise declared_too_large(error, path, max(max_pixels, MAX_PIXELS)) from error
        except Exception as error:  # decoders raise almost anything on a damaged file
            words = one_line(error)
            raise UnreadableImage(path, "truncated" if "truncated" in words else f"damaged ({words})") from error


def _whole(values: npt.NDArray[Any], path: str, max_pixels: int) -> npt.NDArray[Any]:
    """Return the values of an array as whole numbers, which MATLAB stores as floating point."""
    if values.ndim != 2 or not values.size:
        raise UnreadableImage(path, f"an array of {values.shape}; a label map has (height, width)")
    check_size(values.shape[1], values.shape[0], path, max_pixels)
    whole = np.rint(values) if values.dtype.kind == "f" else values
    if (
        not np.isfinite(values).all()
        or not (whole == values).all()
        or not -1 <= int(whole.min()) <= int(whole.max()) < 2**31 - 1
    ):
        raise UnreadableImage(path, f"values from {values.min()} to {values.max()}; classes are whole numbers")
    return whole.astype(np.int64)


def refuse_turned(image: Image.Image, path: str) -> None:
    """Refuse a loaded file of maps with an EXIF orientation of its own, unless it swaps sides, so that the size tells.

    Programs copy the tag from the image, whether they turn the pixels or not.
    """
    turn = orientation(image)
    if turn in UPRIGHT and (not UPRIGHT[turn][0] or image.width == image.height):
        raise UnreadableImage(
            path,
            "an EXIF orientation of its own: `mogrify -auto-orient FILES` if it lies as the stored pixels of the image "
            "do, `exiftool -Orientation= FILES` if it is upright",
        )


def _check_kind(image: Image.Image, data: bytes, path: str) -> None:
    kind = image.format or "picture"
    # VP8L is the chunk of lossless WebP.
    lossy = kind == "WEBP" and b"VP8L" not in data[:64]
    if kind in ("JPEG", "MPO") or lossy:
        raise UnreadableImage(path, f"a lossy {kind}: compression has changed the classes; maps should be PNG")
    if kind not in _FORMATS:
        raise UnreadableImage(path, f"a {kind}, which is not supported for label maps; maps should be PNG")
    if getattr(image, "n_frames", 1) > 1:
        raise UnreadableImage(path, f"a {kind} of several frames")


def white_of(image: Image.Image, data: bytes) -> int:
    """Return the largest value that a picture of Pillow, not yet loaded, can hold: 15 for grey of 4 bits.

    Pillow stretches values of fewer than 8 or 16 bits to these; `stored` undoes it.
    """
    if isinstance(image, PpmImagePlugin.PpmImageFile):
        tile = image.tile[0]
        return int(tile.args[1]) if isinstance(tile.args, tuple) and tile.codec_name.startswith("ppm") else 255
    if image.mode == "1":
        return 1
    if image.mode.startswith("I"):
        return 65535
    if image.mode != "L" or not isinstance(image, PngImagePlugin.PngImageFile | TiffImagePlugin.TiffImageFile):
        return 255
    bits = image.tag_v2.get(_BITS_PER_SAMPLE, 8) if isinstance(image, TiffImagePlugin.TiffImageFile) else data[_BITS]
    return int(2 ** (bits[0] if isinstance(bits, tuple) else bits) - 1)


def stored(image: Image.Image, white: int) -> npt.NDArray[Any]:
    """Return the values of a loaded picture of Pillow as its file holds them, (H, W) or (H, W, channels)."""
    if image.mode == "1":
        return np.asarray(image).astype(np.uint8)
    array = np.asarray(image)
    stretched = 255 if array.dtype == np.uint8 else 65535
    if image.mode not in ("L", "I", "RGB") or white >= stretched:
        return array
    return np.asarray((array.astype(np.int64) * white + stretched // 2) // stretched).astype(array.dtype)


def _pixels(image: Image.Image, path: str, codec: str, white: int) -> MapPixels:
    mode = image.mode
    if ";16" in codec and mode in ("RGB", "RGBA", "LA"):
        raise UnreadableImage(path, "colours of 16 bits")
    if mode in ("LA", "PA", "RGBA"):
        if np.asarray(image)[..., -1].min() < 255 and mode != "PA":
            raise UnreadableImage(path, "transparent pixels, whose class is not known")
        array = np.asarray(image)[..., :3] if mode == "RGBA" else np.asarray(image)[..., 0]
        return MapPixels(path, array, _palette(image) if mode == "PA" else None)
    if mode == "P":
        return MapPixels(path, np.asarray(image), _palette(image))
    if mode in ("1", "L", "RGB"):
        return MapPixels(path, stored(image, white), white=white)
    if mode.startswith("I"):
        array = stored(image, white).astype(np.int64)
        if array.size and not 0 <= array.min() <= array.max() < 2**31 - 1:
            raise UnreadableImage(
                path, f"values from {array.min()} to {array.max()}; classes are numbers of at least 0"
            )
        return MapPixels(path, array, white=white)
    raise UnreadableImage(path, f"pixels of mode {mode}, not one whole number each")


def _palette(image: Image.Image) -> npt.NDArray[np.uint8] | None:
    if image.palette is None:
        return None
    raw = image.getpalette("RGB") or []
    return np.array(raw, dtype=np.uint8).reshape(-1, 3)


@dataclasses.dataclass(frozen=True)
class ValueMaps(OfFiles):
    """Label maps with the class as the pixel's value, one file each.

    Attributes:
        files: one per image.
        colours: the values are colours.
        objects: files of the same size that tell the instances.
        numbers: (H, W) numbers of the instances, 0 for none, of such a file.
    """

    of_rows = ("files", "objects")
    files: Files
    colours: bool = False
    objects: Files | None = None
    numbers: Callable[[MapPixels], Grid] = MapPixels.indices

    def read(self, index: int, max_pixels: int) -> RawMap:
        """Read one map; see `Maps`."""
        pixels = load(self.files, index, max_pixels)
        values = pixels.colours() if self.colours else pixels.indices()
        if self.objects is None:
            return RawMap(values, white=pixels.white)
        instances = load(self.objects, index, max_pixels)
        numbers = self.numbers(instances)
        if numbers.shape != values.shape:
            raise UnreadableImage(instances.path, "of a size other than that of the class map")
        return RawMap(values, numbers.astype(np.int32))

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: hashes of the files, or of pairs of them."""
        first = self.files.digests()
        return first if self.objects is None else digests_of(map(bytes, np.hstack([first, self.objects.digests()])))
