"""Checks of boxes, shared by the formats with objects, and notes on boxes that were left out or changed."""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from sslbench.arrays import IntArray
from sslbench.data.containers.members import by_split
from sslbench.data.decode.files import orientation, upright_size
from sslbench.data.format import SampleReader, SampleRequest, SourceFormat, plain_reader
from sslbench.data.images import Files
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.crops import CropOptions, crops_of
from sslbench.data.regular import open_regular
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.metrics.detection.keypoints import Skeleton, labelled
from sslbench.metrics.detection.masks import Segmentation, is_empty
from sslbench.targets.none import Unlabelled
from sslbench.targets.objects import Boxes, Objects
from sslbench.targets.target import Images, Target

_ENOUGH = 8  # files that must agree before those of all images are read
# Pixels by which a box may leave its image and stay as it is: annotations round, and pycocotools scores them so.
_SLACK = 1.0


def reports_changed_boxes(note: str) -> bool:
    """Return whether a note of a source is one of `checked_objects`: objects that were left out or changed."""
    return any(
        part in note
        for part in (" left out: ", " clipped to the image: ", " without area ", " keypoints outside ", "num_keypoints")
    )


@dataclasses.dataclass(frozen=True, eq=False)
class RawObjects:
    """n objects of several images as a file has them, before the checks, in order of their images.

    Attributes:
        images: int64 (n,), position of each object's image; ascending.
        boxes: float64 (n, 4), x1, y1, x2, y2, finite.
        classes: int64 (n,).
        crowd: bool (n,).
        difficult: bool (n,).
        areas: float64 (n,); NaN: that of the box.
        masks: n segmentations; None: an object has none.
        name_of: description of an object, by its position, for messages.
        given: float64 (n, 4), the four numbers that stand in the file, where these are no pixels; None: the boxes.
        numbers: int64 (n,), ids of the annotations; None: they have none.
        keypoints: float64 (n, K, 3): x, y, visibility; None: objects have none.
        labelled: number of keypoints of each object that are labelled by the file's own count, None where it has none.
        texts: texts of each object, perhaps none; None: no object has one.
        points: float64 (n, 2), a point x, y in each object, NaN where it has none; None: no object has one.
    """

    images: IntArray
    boxes: npt.NDArray[np.float64]
    classes: IntArray
    crowd: npt.NDArray[np.bool_]
    difficult: npt.NDArray[np.bool_]
    areas: npt.NDArray[np.float64]
    masks: Sequence[Segmentation | None]
    name_of: Callable[[int], str]
    given: npt.NDArray[np.float64] | None = None
    numbers: IntArray | None = None
    keypoints: npt.NDArray[np.float64] | None = None
    labelled: Sequence[int | None] | None = None
    texts: Sequence[tuple[str, ...]] | None = None
    points: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.boxes)


