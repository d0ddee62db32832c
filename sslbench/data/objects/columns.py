"""Objects of a file with millions of them, gathered as columns: a few bytes each while the file is read."""

import dataclasses
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.boxes import RawObjects, checked_objects, numbered_sources
from sslbench.errors import DataError
from sslbench.metrics.detection.masks import Segmentation, first_problem
from sslbench.targets.objects import Boxes
from sslbench.targets.target import Images

REGION = "region"
"""Class of objects that have none."""
LONGEST_SIDE = 1_000_000_000
"""Limit of coordinates and sides in pixels."""


@dataclasses.dataclass
class ObjectColumns:
    """Objects of N images, added in any order.

    Attributes:
        spec: the location, for messages.
        numbered: title of an object in messages, before its number.
    """

    spec: str
    numbered: str = "region"
    _images: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    _numbers: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    _boxes: "array[float]" = dataclasses.field(default_factory=lambda: array("d"))
    _areas: "array[float]" = dataclasses.field(default_factory=lambda: array("d"))
    _points: "array[float]" = dataclasses.field(default_factory=lambda: array("d"))
    _classes: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    _crowd: bytearray = dataclasses.field(default_factory=bytearray)
    _names: dict[str, int] = dataclasses.field(default_factory=dict)
    _texts: list[tuple[str, ...]] = dataclasses.field(default_factory=list)
    _masks: list[Segmentation | None] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self._images)

    def add(
        self,
        image: int,
        number: int,
        box: Sequence[float],
        name: str = REGION,
        *,
        texts: Sequence[str] = (),
        mask: Segmentation | None = None,
        point: Sequence[float] | None = None,
        area: float | None = None,
    ) -> None:
        """Add an object: the position of its image, its number in the file, its box x1, y1, x2, y2, and its class.

        Raises:
            DataError: the box is not four numbers of pixels.
        """
        try:
            corners = [value + 0.0 for value in box]  # of texts it fails
        except (TypeError, ValueError, OverflowError):
            corners = []
        if len(corners) != 4 or not all(abs(value) < LONGEST_SIDE for value in corners):  # NaN is not
            raise DataError(f"{self.spec}, {self.numbered} {number}: its box is {list(box)!r:.80}, not four numbers")
        self._images.append(image)
        self._numbers.append(number)
        self._boxes.extend(corners)
        self._areas.append(np.nan if area is None else area)
        self._points.extend((np.nan, np.nan) if point is None else point)
        self._classes.append(self._names.setdefault(name, len(self._names)))
        self._crowd.append(False)
        self._texts.append(tuple(texts))
        self._masks.append(mask)

    def extend(
        self,
        images: IntArray,
        numbers: IntArray,
        boxes: npt.NDArray[np.float64],
        names: Sequence[str],
        classes: IntArray,
        crowd: npt.NDArray[np.bool_],
    ) -> None:
        """Add n objects at once, without masks, texts or points.

        Args:
            images: int64 (n,), positions of their images.
            numbers: int64 (n,), as in `add`.
            boxes: float64 (n, 4), x1, y1, x2, y2, finite.
            names: classes of some of them, each once.
            classes: int64 (n,), positions among the names.
            crowd: bool (n,).
        """
        used = np.unique(classes)
        known = np.zeros(len(names), dtype=np.int64)
        known[used] = [self._names.setdefault(names[c], len(self._names)) for c in used.tolist()]
        self._images.frombytes(images.astype(np.int64).tobytes())
        self._numbers.frombytes(numbers.astype(np.int64).tobytes())
        self._boxes.frombytes(boxes.tobytes())
        self._areas.frombytes(np.full(len(boxes), np.nan).tobytes())
        self._points.frombytes(np.full((len(boxes), 2), np.nan).tobytes())
        self._classes.frombytes(known[classes].tobytes())
        self._crowd.extend(crowd.tobytes())
        self._texts += [()] * len(boxes)
        self._masks += [None] * len(boxes)

    def sources(
        self,
        ids: Sequence[str],
        images: Images,
        sizes: IntArray,
        splits: Sequence[str] | None = None,
        notes: Sequence[str] = (),
        *,
        sized: bool = True,
    ) -> dict[str, ObjectSource]:
        """Return one source per split, or {"all": source}; classes are sorted by name.

        Args:
            ids: of the N images.
            images: of the same length.
            sizes: int64 (N, 2), height and width; zeros where nothing says.
            splits: of each image; None: there are none.
            notes: of the caller.
            sized: the annotations say the sizes; False: the image files do.
        """
        objects, sizes, about = checked_objects(self.spec, self._raw(), images, sizes)
        names = tuple(sorted(self._names))
        numbers = tuple(range(1, len(names) + 1))
        boxes = Boxes(names, objects, sizes, (0,) * len(ids), class_numbers=numbers, sized=sized)
        return numbered_sources(self.spec, ids, boxes, images, splits, (*notes, *about))

    def _raw(self) -> RawObjects:
        """Return the objects in order of their images."""
        of_images = np.array(self._images, dtype=np.int64)
        order = np.argsort(of_images, kind="stable")
        rows = order.tolist()
        numbers = np.array(self._numbers, dtype=np.int64)[order]
        masks = [self._masks[i] for i in rows]
        if (problem := first_problem(masks)) is not None:
            at, what = problem
            raise DataError(f"{self.spec}, {self.numbered} {numbers[at]}: the segmentation cannot be used: {what}")
        place = {name: i for i, name in enumerate(sorted(self._names))}
        by_number = np.array([place[name] for name in self._names], dtype=np.int64)
        crowd = np.frombuffer(bytes(self._crowd), dtype=np.bool_)[order]
        points = np.array(self._points, dtype=np.float64).reshape(-1, 2)[order]
        return RawObjects(
            images=of_images[order],
            boxes=np.array(self._boxes, dtype=np.float64).reshape(-1, 4)[order],
            classes=by_number[np.array(self._classes, dtype=np.int64)[order]],
            crowd=crowd,
            difficult=np.zeros(len(rows), dtype=np.bool_),
            areas=np.array(self._areas, dtype=np.float64)[order],
            masks=masks,
            name_of=lambda i: f"{self.numbered} {numbers[i]}",
            numbers=numbers,
            texts=[self._texts[i] for i in rows],
            points=None if np.isnan(points).all() else points,
        )
