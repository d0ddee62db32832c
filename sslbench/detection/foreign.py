"""Detections made elsewhere (mmdet, DETR, YOLO): a COCO result file, read with all that can be wrong in it."""

import collections
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.data.containers.listed import plain_path
from sslbench.data.containers.sniff import SUFFIXES, read_text
from sslbench.data.objects import ObjectSource
from sslbench.data.wording import counted, some
from sslbench.errors import ResultError
from sslbench.metrics.detection import Detections
from sslbench.metrics.detection import masks as rle
from sslbench.metrics.detection.matches import box_overlap
from sslbench.names import did_you_mean
from sslbench.targets.objects import NOTHING, Objects

_SHOWN = 3
_TOLERANCE = 2.0  # pixels beyond the edge that rounding explains
_ON = 0.5  # overlap of a box that lies on an object
_FEWEST = 10  # boxes on objects that tell of exchanged categories
_MOSTLY = 0.8
_LOOKED_AT = 1_000  # images
_MANY = 0.2  # share of boxes beyond the edge that is no chance


@dataclasses.dataclass(frozen=True)
class Foreign:
    """Detections of a file, and remarks on them, one sentence each."""

    found: Detections
    notes: tuple[str, ...]


def read_foreign(path: Path, test: ObjectSource) -> Foreign:
    """Return the detections of a COCO result file made by another program.

    The file is a JSON list of objects with `image_id` (the manifest's id, or the image's path, file name, name without
    suffix or the number in it), `category_id` (the manifest's id, or the name of a class), `bbox` (x, y, width, height
    in pixels), `score`, with masks `segmentation`, and with keypoints these: x, y and score of each. Of detections with
    keypoints alone the box is the one around them, as in pycocotools.
    """
    rows = _rows(path)
    images, other, notes = _places(path, rows, "image_id", _of_images(test), f"the {len(test):,} images of {test.name}")
    classes, _, about = _places(path, rows, "category_id", _of_classes(test), f"the categories of {test.name}")
    keypoints = _keypoints(path, rows, test)
    around = keypoints is not None and not any("bbox" in row for row in rows)
    if around and keypoints is not None:  # as pycocotools' loadRes does
        low, high = keypoints[:, :, :2].min(axis=1), keypoints[:, :, :2].max(axis=1)
        boxes = np.concatenate([low, high - low], axis=1)
    else:
        boxes = _boxes(path, rows)
    scores = _scores(path, rows)
    sizes = test.target.sizes[images]
    if len(boxes) and boxes.max() <= 1.5 and (sizes.max(initial=0) > 8 or not sizes.any()):
        raise ResultError(
            f"{path}: all boxes lie in 0 to {boxes.max():.3g}: they are shares of the image",
            "COCO's result format holds pixels: multiply x and width by the image's width, y and height by its height.",
        )
    _refuse_corners(path, boxes, sizes)
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    further = []
    if (number := int(_outside(boxes, sizes).sum())) > 0:
        further.append(f"{counted(number, 'box')} of {path.name} beyond the edge of the image, scored as written.")
    without = len(test) - len(np.unique(images))
    if without:
        further.append(f"{counted(without, 'test image')} without a detection in {path.name}.")
    if around:
        further.append(f"{path.name} has no boxes: those of the record are the ones around the keypoints.")
    if test.target.skeleton is None and any(row.get("keypoints") for row in rows):
        further.append(f"The keypoints of {path.name} are left out: {test.name} has none.")
    if other is not None and _on_objects(test, other, corners) > _on_objects(test, images, corners):
        further.append(f"More boxes of {path.name} lie on objects if image_id is the number in the file's name.")
    if exchanged := _exchanged(path, test, images, corners, classes):
        further.append(exchanged)
    masks = _masks(path, rows, sizes)
    return Foreign(Detections(images, corners, scores, classes, masks, keypoints), (*notes, *about, *further))


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads(read_text(path)[0])
    except (ValueError, RecursionError) as error:
        raise ResultError(
            f"{path} is not JSON: {error}", "Detections are a JSON list, COCO's result format."
        ) from error
    if isinstance(rows, dict):
        held = f"an object with the keys {', '.join(list(map(str, rows))[:5])}"
        truth = " (annotations, not detections?)" if "annotations" in rows else ""
        raise ResultError(f"{path} is {held}{truth}, not a list of detections", _FORM)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ResultError(f"{path} is not a list of detections", _FORM)
    # Results of poses have no boxes: these are computed from the points.
    posed = bool(rows) and all("keypoints" in row and "bbox" not in row for row in rows)
    for key in ("image_id", "category_id", "keypoints" if posed else "bbox", "score"):
        missing = [i for i, row in enumerate(rows) if key not in row]
        if missing:
            keys = ", ".join(map(str, rows[missing[0]]))
            more = " Without scores there is no average precision." if key == "score" else ""
            raise ResultError(
                f"{path}: {counted(len(missing), 'detection')} of {len(rows):,} without '{key}', the first is number "
                f"{missing[0]} (it has {keys}).{more}",
                _FORM,
            )
    return rows


