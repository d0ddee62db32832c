"""Atomic writing of a folder of images: planned, written to a temporary folder, counted, renamed."""

import contextlib
import dataclasses
import functools
import gzip
import hashlib
import logging
import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from sslbench.data.containers.members import is_image, safe_name
from sslbench.data.wording import counted
from sslbench.errors import DataError, UsageError
from sslbench.locks import lock

log = logging.getLogger("sslbench")
_NOTE_EVERY = 20_000
BLOCK_BYTES = 4096
"""Smallest allocation of a file on most file systems, in bytes."""


NewFiles = Iterator[tuple[str, Callable[[], bytes]]]
"""Relative path of each file of a data set, '/'-separated, and what gives its content, which may not be asked for."""


def prepare_folder(target: Path, samples: Mapping[str, int], files: NewFiles, space: int) -> Path:
    """Write all files and return the folder, which then has its name; a run that was interrupted continues.

    Args:
        target: the final folder.
        samples: images that its parts have to hold, {'train': 50000, 'test': 10000}; empty: not compared.
        files: to be written; the content of one that is there is not asked for.
        space: bytes that all of them take, roughly.
    """
    refuse_existing(target)
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with partial.with_name(f"{partial.name}.lock").open("ab") as mark:
            # None stands for a file system without locks.
            if lock(mark, wait=False) is False:
                raise UsageError(f"another process is writing {partial}")
            _check_space(partial, space)
            written = _write(partial, files)
            _check_counts(written, samples, target)
            partial.rename(target)
    except OSError as error:
        where = error.filename or partial
        raise DataError(
            f"stopped at {where}: {error.strerror or error}", "Written images are kept; the same command continues."
        ) from error
    partial.with_name(f"{partial.name}.lock").unlink(missing_ok=True)
    return target


def refuse_existing(target: Path) -> None:
    """Refuse to write over a folder."""
    if target.exists():
        raise UsageError(f"{target} exists already", "Remove it, or give another --out.")


def _check_space(partial: Path, needed: int) -> None:
    there = sum(
        max(BLOCK_BYTES, (Path(root) / name).stat().st_size) for root, _, names in os.walk(partial) for name in names
    )
    free = shutil.disk_usage(partial).free
    if there:
        log.info(f"continuing: {there / 1e9:.1f} GB are already written")
    if needed - there > free:
        raise DataError(
            f"{partial.parent} has {free:,} bytes free, and {needed - there:,} are needed",
            "Free disk space, or give another --out.",
        )


def _write(partial: Path, files: NewFiles) -> Counter[str]:
    """Write what is not there yet; the number of images by the first folder of their paths."""
    parts: Counter[str] = Counter()
    folders: set[Path] = set()
    total = 0
    for total, (name, content) in enumerate(files, 1):
        path = partial / name
        if path.parent not in folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
        if not path.exists():
            # A file that has its name is complete: a run that continues does not write it again.
            temporary = path.with_name(f".{path.name}.new")
            temporary.write_bytes(content())
            temporary.rename(path)
        if is_image(name):
            parts[PurePosixPath(name).parts[0]] += 1
        if total % _NOTE_EVERY == 0:
            log.info(f"{counted(total, 'file')} written")
    if sum(len(names) for _, _, names in os.walk(partial)) > total:
        raise DataError(
            f"{partial} has files that these archives do not have: those of others, which were given before",
            "Remove that folder, and run the same command again.",
        )
    return parts


def _check_counts(found: Counter[str], samples: Mapping[str, int], target: Path) -> None:
    """Check the number of images of each split (first folder of a path; without folders the total); test may be val."""
    if not samples:
        return
    if set(found) & {"train", "val", "test"}:
        ours = {"train": found["train"], "test": found["val"] + found["test"]}
        wrong = {part: n for part, n in samples.items() if ours.get(part) != n}
    else:
        ours = {"all": sum(found.values())}
        wrong = {"all": sum(samples.values())} if ours["all"] != sum(samples.values()) else {}
    if wrong:
        text = "; ".join(f"{part}: {ours.get(part, 0):,} images, expected {n:,}" for part, n in wrong.items())
        raise DataError(
            f"the archives do not hold all of {target.name}: {text}",
            "Check the archives; --no-verify accepts a part of the data set.",
        )


def members(archive: Path) -> NewFiles:
    """Yield the files of a tar (packed or not) or zip, in its order; folders are passed over.

    A member's content has to be asked for before the next member is.
    """
    if zipfile.is_zipfile(archive):
        with _damage(archive), zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    yield _safe(archive, info.filename), functools.partial(_read_zip, archive, packed, info)
        return
    # As a stream: to seek back in a packed tar is to unpack it from its start again.
    with _damage(archive), tarfile.open(archive, mode="r|*") as stream:
        for member in stream:
            if member.isdir():
                continue
            if not member.isfile():
                raise DataError(f"{archive}: the member {member.name!a} is a link or a device, which is refused")
            yield _safe(archive, member.name), functools.partial(_read_tar, archive, stream, member)


