"""Decoding of pixel arrays with any number of channels: NumPy files, and all bands of a TIFF."""

import io
import logging
import math
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sslbench.data.decode.picture import (
    Decoded,
    OtherChannels,
    UnreadableImage,
    Wanted,
    check_size,
    from_array,
    upright,
)

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_ORIENTATION = 274
_HEAD = 4096  # upper bound of the size of an array's header


def is_numpy(data: bytes, path: str) -> bool:
    """Return whether the data are of np.save, or a zip with the name of an .npz."""
    return data.startswith(b"\x93NUMPY") or (data.startswith(b"PK\x03\x04") and path.lower().endswith(".npz"))


def is_tiff(data: bytes) -> bool:
    """Return whether the data are a TIFF or BigTIFF."""
    return data.startswith(_TIFF)


def decode_numpy(data: bytes, path: str, wanted: Wanted) -> Decoded:
    """Decode the array (H, W) or (H, W, channels) of a .npy, or the only one of an .npz.

    Raises:
        UnreadableImage: damaged, of another shape or dtype, too large, or with other channels than wanted.
    """
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


def decode_tiff(data: bytes, path: str, wanted: Wanted) -> Decoded:
    """Decode all bands of a TIFF: samples of one page (interleaved or planar), or pages of one band.

    Raises:
        UnreadableImage: damaged, in an unknown compression, too large, or with other channels than wanted.
    """
    import tifffile

    try:
        with _silent(), tifffile.TiffFile(io.BytesIO(data)) as file:
            series = file.series[0]
            page = series.keyframe
            check_size(page.imagewidth, page.imagelength, path, wanted.max_pixels)
            bands = _axis_of_bands(series, path, wanted)
            _check_channels(1 if bands is None else series.shape[bands], path, wanted)
            _check_complete(series, len(data), path)
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
    return upright(from_array(array if bands is None else np.moveaxis(array, bands, 2), path, wanted), turn)


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


def _check_complete(series: Any, length: int, path: str) -> None:
    """Raise for a truncated file, whose missing pixels tifffile would return as zeros."""
    for page in series.pages:
        ends = [at + count for at, count in zip(page.dataoffsets, page.databytecounts, strict=True)]
        if not all(page.databytecounts) or max(ends, default=length + 1) > length:
            raise UnreadableImage(path, "truncated TIFF")


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
