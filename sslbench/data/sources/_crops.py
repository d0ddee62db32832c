"""Every object of a manifest as a sample of its own: the part of the image in its box (`?unit=annotation`)."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.config import setting
from sslbench.data._object_types import ObjectSource
from sslbench.data.images import DIGEST_BYTES, UNREADABLE_DIGEST
from sslbench.data.labels import single_labels
from sslbench.data.source import Images, Source
from sslbench.data.wording import counted
from sslbench.errors import DataError, UsageError


@dataclasses.dataclass(frozen=True)
class Options:
    """What may stand behind a '?': photos.json?unit=annotation&margin=0.1."""

    unit: Literal["image", "annotation"] = setting("image", "what is one sample: an image, or the crop of each box")
    classes: Literal["category", "supercategory"] = setting("category", "what the classes are")
    margin: float = setting(0.1, "of a crop, on each side, as a share of the box's side")
    min_size: float = setting(8.0, "boxes with a shorter side are left out", unit="pixels")

    def __post_init__(self) -> None:
        if not 0 <= self.margin <= 10 or not 0 <= self.min_size < float("inf"):
            raise UsageError(
                f"margin={self.margin}, min_size={self.min_size}: should be 0 or more, a margin 10 at most"
            )


WHOLE_IMAGES = Options()


class _Last:
    """The last decoded image of this process: boxes of one image follow each other. It is not sent to others."""

    def __init__(self) -> None:
        self.known: tuple[int, npt.NDArray[np.uint8]] | None = None

    def __reduce__(self) -> tuple[type["_Last"], tuple[()]]:
        return _Last, ()


@dataclasses.dataclass(frozen=True, eq=False)
class Crops:
    """Parts of images, decoded to 8-bit RGB and upright.

    Attributes:
        images: the whole images.
        rows: int64 (N,), the image of each crop.
        numbers: int64 (N,), which object of its image it is.
        boxes: float32 (N, 4), x1, y1, x2, y2 in pixels of the upright image, without margin.
        sizes: int64 (N, 2), height and width that the manifest says; zeros where it says nothing.
        margin: added on each side, as a share of the box's side.
    """

    images: Images
    rows: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float32]
    sizes: npt.NDArray[np.int64]
    margin: float
    _last: _Last = dataclasses.field(default_factory=_Last, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """uint8 (h, w, 3): the box with its margin, as far as it lies in the image.

        Raises:
            UnreadableImage: the image cannot be decoded, or is of another size than its boxes are for.
            OSError: its file cannot be read.
        """
        from sslbench.data.picture import UnreadableImage

        whole = self._whole(int(self.rows[index]))
        height, width = whole.shape[:2]
        said = tuple(self.sizes[index].tolist())
        if said not in ((0, 0), (height, width)):
            reason = f"is {width} x {height} pixels, but its boxes are for {said[1]} x {said[0]}"
            raise UnreadableImage(self.path(index), reason)
        left, top, right, bottom = _grown(self.boxes[index], self.margin, height, width)
        return np.ascontiguousarray(whole[top:bottom, left:right])

    def _whole(self, row: int) -> npt.NDArray[np.uint8]:
        from sslbench.data.decode import decode

        if self._last.known is None or self._last.known[0] != row:
            picture = decode(self.images.read(row), self.images.path(row)).image
            self._last.known = row, np.asarray(picture.permute(1, 2, 0).numpy(), dtype=np.uint8)
        return self._last.known[1]

    def path(self, index: int) -> str:
        """The image's path and the number of the object: 'a.jpg#2'."""
        return f"{self.images.path(int(self.rows[index]))}#{self.numbers[index]}"

    def digests(self) -> npt.NDArray[np.uint8]:
        """(N, 16) bytes: of the image's content, the box and the margin; zeros where the file cannot be read."""
        whole = self.images.digests()
        digests = np.zeros((len(self), DIGEST_BYTES), dtype=np.uint8)
        for i, row in enumerate(self.rows.tolist()):
            content = whole[row].tobytes()
            if content != UNREADABLE_DIGEST:
                state = hashlib.blake2b(content, digest_size=DIGEST_BYTES)
                state.update(self.boxes[i].astype("<f4").tobytes() + repr(float(self.margin)).encode())
                digests[i] = np.frombuffer(state.digest(), dtype=np.uint8)
        return digests

    def select(self, indices: npt.NDArray[np.int64]) -> "Crops":
        """Some of the crops, in the order of `indices`."""
        at = np.asarray(indices, dtype=np.int64)
        parts = self.rows[at], self.numbers[at], self.boxes[at], self.sizes[at]
        return Crops(self.images, *parts, self.margin)


