"""Objects of a COCO or kwcoco manifest."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.containers.members import by_split
from sslbench.data.formats.coco.assets import side_of_image
from sslbench.data.formats.coco.columns import Columns
from sslbench.data.images import Files
from sslbench.data.labels import marks
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.boxes import RawObjects, checked_objects, size_in_file
from sslbench.data.wording import counted, repeated, some
from sslbench.errors import DataError
from sslbench.metrics.detection.keypoints import Skeleton
from sslbench.metrics.detection.masks import first_problem
from sslbench.metrics.detection.matches import FREQUENCIES, Federated
from sslbench.targets.objects import Boxes
from sslbench.targets.target import Images
from sslbench.targets.texts import as_texts, captions_in

Row = dict[str, Any]
NEGATIVE, PARTLY = "neg_category_ids", "not_exhaustive_category_ids"
"""Keys of LVIS's images: categories that are absent, and those of which not all objects are labelled."""
_XY = 2
# Largest coordinate, in pixels.
_FARTHEST = 1e9
# Visibility of kwcoco's keypoints that have none.
_VISIBLE = 2


def read_skeleton(spec: str, categories: Sequence[Row], kinds: object) -> Skeleton | None:
    """Return the keypoints of all categories together, joined by their names; None if no category has any."""
    having = sorted((row for row in categories if row.get("keypoints")), key=lambda row: int(row["id"]))
    if not having:
        return None
    names: dict[str, int] = {}
    edges: dict[tuple[int, int], None] = {}
    sigmas: dict[str, float] = {}
    for row in having:
        own = row["keypoints"]
        if not isinstance(own, list) or not all(isinstance(name, str) and name for name in own):
            raise DataError(f"{spec}, category {row['id']}: keypoints is {own!r:.80}, not a list of names")
        if twice := repeated(own):
            raise DataError(f"{spec}, category {row['id']}: the keypoint {some(twice)} is listed twice")
        for name in own:
            names.setdefault(name, len(names))
        for a, b in _edges(spec, row, len(own)):
            edges[names[own[a]], names[own[b]]] = None
        # A category may have keypoints and no sigmas.
        listed = row.get("sigmas") or []
        numbers = isinstance(listed, list) and all(type(s) in (int, float) and 0 < s < _FARTHEST for s in listed)
        if not numbers or len(listed) not in (0, len(own)):
            raise DataError(f"{spec}, category {row['id']}: sigmas is {listed!r:.80}, not {len(own)} numbers above 0")
        for name, sigma in zip(own, map(float, listed), strict=False):
            if sigmas.setdefault(name, sigma) != sigma:
                raise DataError(f"{spec}: the keypoint '{name}' has the sigmas {sigmas[name]} and {sigma}")
    known = tuple(sigmas[name] for name in names) if set(sigmas) == set(names) else ()
    return Skeleton(tuple(names), tuple(edges), _mirrors(spec, names, kinds), known)


def _edges(spec: str, row: Row, number: int) -> list[tuple[int, int]]:
    """Return the edges as positions; in the file they count from 1."""
    edges = row.get("skeleton") or []
    right = isinstance(edges, list) and all(
        isinstance(edge, list) and len(edge) == 2 and all(type(end) is int and 1 <= end <= number for end in edge)
        for edge in edges
    )
    if not right:
        raise DataError(
            f"{spec}, category {row['id']}: skeleton is {edges!r:.80}, not pairs of numbers from 1 to {number}"
        )
    return [(a - 1, b - 1) for a, b in edges]


def keypoint_kinds(spec: str, kinds: object) -> dict[Any, str]:
    """Return the names of kwcoco's table of keypoints by their ids."""
    rows = kinds or []
    if not isinstance(rows, list) or not all(
        isinstance(row, dict)
        and type(row.get("id")) is int
        and isinstance(row.get("name"), str)
        and isinstance(row.get("reflection_id"), int | None)
        for row in rows
    ):
        raise DataError(
            f"{spec}: keypoint_categories is not a list of mappings with id, name and perhaps reflection_id, an id"
        )
    return {row["id"]: row["name"] for row in rows}


def _mirrors(spec: str, names: dict[str, int], kinds: object) -> tuple[tuple[str, str], ...]:
    name_of = keypoint_kinds(spec, kinds)
    rows = [row for row in (kinds if isinstance(kinds, list) else []) if row["name"] in names]
    if all(row.get("reflection_id") is None for row in rows):
        return ()
    pairs = {tuple(sorted((row["name"], name_of.get(row.get("reflection_id"), row["name"])))) for row in rows}
    return tuple((a, b) for a, b in sorted(pairs) if {a, b} <= set(names))


