"""Names of splits and numbers of images, as several formats use them."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from sslbench.data.source import Source
from sslbench.targets.target import Images, Target

_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def split_name(name: str) -> str | None:
    """Return 'train', 'val' or 'test' for a usual name of that split, in any case; None for any other name."""
    return _SPLITS.get(name.strip().lower())


IMAGE_FOLDERS = ("images", "jpegimages", "image", "imgs", "img", "photos", "pictures")
"""Names of folders of all images, in lower case."""
_NO_CLASS = re.compile(rf"({'|'.join(IMAGE_FOLDERS)}|data|media|frames?)[-_]?\d*|(train|val|test)[-_]?\d+")


def names_no_class(folder: str) -> bool:
    """Return whether the name of a folder is usual for images of any class.

    >>> [names_no_class(name) for name in ("images", "image_2", "train2017", "cat")]
    [True, True, True, False]
    """
    return _NO_CLASS.fullmatch(folder.lower()) is not None


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
    labels: Target,
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
