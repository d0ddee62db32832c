"""Concatenation of sources: ids are prefixed by the source's name, labels matched by class name."""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.images import DIGEST_BYTES
from sslbench.data.labels import among_classes
from sslbench.data.sharded import Sharded, shards_of
from sslbench.data.source import ORIGIN, Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers
from sslbench.targets.objects import Boxes
from sslbench.targets.target import Images, OfClasses, Target
from sslbench.targets.texts import Texts

S = TypeVar("S", bound=Source)


@dataclasses.dataclass(frozen=True, eq=False)
class JoinedImages:
    """Images of several sources, concatenated; each is read as its own source reads it.

    Attributes:
        parts: of the sources.
        rows: int64, the images of all parts that count, in order; None for all of them.
    """

    parts: tuple[Images, ...]
    rows: IntArray | None = None

    @functools.cached_property
    def _stops(self) -> tuple[int, ...]:
        return tuple(itertools.accumulate(len(part) for part in self.parts))

    def __len__(self) -> int:
        return (self._stops or (0,))[-1] if self.rows is None else len(self.rows)

    def located(self, index: int) -> tuple[int, int]:
        """Return the part that holds an image, and the image's position there."""
        row = range(len(self))[index] if self.rows is None else int(self.rows[index])
        # Right: the stop of a part is the first row of the next.
        part = bisect.bisect_right(self._stops, row)
        return part, row - (self._stops[part - 1] if part else 0)

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Return the encoded file or array of an image."""
        part, row = self.located(index)
        return self.parts[part].read(row)

    def path(self, index: int) -> str:
        """Return the name that the image has in its own source."""
        part, row = self.located(index)
        return self.parts[part].path(row)

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: those of the sources."""
        empty = np.zeros((0, DIGEST_BYTES), dtype=np.uint8)
        digests = np.concatenate([empty, *(part.digests() for part in self.parts)])
        return digests if self.rows is None else digests[self.rows]

    def select(self, indices: IntArray) -> "JoinedImages":
        """Return the images at `indices`, in that order; the parts drop all others, so that workers receive no more."""
        chosen = np.asarray(indices, dtype=np.int64)
        rows = chosen if self.rows is None else self.rows[chosen]
        # Each part is cut to what is used, once, so that worker processes are sent no more than that.
        kept, position = np.unique(rows, return_inverse=True)
        starts = (0, *self._stops)
        # `kept` ascends, so the images of a part lie side by side in it.
        cuts = np.searchsorted(kept, starts)
        parts = tuple(
            part if stop - start == len(part) else part.select(kept[start:stop] - first)
            for part, first, start, stop in zip(self.parts, starts, cuts, cuts[1:], strict=False)
        )
        return dataclasses.replace(
            self, parts=parts, rows=None if np.array_equal(kept, rows) else position.astype(np.int64)
        )


class JoinedShards(JoinedImages):
    """Images of several sources, some of them in shards; see `sharded.Sharded`."""

    def shards(self) -> IntArray:
        """Return the shard of each image, int64 (N,); the images of a source without shards count as one shard."""
        numbers, first = [], 0
        for part in self.parts:
            own = shards_of(part)
            numbers.append(np.full(len(part), first) if own is None else own + first)
            first += len(self._fetched(part))
        shards = np.concatenate(numbers).astype(np.int64)
        return shards if self.rows is None else shards[self.rows]

    def fetched(self) -> IntArray:
        """Return the bytes to download before a shard can be read, int64 (shards,); 0 for local ones."""
        return np.concatenate([self._fetched(part) for part in self.parts])

    def _fetched(self, part: Images) -> IntArray:
        return part.fetched() if isinstance(part, Sharded) else np.zeros(1, dtype=np.int64)


def joined_images(parts: Sequence[Images]) -> JoinedImages:
    """Concatenate the images of several sources."""
    kind = JoinedShards if any(isinstance(part, Sharded) for part in parts) else JoinedImages
    return kind(tuple(parts))


