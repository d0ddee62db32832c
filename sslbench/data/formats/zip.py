"""Zip archive (.zip): images in class folders, or train/, val/, test/ with such folders; read without unpacking."""

import stat
import struct
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from sslbench.data.containers.index import Index, indexed
from sslbench.data.containers.members import by_folders, images_among, safe_name, without_label_arrays
from sslbench.data.containers.slices import DEFLATED, RAW, joined
from sslbench.data.containers.sniff import HEAD
from sslbench.data.format import NoOptions, SampleReader, SourceFormat
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.text import printable

MAX_BYTES = 1 << 30
"""Largest image file that is unpacked, 1 GiB: an archive may announce any size."""

# APPNOTE 4.3.7: the signature, 22 bytes that the directory repeats, the lengths of name and extra field.
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_OTHER_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz", 99: "AES encryption"}
_PACKINGS = {zipfile.ZIP_STORED: RAW, zipfile.ZIP_DEFLATED: DEFLATED}


def recognises(spec: str) -> bool:
    """Return whether the string ends in .zip and is neither a folder nor a kwcoco manifest."""
    lower = spec.lower()
    return lower.endswith(".zip") and not lower.endswith(".kwcoco.zip") and not Path(spec).is_dir()


def open(spec: str) -> dict[str, Source]:
    """Return the images in an archive by the rules of image folders; one folder around all of them is ignored.

    Ids are paths as they would be in the unpacked folder.
    """
    path = Path(spec)
    index, stamp = indexed(path, "zip 3", _build)
    rows, notes = without_label_arrays(spec, index.names)
    images = joined([(path, stamp, index.names, index.numbers)]).select(np.array(rows, dtype=np.int64))
    return by_folders(spec, images.names, images, (*index.notes, *notes))


def _build(path: Path) -> Index:
    """Index the images and arrays of an archive: offset, sizes, checksum and compression."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            names = [_checked(path, member) for member in members]
            place = dict(zip(names, members, strict=True))

            def head(name: str) -> bytes:
                if place[name].compress_type not in _PACKINGS:
                    return b""
                with archive.open(place[name]) as content:
                    return content.read(HEAD)

            images, notes = images_among(str(path), names, lambda _: False, head)
            kept = [(name, m) for name, m in zip(names, members, strict=True) if name in images]
            size = path.stat().st_size
            numbers = [_place(path, file, member, size) for _, member in kept]
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise DataError(
            f"{path} is not a complete zip file: {error}", "Check it with: unzip -t, or get it again."
        ) from error
    return Index(
        tuple(name for name, _ in kept),
        np.array(numbers, dtype=np.int64).reshape(-1, 5),
        ("",) * len(kept),
        tuple(notes),
    )


def _checked(path: Path, member: zipfile.ZipInfo) -> str:
    """Return the name of a member, checked to be safe to read."""
    shown = printable(member.filename)
    # Some programs of Windows write backslashes.
    name = safe_name(member.filename.replace("\\", "/"))
    if name is None:
        raise DataError(
            f"{path}: '{shown}' would lie outside of the archive", "Do not use it unless you trust its author."
        )
    # The upper 16 bits are the mode of Unix.
    if stat.S_ISLNK(member.external_attr >> 16):
        raise DataError(
            f"{path}: '{shown}' is a link", "Make the archive with the files themselves (zip -r follows links)."
        )
    if member.flag_bits & 0x1:
        raise DataError(f"{path}: '{shown}' is encrypted", "Unpack the archive and give the folder.")
    return name


def _place(path: Path, file: IO[bytes], member: zipfile.ZipInfo, end: int) -> tuple[int, int, int, int, int]:
    shown = printable(member.filename)
    if member.compress_type not in _PACKINGS:
        method = _OTHER_METHODS.get(member.compress_type, str(member.compress_type))
        raise DataError(f"{path}: '{shown}' is packed by the method {method}", "Create it again with deflate or store.")
    if member.file_size > MAX_BYTES:
        raise DataError(f"{path}: '{shown}' unpacks to {member.file_size:,} bytes, the limit is {MAX_BYTES:,}")
    # The extra field may be longer here than in the directory, so only the header tells where the data begin.
    file.seek(member.header_offset)
    signature, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    start = member.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if signature != b"PK\x03\x04" or start + member.compress_size > end:
        raise DataError(f"{path} is damaged: '{shown}' is not where the directory of the archive says")
    packing = _PACKINGS[member.compress_type]
    if packing == RAW and member.compress_size != member.file_size:
        raise DataError(f"{path} is damaged: '{shown}' is stored uncompressed but has two sizes")
    return start, member.compress_size, member.file_size, member.CRC, packing


FORMAT = SourceFormat(__doc__, SampleReader(recognises, lambda request: open(request.spec), NoOptions))
