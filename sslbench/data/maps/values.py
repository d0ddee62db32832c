"""Depth in metres and unit normals of every pixel, from the numbers that files hold."""

import dataclasses
import hashlib
import io
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from sslbench.config import setting
from sslbench.data.decode.arrays import array_of, colours_of_16_bits
from sslbench.data.decode.files import strict_and_silent
from sslbench.data.decode.picture import UnreadableImage, check_size
from sslbench.data.images import Files, OfFiles
from sslbench.data.maps.files import refuse_turned, stored, white_of
from sslbench.data.maps.types import SAME_SIZE, size_difference
from sslbench.data.wording import one_line
from sslbench.errors import DataError
from sslbench.preprocessing import MAX_PIXELS

SUFFIXES = (*(".npy", ".npz", ".mat", ".pfm"), ".png", ".tif", ".tiff")
"""Suffixes of files of values, in lower case."""

NAMES = ("depth", "depths", "normals", "normal", "arr_0")
"""Names of the array to read where a file has several."""
_EXR = b"\x76\x2f\x31\x01"


def decode_values(data: bytes, path: str, names: Sequence[str] = NAMES) -> npt.NDArray[Any]:
    """Return the numbers of a file, (H, W) or (H, W, 3), in their own type.

    The content of the file decides, not its name; of several arrays in it the first that has one of `names` is read.
    """
    if not data:
        raise UnreadableImage(path, "empty file")
    if data.startswith(_EXR):
        raise UnreadableImage(path, "an OpenEXR file, which is not supported: convert it to .npy, .pfm or TIFF")
    try:
        values = array_of(data, path, names)
        if values is None:
            values = _picture(data, path)
    except UnreadableImage:
        raise
    except Exception as error:  # decoders raise almost anything on a damaged file
        raise UnreadableImage(path, f"damaged ({one_line(error)})") from error
    # A tensor saved by torch users has its channels first; images of 1 or 3 rows do not occur.
    if values.ndim == 3 and values.shape[0] in (1, 3) and values.shape[2] not in (1, 3):
        values = np.moveaxis(values, 0, 2)  # channels first
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[..., 0]
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] != 3) or not values.size:
        raise UnreadableImage(path, f"an array of {values.shape}, not (height, width) or (height, width, 3)")
    check_size(values.shape[1], values.shape[0], path, MAX_PIXELS)
    return values


def _picture(data: bytes, path: str) -> npt.NDArray[Any]:
    with strict_and_silent(MAX_PIXELS):
        try:
            with Image.open(io.BytesIO(data)) as image:
                check_size(*image.size, path, MAX_PIXELS)
                if image.format not in ("PNG", "TIFF"):
                    raise UnreadableImage(path, f"a {image.format}, which is not supported: PNG, TIFF, .npy, .pfm")
                # Byte 24 of a PNG is its bit depth, which Pillow does not tell of colours.
                if image.mode == "RGB" and (";16" in str(image.tile) or (image.format == "PNG" and data[24] == 16)):
                    return colours_of_16_bits(data, path)
                if image.mode in ("P", "PA"):
                    raise UnreadableImage(path, "a picture with a palette (colours to look at), not numbers")
                if getattr(image, "n_frames", 1) > 1:
                    raise UnreadableImage(path, f"a {image.format} of several frames")
                white = white_of(image, data)
                values = stored(image, white)
                refuse_turned(image, path)
                return values
        except UnidentifiedImageError as error:
            kinds = ", ".join(SUFFIXES)
            name = PurePosixPath(path).name
            raise UnreadableImage(path, f"{name} is none of {kinds}, or is damaged") from error


Quantity = Literal["depth", "normals"]

_NEAR, _FAR = 0.01, 1000.0
# Length of a stored normal below which it is unknown: (0, 0, 0), or the grey of pictures of normals
_LEAST_LENGTH = 0.5


@dataclasses.dataclass(frozen=True)
class DepthOptions:
    """Options behind a '?': DATA?depth_scale=1000&max_depth=10."""

    depth_scale: float | None = setting(
        None,
        "stored number of one metre: 1000 for millimetres (NYUv2), 256 for KITTI; needed for whole numbers",
        within="(0, inf)",
    )
    min_depth: float = setting(0.0, "depths up to this are unknown", unit="m", within="[0, inf)")
    max_depth: float | None = setting(None, "depths from this on are unknown", unit="m", within="(0, inf)")
    images: str | None = setting(None, "folder of the images, relative to the location")
    depth: str | None = setting(None, "folder of the depth files, relative to the location")
    group: str | None = setting(
        None,
        "column of a table or key of a manifest whose equal values, such as scenes, a split keeps together; or folder",
    )


@dataclasses.dataclass(frozen=True)
class NormalOptions:
    """Options behind a '?': DATA?normals=gt."""

    images: str | None = setting(None, "folder of the images, relative to the location")
    normals: str | None = setting(None, "folder of the files of normals, relative to the location")
    group: str | None = setting(None, "as of depth: a column or key, or folder")