def sources_of(images: Images) -> list[Images]:
    """Return the images of each source that they are made of; those of one source unchanged, as a list of one."""
    return [own for part in images.parts for own in sources_of(part)] if isinstance(images, JoinedImages) else [images]


def located(images: Images, index: int) -> tuple[Images, int]:
    """Return the images of the source that has an image, and its position there."""
    if not isinstance(images, JoinedImages):
        return images, index
    part, row = images.located(index)
    return located(images.parts[part], row)


def join(sources: Mapping[str, S], name: str, weights: Mapping[str, float] | None = None) -> S:
    """Concatenate several sources in the order of their names, however they are listed.

    A name stands before the ids, with a '/' between, and is each sample's attribute 'origin'. Targets are matched by
    class name (see `join_labels`, `join_boxes`); an attribute is '' where a sample's source has none of that name.
    `weights` are frequencies in pretraining, relative to the others, 1 for those not named; None: every image equally
    often.
    """
    if own := next(
        (
            source.name
            for source in sources.values()
            if isinstance(source.target, Classes) and source.target.queries is not None
        ),
        None,
    ):
        raise DataError(f"{own} is a retrieval set with its own ground truth, and cannot be joined with others")
    ordered = {key: sources[key] for key in sorted(sources, key=lambda key: f"{key}/")}  # in ascending order of ids
    own_notes = [f"{key}: {note}" for key, source in ordered.items() for note in source.notes]
    targets = {key: source.target for key, source in ordered.items()}
    boxes = {key: target for key, target in targets.items() if isinstance(target, Boxes)}
    if boxes:
        target: Target
        target, about = join_boxes(boxes)
        notes = (*own_notes, *about)
    else:
        target, about = join_labels(targets, name)
        notes = (*about, *own_notes)
    attributes, grouped_by = join_attributes(ordered)
    return dataclasses.replace(
        next(iter(ordered.values())),
        name=name,
        ids=tuple(f"{key}/{sample}" for key, source in ordered.items() for sample in source.ids),
        target=target,
        images=joined_images([source.images for source in ordered.values()]),
        notes=notes,
        attributes=attributes,
        grouped_by=grouped_by,
        weights={} if weights is None else {key: weights.get(key, 1.0) for key in ordered},
    )


def join_boxes(sources: Mapping[str, Boxes]) -> tuple[Boxes, tuple[str, ...]]:
    """Concatenate the objects of several sources, classes matched by name; return them with notes.

    A class that a source does not have is background in its images: a detection of it there is an error.
    """
    classes = tuple(dict.fromkeys(name for part in sources.values() for name in part.classes))
    numbers = tuple(range(1, len(classes) + 1))
    parts = [part.with_classes(classes, numbers) for part in sources.values()]
    notes = [
        f"{key} has no boxes of {counted(len(lacking), 'class')} ({some(lacking)}): such objects in its images "
        "count as background"
        for key, part in sources.items()
        if (lacking := [name for name in classes if name not in part.classes])
    ]
    if len({part.skeleton for part in parts}) > 1:
        notes.append("keypoints are left out: the sources have different ones")
        parts = [part.without_keypoints() for part in parts]
    if any(part.federated is not None for part in parts):
        notes.append("the lists of absent classes are left out: in several sources every class counts everywhere")
    boxes = Boxes(
        classes,
        tuple(objects for part in parts for objects in part.objects),
        sizes=np.concatenate([part.sizes for part in parts]),
        # Manifests may use the same ids, so images are numbered anew.
        numbers=tuple(range(1, sum(map(len, parts)) + 1)),
        class_numbers=numbers,
        skeleton=parts[0].skeleton,
        sized=all(part.sized for part in parts),
    )
    return boxes, tuple(notes)


