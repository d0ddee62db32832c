"""Members of archives: safe names, and the class and split folders among them."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from sslbench.arrays import IntArray
from sslbench.data.containers.exports import NOT_READ, export_by
from sslbench.data.containers.sniff import ARRAYS, SUFFIXES, decoded, is_clutter, read_text
from sslbench.data.labels import NO_CLASS_FOLDERS, single_labels
from sslbench.data.source import Source
from sslbench.data.wording import counted, part_name, repeated, some
from sslbench.errors import DataError
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Images, Target
from sslbench.text import printable

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
    sources = {}
    for split, rows in rows_of_splits(["all"] * len(ids) if splits is None else splits).items():
        chosen = np.array(sorted(rows.tolist(), key=ids.__getitem__), dtype=np.int64)
        own = tuple(ids[i] for i in chosen)
        kept = {key: tuple(column[i] for i in chosen) for key, column in (attributes or {}).items()}
        sources[split] = Source(part_name(spec, split), own, labels.select(chosen), images.select(chosen), notes, kept)
    return sources


def rows_of_splits(splits: Sequence[str]) -> dict[str, IntArray]:
    """Return the rows of each split, given the split of each row; splits in their usual order.

    >>> {split: rows.tolist() for split, rows in rows_of_splits(["val", "train", "val"]).items()}
    {'train': [1], 'val': [0, 2]}
    """
    rows: dict[str, list[int]] = {split: [] for split in sorted(set(splits), key=split_rank)}
    for row, split in enumerate(splits):
        rows[split].append(row)
    return {split: np.array(found, dtype=np.int64) for split, found in rows.items()}


def split_rank(split: str) -> tuple[int, str]:
    """Return the sort key of a split: all, train, val, test, then other names."""
    known = ("all", "train", "val", "test")
    return (known.index(split) if split in known else len(known), split)


def safe_name(name: str) -> str | None:
    """Return the name without './' and '//'; None if it is empty or leads out of the archive."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    return None if name.startswith("/") or ".." in parts or not parts else "/".join(parts)


class DistinctNames:
    """Names of files below a folder, of which no two are equal but for case, which some file systems ignore.

    >>> names = DistinctNames()
    >>> [names.name(sample) for sample in ("a/1", "A/1", "../b")], names.name("c.png")
    (['a/1', 'A/1-2', '__b'], 'c.png')
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def name(self, sample: str, suffix: str = "") -> str:
        """Return the next name: an id as a path below the folder, with a number before the suffix where it is taken."""
        stem = safe_name(sample) or sample.replace("/", "_").replace("..", "_")
        k, name = 1, f"{stem}{suffix}"
        while name.casefold() in self._taken:
            k += 1
            name = f"{stem}-{k}{suffix}"
        self._taken.add(name.casefold())
        return name


def is_image(name: str) -> bool:
    """Return whether the suffix is that of an image."""
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def in_clutter(name: str) -> bool:
    """Return whether a member is a hidden or system file, or lies in such a folder."""
    return any(is_clutter(part) for part in name.split("/"))


def refuse_twice(spec: str, ids: Sequence[str]) -> None:
    """Raise if a name occurs twice."""
    if twice := repeated(ids):
        raise DataError(f"{spec} holds {counted(len(twice), 'image')} more than once: {some(twice)}")


_Splits = dict[str, list[tuple[int, str]]]
"""Images of each split: their positions and their names relative to the split's folder."""


def by_folders(spec: str, names: Sequence[str], images: Images, notes: Sequence[str] = ()) -> dict[str, Source]:
    """Return the sources of an archive of images, by the rules of image folders.

    A folder around everything is skipped. train/, val/, test/ are splits; the first folder of a name is its class.
    """
    if not names:
        others = "".join(f"; {note.removeprefix(f'{spec}: ')}" for note in notes)
        raise DataError(
            f"{spec} has no image{others}", f"Image files end in {', '.join(sorted(SUFFIXES)[:8])} or similar."
        )
    splits, of_folders = _splits(spec, *_without_root(spec, names))
    sources = {}
    for split, members in splits.items():
        name = part_name(spec, split)
        kept, labels, about = _labelled(name, sorted(members, key=lambda member: printable(member[1])))
        ids = [printable(relative) for _, relative in kept]
        refuse_twice(name, ids)
        chosen = images.select(np.array([i for i, _ in kept], dtype=np.int64))
        sources[split] = Source(name, tuple(ids), labels, chosen, (*notes, *of_folders, *about))
    return sources


