"""Decoding of an encoded file or an array to a picture, equal to Pillow's bit for bit."""

import ctypes
import dataclasses
import functools
import importlib.util
import io
import logging
import math
import os
import re
import struct
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageFile, TiffImagePlugin, UnidentifiedImageError, _imaging

from sslbench.data.decode.picture import (
    CUT,
    GREY_TO_RGB,
    RGB,
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

if TYPE_CHECKING:
    import torch

__all__ = ["MAX_PIXELS", "Decoded", "UnreadableImage", "Wanted", "decode"]

DAMAGED = "damaged JPEG, decoded as far as its data go"
"""Conversion of a picture of whose data libjpeg warns."""
_OF_DAMAGE = re.compile(r"^(?:Corrupt JPEG data|Premature end|Inconsistent progression|Invalid SOS).*\n?", re.M)
_OF_LIBJPEG = re.compile(_OF_DAMAGE.pattern + r"|^(?:Warning: unknown JFIF|Unknown Adobe color).*\n?", re.M)
_STDERR = threading.Lock()

_BASELINE_OR_PROGRESSIVE = (0xC0, 0xC1, 0xC2)
_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)


def decode(data: bytes | npt.NDArray[np.uint8], path: str, wanted: Wanted = RGB) -> Decoded:
    """Decode a picture, by default to RGB, as Pillow's open, exif_transpose and convert('RGB') do.

    Baseline and progressive JPEG goes through torchvision.io, which is faster and gives the same pixels. PNG does not:
    torchvision's decoder can crash the process on damaged files and gains little. Differences from Pillow's
    convert('RGB'): samples of 16 bits keep their upper 8 (Pillow clips grey ones to white) unless wanted otherwise,
    and are refused where these are almost empty, float pictures are refused, because their range is unknown, and a
    fourth band of a TIFF is dropped only where the file calls it alpha. NumPy files (.npy, .npz) hold an array (H, W)
    or (H, W, channels); where other channels than RGB are wanted, TIFF is read with all its bands.

    Args:
        data: the encoded file; or an array (H, W) or (H, W, channels), uint8.
        path: name of the image in messages.
        wanted: channels, depth and maximum size.

    Raises:
        UnreadableImage: `data` hold no complete picture as wanted; a partial one is never returned.
    """
    if isinstance(data, np.ndarray):
        return from_array(data, path, wanted)
    if not data:
        raise UnreadableImage(path, "empty file")
    if data.startswith(b"\x93NUMPY") or (data.startswith(b"PK\x03\x04") and path.lower().endswith(".npz")):
        return decode_numpy(data, path, wanted)
    if wanted.channels != 3 and is_tiff(data):
        array, turn = tiff_array(data, path, wanted)
        return upright(from_array(array, path, wanted), turn)
    with strict_and_silent(wanted.max_pixels):
        header = _jpeg_header(data)
        if header is not None:
            check_size(header.width, header.height, path, wanted.max_pixels)
            if wanted.resize is not None and wanted.channels == 3:
                # By the largest factor that leaves twice the resized size, as with Pillow's reducing_gap=2.0: libjpeg
                # cuts off frequencies that the filter of the resize attenuates. On two detailed photographs the resized
                # pictures were 0.8 to 2.8 levels off on average, with once the size 1.4 to 5.3. EXIF may swap width
                # and height.
                side = wanted.resize if isinstance(wanted.resize, int) else max(wanted.resize)
                shorter = min(header.width, header.height)
                scale = next((factor for factor in (8, 4, 2) if shorter >= 2 * factor * side), 1)
                if scale > 1:
                    return decode_with_pillow(data, path, wanted, scale)
            if wanted.channels == 3 and (decode_jpeg := jpeg_decoder()) is not None:
                # If torchvision.io fails, Pillow decides, and gives the reason.
                with suppress(RuntimeError):
                    with _stderr_of_libjpeg() as told:
                        image = decode_jpeg(data)
                    decoded = Decoded(image, (GREY_TO_RGB,) * (header.channels == 1) + (DAMAGED,) * bool(told))
                    return upright(decoded, orientation(data) if header.has_metadata else 1)
        return decode_with_pillow(data, path, wanted)


@functools.cache
def jpeg_decoder() -> "Callable[[bytes], torch.Tensor] | None":
    """Return torchvision's decoder of JPEGs to RGB; None where it has none, as after version 0.29."""
    import torch

    found = importlib.util.find_spec("torchvision")
    try:
        # Its library alone, in two milliseconds: torchvision itself takes two seconds to import.
        library = next(Path(found.origin).parent.glob("image*.so")) if found and found.origin else ""
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        decode_jpeg = torch.ops.image.decode_jpeg
    except (StopIteration, OSError, AttributeError):  # Pillow gives the same pixels
        return None
    # A copy, since torch warns of buffers that are read-only. 3 is ImageReadMode.RGB, and EXIF is ignored.
    return lambda data: decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), 3, False)


