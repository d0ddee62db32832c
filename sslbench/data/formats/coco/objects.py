"""Objects of a COCO or kwcoco manifest."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.arrays import IntArray
from sslbench.data.booleans import marks
from sslbench.data.formats.coco.assets import side_of_image
from sslbench.data.formats.coco.columns import Columns, Rows
from sslbench.data.formats.coco.keypoints import keypoint_kinds, read_points, read_skeleton
from sslbench.data.images import Files
from sslbench.data.objects.boxes import BoxIssues, checked_objects, size_in_file
from sslbench.data.objects.types import ObjectSource
from sslbench.data.source import Images
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.metrics.detection.federated import FREQUENCIES, Federated
from sslbench.metrics.detection.keypoints import Skeleton
from sslbench.metrics.detection.masks import problem

Row = dict[str, Any]
NEGATIVE, PARTLY = "neg_category_ids", "not_exhaustive_category_ids"
"""Keys of LVIS's images: categories that are absent, and those of which not all objects are labelled."""
_FARTHEST = 1e9
"""Largest coordinate, in pixels."""


def object_sources(
    spec: str,
    columns: Columns,
    content: Rows,
    ids: list[str],
    files: Images,
    splits: list[str] | None,
    notes: tuple[str, ...],
) -> dict[str, ObjectSource]:
    """Return one source per split, or {"all": source}.

    Args:
        spec: the manifest, for messages.
        columns: of the manifest.
        content: its rows.
        ids: one per image.
        files: the images.
        splits: the split of each image; None if there are none.
        notes: of the caller.

    Raises:
        DataError: an annotation has no box, one with a coordinate that is no number, a damaged segmentation, or other
            keypoints than its category.
    """
    images, annotations = content["images"], content["annotations"]
    categories, left_out = _categories(content)
    class_of = {row["id"]: i for i, row in enumerate(categories)}
    rows = _rows(spec, annotations, class_of)
    skeleton = read_skeleton(spec, content["categories"], columns.keypoint_kinds)
    if skeleton is not None:
        _add_keypoints(spec, content, skeleton, columns.keypoint_kinds, rows)
    sizes = [_size(spec, row, files, i) for i, row in enumerate(images)]
    issues = BoxIssues()
    number = None if skeleton is None else len(skeleton)
    objects = [checked_objects(rows[row["id"]], size, issues, number) for row, size in zip(images, sizes, strict=True)]
    issues.refuse_shares(spec)
    notes = (*notes, *issues.notes(spec))
    if columns.skipped:
        notes = (*notes, f"{spec}: {counted(columns.skipped, 'annotation')} without category or image left out")
    if left_out:
        notes = (*notes, f"{spec}: {counted(len(left_out), 'category')} without any object left out: {some(left_out)}")
    if skeleton is None and any(row.get("keypoints") for row in annotations):
        notes = (*notes, f"{spec}: keypoints left out, since no category lists the names of its 'keypoints'")
    federated = _federated(spec, images, categories)
    order = sorted(range(len(ids)), key=ids.__getitem__)
    split_of = splits or ["all"] * len(ids)
    sources = {}
    for split in dict.fromkeys(split_of):
        chosen = np.array([i for i in order if split_of[i] == split], dtype=np.int64)
        sources[split] = ObjectSource(
            name=spec if splits is None else f"{spec} ({split})",
            ids=tuple(ids[i] for i in chosen),
            images=files.select(chosen),
            objects=tuple(objects[i] for i in chosen),
            sizes=np.array([sizes[i] for i in chosen], dtype=np.int64).reshape(-1, 2),
            classes=tuple(str(row["name"]) for row in categories),
            numbers=tuple(images[i]["id"] for i in chosen),
            class_numbers=tuple(row["id"] for row in categories),
            notes=notes,
            attributes={key: tuple(column[i] for i in chosen) for key, column in columns.attributes.items()},
            grouped_by=columns.grouped_by,
            federated=None if federated is None else federated.select(chosen, len(ids)),
            skeleton=skeleton,
        )
    return sources


