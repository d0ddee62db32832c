"""Regions with texts: captions of boxes, points and masks, as samples of image-text and as batches of equal shape."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray
from sslbench.config import setting
from sslbench.data.format import Reader, SampleReader, SampleRequest, SourceFormat
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.boxes import as_samples
from sslbench.data.objects.crops import CropOptions, Crops, crops_of
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.errors import DataError
from sslbench.metrics.detection import masks as rle
from sslbench.targets.objects import Boxes, Objects
from sslbench.targets.target import Target
from sslbench.targets.texts import Texts


@dataclasses.dataclass(frozen=True)
class RegionTexts:
    """Options of the texts of regions: vg/?unit=image&most=5."""

    unit: Literal["annotation", "image"] = setting("annotation", "unit of a sample: a region's crop, or a whole image")
    margin: float = setting(
        0.1, "margin of a crop on each side, as a share of the box's side", within="[0, 10]", needs="unit=annotation"
    )
    min_size: float = setting(
        8.0, "boxes with a shorter side are left out", unit="pixels", within="[0, inf)", needs="unit=annotation"
    )
    most: int = setting(0, "texts per sample that count, the first ones; 0: all", within="[0, inf)")


def region_readers(
    recognises: Callable[[str], bool],
    read: Callable[[str, Any], dict[str, ObjectSource]],
    boxes: type[Any],
    texts: type[RegionTexts],
) -> dict[type[Target], Reader[Any]]:
    """Return the readers of a format whose objects have texts: of boxes, and of texts of crops.

    `read`: from a location and either kind of options; `boxes`, `texts`: the kinds, with the same fields for `read`.
    """

    def open_texts(spec: str, options: RegionTexts) -> dict[str, Source]:
        return text_sources(spec, read(spec, options), options)

    return {
        Boxes: Reader(lambda spec, _: recognises(spec), read, boxes),
        Texts: Reader(lambda spec, _: recognises(spec), open_texts, texts),
    }


def region_format(
    doc: str,
    recognises: Callable[[str], bool],
    read: Callable[[str, Any], dict[str, ObjectSource]],
    samples: type[Any],
    boxes: type[Any],
    texts: type[RegionTexts],
) -> SourceFormat:
    """Return a format of objects with texts, which is also read as images with the classes of their objects.

    `samples`: the kind of options of images and crops; for the others see `region_readers`.
    """

    def open_samples(request: SampleRequest[Any]) -> dict[str, Source]:
        return as_samples(request.spec, read(request.spec, request.options), request.options)

    return SourceFormat(
        doc, SampleReader(recognises, open_samples, samples), region_readers(recognises, read, boxes, texts)
    )


def text_sources(spec: str, sources: Mapping[str, ObjectSource], options: RegionTexts) -> dict[str, Source]:
    """Return the crops of the regions that have texts, or the whole images with the texts of all their regions.

    Crops of an image belong together: the image is the unit of intervals and of seeded splits.

    Raises:
        DataError: no region has a text.
    """
    described = {split: source for split, source in sources.items() if source.target.has_texts}
    if not described:
        raise DataError(f"{spec}: no region has a text", "A region has them as 'caption' or 'captions' of its box.")
    if options.unit == "image":
        return {split: _of_images(source, options.most) for split, source in described.items()}
    crops = crops_of(spec, described, CropOptions("annotation", margin=options.margin, min_size=options.min_size))
    return {split: _of_crops(described[split].target, part, options.most) for split, part in crops.items()}


def _of_images(source: ObjectSource, most: int) -> Source:
    texts = [[text for own in one.texts or () for text in own] for one in source.target.objects]
    whole = Source(source.name, source.ids, source.target, source.images, source.notes, {}, "")
    return _with_texts(whole, texts, most, "image")


def _of_crops(boxes: Boxes, crops: Source, most: int) -> Source:
    if not isinstance(crops.images, Crops):
        raise TypeError(type(crops.images))
    rows, numbers = crops.images.rows.tolist(), crops.images.numbers.tolist()
    # Crops of an image mostly follow each other, and objects in files are read anew each time.
    texts, last, own = list[Sequence[str]](), -1, None
    for row, number in zip(rows, numbers, strict=True):
        if row != last:
            last, own = row, boxes.objects[row].texts
        texts.append(own[number] if own is not None else ())
    return _with_texts(crops, texts, most, "region")


def _with_texts(source: Source, texts: Sequence[Sequence[str]], most: int, what: str) -> Source:
    """Return the samples that have texts, with a note on the others."""
    kept = np.array([i for i, own in enumerate(texts) if own], dtype=np.int64)
    if not len(kept):
        raise DataError(f"{source.name}: every {what} with a text was left out: {'; '.join(source.notes)}")
    left_out = len(texts) - len(kept)
    about = (f"{source.name}: {counted(left_out, what)} without a text left out",) if left_out else ()
    target = Texts(tuple(tuple(texts[i][: most or None]) for i in kept))
    return dataclasses.replace(source.select(kept), target=target, notes=(*source.notes, *about))


@dataclasses.dataclass(frozen=True, eq=False)
class RegionBatch:
    """Regions of B images, R of each.

    Attributes:
        boxes: float32 (B, R, 4), x1, y1, x2, y2 in pixels; zeros where an image has fewer regions.
        points: float64 (B, R, 2), x, y; NaN where a region has none.
        texts: B tuples of R tuples of texts.
        valid: bool (B, R), False where an image has fewer regions.
        masks: bool (B, R, H, W), of the largest height and width, False outside of an image; None if not asked for.
    """

    boxes: npt.NDArray[np.float32]
    points: npt.NDArray[np.float64]
    texts: tuple[tuple[tuple[str, ...], ...], ...]
    valid: BoolArray
    masks: BoolArray | None = None


def collate(
    images: Sequence[Objects],
    length: Literal["smallest", "largest"] = "smallest",
    sizes: Sequence[tuple[int, int]] | None = None,
) -> RegionBatch:
    """Return the regions of several images as arrays of one shape.

    Args:
        images: the regions of B images.
        length: 'smallest' keeps the first regions, as many as the image with the fewest has (the collation of
            segment-caption-anything); 'largest' fills up with zeros, marked in `valid`.
        sizes: height and width of each image, for masks; None: without masks.

    Raises:
        ValueError: `length` is another word, there is no image, or a region has no mask.

    >>> one = Objects(np.float32([[0, 0, 2, 2]]), *np.zeros((4, 1), dtype=int), texts=(("a cat",),))
    >>> two = one.select([0, 0])
    >>> collate([one, two]).boxes.shape, collate([one, two], "largest").valid.tolist()
    ((2, 1, 4), [[True, False], [True, True]])
    """
    if length not in ("smallest", "largest") or not images:
        raise ValueError(f"length='{length}' of {len(images)} images: smallest or largest of one image or more")
    counts = [len(one) for one in images]
    number = min(counts) if length == "smallest" else max(counts)
    shape = len(images), number
    boxes, points = np.zeros((*shape, 4), np.float32), np.full((*shape, 2), np.nan)
    valid, texts = np.arange(number) < np.array(counts)[:, None], []
    for i, one in enumerate(images):
        n = min(len(one), number)
        boxes[i, :n] = one.boxes[:n]
        if one.points is not None:
            points[i, :n] = one.points[:n]
        own = one.texts[:n] if one.texts is not None else ((),) * n
        texts.append((*own, *((),) * (number - n)))
    return RegionBatch(boxes, points, tuple(texts), valid, None if sizes is None else _masks(images, number, sizes))


def _masks(images: Sequence[Objects], number: int, sizes: Sequence[tuple[int, int]]) -> BoolArray:
    """Return the masks of the first regions of each image, (B, R, H, W)."""
    height, width = np.max(np.array(sizes), axis=0).tolist()
    found = np.zeros((len(images), number, height, width), dtype=np.bool_)
    for i, (one, (h, w)) in enumerate(zip(images, sizes, strict=True)):
        for k, part in enumerate((one.masks or (None,) * len(one))[:number]):
            if part is None:
                raise ValueError(f"region {k} of image {i} has no mask")
            found[i, k, :h, :w] = rle.decode(rle.to_rle(part, h, w))
    return found