@contextmanager
def _stderr_of_libjpeg() -> Iterator[list[str]]:
    """Collect libjpeg's messages on damage, which torchvision lets it write to stderr; others are written there."""
    told: list[str] = []
    # Of several threads one at a time, since stderr is the process's; messages to the others are not collected.
    if not _STDERR.acquire(blocking=False):
        yield told
        return
    with ExitStack() as stack:
        stack.callback(_STDERR.release)
        try:
            stderr = os.dup(2)
        except OSError:  # closed
            yield told
            return
        stack.callback(os.close, stderr)
        read, write = os.pipe()
        stack.callback(os.close, read)
        os.set_blocking(read, False)
        os.dup2(write, 2)
        os.close(write)
        try:
            yield told
        finally:
            os.dup2(stderr, 2)
            with suppress(BlockingIOError):
                text = os.read(read, 2**16).decode(errors="replace")
                told += _OF_DAMAGE.findall(text)
                if rest := _OF_LIBJPEG.sub("", text):
                    os.write(2, rest.encode())


@dataclasses.dataclass(frozen=True)
class _JpegHeader:
    width: int
    height: int
    channels: int
    has_metadata: bool  # an APP1 segment: EXIF or XMP, either of which may hold the orientation


def _jpeg_header(data: bytes) -> _JpegHeader | None:
    """Parse the segments before the first scan; None unless the data are an 8-bit grey or colour JPEG."""
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


_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_ORIENTATION = 274
_HEAD = 4096  # upper bound of the size of an array's header


def is_tiff(data: bytes) -> bool:
    """Return whether the data are a TIFF or BigTIFF."""
    return data.startswith(_TIFF)


def decode_numpy(data: bytes, path: str, wanted: Wanted) -> Decoded:
    """Decode the array (H, W) or (H, W, channels) of a .npy, or the only one of an .npz."""
    try:
        member = _only_member(data, path, wanted) if data.startswith(b"PK") else io.BytesIO(data)
        _check_header(member, path, wanted)
        array = np.lib.format.read_array(member, allow_pickle=False)
    except UnreadableImage:
        raise
    except Exception as error:  # a header is parsed as a Python literal, which can fail in many ways
        raise UnreadableImage(path, f"damaged NumPy file ({_one_line(error)})") from error
    return from_array(array, path, wanted)


def _only_member(data: bytes, path: str, wanted: Wanted) -> io.BytesIO:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if len(members) != 1:
            raise UnreadableImage(path, f"an .npz with {len(members)} arrays instead of one")
        with archive.open(members[0]) as file:
            head = io.BytesIO(file.read(_HEAD))
        size = _check_header(head, path, wanted)
        if members[0].file_size > size + _HEAD:  # the size in the zip directory limits the unpacking
            raise UnreadableImage(path, "an .npz whose array is larger than declared")
        return io.BytesIO(archive.read(members[0]))


def _check_header(file: io.BytesIO, path: str, wanted: Wanted) -> int:
    """Check an array's header before the array is allocated, and return its size in bytes."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    file.seek(0)
    if dtype not in (np.uint8, np.uint16):
        raise UnreadableImage(path, f"an array of {dtype}, whose range is not known; should be uint8 or uint16")
    if len(shape) not in (2, 3):
        raise UnreadableImage(path, f"an array of shape {shape}, should be (H, W) or (H, W, channels)")
    check_size(shape[1], shape[0], path, wanted.max_pixels)
    _check_channels(shape[2] if len(shape) == 3 else 1, path, wanted)
    return math.prod(shape) * dtype.itemsize


def _check_channels(channels: int, path: str, wanted: Wanted) -> None:
    if channels != wanted.channels and (channels, wanted.channels) != (1, 3):
        raise OtherChannels(path, channels, wanted.channels)


def tiff_array(data: bytes, path: str, wanted: Wanted) -> tuple[npt.NDArray[Any], int]:
    """Return the samples of a TIFF in their own type, (H, W) or (H, W, bands), and the number of its orientation."""
    import tifffile

    try:
        with _silent(), tifffile.TiffFile(io.BytesIO(data)) as file:
            series = file.series[0]
            page = series.keyframe
            check_size(page.imagewidth, page.imagelength, path, wanted.max_pixels)
            bands = _axis_of_bands(series, path, wanted)
            _check_channels(1 if bands is None else series.shape[bands], path, wanted)
            pages: Any = series.pages
            for part in pages:
                ends = [at + count for at, count in zip(part.dataoffsets, part.databytecounts, strict=True)]
                # tifffile would return missing pixels as zeros.
                if not all(part.databytecounts) or max(ends, default=len(data) + 1) > len(data):
                    raise UnreadableImage(path, "truncated TIFF")
            array = series.asarray()
            tag = page.tags.get(_ORIENTATION)
            turn = int(tag.value) if tag is not None else 1
    except UnreadableImage:
        raise
    except Exception as error:  # decoders raise almost anything on a damaged file
        reason = _one_line(error)
        if "imagecodecs" in reason:
            raise UnreadableImage(
                path, "TIFF in a compression that needs imagecodecs: install it, or write DEFLATE or none"
            ) from error
        raise UnreadableImage(path, f"damaged TIFF ({reason})") from error
    return array if bands is None else np.moveaxis(array, bands, 2), turn


def kind_of_samples(data: bytes) -> tuple[int, np.dtype[Any] | None]:
    """Return the number of bands in a TIFF's header and the type of their samples; (0, None) if it cannot be read."""
    import tifffile

    try:
        with _silent(), tifffile.TiffFile(io.BytesIO(data)) as file:
            page = file.pages.first
            return int(page.samplesperpixel), page.dtype
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, struct.error):
        return 0, None