def checked_objects(
    spec: str, raw: RawObjects, images: Images, sizes: IntArray
) -> tuple[tuple[Objects, ...], IntArray, tuple[str, ...]]:
    """Return the objects of each of N images, the sizes of the upright images, and notes on what was changed.

    Boxes are clipped, those without area left out. All images are checked together: a manifest has millions of objects.

    Args:
        spec: the location, for messages.
        raw: the objects.
        images: of the same length as `sizes`.
        sizes: int64 (N, 2), height and width that the data give; zeros if not known, then nothing is clipped.
    """
    turned: tuple[str, ...] = ()
    if isinstance(images, Files):
        sizes, turned = _turned_sizes(spec, raw, sizes, lambda i: Path(images.path(i)))

    def named(chosen: npt.NDArray[np.bool_]) -> list[str]:
        return [raw.name_of(i) for i in np.flatnonzero(chosen).tolist()]

    boxes, size = raw.boxes, sizes[raw.images]
    given = boxes if raw.given is None else raw.given
    # Numbers from 0 to 1 of which one is not whole are shares of the sides; 0, 0, 1, 1 may be a pixel.
    shares = ((given >= 0) & (given <= 1.001)).all(axis=1) & (given != np.trunc(given)).any(axis=1)
    if len(raw) and shares.all():
        raise DataError(
            f"{spec}: all {counted(len(raw), 'box')} lie between 0 and 1 ({some(named(shares), 2)}): they seem to be "
            "shares of the image, and pixels are expected",
            "Multiply x by the width and y by the height of the image. Text files of YOLO hold shares and are read as "
            "such.",
        )
    empty = np.logical_not((boxes[:, 2:] > boxes[:, :2]).all(axis=1))
    edge = np.tile(size[:, ::-1], 2).astype(np.float64)
    beyond = (boxes[:, :2] < -_SLACK).any(axis=1) | (boxes[:, 2:] > edge[:, 2:] + _SLACK).any(axis=1)
    beyond &= ~empty & (size[:, 0] > 0)
    # The first corner is only raised and the second only lowered: a box outside of the image turns inside out.
    ends = np.concatenate([np.full((len(edge), 2), np.inf), edge[:, 2:]], axis=1)
    boxes = np.where(beyond[:, None], np.minimum(np.maximum(boxes, [0.0, 0.0, -np.inf, -np.inf]), ends), boxes)
    outside = beyond & ~(boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    clipped, kept = beyond & ~outside, ~empty & ~outside
    unmasked = np.zeros(len(raw), dtype=np.bool_)
    unmasked[[i for i in np.flatnonzero(kept).tolist() if (mask := raw.masks[i]) is not None and is_empty(mask)]] = True
    most = clipped.sum() > len(raw) / 4
    hint = " (check that boxes are x, y, width, height and that sizes are those of the images)" if most else ""
    changes = [
        (empty, "object", "without width or height left out"),
        (outside, "object", "outside of the image left out"),
        (clipped, "box", "clipped to the image"),
        (unmasked, "mask", "without area (fewer than three corners), which no prediction can match"),
    ]
    if raw.keypoints is not None:
        changes += _odd_points(raw, raw.keypoints, size, kept)
    notes = [
        f"{spec}: {counted(int(chosen.sum()), thing)} {problem}: {some(named(chosen))}{hint * (chosen is clipped)}"
        for chosen, thing, problem in changes
        if chosen.any()
    ]
    return _by_image(raw, boxes, kept, len(sizes)), sizes, (*turned, *notes)


def _by_image(
    raw: RawObjects, boxes: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_], n_images: int
) -> tuple[Objects, ...]:
    """Return the kept objects of each image, with their boxes as they are after clipping."""
    rows = np.flatnonzero(kept)
    boxes = boxes[rows]
    areas = np.where(np.isnan(raw.areas[rows]), (boxes[:, 2:] - boxes[:, :2]).prod(axis=1), raw.areas[rows])
    small, classes, crowd, difficult = boxes.astype(np.float32), raw.classes[rows], raw.crowd[rows], raw.difficult[rows]
    numbers = None if raw.numbers is None else raw.numbers[rows]
    keypoints = None if raw.keypoints is None else raw.keypoints[rows]
    points = None if raw.points is None else raw.points[rows]
    masks = [raw.masks[i] for i in rows.tolist()]
    texts = [raw.texts[i] for i in rows.tolist()] if raw.texts is not None else [()] * len(rows)
    # Objects stand in the order of their images, see `RawObjects`.
    starts = np.searchsorted(raw.images[rows], np.arange(n_images + 1)).tolist()
    found = []
    for start, stop in itertools.pairwise(starts):
        own = slice(start, stop)
        of_image, texts_of_image = tuple(masks[own]), tuple(texts[own])
        found.append(
            Objects(
                boxes=small[own],
                classes=classes[own],
                crowd=crowd[own],
                difficult=difficult[own],
                areas=areas[own],
                masks=of_image if any(mask is not None for mask in of_image) else None,
                numbers=None if numbers is None else numbers[own],
                keypoints=None if keypoints is None else keypoints[own],
                texts=texts_of_image if any(texts_of_image) else None,
                points=None if points is None else points[own],
            )
        )
    return tuple(found)


