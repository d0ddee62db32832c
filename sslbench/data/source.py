"""Samples of every format: ids, labels, and images that are read one by one."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sslbench.data.label_map import LabelMap
from sslbench.data.queries import Queries
from sslbench.data.wording import printable
from sslbench.labels import LABELS, LabelKind

ORIGIN = "origin"
"""Attribute of a joined source: the name of the source that each sample is from."""


@dataclasses.dataclass(frozen=True)
class Labels:
    """Labels of N samples.

    Attributes:
        kind: 'single': one class per sample; 'multi': any number of classes; 'value': C numbers to predict
            (regression); 'map': a class for every pixel, in `Source.maps`; 'depth' and 'normals': numbers for every
            pixel, in `Source.pixel_values`; 'boxes': objects, in `Source.objects`; 'mask': a foreground, in
            `Source.maps`; 'signal': computed from the image, or in `Source.pixel_values`; 'orientation': computed from
            the image; 'boundaries': lines by annotators, in `Source.pixel_values`; 'triplets', 'camera_pairs',
            'points', 'homography', 'tracks', 'parts' and 'poses': triplets or pairs of images, or videos, in
            `Source.tuples`; 'none': unlabelled.
        classes: the C class names, for 'value' the names of the numbers; the column or number of a class is its
            position here.
        values: single: int64 (N,), positions in `classes`; multi: int8 (N, C), 1 present, 0 absent, -1 ignore;
            value: float64 (N, C), finite; points: as for single; all others: int8 (N, 0).
    """

    kind: LabelKind
    classes: tuple[str, ...]
    values: npt.NDArray[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", _printable(self.classes))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def labelled(self) -> bool:
        """True unless the samples are unlabelled."""
        return self.kind != "none"

    def select(self, indices: npt.NDArray[np.int64]) -> "Labels":
        """Return the labels of the samples at `indices`; the classes are unchanged."""
        return dataclasses.replace(self, values=self.values[indices])

    def text(self, index: int) -> str:
        """Return a sample's label as written to a CSV: the class name, or names joined by ';' ('?NAME' = ignore).

        Numbers are joined by ';' too. Labels of pixels, boxes, homographies and videos have no such text.
        """
        if LABELS[self.kind].pixels or self.kind in ("homography", "tracks", "parts", "poses"):
            return ""
        if self.kind in ("single", "points", "triplets"):
            return self.classes[int(self.values[index])]
        if self.kind in ("value", "camera_pairs"):
            return ";".join(repr(float(value)) for value in self.values[index])
        row = self.values[index]
        return ";".join(("?" if v < 0 else "") + c for c, v in zip(self.classes, row, strict=True) if v != 0)


def _printable(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return texts that can be written as UTF-8; those of JSON may hold half a character."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return tuple(map(printable, texts))
    return texts


def ranked(
    ids: Sequence[str],
    kind: LabelKind,
    digests: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.uint8]] | None = None,
) -> npt.NDArray[np.int64]:
    """Return the place of each sample by its file name, without folders, (N,): no name or number of a class counts.

    Files of one name in several folders (1.png in each) are ordered by the sizes of the folders and, of equal ones, by
    the content of the first file of each, then by their ids. Samples without one class each have the order of their
    ids: their folders are no classes.

    Args:
        ids: of the N samples, ascending.
        kind: of their labels; their values, which noise changes, do not count.
        digests: rows, ascending -> a hash of the content of each, (n, 16); None: the content is not known.

    >>> content = np.array([[9], [8], [7], [6]], dtype=np.uint8)
    >>> ranked(("cat/1.png", "cat/3.png", "dog/1.png", "dog/2.png"), "single", content.__getitem__).tolist()
    [1, 3, 0, 2]
    """
    if kind != "single":
        return np.arange(len(ids))
    names = [sample.rpartition("/")[2] for sample in ids]
    order = np.asarray(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)
    name = np.cumsum([False, *(names[a] != names[b] for a, b in itertools.pairwise(order.tolist()))])
    if len(order) and name[-1] < len(order) - 1:
        known = dict[str, int]()
        folder = np.array([known.setdefault(sample.rpartition("/")[0], len(known)) for sample in ids])[order]
        _, first, sizes = np.unique(folder, return_index=True, return_counts=True)
        keys = sizes.astype(">i8").view(np.uint8).reshape(len(sizes), -1)
        if digests is not None:
            by_row = np.argsort(order[first])
            keys = np.hstack([keys, digests(order[first][by_row])[np.argsort(by_row)]])
        of_folder = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
        order = order[np.lexsort((of_folder[folder], name))]
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


class Images(Protocol):
    """N images that can be read in any order, from any process (an implementation must be picklable)."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> bytes | npt.NDArray[np.uint8]:
        """Return the encoded file, or for images that are arrays already uint8 (H, W) or (H, W, channels).

        Raises:
            OSError: the file cannot be read.
        """
        ...

    def path(self, index: int) -> str:
        """Return the name of an image in messages and in index.csv: its file, else a text such as 'digits[17]'."""
        ...

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: a hash of each image's content. Cheap when nothing changed since the last call."""
        ...

    def select(self, indices: npt.NDArray[np.int64]) -> "Images":
        """Return the images at `indices`, in that order."""
        ...