def listed_lines(archive: Path, lists: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield part, place for messages and text of each line of lists (file name -> part) in an archive."""
    found = set()
    for name, content in members(archive):
        if (part := lists.get(name.rpartition("/")[2])) is not None:
            found.add(part)
            for number, line in enumerate(content().decode("utf-8", "replace").splitlines(), 1):
                if line.strip():
                    yield part, f"{archive}: {name}, line {number}: {line!a}", line.strip()
    if found != set(lists.values()):
        raise DataError(f"{archive} does not hold {' and '.join(lists)}")


@contextlib.contextmanager
def _damage(archive: Path) -> Iterator[None]:
    """Report an archive as damaged if reading it fails; errors of the disk pass through."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise DataError(f"{archive} is damaged: {error}", "Download it again; written images are kept.") from error
    except (NotImplementedError, RuntimeError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}", "Is it the official archive?") from error


def _read_tar(archive: Path, stream: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    with _damage(archive):
        file = stream.extractfile(member)
        content = file.read() if file is not None else b""
        if len(content) != member.size:
            raise EOFError(f"{member.name!a} ends early")
        return content


def _read_zip(archive: Path, packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    with _damage(archive):
        return packed.read(info)


def _safe(archive: Path, name: str) -> str:
    safe = safe_name(name)
    if safe is None or "\\" in name or "\0" in name:
        raise DataError(f"{archive}: the member {name!a} lies outside of the archive, which is refused")
    return safe


def archive_space(archives: Mapping[str, Path]) -> int:
    """Return the bytes that images in these archives, or unpacked, take: they do not pack, and files are rounded up."""
    files = (file for path in archives.values() for file in (path.rglob("*") if path.is_dir() else [path]))
    return sum(int(file.stat().st_size * 1.05) for file in files if file.is_file())  # a link may lead nowhere


@dataclasses.dataclass(frozen=True)
class Maker:
    """Way from the archives of a data set, by their official names, to its folder.

    Attributes:
        archives: all of them.
        files: function from the archives to the files of the folder.
        space: bytes that the files take; 0: those of the archives.
    """

    archives: "tuple[Official, ...]"
    files: Callable[[Mapping[str, Path]], NewFiles]
    space: int = 0


_BLOCK = 1 << 22


@dataclasses.dataclass(frozen=True)
class Official:
    """Archive as published by the data set's authors.

    Attributes:
        name: of the file.
        md5: published checksum; empty where there is none.
        others: names under which the same content may lie, such as an unpacked folder.
    """

    name: str
    md5: str = ""
    others: tuple[str, ...] = ()


def find_archives(
    data_set: str, wanted: Sequence[Official], given: Sequence[Path], *, verify: bool
) -> Mapping[str, Path]:
    """Return the path of every archive by its official name.

    `given`: files and folders of the user's; folders are looked into.
    """
    known = {name: archive for archive in wanted for name in (archive.name, *archive.others)}
    found: dict[str, Path] = {}
    for path in given:
        if not path.exists():
            raise UsageError(f"there is no {path}", "Give the archives that you downloaded.")
        inside = [path] if path.name in known else []
        # An unpacked folder may hold another one.
        inside += [path / name for name in known if (path / name).exists()]
        if not inside:
            listed = ", ".join(archive.name for archive in wanted)
            raise UsageError(f"{path} does not have the name of an archive of {data_set}", f"Archives: {listed}")
        for file in inside:
            found.setdefault(known[file.name].name, file)
    if missing := [archive.name for archive in wanted if archive.name not in found]:
        raise UsageError(
            f"{data_set} consists of {len(wanted)} archives; missing: {', '.join(missing)}",
            "Add --archive FILE for each, or --archive FOLDER for a folder that holds them.",
        )
    for archive in wanted:
        if verify and archive.md5 and found[archive.name].is_file():
            _compare(found[archive.name], archive.md5)
    return found


def _compare(path: Path, wanted: str) -> None:
    log.info(f"checking {path} against its published checksum")
    # Python on systems in FIPS mode refuses MD5 for security.
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    if digest.hexdigest() != wanted:
        raise DataError(
            f"{path} is damaged or another file: its MD5 checksum is {digest.hexdigest()}, published is {wanted}",
            "Download it again; --no-verify skips the check.",
        )
