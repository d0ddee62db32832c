"""Names of splits, columns and files, as several formats use them."""

import os
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sslbench.data.source import Images, Labels, Source
from sslbench.data.wording import counted, printable, some
from sslbench.errors import DataError

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


MOST_CHECKED = 20_000
"""Maximum number of listed files whose existence is checked."""


def split_name(name: str) -> str | None:
    """Return 'train', 'val' or 'test' for a usual name of that split, in any case; None for any other name."""
    return _SPLITS.get(name.strip().lower())


def image_id(name: str, folder: Path) -> str:
    """Return the id of an image listed in a manifest: its path relative to `folder` if it lies inside."""
    if os.path.isabs(name):  # noqa: PTH117
        relative = os.path.relpath(name, folder)
        name = name if relative.startswith("..") else relative
    return printable(posixpath.normpath(name.replace(os.sep, "/")))


def check_files(spec: str, files: Sequence[str], ids: Sequence[str], folder: Path, remedy: str | None = None) -> None:
    """Check that every image listed in a table or manifest exists and is listed once.

    Args:
        spec: name of the list in messages.
        files: the images, relative to `folder` or absolute.
        ids: one per file.
        folder: base of relative paths.
        remedy: advice for missing files; by default the path that was looked for.

    Raises:
        DataError: an image is listed twice, or files are missing.
    """
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        twice = sorted({i for i in ids if i in seen or seen.add(i)})  # type: ignore[func-returns-value]
        raise DataError(
            f"{spec} lists {counted(len(twice), 'image')} more than once: {some(twice)}",
            "Keep one entry per image; several labels of one image go into one cell: cat;dog",
        )
    check_some(spec, files, folder, remedy)


def check_some(spec: str, files: Sequence[str | Path], folder: Path, remedy: str | None = None) -> None:
    """Check that files exist; of more than `MOST_CHECKED`, as many as that, evenly spaced.

    Checking each of a million files takes minutes on a network drive; decoding reports any other missing file.

    Raises:
        DataError: files are missing.
    """
    n = len(files)
    rows = range(n) if n <= MOST_CHECKED else np.linspace(0, n - 1, MOST_CHECKED).astype(np.int64).tolist()
    root = str(folder)
    missing = [files[i] for i in rows if not os.path.exists(os.path.join(root, files[i]))]  # noqa: PTH110, PTH118
    if missing:
        asked = counted(n, "image file") if n <= MOST_CHECKED else f"the {len(rows):,} image files looked for"
        raise DataError(
            f"{spec}: {len(missing):,} of {asked} missing: {some(missing)}",
            remedy
            or f"Relative paths start at the folder of the list: looked for {printable(str(folder / missing[0]))}",
        )


def numbered_ids(n: int) -> tuple[str, ...]:
    """Return ids '0000', '0001', ... of equal length, which ascend as text, for images that have no names.

    Examples:
        >>> numbered_ids(11)[8:]
        ('08', '09', '10')
    """
    width = len(str(n - 1))
    return tuple(f"{i:0{width}d}" for i in range(n))


def by_split(
    spec: str,
    ids: Sequence[str],
    labels: Labels,
    images: Images,
    splits: Sequence[str] | None,
    notes: tuple[str, ...],
    attributes: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Source]:
    """Return one source per split, each in order of ids; {"all": source} if `splits` (one per image) is None."""
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
    split_of = ["all"] * len(ids) if splits is None else splits
    sources = {}
    for split in sorted(set(split_of), key=split_rank):
        chosen = order[[split_of[i] == split for i in order]]
        name = spec if splits is None else f"{spec} ({split})"
        chosen_ids = tuple(ids[i] for i in chosen)
        kept = {key: tuple(column[i] for i in chosen) for key, column in (attributes or {}).items()}
        sources[split] = Source(name, chosen_ids, labels.select(chosen), images.select(chosen), notes, kept)
    return sources


def split_rank(split: str) -> tuple[int, str]:
    """Return the sort key of a split: all, train, val, test, then other names."""
    known = ("all", "train", "val", "test")
    return (known.index(split) if split in known else len(known), split)