def _federated(spec: str, images: list[Row], categories: list[Row]) -> Federated | None:
    """Return the classes that LVIS looked for in each image; None for a manifest that does not say.

    Raises:
        DataError: a list is none of category ids, or some images have one and others have none.
    """
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


def _categories(content: Rows) -> tuple[list[Row], list[str]]:
    """Return the categories that have objects, in order of their id, and the names of the others."""
    used = {row.get("category_id") for row in content["annotations"]}
    ordered = sorted(content["categories"], key=lambda row: int(row["id"]))
    return [row for row in ordered if row["id"] in used], [str(row["name"]) for row in ordered if row["id"] not in used]


def _rows(spec: str, annotations: list[Row], class_of: dict[Any, int]) -> dict[Any, list[Row]]:
    """Return image id -> its objects; annotations without image or category are left out."""
    rows: dict[Any, list[Row]] = defaultdict(list)
    for annotation in annotations:
        if annotation.get("category_id") is not None and annotation.get("image_id") is not None:
            rows[annotation["image_id"]].append(_row(spec, annotation, class_of))
    return rows


def _add_keypoints(spec: str, content: Rows, skeleton: Skeleton, table: object, rows: dict[Any, list[Row]]) -> None:
    """Add the keypoints of the annotations to their rows."""
    own = {row["id"]: tuple(row.get("keypoints") or ()) for row in content["categories"]}
    kinds = keypoint_kinds(spec, table)
    by_number = {row["number"]: row for of_image in rows.values() for row in of_image}
    for annotation in content["annotations"]:
        row = by_number.get(annotation["id"])
        if row is not None:
            row["keypoints"] = read_points(spec, annotation, own[annotation["category_id"]], skeleton, kinds)
            row["num_keypoints"] = annotation.get("num_keypoints")


def _row(spec: str, annotation: dict[str, Any], class_of: dict[Any, int]) -> dict[str, Any]:
    name = f"annotation {annotation['id']}"
    x, y, width, height = _numbers(spec, name, annotation.get("bbox"))
    crowd, difficult = marks(spec, annotation)
    mask = annotation.get("segmentation")
    if mask in ([], {}, ""):
        mask = None
    if mask is not None and (found := problem(mask)):
        raise DataError(f"{spec}, {name}: the segmentation cannot be used: {found}")
    area = annotation.get("area")
    if area is not None and not (isinstance(area, int | float) and 0 <= area < _FARTHEST**2):
        raise DataError(f"{spec}, {name}: its area is {area!r:.80}, not a number of pixels")
    return {
        "name": name,
        "number": annotation["id"],
        "box": (x, y, x + width, y + height),
        "label": class_of[annotation["category_id"]],
        "crowd": crowd,
        "difficult": difficult,
        "area": area,
        "mask": mask,
    }


def _numbers(spec: str, name: str, box: object) -> tuple[float, float, float, float]:
    if box is None or box == []:
        raise DataError(f"{spec}, {name} has no bbox", "Detection needs the box of every object: x, y, width, height.")
    numbers = isinstance(box, list) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in box)
    if not isinstance(box, list) or len(box) != 4 or not numbers:
        raise DataError(f"{spec}, {name}: its bbox is {str(box)[:80]}, not four numbers x, y, width, height")
    if not all(abs(v) < _FARTHEST for v in box):  # NaN is not
        raise DataError(f"{spec}, {name}: a coordinate of its bbox {str(box)[:60]} is not finite, or beyond any image")
    return float(box[0]), float(box[1]), float(box[2]), float(box[3])


def _size(spec: str, image: dict[str, Any], files: Images, index: int) -> tuple[int, int]:
    """Return height and width: those in the manifest, else those in the image file."""
    given = image.get("height"), image.get("width")
    if given == (None, None):
        return size_in_file(Path(files.root) / files.paths[index]) if isinstance(files, Files) else (0, 0)
    height, width = map(side_of_image, given)
    if height is None or width is None:
        raise DataError(f"{spec}, image {image['id']}: height and width are {given[0]!r:.40} and {given[1]!r:.40}")
    return height, width
