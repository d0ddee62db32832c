"""Decoding through Pillow: complete pictures or a reason, no warnings."""

import io
import logging
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import ExifTags, Image, ImageFile, TiffImagePlugin, UnidentifiedImageError

from sslbench.data.decode.arrays import is_tiff, kind_of_samples
from sslbench.data.decode.picture import (
    CUT,
    UPRIGHT,
    Decoded,
    OtherChannels,
    UnreadableImage,
    Wanted,
    check_size,
    declared_too_large,
    from_array,
    upright,
)
from sslbench.preprocessing import MAX_PIXELS

_COLOURS, _SAMPLES_PER_PIXEL, _EXTRA_SAMPLES = 262, 277, 338  # tags of TIFF
_RGB = 2
_ALPHA = ((1,), (2,))  # one extra sample, alpha: premultiplied or not
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

logging.getLogger("PIL").addHandler(logging.NullHandler())  # its errors are raised, too


@contextmanager
def strict_and_silent(max_pixels: int) -> Iterator[None]:
    """Set Pillow's size limit, silence its warnings, and forbid truncated pictures inside the block."""
    before = ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        # Pillow warns above this limit and raises above its double; `check_size` checks lower ones.
        Image.MAX_IMAGE_PIXELS = max(max_pixels, MAX_PIXELS) // 2
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = before