_FORM = (
    'Give COCO\'s result format: [{"image_id": 1, "category_id": 3, "bbox": [x, y, width, height], "score": 0.9}, ...]'
)


_Key = int | str | None
_WHOLE = re.compile(r"0|-?[1-9]\d*")


@dataclasses.dataclass(frozen=True)
class _Reading:
    """Reading of ids in a file of detections.

    Attributes:
        title: of the names that the ids are, in the plural.
        known: key -> position; ambiguous keys are left out.
        key: of an id; None if it has none.
    """

    title: str
    known: Mapping[_Key, int]
    key: Callable[[Any], _Key]

    def read(self, ids: Sequence[Any]) -> list[int | None]:
        """Return the position of each id, None where it is unknown."""
        return [self.known.get(self.key(value)) for value in ids]


def _reading(title: str, names: Sequence[Any], key: Callable[[Any], _Key]) -> _Reading:
    """Return the reading of ids as names."""
    keys = [key(name) for name in names]
    number = collections.Counter(keys)
    return _Reading(title, {k: i for i, k in enumerate(keys) if k is not None and number[k] == 1}, key)


def _id(value: Any) -> _Key:
    """Return an id of a manifest; of numbers written as text, or as 12.0 by pandas, the number."""
    if isinstance(value, str):
        return int(value) if _WHOLE.fullmatch(value.strip()) else value.strip()
    return int(value) if float(value).is_integer() else None


def _stem(value: Any) -> _Key:
    if not isinstance(value, str):
        return None
    path = PurePosixPath(plain_path(value))
    return (path.stem if path.suffix.lower() in SUFFIXES else path.name).casefold()


def _digits(value: Any) -> _Key:
    """Return the number that a name is: 139 of '000000000139.jpg', as Ultralytics writes it."""
    text = str(_id(value) if isinstance(value, float | int) else _stem(value))
    return int(text) if text.isdecimal() else None


def _of_images(test: ObjectSource) -> tuple[_Reading, ...]:
    ids = [
        test.target.image_texts.get(name, number) for name, number in zip(test.ids, test.target.numbers, strict=True)
    ]
    return (
        _reading("the manifest's ids", ids, _id),
        _reading("paths", test.ids, lambda name: plain_path(name) if isinstance(name, str) else None),
        _reading(
            "file names", test.ids, lambda name: PurePosixPath(plain_path(name)).name if isinstance(name, str) else None
        ),
        _reading("file names without suffix", test.ids, _stem),
        _reading("numbers in file names", test.ids, _digits),
    )


def _of_classes(test: ObjectSource) -> tuple[_Reading, ...]:
    ids = [
        test.target.class_texts.get(name, number)
        for name, number in zip(test.target.classes, test.target.class_numbers, strict=True)
    ]
    return (
        _reading("the manifest's ids", ids, _id),
        _reading("names", test.target.classes, lambda name: name.strip() if isinstance(name, str) else None),
        _reading("names", test.target.classes, lambda name: name.strip().casefold() if isinstance(name, str) else None),
    )