def _grown(box: npt.NDArray[np.float32], margin: float, height: int, width: int) -> tuple[int, int, int, int]:
    """Left, top, right, bottom in whole pixels: every pixel that the grown box touches, at least one."""
    x1, y1, x2, y2 = box.astype(float).tolist()
    dx, dy = margin * (x2 - x1), margin * (y2 - y1)
    left = min(max(int(np.floor(x1 - dx)), 0), width - 1)
    top = min(max(int(np.floor(y1 - dy)), 0), height - 1)
    right = min(max(int(np.ceil(x2 + dx)), left + 1), width)
    bottom = min(max(int(np.ceil(y2 + dy)), top + 1), height)
    return left, top, right, bottom


def crops_of(
    spec: str, sources: Mapping[str, ObjectSource], options: Options, group: Mapping[str, str] | None = None
) -> dict[str, Source]:
    """The objects of each split as samples, labelled with their class.

    Crowds, and objects that are marked ignore or difficult, are left out and counted, as are small boxes. An id is the
    image's and the number of the object among those of its image.

    Args:
        spec: the manifest, for messages.
        sources: its images with their objects.
        options: margin and smallest size.
        group: class -> the class it counts as.

    Raises:
        DataError: a split has no object that is kept.
    """
    return {split: _crops(spec, source, options, group or {}) for split, source in sources.items()}


def _crops(spec: str, source: ObjectSource, options: Options, group: Mapping[str, str]) -> Source:
    kept: list[tuple[str, int, int]] = []
    crowds = ignored = small = 0
    for row, (sample, objects) in enumerate(zip(source.ids, source.objects, strict=True)):
        for k, (x1, y1, x2, y2) in enumerate(objects.boxes.tolist()):
            if objects.crowd[k]:
                crowds += 1
            elif objects.difficult[k]:
                ignored += 1
            elif min(x2 - x1, y2 - y1) < options.min_size:
                small += 1
            else:
                kept.append((f"{sample}#{k:04d}", row, k))
    if not kept:
        raise DataError(f"{source.name} has no box that can be a sample: of {crowds + ignored + small}, all left out")
    kept.sort()
    rows, numbers = (np.array([entry[i] for entry in kept], dtype=np.int64) for i in (1, 2))
    boxes = np.array([source.objects[row].boxes[k] for _, row, k in kept], dtype=np.float32)
    classes = [source.classes[int(source.objects[row].classes[k])] for _, row, k in kept]
    order = list(dict.fromkeys(group.get(name, name) for name in source.classes))
    names = [group.get(name, name) for name in classes]
    labels = single_labels(names, [name for name in order if name in set(names)])
    out = ((crowds, "crowd"), (ignored, "ignored or difficult object"), (small, "smaller box"))
    told = [counted(n, what) for n, what in out if n]
    notes = (f"{spec}: {', '.join(told)} left out",) if told else ()
    if len(set(rows.tolist())) < len(rows) and source.name == spec:
        leak = "a seeded split may put crops of one image on both sides: give the images of the manifest a 'split'"
        notes = (*notes, f"{spec}: {leak}")
    images = Crops(source.images, rows, numbers, boxes, source.sizes[rows], options.margin)
    return Source(source.name, tuple(entry[0] for entry in kept), labels, images, (*source.notes, *notes))