def read_points(
    spec: str, annotation: Row, own: Sequence[str], skeleton: Skeleton, kinds: dict[Any, str]
) -> npt.NDArray[np.float64]:
    """Return the keypoints of an annotation, (K, 3); zeros for those that are not labelled."""
    where = f"{spec}, annotation {annotation['id']}"
    points = np.zeros((len(skeleton), 3))
    given = annotation.get("keypoints") or []
    if isinstance(given, list) and given and all(isinstance(one, dict) for one in given):
        triples = [_of_kwcoco(where, one, skeleton, kinds) for one in given]
    else:
        if not isinstance(given, list) or len(given) not in (0, 3 * len(own)):
            length = f"{len(given)} numbers" if isinstance(given, list) else f"{given!r:.60}"
            raise DataError(
                f"{where}: its keypoints are {length}, and its category has {len(own)} keypoints",
                "COCO's keypoints are x, y, visibility of each keypoint of the category: 3 numbers for each.",
            )
        triples = [(name, *given[3 * i : 3 * i + 3]) for i, name in enumerate(own)] if given else []
    for name, x, y, seen in triples:
        if type(seen) not in (int, float) or seen not in (0, 1, 2):
            raise DataError(
                f"{where}: the visibility of '{name}' is {seen!r:.40}",
                "It is 0 (not labelled), 1 (labelled and hidden) or 2 (visible).",
            )
        if not all(type(v) in (int, float) and abs(v) < _FARTHEST for v in (x, y)):  # NaN is not
            raise DataError(f"{where}: the place of '{name}' is {x!r:.40}, {y!r:.40}, not two numbers of pixels")
        if seen:
            points[skeleton.names.index(name)] = x, y, seen
    return points


def _of_kwcoco(where: str, one: Row, skeleton: Skeleton, kinds: dict[Any, str]) -> tuple[str, Any, Any, Any]:
    number = one.get("keypoint_category_id")
    name = one.get("keypoint_category", kinds.get(number) if isinstance(number, int) else None)
    place = one.get("xy")
    if name not in skeleton.names or not isinstance(place, list) or len(place) != 2:
        raise DataError(
            f"{where}: {one!r:.80} is no keypoint",
            f"It needs xy, and keypoint_category or keypoint_category_id of {some(skeleton.names, 6)}.",
        )
    return str(name), place[0], place[1], one.get("visible", _VISIBLE)


def object_sources(
    spec: str,
    columns: Columns,
    ids: list[str],
    files: Images,
    splits: list[str] | None,
    notes: tuple[str, ...],
) -> dict[str, ObjectSource]:
    """Return one source per split, or {"all": source}."""
    images, annotations = columns.rows["images"], columns.rows["annotations"]
    used = {row.get("category_id") for row in annotations}
    ordered = sorted(columns.rows["categories"], key=lambda row: int(row["id"]))
    categories = [row for row in ordered if row["id"] in used]
    left_out = [str(row["name"]) for row in ordered if row["id"] not in used]
    class_of = {row["id"]: i for i, row in enumerate(categories)}
    skeleton = read_skeleton(spec, columns.rows["categories"], columns.keypoint_kinds)
    given = np.array([_size(spec, row, files, i) for i, row in enumerate(images)], dtype=np.int64).reshape(-1, 2)
    objects, sizes, about = checked_objects(spec, _raw_objects(spec, columns, class_of, skeleton), files, given)
    notes = (*notes, *about)
    if columns.skipped:
        notes = (*notes, f"{spec}: {counted(columns.skipped, 'annotation')} without category or image left out")
    if left_out:
        notes = (*notes, f"{spec}: {counted(len(left_out), 'category')} without any object left out: {some(left_out)}")
    if skeleton is None and any(row.get("keypoints") for row in annotations):
        notes = (*notes, f"{spec}: keypoints left out, since no category lists the names of its 'keypoints'")
    image_texts, class_texts = (columns.texts.get(table, {}) for table in ("images", "categories"))
    boxes = Boxes(
        tuple(str(row["name"]) for row in categories),
        objects,
        sizes=sizes,
        numbers=tuple(row["id"] for row in images),
        class_numbers=tuple(row["id"] for row in categories),
        federated=_federated(spec, images, categories),
        skeleton=skeleton,
        sized=all((row.get("height"), row.get("width")) != (None, None) for row in images),
        image_texts={name: image_texts[row["id"]] for name, row in zip(ids, images, strict=True) if image_texts},
        class_texts={str(row["name"]): class_texts[row["id"]] for row in categories if class_texts},
    )
    found = by_split(spec, ids, boxes, files, splits, notes, columns.attributes)
    return {
        split: ObjectSource.with_boxes(part, Boxes.of(part.target), columns.grouped_by) for split, part in found.items()
    }


