"""Options, images by name, and the source that all retrieval sets share."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from sslbench.config import setting
from sslbench.data.containers.suffixes import SUFFIXES, is_clutter
from sslbench.data.images import Files
from sslbench.data.labels import single_labels
from sslbench.data.objects.crops import Crops
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.targets.queries import Answers, Queries
from sslbench.text import printable

Box = tuple[float, float, float, float]
"""x1, y1, x2, y2 in pixels."""
_WHOLE: Box = (0.0, 0.0, 1e9, 1e9)
DATABASE = "database"
"""Label of images that are no queries."""


@dataclasses.dataclass(frozen=True)
class RetrievalOptions:
    """Options behind a '?': gnd_roxford5k.pkl?images=oxford5k/jpg&queries=whole."""

    images: str = setting("", "folder of the images, where they do not lie beside the ground truth")
    queries: Literal["crop", "whole"] = setting("crop", "part of a query image that is used: its box, or all of it")
    distractors: str = setting("", "folder of images that are searched too, and match no query")

    def refuse(self, name: str, *fields: str) -> None:
        """Refuse options that have no effect on a set.

        Raises:
            UsageError: one of the fields is set.
        """
        usual = RetrievalOptions()
        for field in fields:
            if getattr(self, field) != getattr(usual, field):
                raise UsageError(f"the option {field} has no effect on {name}")


def images_below(folder: Path) -> dict[str, Path]:
    """Return the images below a folder by their relative path, ascending.

    Raises:
        DataError: the place is no folder.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder of images {printable(str(folder))}", "Give it as ?images=FOLDER.")
    found = {}
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_clutter(name)]
        for name in files:
            if not is_clutter(name) and os.path.splitext(name)[1].lower() in SUFFIXES:  # noqa: PTH122
                path = Path(top, name)
                found[path.relative_to(folder).as_posix()] = path
    return dict(sorted(found.items()))


def matched(names: Sequence[str], folder: Path, ground_truth: str) -> list[str]:
    """Return the relative path of each listed image: its name is the path or the file name, with or without suffix.

    Raises:
        DataError: images are missing, or a name fits several.
    """
    by_name: dict[str, set[str]] = {}
    for path in images_below(folder):
        file = path.rpartition("/")[2]
        for name in (path, path.rpartition(".")[0], file, file.rpartition(".")[0]):
            by_name.setdefault(name, set()).add(path)
    missing = [name for name in names if name not in by_name]
    if missing:
        raise DataError(
            f"{ground_truth}: {len(missing):,} of {counted(len(names), 'image')} are not below "
            f"{printable(str(folder))}: {some(missing)}",
            "Give the folder of the images as ?images=FOLDER.",
        )
    several = next((name for name in names if len(by_name[name]) > 1), None)
    if several is not None:
        raise DataError(f"{ground_truth}: the name {several} fits several images: {some(sorted(by_name[several]))}")
    return [next(iter(by_name[name])) for name in names]


def assembled(
    name: str,
    files: Mapping[str, Path],
    labels: Mapping[str, str],
    tasks: Mapping[str, Mapping[str, Answers]],
    *,
    apart: Sequence[str] = (),
    boxes: Mapping[str, Box] | None = None,
    distractors: str = "",
) -> Source:
    """Return the source of a retrieval set.

    Args:
        name: of the location.
        files: id -> image.
        labels: id -> label.
        tasks: see `Queries`; queries without positives may be among them.
        apart: ids of queries that are not part of the database.
        boxes: id of a query -> its box; None: all images are whole.
        distractors: folder of further images of the database; '' for none.

    Raises:
        DataError: an image is twice among the answers to a query, or a name is not UTF-8.
    """
    for answers in tasks.values():
        for query, each in answers.items():
            listed = each.positives + each.ignored
            if len(set(listed)) < len(listed):
                twice = next(image for i, image in enumerate(listed) if image in listed[:i])
                raise DataError(f"{name}: {twice} is twice among the positives and ignored images of {query}")
    files, labels = dict(files), dict(labels)
    if distractors:
        for path, file in images_below(Path(distractors).expanduser()).items():
            files[f"distractors/{path}"], labels[f"distractors/{path}"] = file, "distractor"
    ids = sorted(files)
    if printable("".join(ids)) != "".join(ids):
        raise DataError(f"{name}: names of images should be UTF-8")
    whole = Files(tuple(str(files[i]) for i in ids))
    images: Files | Crops = whole
    if boxes:
        cut = np.array([boxes.get(i, _WHOLE) for i in ids], dtype=np.float32)
        rows = np.arange(len(ids), dtype=np.int64)
        images = Crops(whole, rows, np.zeros_like(rows), cut, np.zeros((len(ids), 2), np.int64), margin=0.0)
    queries = Queries({task: dict(answers) for task, answers in tasks.items()}, frozenset(apart))
    number = len(set().union(*tasks.values()))
    note = f"{name}: {counted(number, 'query')}, {counted(len(ids) - len(apart), 'image')} searched"
    return Source(name, tuple(ids), single_labels([labels[i] for i in ids]).changed(queries=queries), images, (note,))
