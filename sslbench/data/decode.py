"""From an encoded file or an array to an RGB picture, equal to Pillow's bit for bit, or refused with a reason."""

import dataclasses
import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

try:
    from torchvision.io import ImageReadMode, decode_jpeg
except ImportError:  # torchvision 0.29 announces that a later version will come without; Pillow gives the same pixels
    decode_jpeg = None

MAX_PIXELS = 178_956_970
"""Largest picture that is decoded: the limit above which Pillow suspects a decompression bomb."""

# EXIF orientation -> swap height and width?, then flip along which dimensions of (3, H, W).
_UPRIGHT: dict[int, tuple[bool, tuple[int, ...]]] = {
    2: (False, (2,)),
    3: (False, (1, 2)),
    4: (False, (1,)),
    5: (True, ()),
    6: (True, (2,)),
    7: (True, (1, 2)),
    8: (True, (1,)),
}
_BASELINE_OR_PROGRESSIVE = (0xC0, 0xC1, 0xC2)
_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
_ANIMATED_FORMATS = ("GIF", "PNG", "WEBP", "AVIF", "TIFF")
_GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")
_ALPHA_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
_METADATA_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    struct.error,
)
_SIGNATURES = {b"\xff\xd8": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF"}


class UnreadableImage(Exception):  # noqa: N818 (a state of a file, listed and counted, rather than a failure of the program)
    """A file that holds no complete picture.

    Attributes:
        path: what the image is called.
        reason: one line, such as 'truncated JPEG'.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # both, so that it survives pickling on its way from a worker
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Decoded:
    """A picture and what was done to make it RGB.

    Attributes:
        image: uint8 (3, H, W), not necessarily contiguous (decoders write rows of interleaved pixels).
        conversions: such as 'grey to RGB', 'alpha dropped'; empty for a plain RGB picture.
    """

    image: torch.Tensor
    conversions: tuple[str, ...]


def decode(data: bytes | npt.NDArray[np.uint8], path: str) -> Decoded:
    """The picture as RGB, as Pillow's open, exif_transpose and convert('RGB') would give it.

    Baseline and progressive JPEG goes through torchvision.io, which is faster and gives the same pixels. PNG does not:
    torchvision's decoder can crash the process on damaged files and gains little. What differs from Pillow's
    convert('RGB'): samples of 16 bits keep their upper 8 (Pillow clips grey ones to white), and float pictures are
    refused, because nothing says which range they use.

    Args:
        data: the encoded file; or an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), uint8.
        path: what to call the image in messages.

    Raises:
        UnreadableImage: there is no complete picture in `data`; no partial picture is ever returned.
    """
    if isinstance(data, np.ndarray):
        return _from_array(data, path)
    if not data:
        raise UnreadableImage(path, "empty file")
    with _strict_and_silent():
        header = _jpeg_header(data)
        if header is not None and decode_jpeg is not None:
            _check_size(header.width, header.height, path)
            decoded = _decode_jpeg(data, header)
            if decoded is not None:
                return decoded
        return _decode_with_pillow(data, path)


def _check_size(width: int, height: int, path: str) -> None:
    if width < 1 or height < 1:
        raise UnreadableImage(path, f"a picture of {width} x {height} pixels")
    if width * height > MAX_PIXELS:
        raise UnreadableImage(path, f"{width} x {height} pixels, more than the limit of {MAX_PIXELS:,}")


def _from_array(array: npt.NDArray[np.uint8], path: str) -> Decoded:
    if array.dtype != np.uint8:
        raise UnreadableImage(path, f"an array of {array.dtype}, should be uint8")
    pixels = array[:, :, None] if array.ndim == 2 else array
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4):
        raise UnreadableImage(path, f"an array of shape {array.shape}, should be (H, W), (H, W, 3) or (H, W, 4)")
    _check_size(pixels.shape[1], pixels.shape[0], path)
    channels = pixels.shape[2]
    rgb = np.repeat(pixels, 3, axis=2) if channels == 1 else np.array(pixels[:, :, :3])
    conversions = {1: ("grey to RGB",), 3: (), 4: ("alpha dropped",)}[channels]
    return Decoded(torch.from_numpy(rgb).permute(2, 0, 1), conversions)


@dataclasses.dataclass(frozen=True)
class _JpegHeader:
    width: int
    height: int
    channels: int
    has_metadata: bool  # an APP1 segment: EXIF or XMP, either of which may hold the orientation


def _jpeg_header(data: bytes) -> _JpegHeader | None:
    """What the segments before the first scan say; None unless it is plain 8-bit grey or colour JPEG."""
    if data[:3] != b"\xff\xd8\xff":
        return None
    at, frame, has_metadata = 2, None, False
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        if marker == 0xDA:
            return _JpegHeader(*frame, has_metadata) if frame is not None else None
        if marker in _BASELINE_OR_PROGRESSIVE and length >= 8 and at + 10 <= len(data):
            precision, height, width, channels = struct.unpack_from(">BHHB", data, at + 4)
            if frame is not None or precision != 8 or channels not in (1, 3):
                return None
            frame = (width, height, channels)
        elif marker in _OTHER_FRAMES or not 0xC0 <= marker <= 0xFE or length < 2:
            return None
        has_metadata = has_metadata or marker == 0xE1
        at += 2 + length
    return None


def _decode_jpeg(data: bytes, header: _JpegHeader) -> Decoded | None:
    """Through torchvision.io; None if it refuses, which leaves the verdict and the reason to Pillow."""
    try:
        image = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)
    except RuntimeError:
        return None
    orientation = _orientation(data) if header.has_metadata else 1
    conversions = ("grey to RGB",) if header.channels == 1 else ()
    return _upright(image, orientation, conversions)


def _orientation(image: bytes | Image.Image) -> int:
    """EXIF orientation, 1 to 8; 1 if the metadata is damaged, since the picture itself is not."""
    try:
        opened = Image.open(io.BytesIO(image)) if isinstance(image, bytes) else image
        value = opened.getexif().get(ExifTags.Base.Orientation, 1)
    except _METADATA_ERRORS:
        return 1
    return value if value in _UPRIGHT else 1


def _upright(image: torch.Tensor, orientation: int, conversions: tuple[str, ...]) -> Decoded:
    if orientation == 1:
        return Decoded(image, conversions)
    swap, flips = _UPRIGHT[orientation]
    turned = image.transpose(1, 2) if swap else image
    return Decoded(turned.flip(flips) if flips else turned, (*conversions, "turned upright (EXIF)"))


@contextmanager
def _strict_and_silent() -> Iterator[None]:
    """No warnings on the user's screen, and no partial pictures even if some library has asked Pillow for them."""
    partial = ImageFile.LOAD_TRUNCATED_IMAGES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = partial