def _federated(spec: str, images: list[Row], categories: list[Row]) -> Federated | None:
    """Return the classes that LVIS looked for in each image; None for a manifest that does not say."""
    having = [row for row in images if NEGATIVE in row]
    if not having:
        return None
    if len(having) < len(images):
        without = [str(row["id"]) for row in images if NEGATIVE not in row]
        raise DataError(f"{spec}: {counted(len(without), 'image')} without {NEGATIVE}: id {some(without)}")
    place = {row["id"]: i for i, row in enumerate(categories)}

    def pairs(key: str) -> IntArray:
        found = []
        for i, row in enumerate(images):
            numbers = row.get(key) or []
            if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
                raise DataError(f"{spec}, image {row['id']}: {key} is {numbers!r:.60}, not a list of category ids")
            found += [(i, place[number]) for number in numbers if number in place]
        return np.array(found, dtype=np.int64).reshape(-1, 2)

    odd = next((row for row in categories if row.get("frequency", "") not in FREQUENCIES), None)
    if odd is not None:
        raise DataError(f"{spec}, category {odd['id']}: frequency is {odd['frequency']!r:.40}, not r, c or f")
    return Federated(pairs(NEGATIVE), pairs(PARTLY), tuple(row.get("frequency", "") for row in categories))


def _raw_objects(spec: str, columns: Columns, class_of: dict[Any, int], skeleton: Skeleton | None) -> RawObjects:
    """Return the annotations that have an image and a category, as columns in order of their images.

    Columns are checked as a whole: a manifest has millions of rows.
    """
    whole = [
        a for a in columns.rows["annotations"] if a.get("category_id") is not None and a.get("image_id") is not None
    ]
    order = np.argsort(columns.images, kind="stable")
    rows = [whole[i] for i in order.tolist()]
    boxes = _boxes(spec, rows)
    flags = np.array([marks(spec, row) for row in rows], dtype=np.bool_).reshape(-1, 2)
    crowd, difficult = flags[:, 0], flags[:, 1]
    masks = [_nested(row.get("segmentation")) for row in rows]
    if (found := first_problem(masks)) is not None:
        at, what = found
        raise DataError(f"{spec}, {_name(rows[at])}: the segmentation cannot be used: {what}")
    return RawObjects(
        images=columns.images[order],
        boxes=np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1),
        classes=np.array([class_of[row["category_id"]] for row in rows], dtype=np.int64),
        crowd=crowd,
        difficult=difficult,
        areas=_areas(spec, rows),
        masks=masks,
        name_of=lambda i: _name(rows[i]),
        numbers=np.array([row["id"] for row in rows], dtype=np.int64),
        keypoints=None if skeleton is None else _keypoints(spec, columns, skeleton, rows),
        labelled=[row.get("num_keypoints") for row in rows],
        texts=_texts(spec, rows),
        points=_points(spec, rows),
    )


def _texts(spec: str, rows: list[Row]) -> list[tuple[str, ...]] | None:
    """Return the captions of each annotation; None if none has one."""
    if not any("caption" in row or "captions" in row for row in rows):
        return None
    found = []
    for row in rows:
        try:
            found.append(tuple(as_texts(captions_in(row))))
        except TypeError as error:
            what = f"its caption is {error}, not a text"
            raise DataError(
                f"{spec}, {_name(row)}: {what}", "A caption is a text; captions is a list of them."
            ) from error
    return found


def _points(spec: str, rows: list[Row]) -> npt.NDArray[np.float64] | None:
    """Return the first of SA-1B's `point_coords` of each annotation, (n, 2); None if none has one."""
    if not any("point_coords" in row for row in rows):
        return None
    points = np.full((len(rows), 2), np.nan)
    for i, row in enumerate(rows):
        given = row.get("point_coords")
        try:
            points[i] = np.array(given[0], dtype=np.float64).reshape(_XY) if given else np.nan
        except (TypeError, ValueError, LookupError, OverflowError) as error:
            raise DataError(f"{spec}, {_name(row)}: its point_coords are {given!r:.60}, not pairs x, y") from error
    return points


