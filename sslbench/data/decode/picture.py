"""Decoded picture, its constraints, and its construction from an array of pixels."""

import dataclasses
import re
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sslbench.preprocessing import MAX_PIXELS, Preprocessing

if TYPE_CHECKING:
    import torch

# EXIF orientation -> (swap height and width, then flip these dimensions of (C, H, W)).
UPRIGHT: dict[int, tuple[bool, tuple[int, ...]]] = {
    2: (False, (2,)),
    3: (False, (1, 2)),
    4: (False, (1,)),
    5: (True, ()),
    6: (True, (2,)),
    7: (True, (1, 2)),
    8: (True, (1,)),
}


class UnreadableImage(Exception):  # noqa: N818 (a state of a file, listed and counted, rather than a failure of the program)
    """File without a complete picture.

    Attributes:
        path: name of the image.
        reason: one line, such as 'truncated JPEG'.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # both arguments, so that workers can pickle it
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class UnreadFile(UnreadableImage):
    """File that could not be read, or has changed since it was hashed; its picture is unknown."""


class OtherChannels(UnreadableImage):
    """Picture with another number of channels than the backbone takes.

    Attributes:
        channels: of the picture.
        wanted: channels of the backbone's input.
    """

    def __init__(self, path: str, channels: int, wanted: int) -> None:
        super().__init__(path, f"{channels} channel{'' if channels == 1 else 's'}, the backbone takes {wanted}")
        # Unpickling calls the class with these, and the parent has set its own two.
        self.args = (path, channels, wanted)
        self.channels, self.wanted = channels, wanted


CUT = "16 bit to 8 bit"
"""Conversion of samples of 16 bits to their upper 8."""
GREY_TO_RGB = "grey to RGB"
"""Conversion of one channel to three that are equal."""
_FEW_LEVELS = 16
_TOO_DARK = (
    "samples of 16 bits below 4,096, whose upper 8 bits have 16 levels at most; scale them to 8 bits, or give "
    "--decoder my_module.my_function"
)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Requested form of decoded pictures.

    Attributes:
        channels: 3: convert to RGB; another number: that many channels, unconverted.
        deep: keep samples of 16 bits where possible (arrays, TIFF with other bands); otherwise their upper 8.
        max_pixels: limit of width times height.
        resize: size of the later resize (see `Preprocessing`), for decoders that can decode at a reduced size; None:
            full size.
        luminance: only the luminance of the RGB is taken, so grey files keep 16 bits, too. For RGB they have 8, with
            which features of earlier versions stay what they are.
    """

    channels: int = 3
    deep: bool = False
    max_pixels: int = MAX_PIXELS
    resize: int | tuple[int, int] | None = None
    luminance: bool = False

    @classmethod
    def by(cls, preprocessing: Preprocessing) -> "Wanted":
        """Return the pictures that a backbone needs; for one channel RGB, whose luminance the compute device takes."""
        channels = preprocessing.channels
        resize = preprocessing.resize if "fast" in preprocessing.decoder else None
        return cls(3 if channels == 1 else channels, True, preprocessing.max_pixels, resize, luminance=channels == 1)


RGB = Wanted()
"""Three channels of 8 bits."""


@dataclasses.dataclass(frozen=True)
class Decoded:
    """Decoded picture and its conversions.

    Attributes:
        image: (C, H, W), not necessarily contiguous (decoders write rows of interleaved pixels); uint8, or float32 from
            0 to 255 for samples of 16 bits.
        conversions: such as 'grey to RGB', 'alpha dropped'; empty for a plain RGB picture.
        full: (height, width) of the picture in the file, where `image` was decoded at a reduced size.
        frames: number of frames of a video, whose channels stand one after the other in `image`.
    """

    image: "torch.Tensor"
    conversions: tuple[str, ...]
    full: tuple[int, int] | None = None
    frames: int = 1


def check_size(width: int, height: int, path: str, max_pixels: int) -> None:
    """Raise for a picture without pixels, or with more than `max_pixels`."""
    if width < 1 or height < 1:
        raise UnreadableImage(path, f"a picture of {width} x {height} pixels")
    if width * height > max_pixels:
        raise UnreadableImage(path, f"{width} x {height} pixels, more than the limit of {max_pixels:,} (--max-pixels)")


