"""Official archives: names, checksums, and their search among the files that the user names."""

import dataclasses
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from sslbench.errors import DataError, UsageError

log = logging.getLogger("sslbench")
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

    Args:
        data_set: for messages.
        wanted: the archives of the data set.
        given: files and folders of the user's; folders are looked into.
        verify: compare checksums.

    Raises:
        UsageError: an archive is not there, or one was given that does not belong to the data set.
        DataError: a checksum differs.
    """
    known = {name: archive for archive in wanted for name in (archive.name, *archive.others)}
    found: dict[str, Path] = {}
    for path in given:
        if not path.exists():
            raise UsageError(f"there is no {path}", "Give the archives that you downloaded.")
        inside = [path] if path.name in known else [path / name for name in known if (path / name).exists()]
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
