"""Annotated images of the formats that name a class per object, and their sources."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.data.images import Files
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.objects.boxes import BoxIssues, RawObjects, checked_objects, turned_sizes
from sslbench.data.objects.crops import CropOptions, crops_of
from sslbench.data.objects.types import ObjectSource
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.errors import UsageError
from sslbench.metrics.detection.keypoints import Skeleton
from sslbench.targets.none import Unlabelled
from sslbench.targets.objects import Boxes, Objects
from sslbench.targets.target import Target


@dataclasses.dataclass
class AnnotatedImage:
    """Image file with its objects.

    Attributes:
        id: unique in its split.
        path: of the file.
        size: height and width of the upright image; zeros if not known.
        rows: objects: name (for messages), class (its name), box (x1, y1, x2, y2 in pixels, finite), crowd, difficult,
            area or None, mask or None; perhaps given (the four numbers in the file, where these are no pixels) and
            keypoints (K triples x, y, visibility).
        group: the group it belongs to; '' for none.
        sized: the annotations say the size; False: it is read from the image's file.
    """

    id: str
    path: Path
    size: tuple[int, int]
    rows: list[dict[str, Any]]
    group: str = ""
    sized: bool = True


def object_sources(
    spec: str,
    splits: Mapping[str, Sequence[AnnotatedImage]],
    notes: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    issues: BoxIssues | None = None,
    grouped_by: str = "",
    skeleton: Skeleton | None = None,
) -> dict[str, ObjectSource]:
    """Return a source per split; all have the same classes, those without an object left out.

    Args:
        spec: the location, for names and messages.
        splits: 'train', 'val', 'test' or 'all' -> images.
        notes: of the caller.
        classes: in the order of the data; by default sorted by name.
        issues: problems with boxes that the caller found.
        grouped_by: name of the attribute that the groups of the images are; '' without groups.
        skeleton: the keypoints that every row has, as 'keypoints'; None: they have none.

    Raises:
        DataError: all boxes are shares of the image, from 0 to 1.
    """
    used = {row["class"] for part in splits.values() for image in part for row in image.rows}
    ordered = sorted(used) if classes is None else [name for name in classes if name in used]
    numbers = range(1, len(ordered) + 1) if classes is None else [classes.index(name) + 1 for name in ordered]
    place = {name: i for i, name in enumerate(ordered)}
    issues = issues or BoxIssues()
    points = None if skeleton is None else len(skeleton)
    objects = {}
    for split, part in splits.items():
        raw, given = _raw(part, place, points), np.array([image.size for image in part], np.int64).reshape(-1, 2)
        paths = [image.path for image in part]
        sizes, turned = turned_sizes(spec, raw, given, paths.__getitem__)
        objects[split], notes = checked_objects(raw, sizes, issues), (*notes, *turned)
        for image, (height, width) in zip(part, sizes.tolist(), strict=True):
            image.size = (height, width)
    issues.refuse_shares(spec)
    unused = [] if classes is None else [name for name in classes if name not in used]
    about = [*notes, *issues.notes(spec)]
    about += [f"{spec}: {counted(len(unused), 'class')} without any object left out"] if unused else []
    return {
        split: _source(
            spec if split == "all" else f"{spec} ({split})",
            part,
            objects[split],
            ordered,
            numbers,
            tuple(about),
            grouped_by,
            skeleton,
        )
        for split, part in splits.items()
    }


def _raw(images: Sequence[AnnotatedImage], place: Mapping[str, int], points: int | None) -> RawObjects:
    """Return the objects of images as columns; `points` is the number of keypoints."""
    rows = [row for image in images for row in image.rows]
    boxes = np.array([row["box"] for row in rows], dtype=np.float64).reshape(-1, 4)
    given = np.array([row.get("given", row["box"]) for row in rows], dtype=np.float64).reshape(-1, 4)
    areas = [np.nan if row["area"] is None else row["area"] for row in rows]
    keypoints = None
    if points is not None:
        keypoints = np.array([row["keypoints"] for row in rows], dtype=np.float64).reshape(-1, points, 3)
    return RawObjects(
        images=np.repeat(np.arange(len(images)), [len(image.rows) for image in images]),
        boxes=boxes,
        classes=np.array([place[row["class"]] for row in rows], dtype=np.int64),
        crowd=np.array([row["crowd"] for row in rows], dtype=np.bool_),
        difficult=np.array([row["difficult"] for row in rows], dtype=np.bool_),
        areas=np.array(areas, dtype=np.float64),
        masks=[row["mask"] for row in rows],
        name_of=lambda i: str(rows[i]["name"]),
        given=given,
        keypoints=keypoints,
    )


def _source(
    name: str,
    images: Sequence[AnnotatedImage],
    objects: Sequence[Objects],
    classes: Sequence[str],
    numbers: Sequence[int],
    notes: tuple[str, ...],
    grouped_by: str,
    skeleton: Skeleton | None,
) -> ObjectSource:
    order = sorted(range(len(images)), key=lambda i: images[i].id)
    return ObjectSource(
        name=name,
        ids=tuple(images[i].id for i in order),
        images=Files(tuple(str(images[i].path) for i in order)),
        target=Boxes(
            tuple(classes),
            tuple(objects[i] for i in order),
            sizes=np.array([images[i].size for i in order], dtype=np.int64).reshape(-1, 2),
            numbers=tuple(range(1, len(images) + 1)),
            class_numbers=tuple(numbers),
            skeleton=skeleton,
            sized=all(image.sized for image in images),
        ),
        notes=notes,
        attributes={grouped_by: tuple(images[i].group for i in order)} if grouped_by else {},
        grouped_by=grouped_by,
    )


def as_samples(spec: str, found: Mapping[str, ObjectSource], options: CropOptions) -> dict[str, Source]:
    """Return the images labelled with the classes of their objects, or the crops of these.

    The labels are single if every image of every split has exactly one class, else multi: a class of which an image
    has only crowds or difficult objects is ignored there, as in Pascal VOC's lists.

    Args:
        spec: the location, for messages.
        found: its images with objects.
        options: crops in place of images.

    Raises:
        UsageError: supercategories are asked for; only manifests have them.
        DataError: no box can be a crop.
    """
    if options.classes == "supercategory":
        raise UsageError(f"{spec}: classes=supercategory is an option of COCO manifests; here are none")
    if options.unit == "annotation":
        return crops_of(spec, found, options)
    named = {split: [_present(part, objects) for objects in part.target.objects] for split, part in found.items()}
    single = all(len(there) == 1 and not ignored for rows in named.values() for there, ignored in rows)
    sources = {}
    for split, part in found.items():
        labels: Target
        if not part.target.classes:
            labels = Unlabelled(len(part))
        elif single:
            labels = single_labels([next(iter(there)) for there, _ in named[split]], part.target.classes)
        else:
            labels = multi_labels([t for t, _ in named[split]], [i for _, i in named[split]], part.target.classes)
        sources[split] = Source(
            part.name, part.ids, labels, part.images, part.notes, part.attributes, grouped_by=part.grouped_by
        )
    return sources


def _present(part: ObjectSource, objects: Objects) -> tuple[set[str], set[str]]:
    """Return the classes of an image with objects that count, and those with others only."""
    counts = ~(objects.crowd | objects.difficult)
    there = {part.target.classes[c] for c in objects.classes[counts].tolist()}
    return there, {part.target.classes[c] for c in objects.classes.tolist()} - there