def _places(
    path: Path, rows: Sequence[Mapping[str, Any]], key: str, readings: Sequence[_Reading], what: str
) -> tuple[IntArray, IntArray | None, tuple[str, ...]]:
    """Return the position of each row's image or category; that by another reading, if there is one; and notes.

    One reading holds for all rows.
    """
    odd = [row[key] for row in rows if not isinstance(row[key], int | float | str) or isinstance(row[key], bool)]
    ids = [] if odd else list(dict.fromkeys(row[key] for row in rows))
    places = [reading.read(ids) for reading in readings]
    whole = [i for i, found in enumerate(places) if None not in found]
    if odd or not whole:
        best = min(range(len(readings)), key=lambda i: places[i].count(None))
        missing = {value for value, place in zip(ids, places[best], strict=True) if place is None}
        unknown = odd or [row[key] for row in rows if row[key] in missing]
        shown = list(dict.fromkeys(repr(value)[:60] for value in unknown[:100]))[:_SHOWN]
        raise ResultError(
            f"{path}: {key} of {len(unknown):,} of {len(rows):,} detections is not among {what}: {', '.join(shown)}",
            _cause(key, unknown[0], readings),
        )
    first = whole[0]
    title = readings[first].title
    other = next((i for i in whole if places[i] != places[first]), None)
    # Numbers follow the manifest; words that two readings take differently are a guess.
    if other is not None and any(isinstance(value, str) for value in ids):
        raise ResultError(
            f"{path}: {key} {ids[0]!r} is among {title}, and among {readings[other].title}, and these differ",
            f"Write {title} as numbers without quotes{', or file names' if key == 'image_id' else ''}.",
        )
    notes = (f"{key} of {path.name} is read as {title}.",) if readings[first].key is _digits else ()
    position = {value: i for i, value in enumerate(ids)}
    order = [position[row[key]] for row in rows]
    found = np.array(places[first], dtype=np.int64)[order]
    return found, None if other is None else np.array(places[other], dtype=np.int64)[order], notes


def _cause(key: str, value: Any, readings: Sequence[_Reading]) -> str:
    # The usual errors: a misspelt name, another data set, and positions in place of ids.
    ids, names = readings[0].known, readings[1].known
    if isinstance(value, str):
        return did_you_mean(value, [str(name) for name in {**ids, **names} if isinstance(name, str)])
    if key == "image_id":
        numbers = [number for number in ids if isinstance(number, int)]
        span = f"{min(numbers)} to {max(numbers)}" if numbers else "missing"
        return f"The manifest's image ids are {span}; file names are understood too. Is --data the same set?"
    of_place = {place: number for number, place in ids.items()}
    every = [f"{of_place[place]} {name}" for name, place in names.items()]
    return (
        f"The manifest's categories are {', '.join([*every[:5], *(['...'] if len(every) > 5 else [])])}: category_id "
        "is their id, not their position. Names of classes are understood too."
    )


def _boxes(path: Path, rows: Sequence[Mapping[str, Any]]) -> FloatArray:
    for i, row in enumerate(rows):
        box = row["bbox"]
        if not (isinstance(box, list) and len(box) == 4 and all(_is_number(value) for value in box)):
            raise ResultError(f"{path}: bbox of detection {i} is not four numbers: {str(box)[:80]}", _FORM)
    return np.array([row["bbox"] for row in rows], dtype=np.float64).reshape(-1, 4)


def _scores(path: Path, rows: Sequence[Mapping[str, Any]]) -> FloatArray:
    for i, row in enumerate(rows):
        if not _is_number(row["score"]):
            raise ResultError(f"{path}: score of detection {i} is not a number: {row['score']!r:.80}", _FORM)
    return np.array([row["score"] for row in rows], dtype=np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _outside(boxes: FloatArray, sizes: IntArray) -> BoolArray:
    """Return where a box reaches out of an image of known size."""
    far = (boxes[:, :2] + boxes[:, 2:]) > sizes[:, ::-1] + _TOLERANCE
    beyond = (boxes[:, :2] < -_TOLERANCE) | far
    return np.asarray(beyond.any(axis=1) & (sizes > 0).all(axis=1))


def _refuse_corners(path: Path, boxes: FloatArray, sizes: IntArray) -> None:
    """Refuse boxes that are corners x1, y1, x2, y2, or lie far outside."""
    negative = np.flatnonzero((boxes[:, 2:] < 0).any(axis=1))
    if len(negative):
        raise ResultError(
            f"{path}: bbox of detection {negative[0]} has a negative width or height: {boxes[negative[0]].tolist()}",
            "bbox is x, y, width, height.",
        )
    outside = _outside(boxes, sizes)
    share = outside.mean() if len(outside) else 0.0
    # Detectors that do not clip their boxes have a few outside.
    if share < _MANY:
        return
    known = (sizes > 0).all(axis=1)
    corners = (boxes[:, 2:] >= boxes[:, :2]) & (boxes[:, 2:] <= sizes[:, ::-1] + _TOLERANCE)
    as_corners = np.asarray(corners.all(axis=1))
    first = int(np.flatnonzero(outside)[0])
    text = (
        f"{path}: {100 * share:.0f} % of the boxes reach out of their images, the first is detection {first}: "
        f"{boxes[first].tolist()} in {sizes[first, 1]} x {sizes[first, 0]} pixels"
    )
    if np.mean(as_corners[known]) > 1 - _MANY / 2:
        raise ResultError(
            f"{text}; as corners x1, y1, x2, y2 they lie inside",
            "Write bbox as x, y, width, height: [x1, y1, x2 - x1, y2 - y1].",
        )
    raise ResultError(text, "Boxes are in pixels of the original image: scale those of a resized one back.")


def _overlaps(
    test: ObjectSource, images: IntArray, corners: FloatArray
) -> Iterator[tuple[IntArray, Objects, FloatArray]]:
    """Yield the rows of the detections in an image, its objects, and their overlaps, of the first images."""
    order = np.argsort(images, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(images[order])) + 1)[:_LOOKED_AT]:
        objects = test.target.objects[int(images[rows[0]])] if len(rows) else NOTHING
        if len(objects):
            yield rows, objects, box_overlap(corners[rows], objects.boxes.astype(np.float64), 0)


