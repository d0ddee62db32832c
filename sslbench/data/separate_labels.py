"""Labels from another place than their images: `photos/?labels=labels.csv`."""

import dataclasses
import itertools
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from sslbench.arrays import IntArray
from sslbench.data.containers.listed import plain_path
from sslbench.data.containers.members import is_image, numbered_ids, split_name
from sslbench.data.format import LabelList
from sslbench.data.labels import NO_CLASS_FOLDERS, NO_LABEL_COLUMN
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.text import printable

_BY_PATH = "Give the labels as a table with the columns path and label."
_ALL = 1_000  # more folders than a path has
_PLAIN = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)


def with_labels(
    place: str, labels: Mapping[str, LabelList], sources: Mapping[str, Source], *, in_order_of_names: bool
) -> dict[str, Source]:
    """Return the sources with these labels in place of their own.

    Labels with names belong to the image of that path or id; see `_readings`. Labels without names are in the order of
    the images: in a folder by the name of the folder, then of the file, as torchvision's ImageFolder lists them.

    Args:
        place: of the labels, for messages.
        labels: of each split; a single list serves all splits.
        sources: images of each split.
        in_order_of_names: the images have no order but that of their names; see `SampleReader`.

    Raises:
        DataError: an image has no label or several, or the lengths differ.
        UsageError: the splits differ, there are no labels, or the order of the images is not known.
    """
    for found in labels.values():
        if not found.target.labelled or found.target.of_pixels or len(found.target.classes) == 0:
            raise UsageError(f"{place}: labels of whole images are needed, not {found.target.title}", _BY_PATH)
    if len(labels) > 1 and (missing := [split for split in sources if split not in labels]):
        raise UsageError(
            f"{place} has labels of {some(list(labels))}, and not of the images' split '{missing[0]}'",
            "Give a place with the same splits, or one list of paths for all.",
        )
    (only, *_) = labels.values()
    if len(labels) == 1 and only.names is not None:
        return _by_name(place, only, sources)
    if len(labels) == 1 and len(sources) > 1:
        raise UsageError(
            f"{place} is one list, and the images have the splits {some(list(sources))}",
            "Give a folder with train_labels.npy, val_labels.npy and test_labels.npy, or a table of paths and labels.",
        )
    labelled = {}
    for split, source in sources.items():
        found = labels.get(split, only)
        if found.names is None:
            labelled[split] = _in_order(place, found, source, in_order_of_names=in_order_of_names)
        else:
            labelled |= _by_name(place, found, {split: source})
    return labelled


def _in_order(place: str, labels: LabelList, source: Source, *, in_order_of_names: bool) -> Source:
    """Return the images with labels that are in the same order, without those that have none."""
    if not in_order_of_names and source.ids != numbered_ids(len(source)):
        raise UsageError(f"{place} is in an order that the images of {source.name} do not have", _BY_PATH)
    orders: dict[str, Callable[[str], Any]] = {
        "by folders": lambda name: (name.partition("/")[0], *name.rpartition("/")[::2])
    }
    if all(PurePosixPath(name).stem.isdecimal() for name in source.ids):  # 10.png is the tenth, and before 2.png
        orders["by numbers"] = lambda name: (name.rpartition("/")[0], int(PurePosixPath(name).stem))
    for how, key in orders.items():
        pairs = zip(sorted(source.ids, key=key), source.ids, strict=True)
        if other := next((pair for pair in pairs if pair[0] != pair[1]), None):
            raise UsageError(
                f"{place}: the order of {source.name} is ambiguous: {how} {other[0]} comes before {other[1]}, by "
                "paths behind it",
                _BY_PATH,
            )
    if labels.length != len(source):
        raise DataError(
            f"{place} has {counted(labels.length, 'label')}, {source.name} has {counted(len(source), 'image')}",
            f"A list without names needs one label per image, in the order of their names. {_BY_PATH}",
        )
    kept = source.select(np.array(labels.positions, dtype=np.int64))
    return _labelled(kept, place, labels, np.arange(len(kept)))