def decode_with_pillow(data: bytes, path: str, wanted: Wanted, scale: int = 1) -> Decoded:
    """Decode a picture that Pillow can read, inside `strict_and_silent`.

    Args:
        data: the encoded file.
        path: name of the image in messages.
        wanted: form of the picture.
        scale: 2, 4 or 8: decode a JPEG at 1 / scale of its size, without its high frequencies (libjpeg).

    Raises:
        UnreadableImage: the file holds no complete picture.
    """
    kind = _signature(data) or "image"
    try:
        with Image.open(io.BytesIO(data)) as image:
            kind = image.format or kind
            if kind == "EPS" or isinstance(image, ImageFile.StubImageFile):  # Pillow would run Ghostscript for EPS
                raise UnreadableImage(path, f"{kind} is not supported; convert it to JPEG or PNG")
            check_size(*image.size, path, wanted.max_pixels)
            full = (image.height, image.width) if scale > 1 else None
            if scale > 1:
                image.draft(None, (image.width // scale, image.height // scale))
            several = kind in _ANIMATED_FORMATS and bool(getattr(image, "is_animated", False))
            codec = str(image.tile)  # emptied by load
            image.load()  # before the metadata: after a failed load, a second one would return a partial picture
            _check_bands(image, path, wanted)
            decoded = from_pillow(image, path, wanted, codec)
            conversions = (*decoded.conversions, *(["first of several frames"] if several else []))
            return upright(Decoded(decoded.image, conversions, full), orientation(image))
    except UnreadableImage:
        raise
    except UnidentifiedImageError as error:
        _refuse_bands(data, path, wanted)
        raise UnreadableImage(path, _file_kind(data)) from error
    except Image.DecompressionBombError as error:
        raise declared_too_large(error, path, max(wanted.max_pixels, MAX_PIXELS)) from error
    except Exception as error:  # decoders raise almost anything on a damaged file
        if "raw mode" in str(error):
            _refuse_bands(data, path, wanted)
        raise UnreadableImage(path, _damage(error, kind)) from error


def from_pillow(image: Image.Image, path: str, wanted: Wanted, codec: str = "") -> Decoded:
    """Convert a loaded Pillow image to a picture.

    Args:
        image: of any mode but 32 bits per sample.
        path: name of the image in messages.
        wanted: form of the picture; colour spaces and palettes become RGB in any case.
        codec: Pillow's description of the file's layout, which tells 16 bits.

    Raises:
        UnreadableImage: its samples have 32 bits, or it has other channels than wanted.
    """
    mode, conversions = image.mode, []
    alpha = mode in _ALPHA_MODES or "transparency" in image.info
    if mode == "F" or (mode == "I" and ";16" not in codec and image.format != "PPM"):
        raise UnreadableImage(path, "32 bits per sample, whose range is not known; convert it to 8 or 16 bits")
    if mode.startswith("I"):
        values = np.asarray(image) >> (4 if ";12" in codec else 8)
        image = Image.fromarray(values.astype(np.uint8))
    if mode.startswith("I") or (";16" in codec and "BGR" not in codec):  # BGR;16 is a BMP with 5 or 6 bits per colour
        conversions.append(CUT)
    if wanted.channels != 3 and (mode in _GREY_MODES or mode in ("RGBA", "RGBX")):
        plain = {"1": "L", "La": "LA"}.get(image.mode, image.mode)
        return from_array(np.asarray(image.convert(plain)), path, wanted, tuple(conversions))
    if wanted.channels == 4 and alpha:
        return from_array(np.asarray(image.convert("RGBA")), path, wanted, (*conversions, f"{mode} to RGBA"))
    if mode in _GREY_MODES:
        conversions.append("grey to RGB")
    elif mode in ("P", "PA"):
        conversions.append("palette to RGB")
    elif mode not in ("RGB", "RGBA", "RGBX", "RGBa"):
        conversions.append(f"{mode} to RGB")
    if alpha:
        conversions.append("alpha dropped")
    return from_array(np.asarray(image.convert("RGB")), path, wanted, tuple(conversions))


def _check_bands(image: Image.Image, path: str, wanted: Wanted) -> None:
    """Raise for a TIFF of several bands that Pillow reads as grey, or RGB with others than alpha."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return
    samples = image.tag_v2.get(_SAMPLES_PER_PIXEL, 1)
    if not isinstance(samples, int) or samples == 1:
        return
    further = samples > 3 and image.tag_v2.get(_COLOURS) == _RGB and image.tag_v2.get(_EXTRA_SAMPLES) not in _ALPHA
    if len(image.getbands()) == 1 or further:
        raise OtherChannels(path, samples, wanted.channels)


def _refuse_bands(data: bytes, path: str, wanted: Wanted) -> None:
    """Raise for an intact TIFF whose bands, or the type of whose samples, Pillow does not support."""
    bands, samples = kind_of_samples(data) if is_tiff(data) else (0, None)
    if samples is not None and (samples.kind not in "bu" or samples.itemsize > 2):
        raise UnreadableImage(path, f"samples of {samples}, whose range is not known; convert it to 8 or 16 bits")
    if bands > 1 and bands != wanted.channels:
        raise OtherChannels(path, bands, wanted.channels)


def orientation(image: bytes | Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 if the metadata is damaged."""
    try:
        opened = Image.open(io.BytesIO(image)) if isinstance(image, bytes) else image
        value = opened.getexif().get(ExifTags.Base.Orientation, 1)
    except _METADATA_ERRORS:
        return 1
    return value if value in UPRIGHT else 1


def upright_size(image: Image.Image, orientation: int) -> tuple[int, int]:
    """Return height and width of a picture that is turned upright by its EXIF orientation (1 to 8)."""
    height, width = stored_size(image)
    return (width, height) if orientation in UPRIGHT and UPRIGHT[orientation][0] else (height, width)


def stored_size(image: Image.Image) -> tuple[int, int]:
    """Return height and width of the stored pixels; of a TIFF, Pillow's own size is that of the upright picture."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return int(image.tag_v2[TiffImagePlugin.IMAGELENGTH]), int(image.tag_v2[TiffImagePlugin.IMAGEWIDTH])
    return image.height, image.width


def _damage(error: Exception, kind: str) -> str:
    message = " ".join(str(error).split())
    if "truncated" in message.lower() or isinstance(error, EOFError):
        return f"truncated {kind}"
    return f"damaged {kind} ({type(error).__name__}: {message[:120]})" if message else f"damaged {kind}"


def _signature(data: bytes) -> str | None:
    return next((name for magic, name in _SIGNATURES.items() if data.startswith(magic)), None)


def _file_kind(data: bytes) -> str:
    """Return the reason for data that Pillow does not recognise as an image."""
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
