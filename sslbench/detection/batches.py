"""Batches of images and targets for a detector: read, resized, flipped, from any iteration on.

The order is a function of the seed, the size and flip of an image of (seed, iteration, place in the batch): there is no
state to save, and the numbers of processes and workers change nothing.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset, Sampler
from torchvision.ops import masks_to_boxes

from sslbench.arrays import FloatArray, IntArray
from sslbench.data.checks.objects import picture_of
from sslbench.data.decode.files import UnreadableImage
from sslbench.data.objects import ObjectSource
from sslbench.data.workers import run
from sslbench.detection.models.boxes import Target
from sslbench.detection.recipe import DetectionRecipe, resized, view_sizes
from sslbench.errors import DataError, SslbenchError
from sslbench.metrics.detection import masks as rle
from sslbench.metrics.detection.keypoints import labelled

_LONGEST = 16
"""Longest side before a crop, in its largest sides: DETR has no limit, by which a strip of pixels fills the memory."""
HALF = 0.5
"""Pixels from the place of a keypoint in COCO's files, where the centre of the first pixel is 0, to the detector's."""

Batch = tuple[list[Tensor], list[Target]]
TestViews = tuple[list[Tensor], tuple[int, int]]
"""(one image in all its sizes, original height and width)"""
Item = tuple[int, int, list[int]]
"""(iteration, place of the first image in the whole batch, positions of the images)"""


def trainable(source: ObjectSource, recipe: DetectionRecipe) -> npt.NDArray[np.int64]:
    """Return the positions of the training images, without those that the recipe leaves out.

    These are images with crowds alone, and of a recipe with keypoints those with too few labelled ones.
    """
    objects_of = source.target.objects
    kept = [i for i, objects in enumerate(objects_of) if not recipe.skip_empty or (~objects.crowd).any()]
    if recipe.keypoints and recipe.min_keypoints:
        numbers = {i: 0 if (found := objects_of[i].keypoints) is None else labelled(found).sum() for i in kept}
        kept = [i for i in kept if numbers[i] >= recipe.min_keypoints]
    if not kept:
        what = f"{recipe.min_keypoints} labelled keypoints" if recipe.keypoints else "an object"
        raise DataError(f"{source.name} has no image with {what} to train on")
    return np.array(kept, dtype=np.int64)


def training_batches(
    source: ObjectSource,
    recipe: DetectionRecipe,
    *,
    start: int,
    stop: int,
    seed: int,
    share: tuple[int, int] = (0, 1),
    workers: int = 0,
) -> Iterator[Batch]:
    """Iterate over the batches of iterations start, start + 1, ..., stop - 1 of the training.

    `share`: (rank, number of processes); each process has its part of every batch.
    """
    # Crowds are left out; difficult objects are trained on, as Detectron2 does.
    plan = _Plan(source, recipe, seed, share, start, stop)
    images = _TrainingImages(source, recipe, seed)
    return run(images, workers, sampler=plan, start_method=source.reading.start_method)


def test_images(
    source: ObjectSource, recipe: DetectionRecipe, positions: Sequence[int], *, workers: int = 0
) -> Iterator[TestViews]:
    """Iterate over the test images, each in the sizes of the recipe, and their original heights and widths."""
    images = _TestImages(source, recipe, positions)
    return run(images, workers, start_method=source.reading.start_method)


def repeat_factors(source: ObjectSource, rows: IntArray, threshold: float) -> FloatArray:
    """Return how often each image is seen in an epoch on average, (n,): 1, or more for images with rare classes.

    `rows`: (n,), positions of the images that are trained on; shares are of these.
    """
    # A class in a share f of the images is repeated max(1, sqrt(threshold / f)) times, an image as its rarest class
    # (Gupta et al. 2019, appendix B.2; Detectron2's RepeatFactorTrainingSampler).
    present = [np.unique(source.target.objects[i].classes[~source.target.objects[i].crowd]) for i in rows.tolist()]
    counts = np.bincount(np.concatenate([*present, np.zeros(0, np.int64)]), minlength=len(source.target.classes))
    of_classes = np.maximum(1.0, np.sqrt(threshold * len(rows) / np.maximum(counts, 1)))
    return np.array([of_classes[classes].max(initial=1.0) for classes in present])


def order(
    wide: Sequence[bool] | npt.NDArray[np.bool_],
    batch_size: int,
    *,
    seed: int,
    grouped: bool,
    repeats: FloatArray | None = None,
) -> Iterator[list[int]]:
    """Iterate endlessly over batches of positions, with a new order in each epoch.

    `repeats`: number of times that an epoch shows each image; fractions are rounded up or down at random, in each epoch
    anew. None: once.
    """
    waiting: dict[bool, list[int]] = {False: [], True: []}
    for epoch in itertools.count():
        rng = np.random.default_rng((seed, epoch))
        rows = np.arange(len(wide))
        if repeats is not None:
            # A factor of 1.3 shows the image twice in about three of ten epochs.
            rows = np.repeat(rows, np.floor(repeats + rng.random(len(wide))).astype(np.int64))
        for i in rng.permutation(rows).tolist():
            kind = bool(wide[i]) and grouped
            waiting[kind].append(i)
            # Images that fill no batch wait for those of the next epoch: none is left out.
            if len(waiting[kind]) == batch_size:
                yield waiting[kind]
                waiting[kind] = []


@dataclasses.dataclass(frozen=True)
class _Plan(Sampler[Item]):
    source: ObjectSource
    recipe: DetectionRecipe
    seed: int
    share: tuple[int, int]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[Item]:
        kept = trainable(self.source, self.recipe)
        sizes, threshold = self.source.target.sizes[kept], self.recipe.repeat_threshold
        whole = order(
            sizes[:, 1] > sizes[:, 0],
            self.recipe.batch_size,
            seed=self.seed,
            grouped=self.recipe.group_aspect_ratios,
            repeats=repeat_factors(self.source, kept, threshold) if threshold else None,
        )
        rank, world = self.share
        # Every process computes the whole order: it is short, and needs no communication.
        own = self.recipe.batch_size // world
        for iteration, batch in enumerate(itertools.islice(whole, self.start, self.stop), start=self.start):
            yield iteration, rank * own, kept[batch[rank * own : (rank + 1) * own]].tolist()


class _TrainingImages(Dataset[Batch | SslbenchError]):
    """Dataset of batches; SslbenchErrors are returned, since DataLoader would raise them as text of a traceback."""

    def __init__(self, source: ObjectSource, recipe: DetectionRecipe, seed: int) -> None:
        self.source, self.recipe, self.seed = source, recipe, seed

    def __getitem__(self, item: Item) -> Batch | SslbenchError:
        iteration, first, indices = item
        try:
            pairs = [
                self._one(index, np.random.default_rng((self.seed, iteration, first + i)))
                for i, index in enumerate(indices)
            ]
        except SslbenchError as error:
            return error
        return [image for image, _ in pairs], [target for _, target in pairs]

    def _one(self, index: int, rng: np.random.Generator) -> tuple[Tensor, Target]:
        recipe = self.recipe
        picture = read(self.source, index)
        height, width = picture.shape[1:]
        # DETR sees half of the images cut, then resized.
        if recipe.crop and rng.random() < recipe.crop:
            image, target = self._cropped(picture, index, rng)
            flip = bool(rng.random() < recipe.flip)
        else:
            if recipe.scale_jitter:
                size = jittered(height, width, recipe, rng)
            else:
                shorter = int(rng.choice(recipe.min_sizes_train))
                size = resized(height, width, shorter=shorter, longest=recipe.max_size_train)
            flip = bool(rng.random() < recipe.flip)
            image, target = resize(picture, size), self._target(index, (height, width), size)
            if recipe.scale_jitter:
                # Large-scale jitter enlarges first, so a part of the image is shown.
                image, target = cut(image, target, recipe.max_size_train, rng)
        if flip:
            image, target = image.flip(2).contiguous(), _flipped(target, image.shape[2], self._mirrored)
        return image, _without_outside(target, image.shape[1:])

    def _cropped(self, picture: Tensor, index: int, rng: np.random.Generator) -> tuple[Tensor, Target]:
        """Resize, cut and resize again, as DETR does (Carion et al. 2020, arXiv 2005.12872, section 4)."""
        recipe, old = self.recipe, (picture.shape[1], picture.shape[2])
        low, high = recipe.crop_sides
        first = resized(*old, shorter=int(rng.choice(recipe.crop_sizes)), longest=_LONGEST * high)
        height, width = (int(rng.integers(min(low, side), min(high, side) + 1)) for side in first)
        top, left = (int(rng.integers(0, side - part + 1)) for side, part in zip(first, (height, width), strict=True))
        image, target = cut_at(
            resize(picture, first), self._target(index, old, first), (top, left), (height, width), from_masks=False
        )
        shorter = int(rng.choice(recipe.min_sizes_train))
        last = resized(height, width, shorter=shorter, longest=recipe.max_size_train)
        y, x = last[0] / height, last[1] / width
        masks = target.masks
        if masks is not None and len(masks):
            masks = functional.interpolate(masks[None].float(), size=last, mode="nearest-exact")[0] > 0
        elif masks is not None:  # torch does not interpolate none
            masks = masks.new_zeros((0, *last))
        points = None if target.keypoints is None else target.keypoints * torch.tensor([x, y, 1.0])
        return resize(image, last), Target(target.boxes * torch.tensor([x, y, x, y]), target.classes, masks, points)

    @functools.cached_property
    def _mirrored(self) -> tuple[int, ...]:
        skeleton = self.source.target.skeleton
        if skeleton is None or not self.recipe.keypoints:
            return ()
        return skeleton.mirrored(self.recipe.mirrored_keypoints)

    def _target(self, index: int, old: tuple[int, int], new: tuple[int, int]) -> Target:
        objects = self.source.target.objects[index]
        y, x = new[0] / old[0], new[1] / old[1]
        boxes = torch.from_numpy(objects.boxes) * torch.tensor([x, y, x, y], dtype=torch.float32)
        boxes = boxes.clamp(min=0).minimum(torch.tensor([new[1], new[0]] * 2, dtype=torch.float32))
        real = (boxes[:, 2] > boxes[:, 0] + 1e-5) & (boxes[:, 3] > boxes[:, 1] + 1e-5)
        keep = torch.where(real & ~torch.from_numpy(objects.crowd))[0]
        masks = None
        if self.recipe.masks:
            lengths = self.source.masks_of(index)
            bitmaps = []
            for i in keep.tolist():
                bitmap = Image.fromarray(rle.decode(lengths[i]).astype(np.uint8))
                small = np.array(bitmap.resize(new[::-1], Image.Resampling.NEAREST))
                bitmaps.append(torch.from_numpy(small.astype(np.bool_)))
            masks = torch.stack(bitmaps) if bitmaps else torch.zeros((0, *new), dtype=torch.bool)
        points = None
        if self.recipe.keypoints and objects.keypoints is not None:
            # Keypoints are indices of pixels, boxes are edges between them.
            wide = torch.from_numpy(objects.keypoints) + torch.tensor([HALF, HALF, 0.0])
            points = (wide * torch.tensor([x, y, 1.0], dtype=torch.float64)).float()[keep]
        return Target(boxes[keep], torch.from_numpy(objects.classes)[keep], masks, points)


class _TestImages(Dataset[TestViews | SslbenchError]):
    def __init__(self, source: ObjectSource, recipe: DetectionRecipe, positions: Sequence[int]) -> None:
        self.source, self.recipe, self.positions = source, recipe, positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, item: int) -> TestViews | SslbenchError:
        try:
            picture = read(self.source, self.positions[item])
        except SslbenchError as error:
            return error
        height, width = picture.shape[1:]
        return [resize(picture, size) for size in view_sizes(height, width, self.recipe)], (height, width)


def read(source: ObjectSource, index: int) -> Tensor:
    """Return one upright picture, uint8 (3, height, width)."""
    try:
        picture = picture_of(source, index)
    except UnreadableImage as error:
        raise DataError(
            f"{source.name}: an image cannot be read: {error}", "Replace it, or remove it and its objects."
        ) from error
    source.check_size(index, *picture.shape[1:])
    return picture


def resize(picture: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize uint8 (3, height, width) with Pillow's bilinear filter, as Detectron2 does."""
    if tuple(picture.shape[1:]) == size:
        return picture.contiguous()
    pixels = Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).numpy()))
    return (
        torch.from_numpy(np.array(pixels.resize(size[::-1], Image.Resampling.BILINEAR))).permute(2, 0, 1).contiguous()
    )