@contextmanager
def _silent() -> Iterator[None]:
    """Silence tifffile's log; its errors become the reason of an UnreadableImage."""
    logger = logging.getLogger("tifffile")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _axis_of_bands(series: Any, path: str, wanted: Wanted) -> int | None:
    """Return the axis of the bands, other than tifffile's X and Y; None without one."""
    shape, axes = series.shape, str(series.axes)
    if "X" not in axes or "Y" not in axes or len(shape) not in (2, 3):
        raise UnreadableImage(path, f"a TIFF of shape {shape} (axes {axes}), should be one picture with bands")
    # tifffile.imwrite(file, array of (H, W, 13)), without planarconfig, writes H pages of W x 13 and notes the shape.
    if series.kind == "shaped" and len(shape) == 3 and shape[2] == wanted.channels != shape[0] and axes.endswith("YX"):
        check_size(shape[1], shape[0], path, wanted.max_pixels)
        return 2
    return next((i for i, name in enumerate(axes) if name not in "XY"), None)


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


_COLOURS, _SAMPLES_PER_PIXEL, _EXTRA_SAMPLES = 262, 277, 338  # tags of TIFF
_RGB = 2
_ALPHA = ((1,), (2,))  # one extra sample, alpha: premultiplied or not
_ANIMATED_FORMATS = ("GIF", "PNG", "WEBP", "AVIF", "TIFF")
_GREY_MODES = ("1", "L", "LA", "La")
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

# libtiff would write to stderr a line for each tag that it does not know; what it cannot read, Pillow raises.
with suppress(OSError, AttributeError):  # Pillow without libtiff
    _library = ctypes.CDLL(_imaging.__file__)
    _library.TIFFSetWarningHandler(None)
    _library.TIFFSetErrorHandler(None)


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

    `scale`: 2, 4 or 8: decode a JPEG at 1 / scale of its size, without its high frequencies (libjpeg).
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
        message = " ".join(str(error).split())
        if "truncated" in message.lower() or isinstance(error, EOFError):
            raise UnreadableImage(path, f"truncated {kind}") from error
        detail = f" ({type(error).__name__}: {message[:120]})" if message else ""
        raise UnreadableImage(path, f"damaged {kind}{detail}") from error


def from_pillow(image: Image.Image, path: str, wanted: Wanted, codec: str = "") -> Decoded:
    """Convert a loaded Pillow image to a picture.

    Args:
        image: of any mode but 32 bits per sample.
        path: name of the image in messages.
        wanted: form of the picture; colour spaces and palettes become RGB in any case.
        codec: Pillow's description of the file's layout, which tells 16 bits.
    """
    mode, conversions = image.mode, []
    alpha = mode in _ALPHA_MODES or "transparency" in image.info
    if mode == "F" or (mode == "I" and ";16" not in codec and image.format != "PPM"):
        raise UnreadableImage(path, "32 bits per sample, whose range is not known; convert it to 8 or 16 bits")
    if mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0:
            raise UnreadableImage(
                path, "samples below 0, whose range is not known; convert it to 8 or 16 bits without sign"
            )
        # Samples of 12 bits fill the lower 12 of 16.
        values = values << 4 | values >> 8 if ";12" in codec else values
        wanted = dataclasses.replace(wanted, deep=wanted.deep and (wanted.luminance or wanted.channels != 3))
        return from_array(values.astype(np.uint16), path, wanted, ("alpha dropped",) * alpha)
    if ";16" in codec and "BGR" not in codec:  # BGR;16 is a BMP with 5 or 6 bits per colour
        conversions.append(CUT)
    if wanted.channels != 3 and (mode in _GREY_MODES or mode in ("RGBA", "RGBX")):
        plain = {"1": "L", "La": "LA"}.get(image.mode, image.mode)
        return from_array(np.asarray(image.convert(plain)), path, wanted, tuple(conversions))
    if wanted.channels == 4 and alpha:
        return from_array(np.asarray(image.convert("RGBA")), path, wanted, (*conversions, f"{mode} to RGBA"))
    if mode in _GREY_MODES:
        conversions.append(GREY_TO_RGB)
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
    is_text = all(byte >= 32 or byte in b"\t\n\r\f" for byte in head)
    try:
        head[:-3].decode("utf-8")  # a character may be cut at the end
    except UnicodeDecodeError as error:
        is_text = is_text and error.start >= len(head) - 8
    return "not an image (text)" if is_text else "not an image"