def _nested(mask: Any) -> Any:
    """Return a segmentation; a polygon that is not in a list, or is a list of points [x, y], in a list; None: empty."""
    if type(mask) is list and mask and type(mask[0]) in (int, float):
        return [mask]
    if type(mask) is list and mask and type(mask[0]) is list and all(type(p) is list and len(p) == _XY for p in mask):
        return [[number for point in mask for number in point]]
    return None if mask in ([], {}, "") else mask


def _name(row: Row) -> str:
    return f"annotation {row['id']}"


def _boxes(spec: str, rows: list[Row]) -> npt.NDArray[np.float64]:
    """Return x, y, width, height of each annotation, (n, 4)."""
    given: list[Any] = [row.get("bbox") for row in rows]
    regular = set(map(type, given)) <= {list} and set(map(len, given)) <= {4}
    if not (regular and set(map(type, itertools.chain.from_iterable(given))) <= {int, float}):
        given = [_numbers(spec, row) for row in rows]
    try:
        boxes = np.array(given, dtype=np.float64).reshape(-1, 4)
    except OverflowError:  # whole numbers may have any length
        boxes = np.array([[max(min(v, _FARTHEST), -_FARTHEST) for v in box] for box in given]).reshape(-1, 4)
    wrong = np.flatnonzero(~(np.abs(boxes) < _FARTHEST).all(axis=1))  # NaN is not
    if len(wrong):
        row = rows[int(wrong[0])]
        raise DataError(
            f"{spec}, {_name(row)}: a coordinate of its bbox {str(row['bbox'])[:60]} is not finite, or beyond any image"
        )
    return boxes


def _numbers(spec: str, row: Row) -> list[float]:
    """Return the four numbers of a box."""
    box = row.get("bbox")
    if box is None or box == []:
        raise DataError(
            f"{spec}, {_name(row)} has no bbox", "Detection needs the box of every object: x, y, width, height."
        )
    numbers = isinstance(box, list) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in box)
    if not isinstance(box, list) or len(box) != 4 or not numbers:
        raise DataError(f"{spec}, {_name(row)}: its bbox is {str(box)[:80]}, not four numbers x, y, width, height")
    return box


def _areas(spec: str, rows: list[Row]) -> npt.NDArray[np.float64]:
    """Return the areas in the file; NaN where there is none."""
    given: list[Any] = [row.get("area") for row in rows]
    usual = set(map(type, given)) <= {int, float, type(None)}
    wrong = [] if usual else [i for i, area in enumerate(given) if not isinstance(area, int | float | None)]
    areas = np.zeros(0)
    if not wrong:
        try:
            areas = np.array(given, dtype=np.float64)
        except OverflowError:  # whole numbers may have any length
            areas = np.array([np.nan if area is None else max(min(area, _FARTHEST**2), -1) for area in given])
        wrong = [i for i in np.flatnonzero(~((areas >= 0) & (areas < _FARTHEST**2))).tolist() if given[i] is not None]
    if wrong:
        what = f"its area is {given[wrong[0]]!r:.80}, not a number of pixels"
        raise DataError(f"{spec}, {_name(rows[wrong[0]])}: {what}")
    return areas


def _keypoints(spec: str, columns: Columns, skeleton: Skeleton, rows: list[Row]) -> npt.NDArray[np.float64]:
    """Return the keypoints of the annotations, (n, K, 3)."""
    own = {row["id"]: tuple(row.get("keypoints") or ()) for row in columns.rows["categories"]}
    kinds = keypoint_kinds(spec, columns.keypoint_kinds)
    found = [read_points(spec, row, own[row["category_id"]], skeleton, kinds) for row in rows]
    return np.array(found, dtype=np.float64).reshape(-1, len(skeleton), 3)


def _size(spec: str, image: dict[str, Any], files: Images, index: int) -> tuple[int, int]:
    """Return height and width: those in the manifest, else those in the image file."""
    given = image.get("height"), image.get("width")
    if given == (None, None):
        return size_in_file(Path(files.root) / files.paths[index]) if isinstance(files, Files) else (0, 0)
    height, width = map(side_of_image, given)
    if height is None or width is None:
        raise DataError(f"{spec}, image {image['id']}: height and width are {given[0]!r:.40} and {given[1]!r:.40}")
    return height, width