def _labelled(source: Source, place: str, labels: LabelList, rows: IntArray, notes: Sequence[str] = ()) -> Source:
    kept = [note for note in source.notes if NO_CLASS_FOLDERS not in note and NO_LABEL_COLUMN not in note]
    about = (*kept, f"{source.name}: the labels are those of {place}", *notes, *labels.notes)
    return dataclasses.replace(source, target=labels.target.select(rows), notes=about)


def _by_name(place: str, labels: LabelList, sources: Mapping[str, Source]) -> dict[str, Source]:
    """Return the images of all splits with the labels of their names."""
    images = [(split, _normal(name)) for split, source in sources.items() for name in source.ids]
    names = [_normal(name) for name in labels.names or ()]
    keys, found = min(_readings(images, names), key=lambda reading: _doubts(*reading))
    row_of = {key: row for row, key in enumerate(found)}
    whose = some([source.name for source in sources.values()])
    if missing := [name for (_, name), key in zip(images, keys, strict=True) if key not in row_of]:
        raise DataError(
            f"{place} has no label for {counted(len(missing), 'image')} of {whose}: {some(missing)}",
            f"{did_you_mean(missing[0], names)} Every image needs one label: add it, or leave the image out.".strip(),
        )
    if _doubts(keys, found):
        times = Counter(found)
        twice = next(key for key, n in (times + Counter(keys)).items() if n > 2)
        problem = f"is listed {times[twice]} times" if times[twice] > 1 else f"is the name of several images of {whose}"
        raise DataError(
            f"{place}: {twice} {problem}", "Every image needs one label: give paths from the data's folder."
        )
    unknown = sorted(set(found) - set(keys))
    notes = [f"{place}: {counted(len(unknown), 'label')} of images that are not there: {some(unknown)}"] * bool(unknown)
    rows = np.array([row_of[key] for key in keys], dtype=np.int64)
    if (name := names[rows[0]]) != images[0][1]:
        notes.append(f"{place}: labels are matched by parts of the names: {name} is {images[0][1]}")
    ends = np.cumsum([len(source) for source in sources.values()])[:-1]
    return {
        split: _labelled(source, place, labels, part, notes)
        for (split, source), part in zip(sources.items(), np.split(rows, ends), strict=True)
    }


def _doubts(images: Sequence[str], labels: Sequence[str]) -> int:
    """Return the number of images without exactly one label; images of one name count, too."""
    times = Counter(labels)
    return sum(times[image] != 1 for image in images) + len(images) - len(set(images))


def _readings(images: Sequence[tuple[str, str]], labels: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield names of the images and of the labels to be compared, up to the first that leave no doubt.

    One reading holds for all: the path below the data's folder, then that below the folder of the split; of the labels
    without their first folder, the first two, and so on; then file names alone; and the same without suffixes.
    """
    several = len({split for split, _ in images}) > 1
    ids, deepest = [name for _, name in images], max(name.count("/") for name in labels)

    def compared() -> Iterator[tuple[list[str], list[str]]]:
        tails = range(deepest + 1)
        if several:
            paths = [f"{split}/{name}" for split, name in images]
            yield from ((paths, list(map(_usual_split, _without_folders(labels, k)))) for k in tails)
        yield from ((ids, _without_folders(labels, k)) for k in tails)
        yield _without_folders(ids, _ALL), _without_folders(labels, _ALL)

    stems = ((list(map(_stem, a)), list(map(_stem, b))) for a, b in compared())
    for of_images, of_labels in itertools.chain(compared(), stems):
        yield of_images, of_labels
        if _doubts(of_images, of_labels) == 0:
            return


def _without_folders(names: Sequence[str], count: int) -> list[str]:
    return ["/".join(parts[min(count, len(parts) - 1) :]) for parts in (name.split("/") for name in names)]


def _usual_split(name: str) -> str:
    """Return a path whose first folder is a split with the usual name of that split."""
    folder, slash, rest = name.partition("/")
    return f"{split_name(folder) or folder}/{rest}" if slash else name


def _stem(name: str) -> str:
    return name.rpartition(".")[0] if is_image(name) else name


def _normal(name: str) -> str:
    if _PLAIN.fullmatch(name):  # most are, and a million take a second
        return name
    return printable(unicodedata.normalize("NFC", posixpath.normpath(plain_path(name)).lstrip("/")))