def join_attributes(sources: Mapping[str, Source]) -> tuple[dict[str, tuple[str, ...]], str]:
    """Return the attributes of all samples in the order of the sources, with 'origin', and the one that groups."""
    columns = dict.fromkeys(column for source in sources.values() for column in source.attributes if column != ORIGIN)
    attributes = {
        column: tuple(text for s in sources.values() for text in s.attributes.get(column) or [""] * len(s))
        for column in columns
    }
    attributes[ORIGIN] = tuple(key for key, source in sources.items() for _ in range(len(source)))
    kinds = dict.fromkeys(source.grouped_by for source in sources.values() if source.grouped_by)
    if not kinds:
        return attributes, ""
    # Groups of different sources stay different.
    grouped_by = f"{ORIGIN}/{'/'.join(kinds)}"
    attributes[grouped_by] = tuple(
        f"{key}/{group}" if group else ""
        for key, source in sources.items()
        for group in source.attributes.get(source.grouped_by) or [""] * len(source)
    )
    return attributes, grouped_by


def join_labels(labels: Mapping[str, Target], name: str = "") -> tuple[Target, tuple[str, ...]]:
    """Concatenate the labels of several sources; return them with notes.

    - one class each: the classes of all, matched by name; the first source's order, then what others have besides.
    - any number of classes, in all sources or in some: the same; a class that a source does not list is ignored for
      its samples (`labels.among_classes`).
    - without labels in some sources: without labels in all, since pretraining needs none; it is noted.
    - numbers to predict: the same in all.
    - texts: those of all.
    """
    if all(isinstance(part, Texts) for part in labels.values()):
        return Texts(tuple(own for part in labels.values() for own in Texts.of(part).texts)), ()
    if any(isinstance(part, Numbers) for part in labels.values()):
        return _numbers(labels, name), ()
    if not all(part.labelled for part in labels.values()):
        without = [key for key, part in labels.items() if not part.labelled]
        others = [key for key in labels if key not in without]
        note = f"{' and '.join(without)} without labels, so the labels of {' and '.join(others)} are not used"
        return Unlabelled(sum(map(len, labels.values()))), (note,) if others else ()
    classes = tuple(dict.fromkeys(c for part in labels.values() for c in part.classes))
    notes = tuple(
        f"{key} has {len(part.classes):,} of all {counted(len(classes), 'class')}"
        for key, part in labels.items()
        if len(part.classes) < len(classes)
    )
    number = {c: i for i, c in enumerate(classes)}
    columns = [np.array([number[c] for c in part.classes], dtype=np.int64) for part in labels.values()]
    parts = list(labels.values())
    if all(isinstance(part, Classes) for part in parts):
        values = np.concatenate([column[part.values] for column, part in zip(columns, parts, strict=True)])
        return _kind_of_all(parts, Classes).from_values(classes, values), notes
    spread = [
        among_classes(OfClasses.of(part).flags(), column, len(classes))
        for column, part in zip(columns, parts, strict=True)
    ]
    return MultiLabel(classes, np.concatenate(spread)), notes


def _numbers(labels: Mapping[str, Target], name: str) -> Target:
    first = next(iter(labels.values()))
    for key, part in labels.items():
        if not isinstance(part, Numbers) or sorted(part.classes) != sorted(first.classes):
            has = ", ".join(part.classes) if isinstance(part, Numbers) else "classes" if part.classes else "no labels"
            raise DataError(
                f"{name}: the sources have different things to predict: {key} {has}, "
                f"{next(iter(labels))} {', '.join(first.classes) or 'no labels'}",
                "Name the same columns of numbers in all tables.",
            )
    orders = [[part.classes.index(c) for c in first.classes] for part in labels.values()]
    values = [part.values[:, order] for part, order in zip(labels.values(), orders, strict=True)]
    return _kind_of_all(list(labels.values()), Numbers).from_values(first.classes, np.concatenate(values))


def _kind_of_all(parts: Sequence[Target], usual: type[Target]) -> type[Target]:
    """Return the kind of all parts, where it is one that extends the usual kind; for different ones the usual kind."""
    kinds = {type(part) for part in parts}
    return kinds.pop() if len(kinds) == 1 else usual