def _on_objects(test: ObjectSource, images: IntArray, corners: FloatArray) -> int:
    """Return the number of boxes that lie on an object."""
    return sum(int((found.max(axis=1) >= _ON).sum()) for *_, found in _overlaps(test, images, corners))


def _exchanged(path: Path, test: ObjectSource, images: IntArray, corners: FloatArray, classes: IntArray) -> str:
    """Return a sentence if boxes lie on objects, but nearly all on those of one other category each; '' otherwise."""
    # Programs count categories from 0 or by their position, and then every score is that of another category.
    size = len(test.target.classes)
    table: IntArray = np.zeros((size, size), dtype=np.int64)  # category of the detection, that of the object under it
    for rows, objects, overlaps in _overlaps(test, images, corners):
        best = overlaps.argmax(axis=1)
        on = overlaps.max(axis=1) >= _ON
        np.add.at(table, (classes[rows[on]], objects.classes[best[on]]), 1)
    found = np.flatnonzero(table.sum(axis=1))
    other = table[found].argmax(axis=1)
    total = int(table.sum())
    agreeing = int(table[found, other].sum())
    if total < _FEWEST or len(set(other.tolist())) < max(2, len(found)) or agreeing < _MOSTLY * total:
        return ""
    if int(np.trace(table)) > total / 2:
        return ""
    numbers, names = test.target.class_numbers, test.target.classes
    pairs = [
        f"{numbers[a]} ({names[a]}) on {numbers[b]} ({names[b]})"
        for a, b in zip(found.tolist(), other.tolist(), strict=True)
    ]
    step = set(((other - found) % size).tolist())
    which = " (each is off by one: are they counted from 0, or from 1?)" if step in ({1}, {size - 1}) else ""
    return (
        f"Categories of {path.name} seem to be exchanged{which}: of {total:,} boxes that lie on an object, "
        f"{int(np.trace(table)):,} have its category, and {agreeing:,} lie as follows: {some(pairs)}."
    )


def _keypoints(path: Path, rows: Sequence[Mapping[str, Any]], test: ObjectSource) -> FloatArray | None:
    """Return the keypoints (n, K, 3); None if the file or the data have none."""
    skeleton = test.target.skeleton
    if skeleton is None or not any(row.get("keypoints") for row in rows):
        return None
    number = 3 * len(skeleton)
    for i, row in enumerate(rows):
        points = row.get("keypoints")
        if not isinstance(points, list) or len(points) != number or not all(map(_is_number, points)):
            length = f"{len(points)} values" if isinstance(points, list) else repr(points)[:60]
            raise ResultError(
                f"{path}: keypoints of detection {i} should be {number} numbers, x, y and score of each of "
                f"{', '.join(skeleton.names[:5])}{', ...' if len(skeleton) > 5 else ''}; they are {length}",
                "The order is that of the category's 'keypoints' in the manifest.",
            )
    found = np.array([row["keypoints"] for row in rows], dtype=np.float64).reshape(len(rows), -1, 3)
    if found[:, :, :2].max() <= 1.5:
        raise ResultError(
            f"{path}: all keypoints lie in 0 to {found[:, :, :2].max():.3g}: they are shares of the image",
            "COCO's result format holds pixels: multiply x by the image's width, y by its height.",
        )
    return found


def _masks(path: Path, rows: Sequence[Mapping[str, Any]], sizes: IntArray) -> tuple[rle.Rle, ...] | None:
    parts = [row["segmentation"] for row in rows if row.get("segmentation") is not None]
    if not parts or len(parts) < len(rows):
        return None
    try:
        return tuple(rle.to_rle(part, int(h), int(w)) for part, (h, w) in zip(parts, sizes, strict=True))
    except (ValueError, TypeError, KeyError) as error:
        raise ResultError(f"{path}: a segmentation cannot be used: {error}") from error