def _odd_points(
    raw: RawObjects, points: npt.NDArray[np.float64], size: IntArray, kept: npt.NDArray[np.bool_]
) -> list[tuple[npt.NDArray[np.bool_], str, str]]:
    """Return the kept objects with odd keypoints (n, K, 3), in images of a height and width each, and what is odd."""
    there = labelled(points)
    # Keypoints count from the centre of the first pixel, boxes from its corner.
    at, end = points[:, :, :2], size[:, None, ::-1] - 1 + _SLACK
    outside = (there & ((at < -_SLACK) | (at > end)).any(axis=2)).any(axis=1) & (size[:, 0] > 0) & kept
    counts, told = there.sum(axis=1).tolist(), raw.labelled or [None] * len(raw)
    odd = np.array([own not in (None, count) for own, count in zip(told, counts, strict=True)], dtype=np.bool_)
    return [
        (outside, "object", "with labelled keypoints outside of the image"),
        (kept & odd, "object", "whose num_keypoints is not the number of labelled keypoints, which counts"),
    ]


def _turned_sizes(
    spec: str, raw: RawObjects, sizes: IntArray, path_of: Callable[[int], Path]
) -> tuple[IntArray, tuple[str, ...]]:
    """Return the sizes of upright images where a file gives those of stored pixels, and a note if some were swapped.

    Some tools write the boxes as they were drawn, on images that EXIF turns, with the width and height of the stored
    pixels. It is so if boxes fit the image only with the sides swapped, and the image files say the same.
    """
    given = sizes[raw.images]
    ends, starts = raw.boxes[:, 2:], raw.boxes[:, :2]
    inside = (starts >= -_SLACK).all(axis=1) & (given[:, 0] > 0)
    fits, fits_turned = ((ends <= side + _SLACK).all(axis=1) & inside for side in (given[:, ::-1], given))
    if not (fits_turned & ~fits).any():
        return sizes, ()
    # One box that does not fit the swapped sides shows that its image is not turned.
    never = set(raw.images[~fits_turned].tolist())
    only_turned = [i for i in dict.fromkeys(raw.images[fits_turned & ~fits].tolist()) if i not in never]
    if not only_turned or any(size_in_file(path_of(i)) != (sizes[i, 1], sizes[i, 0]) for i in only_turned[:_ENOUGH]):
        return sizes, ()
    found = sizes.copy()
    # A square has the same size either way.
    for i in np.flatnonzero(sizes[:, 0] != sizes[:, 1]).tolist():
        if i not in never and size_in_file(path_of(i)) == (sizes[i, 1], sizes[i, 0]):
            found[i] = sizes[i, ::-1]
    swapped = int((found != sizes).any(axis=1).sum())
    return found, (
        f"{spec}: width and height of {counted(swapped, 'image')} turned by EXIF are those of stored pixels, and the "
        f"boxes those of the upright image ({len(only_turned):,} fit no other way): the sides are swapped",
    )