def jittered(height: int, width: int, recipe: DetectionRecipe, rng: np.random.Generator) -> tuple[int, int]:
    """Draw height and width of an image by large-scale jitter (Ghiasi et al. 2021, arXiv 2012.07177, section 3)."""
    factor = recipe.max_size_train * rng.uniform(recipe.scale_jitter[0], recipe.scale_jitter[1]) / max(height, width)
    return max(round(height * factor), 1), max(round(width * factor), 1)


def cut(image: Tensor, target: Target, side: int, rng: np.random.Generator) -> tuple[Tensor, Target]:
    """Cut a random part of at most `side` x `side` pixels out of an image (3, H, W) with its objects.

    Objects of which nothing is left are dropped; with masks, the boxes are those of what is left of the masks.
    """
    top, left = (round(max(length - side, 0) * rng.random()) for length in image.shape[1:])
    return cut_at(image, target, (top, left), (side, side))


def cut_at(
    image: Tensor, target: Target, corner: tuple[int, int], size: tuple[int, int], *, from_masks: bool = True
) -> tuple[Tensor, Target]:
    """Cut a part out of an image (3, H, W) with its objects; those of which nothing is left are dropped."""
    (top, left), (high, wide) = corner, size
    image = image[:, top : top + high, left : left + wide].contiguous()
    height, width = image.shape[1:]
    points = None if target.keypoints is None else target.keypoints - torch.tensor([left, top, 0.0])
    masks = None if target.masks is None else target.masks[:, top : top + high, left : left + wide]
    if masks is None or not from_masks:
        boxes = target.boxes - torch.tensor([left, top] * 2, dtype=torch.float32)
        boxes = boxes.clamp(min=0).minimum(torch.tensor([width, height] * 2, dtype=torch.float32))
        kept = (boxes[:, 2:] > boxes[:, :2] + 1e-5).all(dim=1)
        parts = [None if part is None else part[kept] for part in (masks, points)]
        return image, Target(boxes[kept], target.classes[kept], *parts)
    kept = masks.flatten(1).any(dim=1)
    boxes = masks_to_boxes(masks[kept]) + torch.tensor([0, 0, 1, 1])  # the last pixel is inside
    return image, Target(boxes.float(), target.classes[kept], masks[kept], None if points is None else points[kept])


def _without_outside(target: Target, size: torch.Size) -> Target:
    """Mark keypoints outside of an image of this height and width as not labelled, with zeros, as Detectron2 does."""
    if target.keypoints is None:
        return target
    places = target.keypoints[:, :, :2]
    inside = ((places >= 0) & (places <= torch.tensor([size[1], size[0]]))).all(dim=2)
    labels = inside & (target.keypoints[:, :, 2] > 0)
    return dataclasses.replace(target, keypoints=target.keypoints * labels[:, :, None])


def _flipped(target: Target, width: int, mirrored: Sequence[int] = ()) -> Target:
    """Mirror the objects of an image; `mirrored` is the keypoint that each of the K becomes."""
    x1, y1, x2, y2 = target.boxes.unbind(1)
    boxes = torch.stack((width - x2, y1, width - x1, y2), dim=1)
    points = None
    if target.keypoints is not None:
        points = target.keypoints[:, list(mirrored)]
        points = torch.stack((width - points[:, :, 0], points[:, :, 1], points[:, :, 2]), dim=2)
    return Target(boxes, target.classes, None if target.masks is None else target.masks.flip(2), points)