def _without_root(spec: str, names: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    tops = {name.partition("/")[0] for name in names}
    if len(tops) > 1 or not all("/" in name for name in names):
        return list(names), ()
    (top,) = tops
    # A split, not a folder around everything.
    if split_name(top):
        return list(names), ()
    below = [name.partition("/")[2] for name in names]
    return below, (f"{spec}: all images lie in {printable(top)}/, whose folders are taken as the classes",)


def _splits(spec: str, names: list[str], notes: tuple[str, ...]) -> tuple[_Splits, tuple[str, ...]]:
    folders = {name.partition("/")[0] for name in names if "/" in name}
    split_of = {folder: split for folder in folders if (split := split_name(folder))}
    found = set(split_of.values())
    if len(found) < len(split_of):
        raise DataError(f"{spec} has two folders for one split: {some(sorted(split_of))}")
    # Beside other folders a single one called train or test may be a class.
    if not found or not (len(split_of) == len(folders) or ("train" in found and len(found) > 1)):
        return {"all": list(enumerate(names))}, notes
    splits: _Splits = {s: [] for s in ("train", "val", "test") if s in found}
    beside = []
    for i, name in enumerate(names):
        folder, _, rest = name.partition("/")
        if rest and folder in split_of:
            splits[split_of[folder]].append((i, rest))
        else:
            beside.append(name)
    if beside:
        notes = (*notes, f"{spec}: {counted(len(beside), 'image')} beside the splits left out: {some(sorted(beside))}")
    return splits, notes


def _labelled(name: str, members: list[tuple[int, str]]) -> tuple[list[tuple[int, str]], Target, list[str]]:
    in_classes = [(i, relative) for i, relative in members if "/" in relative]
    tops = {relative.partition("/")[0] for _, relative in in_classes}
    if len(tops) == 1 and len(in_classes) == len(members) and names_no_class(*tops):
        below = {relative.split("/")[1] if relative.count("/") > 1 else "" for _, relative in in_classes}
        in_classes = in_classes if len(below) > 1 else []  # images/ is no class
    if not in_classes:
        return members, Unlabelled(len(members)), [f"{name}: {NO_CLASS_FOLDERS}"]
    loose = [relative for _, relative in members if "/" not in relative]
    notes = (
        [f"{name}: {counted(len(loose), 'image')} outside the class folders left out: {some(loose)}"] if loose else []
    )
    return in_classes, single_labels([printable(relative.partition("/")[0]) for _, relative in in_classes]), notes


_LISTS = {".csv", ".json", ".jsonl", ".parquet", ".tsv", ".txt", ".xml", ".yaml"}


def is_array(name: str) -> bool:
    """Return whether the suffix is .npy or .npz."""
    return PurePosixPath(name).suffix.lower() in ARRAYS


def without_label_arrays(spec: str, names: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
    """Return the positions of the images among members that are images or arrays, and a note about the others.

    Arrays count as images only where there are no others, as in folders: labels and features are stored as arrays too.
    """
    pictures = [i for i, name in enumerate(names) if not is_array(name)]
    if not pictures or len(pictures) == len(names):
        return list(range(len(names))), ()
    return pictures, (
        f"{spec}: {counted(len(names) - len(pictures), 'NumPy file')} (.npy, .npz) beside images left out",
    )


def images_among(
    spec: str, names: Collection[str], what_else: Callable[[str], bool], head: Callable[[str], bytes]
) -> tuple[set[str], list[str]]:
    """Return the members that are images or arrays, and notes about those that are neither, nor `what_else`."""
    images = {name for name in names if (is_image(name) or is_array(name)) and not in_clutter(name)}
    hidden = sorted(printable(name) for name in names if in_clutter(name))
    others = [name for name in names if name not in images and not in_clutter(name) and not what_else(name)]
    notes = [f"{spec}: hidden or system files left out: {some(hidden)}"] if hidden else []
    if not others:
        return images, notes
    kinds = Counter(PurePosixPath(name).suffix.lower() or "no suffix" for name in others)
    exports = []
    # Reversed, so that of each suffix the first name stays.
    for name in {PurePosixPath(name).suffix.lower(): name for name in sorted(others, reverse=True)}.values():
        export = export_by(name, functools.partial(_text, head, name))
        if export is not None and export.pattern:
            exports.append(f"{spec}: {printable(name)} is {export.title}, {NOT_READ}. {export.remedy}")
    unpack = not exports and bool(_LISTS & set(kinds))
    advice = "; if they have labels or boxes, unpack it and give the folder" if unpack else ""
    listed = some([kind for kind, _ in kinds.most_common()])
    notes.append(f"{spec}: {counted(len(others), 'file')} of other kinds ({listed}) left out{advice}")
    return images, notes + exports


def _text(head: Callable[[str], bytes], name: str) -> str:
    return decoded(head(name))


def class_names(file: Path, highest: int) -> tuple[str, ...]:
    """Return the names in a text file, one line per class from class 0 on, at least to the highest number in use."""
    lines = [line.strip() for line in read_text(file)[0].splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    if len(lines) <= highest:
        raise DataError(f"{file} names {len(lines)} classes, but there is a class number {highest}")
    if "" in lines or len(set(lines)) < len(lines):
        raise DataError(f"{file}: a line is empty or occurs twice", "It should name each class once, in order.")
    return tuple(lines)


def names_by_number(file: Path | None, labels: Collection[str]) -> dict[str, str]:
    """Return class number -> name by such a file; empty if there is none, or the labels are no numbers."""
    if file is None or not all(label.isdecimal() for label in labels):
        return {}
    return {str(i): name for i, name in enumerate(class_names(file, max(map(int, labels), default=-1)))}


def list_beside(folder: Path) -> Path | None:
    """Return the file of class names in a folder; None without one."""
    names = ("classnames.txt", "classes.txt")
    return next((folder / name for name in names if (folder / name).is_file()), None)