def _decode_with_pillow(data: bytes, path: str) -> Decoded:
    kind = _signature(data) or "image"
    try:
        with Image.open(io.BytesIO(data)) as image:
            kind = image.format or kind
            if kind == "EPS" or isinstance(image, ImageFile.StubImageFile):  # for EPS Pillow would run Ghostscript
                raise UnreadableImage(path, f"{kind} is not supported; convert it to JPEG or PNG")
            _check_size(*image.size, path)
            several = kind in _ANIMATED_FORMATS and bool(getattr(image, "is_animated", False))
            codec = str(image.tile)  # emptied by load
            image.load()  # before the metadata: after a failed load, a second one would give a partial picture
            rgb, conversions = _to_rgb(image, path, codec)
            if several:
                conversions = (*conversions, "first of several frames")
            pixels = torch.from_numpy(np.array(rgb)).permute(2, 0, 1)
            return _upright(pixels, _orientation(image), conversions)
    except UnreadableImage:
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImage(path, _what_it_is(data)) from error
    except Image.DecompressionBombError as error:
        raise UnreadableImage(path, f"declares more than {MAX_PIXELS:,} pixels") from error
    except Exception as error:  # decoders raise almost anything on a damaged file
        raise UnreadableImage(path, _why(error, kind)) from error


def _to_rgb(image: Image.Image, path: str, codec: str) -> tuple[Image.Image, tuple[str, ...]]:
    """The loaded picture in mode RGB, and what that took. `codec` is Pillow's name of the layout in the file."""
    mode, conversions = image.mode, []
    alpha = mode in _ALPHA_MODES or "transparency" in image.info
    if mode == "F" or (mode == "I" and ";16" not in codec and image.format != "PPM"):
        raise UnreadableImage(path, "32 bits per sample, whose range is not known; convert it to 8 or 16 bits")
    if mode.startswith("I"):
        values = np.asarray(image) >> (4 if ";12" in codec else 8)
        image = Image.fromarray(values.astype(np.uint8))
    if mode.startswith("I") or (";16" in codec and "BGR" not in codec):  # BGR;16 is a BMP with 5 or 6 bits per colour
        conversions.append("16 bit to 8 bit")
    if mode in _GREY_MODES:
        conversions.append("grey to RGB")
    elif mode in ("P", "PA"):
        conversions.append("palette to RGB")
    elif mode not in ("RGB", "RGBA", "RGBX", "RGBa"):
        conversions.append(f"{mode} to RGB")
    if alpha:
        conversions.append("alpha dropped")
    return image.convert("RGB"), tuple(conversions)


def _why(error: Exception, kind: str) -> str:
    message = " ".join(str(error).split())
    if "truncated" in message.lower() or isinstance(error, EOFError):
        return f"truncated {kind}"
    return f"damaged {kind} ({type(error).__name__}: {message[:120]})" if message else f"damaged {kind}"


def _signature(data: bytes) -> str | None:
    return next((name for magic, name in _SIGNATURES.items() if data.startswith(magic)), None)


def _what_it_is(data: bytes) -> str:
    """A reason for data that Pillow does not take for an image."""
    if kind := _signature(data):
        return f"damaged {kind}"
    if data[4:8] == b"ftyp":
        return "HEIF/HEIC or a video, neither is supported; convert it to JPEG or PNG"
    head = data[:512]
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the image itself; run git lfs pull"
    if not head.strip(b"\0"):
        return "not an image (zero bytes)"
    if b"<html" in head.lower():
        return "not an image (HTML page)"
    printable = all(byte >= 32 or byte in b"\t\n\r\f" for byte in head)
    return "not an image (text)" if printable and _is_utf8(head) else "not an image"


def _is_utf8(head: bytes) -> bool:
    try:
        head[:-3].decode("utf-8")  # a character may be cut at the end
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 8
    return True