def size_in_file(path: Path) -> tuple[int, int]:
    """Read height and width of the upright image from the head of its file; zeros if that fails."""
    try:
        with open_regular(str(path)) as file, Image.open(file) as image:
            return upright_size(image, orientation(image))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        logging.getLogger("sslbench").debug("%s: no size (%s)", path, error)
        return 0, 0


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
    grouped_by: str = "",
    skeleton: Skeleton | None = None,
) -> dict[str, ObjectSource]:
    """Return a source per split; all have the same classes, those without an object left out.

    Args:
        spec: the location, for names and messages.
        splits: 'train', 'val', 'test' or 'all' -> images.
        notes: of the caller.
        classes: in the order of the data; by default sorted by name.
        grouped_by: name of the attribute that the groups of the images are; '' without groups.
        skeleton: the keypoints that every row has, as 'keypoints'; None: they have none.
    """
    images = [image for part in splits.values() for image in part]
    used = {row["class"] for image in images for row in image.rows}
    known = sorted(used) if classes is None else classes
    names = tuple(name for name in known if name in used)
    files = Files(tuple(str(image.path) for image in images))
    raw = _raw(images, {name: i for i, name in enumerate(names)}, None if skeleton is None else len(skeleton))
    given = np.array([image.size for image in images], np.int64).reshape(-1, 2)
    objects, sizes, about = checked_objects(spec, raw, files, given)
    unused = len(known) - len(names)
    about = (*notes, *about, *([f"{spec}: {counted(unused, 'class')} without any object left out"] if unused else []))
    boxes = Boxes(
        names,
        objects,
        sizes=sizes,
        numbers=(0,) * len(images),
        class_numbers=tuple(i for i, name in enumerate(known, 1) if name in used),
        skeleton=skeleton,
        sized=all(image.sized for image in images),
    )
    split_of = [split for split, part in splits.items() for _ in part]
    groups = {grouped_by: [image.group for image in images]} if grouped_by else {}
    ids = [image.id for image in images]
    return numbered_sources(spec, ids, boxes, files, split_of, about, groups)


def numbered_sources(
    spec: str,
    ids: Sequence[str],
    boxes: Boxes,
    images: Images,
    splits: Sequence[str] | None,
    notes: tuple[str, ...],
    groups: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, ObjectSource]:
    """Return one source per split (see `by_split`), with the images numbered from 1: the data have no numbers.

    `groups`: name of the attribute that groups the images -> that of each image; empty without groups.
    """
    found = {}
    for split, part in by_split(spec, ids, boxes, images, splits, notes, groups).items():
        numbered = Boxes.of(part.target).changed(numbers=tuple(range(1, len(part) + 1)))
        found[split] = ObjectSource.with_boxes(part, numbered, next(iter(groups or ()), ""))
    return found


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


def box_format(
    doc: str,
    recognises: Callable[[str], bool],
    read: Callable[[str], Mapping[str, ObjectSource]],
    recognises_boxes: Callable[[str], bool] | None = None,
) -> SourceFormat:
    """Return a format of boxes without options, which is also read as images with the classes of their objects.

    `recognises_boxes`: test of a location that is read as boxes, if it is another one.
    """

    def open_samples(request: SampleRequest[CropOptions]) -> dict[str, Source]:
        return as_samples(request.spec, read(request.spec), request.options)

    samples = SampleReader(recognises, open_samples, CropOptions)
    return SourceFormat(doc, samples, {Boxes: plain_reader(recognises_boxes or recognises, read)})


def as_samples(spec: str, found: Mapping[str, ObjectSource], options: CropOptions) -> dict[str, Source]:
    """Return the images labelled with the classes of their objects, or the crops of these.

    The labels are single if every image of every split has exactly one class, else multi: a class of which an image
    has only crowds or difficult objects is ignored there, as in Pascal VOC's lists.

    Args:
        spec: the location, for messages.
        found: its images with objects.
        options: crops in place of images.
    """
    if options.classes == "supercategory":
        raise UsageError(f"{spec}: classes=supercategory is an option of COCO manifests; here are none")
    if options.unit == "annotation":
        return crops_of(spec, found, options)
    named = dict[str, list[tuple[set[str], set[str]]]]()  # classes of each image that count, and others
    for split, part in found.items():
        named[split] = []
        for objects in part.target.objects:
            counts = ~(objects.crowd | objects.difficult)
            present = {part.target.classes[c] for c in objects.classes[counts].tolist()}
            every = {part.target.classes[c] for c in objects.classes.tolist()}
            named[split].append((present, every - present))
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