@dataclasses.dataclass(frozen=True, eq=False)
class ValueFiles(OfFiles):
    """Depth or normals of N images, one file each.

    Attributes:
        name: of the data, in messages.
        files: one per image.
        quantity: 'depth' or 'normals'.
        options: scale and range of depths.
    """

    name: str
    files: Files
    quantity: Quantity
    options: DepthOptions = DepthOptions()

    def read_values(self, index: int, *, size: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Return the values of an image; see `PixelValues`."""
        path = self.path(index)
        try:
            stored = decode_values(self.files.read(index), path)
        except OSError as error:
            raise UnreadableImage(path, f"cannot be read ({error.strerror or error})") from error
        if found := size_difference(stored.shape[:2], size, f"a file of {self.quantity}"):
            raise DataError(f"{self.name}: {path}: {found}", SAME_SIZE)
        if self.quantity == "normals":
            return unit_normals(stored, path)
        return metres(stored, self.options, f"{self.name}: {path}")

    def fingerprint(self) -> str:
        """Return a hash of the files and of their scale and range, 32 hex digits."""
        scaled = (self.options.depth_scale, self.options.min_depth, self.options.max_depth)
        digest = hashlib.sha256(repr((self.quantity, *scaled)).encode())
        digest.update(self.files.digests().tobytes())
        return digest.hexdigest()[:32]


def metres(stored: npt.NDArray[np.number], options: DepthOptions, where: str) -> npt.NDArray[np.float32]:
    """Return the depth (H, W, 1) in metres of the stored numbers (H, W); NaN outside the range of the options.

    Zero, NaN and infinity are unknown.

    >>> millimetres = np.array([[1500, 0]], dtype=np.uint16)
    >>> metres(millimetres, DepthOptions(depth_scale=1000), "a.png")[..., 0].tolist()
    [[1.5, nan]]
    """
    if stored.ndim != 2:
        raise DataError(f"{where} holds three numbers per pixel, a depth is one", "Colours to look at are no depths.")
    if stored.dtype.kind != "f" and options.depth_scale is None:
        raise DataError(
            f"{where} holds whole numbers (up to {int(stored.max()):,}) of unknown unit",
            "Say which number is one metre: DATA?depth_scale=1000 for millimetres, 256 for KITTI, 1 for metres.",
        )
    depth = stored.astype(np.float32)
    if np.isneginf(depth).any() or (np.nan_to_num(depth) < 0).any():
        raise DataError(
            f"{where} has negative depths, down to {float(np.nanmin(depth)):g}", "Unknown depths are 0 or NaN."
        )
    depth /= np.float32(1.0 if options.depth_scale is None else options.depth_scale)
    most = np.inf if options.max_depth is None else options.max_depth
    known = (depth > options.min_depth) & (depth < most)
    return np.where(known, depth, np.float32(np.nan))[..., None]


def implausible_unit(low: float, high: float, median: float) -> str | None:
    """Return the problem of depths that cannot be metres: a median beyond a kilometre or below a centimetre.

    >>> implausible_unit(500.0, 9000.0, 2500.0)
    'depths of 500 to 9e+03 m (median 2.5e+03 m)'
    """
    if _NEAR <= median <= _FAR:
        return None
    return f"depths of {low:.3g} to {high:.3g} m (median {median:.3g} m)"


def unit_normals(stored: npt.NDArray[np.number], path: str) -> npt.NDArray[np.float32]:
    """Return unit normals (H, W, 3); NaN where they are unknown.

    Whole numbers are (n + 1) / 2 of the largest number of their type, as in pictures of normals; vectors of zeros are
    unknown, and in pictures those shorter than one half.

    >>> unit_normals(np.array([[[128, 128, 255], [0, 0, 0]]], dtype=np.uint8), "a.png").round(2).tolist()
    [[[0.0, 0.0, 1.0], [nan, nan, nan]]]
    """
    if stored.ndim != 3:
        raise UnreadableImage(path, "one number per pixel, a normal is three")
    vectors = stored.astype(np.float32)
    unknown = ~np.isfinite(vectors).all(axis=2)
    if stored.dtype.kind != "f":
        unknown |= ~stored.any(axis=2)
        # One bit of a signed type is its sign.
        largest = 2.0 ** (8 * stored.dtype.itemsize - (stored.dtype.kind == "i")) - 1
        vectors = np.asarray(vectors * (2 / largest) - 1, dtype=np.float32)
    length = np.sqrt(np.sum(vectors**2, axis=2))
    # In 8 bits a zero vector is stored as 128, which is not exactly zero: its length is far below one half.
    unknown |= length < (_LEAST_LENGTH if stored.dtype.kind != "f" else 1e-6)
    unit = vectors / np.where(unknown, 1, length)[..., None]
    return np.where(unknown[..., None], np.float32(np.nan), unit)