def declared_too_large(error: Exception, path: str, max_pixels: int) -> UnreadableImage:
    """Return the error of `check_size` for Pillow's DecompressionBombError."""
    declared = re.search(r"\d+", str(error))
    size = f"{int(declared[0]):,} pixels" if declared else "too many pixels"
    return UnreadableImage(path, f"{size}, more than the limit of {max_pixels:,} (--max-pixels)")


def as_wanted(decoded: Decoded, path: str, wanted: Wanted) -> Decoded:
    """Check a handler's picture, and convert it to 8 bits unless `wanted.deep`."""
    channels, height, width = decoded.image.shape
    check_size(width, height * decoded.frames, path, wanted.max_pixels)
    if channels != wanted.channels * decoded.frames:
        raise OtherChannels(path, channels // decoded.frames, wanted.channels)
    if wanted.deep or decoded.image.element_size() == 1:  # uint8
        return decoded
    image = decoded.image.clamp(0, 255).byte()
    return dataclasses.replace(decoded, image=image, conversions=(*decoded.conversions, CUT))


def from_array(
    array: npt.NDArray[np.generic], path: str, wanted: Wanted = RGB, conversions: tuple[str, ...] = ()
) -> Decoded:
    """Make a picture from an array of pixels, copied.

    Args:
        array: (H, W) or (H, W, C); uint8, or uint16 with its whole range.
        path: name of the image in messages.
        wanted: form of the picture; grey becomes RGB, no other channel is added or dropped.
        conversions: made before.
    """
    import torch

    if array.dtype not in (np.uint8, np.uint16):
        raise UnreadableImage(path, f"an array of {array.dtype}, whose range is not known; should be uint8 or uint16")
    pixels = array[:, :, None] if array.ndim == 2 else array
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise UnreadableImage(path, f"an array of shape {array.shape}, should be (H, W) or (H, W, channels)")
    check_size(pixels.shape[1], pixels.shape[0], path, wanted.max_pixels)
    done, empty = list(conversions), False
    if pixels.dtype == np.uint16 and not wanted.deep:
        empty = not pixels.any()
        pixels = (pixels.astype(np.uint16) >> 8).astype(np.uint8)
        done.append(CUT)
    if CUT in done and not empty and int(pixels.max()) < _FEW_LEVELS:
        raise UnreadableImage(path, _TOO_DARK)
    channels = pixels.shape[2]
    if channels == 1 and wanted.channels == 3:
        pixels = np.repeat(pixels, 3, axis=2)
        done.append(GREY_TO_RGB)
    elif channels != wanted.channels:
        raise OtherChannels(path, channels, wanted.channels)
    # Interleaved channels in memory. 65,535 / 257 = 255. A copy: Pillow's arrays are read-only, of which torch warns.
    copied = pixels.astype(np.float32) / 257 if pixels.dtype == np.uint16 else np.array(pixels)
    return Decoded(torch.from_numpy(copied).permute(2, 0, 1), tuple(done))


def from_fractions(tensor: "torch.Tensor", path: str, wanted: Wanted) -> Decoded:
    """Make a picture from floats in [0, 1], (H, W) or (C, H, W), as torchvision's transforms return them."""
    pixels = tensor[None] if tensor.ndim == 2 else tensor
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise UnreadableImage(path, f"a tensor of shape {tuple(tensor.shape)}, should be (H, W) or (channels, H, W)")
    low, high = (float(value) for value in pixels.float().aminmax())
    if not 0 <= low <= high <= 1:
        raise UnreadableImage(path, f"values from {low:g} to {high:g}; floating point values should lie in 0 to 1")
    scaled = (pixels.float() * 65535).round().int().permute(1, 2, 0).numpy()
    return from_array(scaled.astype(np.uint16), path, wanted)


def upright(decoded: Decoded, orientation: int) -> Decoded:
    """Return the picture turned upright by its EXIF orientation (1 to 8)."""
    if orientation not in UPRIGHT:
        return decoded
    swap, flips = UPRIGHT[orientation]
    image = decoded.image.transpose(1, 2) if swap else decoded.image
    full = decoded.full[::-1] if swap and decoded.full else decoded.full
    conversions = (*decoded.conversions, "turned upright (EXIF)")
    return Decoded(image.flip(flips) if flips else image, conversions, full)
