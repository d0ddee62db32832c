"""Crops: every object of a manifest as a sample, the part of the image in its box (`?unit=annotation`)."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import OfRows
from sslbench.config import setting
from sslbench.data.decode.handlers import PictureDecoder, picture_decoder, picture_of
from sslbench.data.decode.picture import Decoded, UnreadableImage
from sslbench.data.images import digests_with
from sslbench.data.labels import single_labels
from sslbench.data.objects import ObjectSource
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.errors import DataError, UsageError
from sslbench.targets.target import Images

IMAGE = "image"
"""Attribute with the image of a crop."""


@dataclasses.dataclass(frozen=True)
class CropOptions:
    """Options behind a '?': photos.json?unit=annotation&margin=0.1."""

    unit: Literal["image", "annotation"] = setting("image", "unit of a sample: an image, or the crop of each box")
    classes: Literal["category", "supercategory"] = setting("category", "level of the classes")
    margin: float = setting(0.1, "margin of a crop on each side, as a share of the box's side")
    min_size: float = setting(8.0, "boxes with a shorter side are left out", unit="pixels")

    def __post_init__(self) -> None:
        if not 0 <= self.margin <= 10 or not 0 <= self.min_size < float("inf"):
            raise UsageError(
                f"margin={self.margin}, min_size={self.min_size}: should be 0 or more, a margin 10 at most"
            )


@dataclasses.dataclass(frozen=True)
class ElsewhereOptions(CropOptions):
    """Options of a list whose images may lie elsewhere: boxes.csv?images=photos."""

    images: str = setting("", "folder of the images, relative to the folder of the list")


WHOLE_IMAGES = CropOptions()


class _Last:
    """Cache of the last decoded image: boxes of one image follow each other. It is not sent to other processes."""

    def __init__(self) -> None:
        self.known: tuple[int, PictureDecoder, Decoded] | None = None

    def __reduce__(self) -> tuple[type["_Last"], tuple[()]]:
        return _Last, ()


@dataclasses.dataclass(frozen=True, eq=False)
class Crops(OfRows):
    """Parts of upright images.

    Attributes:
        images: the whole images.
        rows: int64 (N,), the image of each crop.
        numbers: int64 (N,), which object of its image it is.
        boxes: float32 (N, 4), x1, y1, x2, y2 in pixels of the upright image, without margin.
        sizes: int64 (N, 2), height and width that the manifest says; zeros where it says nothing.
        margin: added on each side, as a share of the box's side.
        annotated: the boxes are annotations, and not tiles of a grid.
        from_files: some sizes are those of the image files.
    """

    of_rows = ("rows", "numbers", "boxes", "sizes")
    images: Images
    rows: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.float32]
    sizes: npt.NDArray[np.int64]
    margin: float
    annotated: bool = True
    from_files: bool = False
    _last: _Last = dataclasses.field(default_factory=_Last, repr=False)

    @property
    def sized(self) -> bool | None:
        """See `source.Source.sized`."""
        return bool(self.sizes.all()) and not self.from_files if self.annotated else None

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Decode the whole image and cut out the box with its margin, clipped to the image."""
        # The whole image at full size: boxes are in its pixels.
        row, full = int(self.rows[index]), decoder.wanting(dataclasses.replace(decoder.wanted, resize=None))
        known = self._last.known
        if known is None or known[0] != row or not known[1].same_as(full):
            known = self._last.known = row, full, picture_of(self.images, row, full)
        whole = known[2]
        height, width = whole.image.shape[1:]
        said = tuple(self.sizes[index].tolist())
        if said not in ((0, 0), (height, width)):
            reason = f"is {width} x {height} pixels, but its boxes are for {said[1]} x {said[0]}"
            raise UnreadableImage(self.path(index), reason)
        x1, y1, x2, y2 = self.boxes[index].tolist()
        if x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
            reason = f"has no pixel in its box {x1:g} {y1:g} {x2:g} {y2:g}: the image is {width} x {height} pixels"
            raise UnreadableImage(self.path(index), reason)
        # Every pixel that the grown box touches, at least one.
        dx, dy = self.margin * (x2 - x1), self.margin * (y2 - y1)
        left = min(max(int(np.floor(x1 - dx)), 0), width - 1)
        top = min(max(int(np.floor(y1 - dy)), 0), height - 1)
        right = min(max(int(np.ceil(x2 + dx)), left + 1), width)
        bottom = min(max(int(np.ceil(y2 + dy)), top + 1), height)
        # Interleaved channels, the memory layout of decoders, make resizing fast.
        part = whole.image[:, top:bottom, left:right].permute(1, 2, 0).contiguous().permute(2, 0, 1)
        return dataclasses.replace(whole, image=part)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the crop as 8-bit RGB, uint8 (h, w, 3)."""
        crop = self.decoded(index, picture_decoder(None, self.images)).image
        return np.ascontiguousarray(crop.permute(1, 2, 0).numpy(), dtype=np.uint8)

    def path(self, index: int) -> str:
        """Return path and number of the object: 'a.jpg#2'."""
        return f"{self.images.path(int(self.rows[index]))}#{self.numbers[index]}"

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: of the image's content, the box and the margin; zeros where the file cannot be read."""
        margin = repr(float(self.margin)).encode()
        # Of one byte order, so that keys agree between machines.
        return digests_with(
            self.images.digests()[self.rows], [box.tobytes() + margin for box in self.boxes.astype("<f4")]
        )