class PixelLabels(Protocol):
    """Label maps of N images, read one by one, from any process (an implementation must be picklable)."""

    def read_map(self, index: int, *, size: tuple[int, int] | None = None) -> LabelMap:
        """Return the map of an image whose upright height and width are `size`.

        Raises:
            UnreadableImage: there is no complete map.
            DataError: it does not fit the image or the classes.
        """
        ...

    def select(self, indices: npt.NDArray[np.int64]) -> "PixelLabels":
        """Return the maps at `indices`, in that order."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of the maps and their classes, 32 hex digits."""
        ...


class PixelValues(Protocol):
    """Depth or surface normals of N images, read one by one, from any process (an implementation must be picklable)."""

    def read_values(self, index: int, *, size: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Return float32 (H, W, K) of an image whose upright height and width are `size`; NaN where it is unknown.

        Raises:
            UnreadableImage: there are no complete values.
            DataError: they do not fit the image, or are impossible.
        """
        ...

    def path(self, index: int) -> str:
        """Return the name of the values in messages."""
        ...

    def select(self, indices: npt.NDArray[np.int64]) -> "PixelValues":
        """Return the values at `indices`, in that order."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of the values, 32 hex digits."""
        ...


class ObjectLabels(Protocol):
    """Objects of N images, in order; `data.objects.types.ObjectSource` has them."""

    @property
    def sized(self) -> bool:
        """True if annotations say the size of the images."""
        ...

    def boxes_of(self, index: int) -> npt.NDArray[np.float32]:
        """Return the boxes of an image, (n, 4), in pixels of the upright image, without regions of many objects."""
        ...

    def bitmaps_of(self, index: int, height: int, width: int) -> npt.NDArray[np.bool_] | None:
        """Return the masks of the same objects, (n, height, width); None if one of them has no mask.

        Raises:
            DataError: the image has another size than its objects were annotated in, or a mask is damaged.
        """
        ...

    def select(self, indices: npt.NDArray[np.int64]) -> "ObjectLabels":
        """Return the objects of the images at `indices`, in that order."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of the objects, 32 hex digits."""
        ...


class ImageTuples(Protocol):
    """All images of N samples that are several images each, and their annotations (must be picklable)."""

    @property
    def sized(self) -> bool | None:
        """True if annotations of places in images say the size of these, as masks do; None: they are of no places."""
        ...

    @property
    def images(self) -> Images:
        """Images of all samples, each of them once."""
        ...

    def rows(self, index: int) -> tuple[int, ...]:
        """Return the positions in `images` of the images of a sample."""
        ...

    def select(self, indices: npt.NDArray[np.int64]) -> "ImageTuples":
        """Return the samples at `indices`, in that order."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of the images and their annotations, 32 hex digits."""
        ...


@dataclasses.dataclass(frozen=True)
class Source:
    """N samples in order of their id.

    Attributes:
        name: the location as the user wrote it, with the split: 'photos/ (train)'.
        ids: unique, ascending, stable between machines (for files: the path relative to the data's root).
        labels: of the same length.
        images: of the same length.
        notes: remarks on what was left out or changed ("2 hidden folders left out"), one sentence each.
        attributes: further columns of the manifest, name -> one text per sample ('' where there is none); metrics can
            be broken down by them.
        grouped_by: the attribute whose equal values a seeded split keeps on one side: 'video' for frames of videos,
            'image' for crops; empty if every sample stands for itself.
        weights: of a joined source (`joined.join`): name of each member -> its sampling frequency in pretraining,
            relative to the others; empty: every image equally often.
        queries: of a retrieval data set: queries among the samples, and their answers; None: labels tell the answers.
        maps: of images with a class for every pixel: their label maps.
        pixel_values: of images with depth (K = 1, in metres as a rule), surface normals (K = 3) or a signal from a
            file (K = 1) for every pixel, or boundaries by K annotators (0 and 1).
        objects: of images with boxes: their objects.
        tuples: of pairs and triplets of images, and of videos: all of their images; `images` are the first ones. None:
            one image each.
    """

    name: str
    ids: tuple[str, ...]
    labels: Labels
    images: Images
    notes: tuple[str, ...] = ()
    attributes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    grouped_by: str = ""
    weights: Mapping[str, float] = dataclasses.field(default_factory=dict)
    queries: Queries | None = None
    maps: PixelLabels | None = None
    pixel_values: PixelValues | None = None
    objects: ObjectLabels | None = None
    tuples: ImageTuples | None = None

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.labels) == len(self.images):
            raise ValueError(f"{len(self.ids)} ids, {len(self.labels)} labels, {len(self.images)} images")
        for name, column in self.attributes.items():
            if len(column) != len(self.ids):
                raise ValueError(f"{len(self.ids)} ids, {len(column)} values of the attribute '{name}'")
        attributes = {_printable((name,))[0]: _printable(column) for name, column in self.attributes.items()}
        object.__setattr__(self, "attributes", attributes)
        if self.grouped_by and self.grouped_by not in self.attributes:
            raise ValueError(f"grouped by '{self.grouped_by}', which is not an attribute")

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, indices: Sequence[int] | npt.NDArray[np.int64], name: str | None = None) -> "Source":
        """Return a source of the samples at `indices`, which must ascend, as ids do."""
        chosen = np.asarray(indices, dtype=np.int64)
        if len(chosen) and np.any(np.diff(chosen) <= 0):
            raise ValueError("indices must be strictly ascending")
        return self._at(chosen, name)

    def _at(self, chosen: npt.NDArray[np.int64], name: str | None = None) -> "Source":
        ids = tuple(self.ids[i] for i in chosen)
        images, labels = self.images.select(chosen), self.labels.select(chosen)
        attributes = {key: tuple(column[i] for i in chosen) for key, column in self.attributes.items()}
        maps = None if self.maps is None else self.maps.select(chosen)
        values = None if self.pixel_values is None else self.pixel_values.select(chosen)
        objects = None if self.objects is None else self.objects.select(chosen)
        tuples = None if self.tuples is None else self.tuples.select(chosen)
        further = attributes, self.grouped_by, self.weights, self.queries, maps, values, objects, tuples
        return Source(name or self.name, ids, labels, images, self.notes, *further)

    @property
    def sized(self) -> bool | None:
        """True if annotations say the size of their images, as maps do, False if not; None: they are of no places."""
        if self.tuples is not None:
            return self.tuples.sized
        if self.objects is not None:
            return self.objects.sized
        if self.maps is not None or self.pixel_values is not None:
            return True
        of_images: bool | None = getattr(self.images, "sized", None)  # crops of boxes
        return of_images

    def every_image(self) -> "Source":
        """Return all images, unlabelled, of samples that are several images each; otherwise the source itself.

        Ids are positions: paths would make the keys of features depend on the place of the data.
        """
        if self.tuples is None:
            return self
        images = self.tuples.images
        ids = tuple(f"{i:08d}" for i in range(len(images)))
        return Source(self.name, ids, Labels("none", (), np.zeros((len(ids), 0), dtype=np.int8)), images)

    def in_rank(self) -> "Source":
        """Return the same samples in the order of their rank, for trainings, which draw by position."""
        order = np.argsort(self.rank)
        return self if np.all(np.diff(order) > 0) else self._at(order)

    @functools.cached_property
    def rank(self) -> npt.NDArray[np.int64]:
        """(N,) place of each sample in an order that draws follow, so that no name of a class folder moves them."""
        return ranked(self.ids, self.labels.kind, lambda rows: self.images.select(rows).digests())

    def as_hashed(self) -> "Source":
        """Return the parts that `fingerprint` holds, for protocols: without notes, weights and further attributes."""
        grouping = {name: column for name, column in self.attributes.items() if name == self.grouped_by}
        return dataclasses.replace(self, attributes=grouping, notes=(), weights={})

    def images_fingerprint(self) -> str:
        """Return a hash of all that features depend on: ids and image contents; 32 hex digits."""
        return self.fingerprint_of(self.images.digests())

    def fingerprint_of(self, digests: npt.NDArray[np.uint8]) -> str:
        """Return the same for images with these digests, (N, 16)."""
        digest = hashlib.sha256("\n".join(self.ids).encode())
        digest.update(digests.tobytes())
        return digest.hexdigest()[:32]

    def fingerprint(self) -> str:
        """Return a hash of ids, image contents, labels of every kind, class names, groups and queries, for keys.

        32 hex digits.
        """
        digest = hashlib.sha256(self.images_fingerprint().encode())
        digest.update("\n".join((self.labels.kind, *self.labels.classes)).encode())
        digest.update(np.ascontiguousarray(self.labels.values).tobytes())
        if self.grouped_by:  # hold-outs and folds keep a group together
            digest.update("\n".join(("groups", *self.attributes[self.grouped_by])).encode())
        if self.queries is not None:
            digest.update(("queries" + self.queries.digest()).encode())
        if self.maps is not None:
            digest.update(("maps" + self.maps.fingerprint()).encode())
        if self.pixel_values is not None:
            digest.update(("pixel values" + self.pixel_values.fingerprint()).encode())
        if self.objects is not None:
            digest.update(("objects" + self.objects.fingerprint()).encode())
        if self.tuples is not None:
            digest.update(("tuples" + self.tuples.fingerprint()).encode())
        return digest.hexdigest()[:32]