def crops_of(
    spec: str,
    sources: Mapping[str, ObjectSource],
    options: CropOptions,
    group: Mapping[str, str] | None = None,
    *,
    columns: Mapping[str, Mapping[int, str]] | None = None,
    grouped_by: str = "",
) -> dict[str, Source]:
    """Return the objects of each split as samples, labelled with their class.

    They have the attributes of their images and one more, 'image', by which seeded splits keep them together, unless
    the images themselves belong together (frames of a video).

    Crowds, and objects that are marked ignore or difficult, are left out and counted, as are small boxes. An id is the
    image's and the number of the object among those of its image.

    Args:
        spec: the manifest, for messages.
        sources: its images with their objects.
        options: margin and smallest size.
        group: class -> the class it counts as.
        columns: further attributes: name -> id of the annotation -> text.
        grouped_by: the attribute whose equal values belong together, in place of these.
    """
    further = columns or {}
    return {split: _crops(spec, source, options, group or {}, further, grouped_by) for split, source in sources.items()}


def _crops(
    spec: str,
    source: ObjectSource,
    options: CropOptions,
    group: Mapping[str, str],
    columns: Mapping[str, Mapping[int, str]],
    grouped_by: str,
) -> Source:
    kept: list[tuple[str, int, int]] = []
    found: list[tuple[tuple[float, ...], int, int]] = []
    crowds = ignored = small = 0
    for row, (sample, objects) in enumerate(zip(source.ids, source.target.objects, strict=True)):
        numbers = objects.numbers if objects.numbers is not None else np.full(len(objects), -1)
        for k, (x1, y1, x2, y2) in enumerate(objects.boxes.tolist()):
            if objects.crowd[k]:
                crowds += 1
            elif objects.difficult[k]:
                ignored += 1
            elif min(x2 - x1, y2 - y1) < options.min_size:
                small += 1
            else:
                kept.append((f"{sample}#{k:04d}", row, k))
                found.append(((x1, y1, x2, y2), int(objects.classes[k]), int(numbers[k])))
    if not kept:
        raise DataError(f"{source.name} has no box that can be a sample: all {crowds + ignored + small} were left out")
    # Crops may sort otherwise than their images: 'a b#0000' comes before 'a#0000'.
    order = sorted(range(len(kept)), key=kept.__getitem__)
    ids, rows_, ks = zip(*(kept[i] for i in order), strict=True)
    boxes, classes, numbers_ = zip(*(found[i] for i in order), strict=True)
    rows = np.array(rows_, dtype=np.int64)
    ordered = list(dict.fromkeys(group.get(name, name) for name in source.target.classes))
    names = [group.get(source.target.classes[c], source.target.classes[c]) for c in classes]
    present = set(names)
    labels = single_labels(names, [name for name in ordered if name in present])
    out = ((crowds, "crowd"), (ignored, "ignored or difficult object"), (small, "smaller box"))
    left_out = [counted(n, what) for n, what in out if n]
    notes = (f"{spec}: {', '.join(left_out)} left out",) if left_out else ()
    parts = rows, np.array(ks, dtype=np.int64), np.array(boxes, dtype=np.float32), source.target.sizes[rows]
    images = Crops(source.images, *parts, options.margin, from_files=not source.sized)
    attributes = {IMAGE: source.ids} | dict(source.attributes)
    of_images = {key: tuple(column[row] for row in rows_) for key, column in attributes.items()}
    of_objects = {key: tuple(column[number] for number in numbers_) for key, column in columns.items()}
    grouped_by = grouped_by or source.grouped_by or IMAGE
    return Source(source.name, ids, labels, images, (*source.notes, *notes), of_images | of_objects, grouped_by)
