"""Evaluation of a detector on a test set: detections, scores and pictures."""

from pathlib import Path

import numpy as np
import torch

from sslbench.data.objects.types import ObjectSource
from sslbench.detection.augmented import detect_views
from sslbench.detection.batches import HALF, read, test_images
from sslbench.detection.models import boxes as found_by_network
from sslbench.detection.models.detector import Detector
from sslbench.detection.pictures import draw_predictions
from sslbench.detection.recipe import DetectionRecipe
from sslbench.distributed.collectives import gather_objects, rank, world_size
from sslbench.metrics.detection import Detections, DetectionScores, Truth, coco_ap, keypoint_ap, lvis_ap, oks, voc_ap
from sslbench.metrics.detection import masks as rle
from sslbench.runtime.progress import Progress

_PICTURES = 6
_ALONE = Detections(np.zeros(0, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def detect(
    detector: Detector, source: ObjectSource, *, workers: int = 0, progress: Progress | None = None
) -> Detections:
    """Return the detections on every image, in pixels of the image, on every process.

    Images are processed one at a time, so that no result depends on the padding of a batch.

    Args:
        detector: trained detector, left in evaluation mode.
        source: the test set.
        workers: number of decoding processes; 0: this one.
        progress: called with the name of the step, images done, total.

    Raises:
        DataError: an image cannot be read.
    """
    detector.eval()
    positions = list(range(rank(), len(source), world_size()))
    parts: list[Detections] = []
    images = test_images(source, detector.recipe, positions, workers=workers)
    with torch.inference_mode():
        for position, (views, size) in zip(positions, images, strict=True):
            parts.append(_as_arrays(detect_views(detector, views, size), position))
            if progress is not None:
                progress("detecting on the test part", min(len(parts) * world_size(), len(source)), len(source))
    everything = [part for own in gather_objects(parts) for part in own]
    return joined(sorted(everything, key=lambda part: int(part.images[0]) if len(part) else -1))


def _as_arrays(found: found_by_network.InstancePredictions, position: int) -> Detections:
    masks = None if found.masks is None else tuple(rle.encode(mask.cpu().numpy()) for mask in found.masks)
    return Detections(
        np.full(len(found.scores), position, dtype=np.int64),
        found.boxes.cpu().numpy(),
        found.scores.cpu().numpy(),
        found.classes.cpu().numpy(),
        masks,
        None if found.keypoints is None else found.keypoints.cpu().numpy() - np.array([HALF, HALF, 0], np.float32),
    )


def joined(parts: list[Detections]) -> Detections:
    """Concatenate detections in their order."""
    columns = [(p.images, p.boxes, p.scores, p.labels) for p in (_ALONE, *parts)]
    images, boxes, scores, labels = (np.concatenate(column) for column in zip(*columns, strict=True))
    has_masks = bool(parts) and all(p.masks is not None for p in parts)
    masks = tuple(mask for p in parts for mask in p.masks or ()) if has_masks else None
    points = [p.keypoints for p in parts if p.keypoints is not None]
    return Detections(images, boxes, scores, labels, masks, np.concatenate(points) if points else None)


def truth_of(test: ObjectSource, recipe: DetectionRecipe) -> Truth:
    """Return the objects of a test part with all that the recipe scores.

    Raises:
        UsageError: keypoints are scored, and their sigmas are not known.
        DataError: masks are scored, and one is missing or damaged.
    """
    there = recipe.keypoints and test.skeleton is not None
    skeleton = test.skeleton.with_sigmas(recipe.oks_sigma) if there and test.skeleton is not None else None
    return test.truth(masks=recipe.masks, skeleton=skeleton)


def score(
    truth: Truth, found: Detections, recipe: DetectionRecipe, *, seed: int, resamples: int = 1000
) -> tuple[DetectionScores, dict[str, tuple[float, float, float]]]:
    """Return the scores of the boxes by the recipe's metric, and COCO's or LVIS's of any masks and keypoints.

    The latter are named mask_AP, ..., boundary_AP, ... where boundaries have to overlap too, and keypoint_AP, ... or
    uniform_keypoint_AP, ....

    Args:
        truth: ground truth, with masks and keypoints if the recipe has them.
        found: the detections.
        recipe: its metric, masks and keypoints are used.
        seed: of the bootstrap.
        resamples: number of bootstrap samples.
    """
    of_regions = lvis_ap if recipe.metric == "lvis" else coco_ap
    if recipe.metric in ("coco", "lvis"):
        scores = of_regions(truth, found, seed=seed, resamples=resamples)
    else:
        rule = "11-point" if recipe.metric == "voc07" else "area"
        scores = voc_ap(truth, found, rule, seed=seed, resamples=resamples)  # type: ignore[arg-type]
    of_masks = {}
    if recipe.masks:
        values = of_regions(truth, found, kind="masks", seed=seed, resamples=resamples).metrics
        of_masks = {f"mask_{name}": value for name, value in values.items()}
        values = of_regions(truth, found, kind="boundaries", seed=seed, resamples=resamples).metrics
        of_masks |= {f"boundary_{name}": value for name, value in values.items() if name.startswith("AP")}
    if recipe.keypoints and truth.skeleton is not None:
        values = keypoint_ap(truth, found, seed=seed, resamples=resamples).metrics
        of_masks |= {f"{truth.skeleton.prefix}{name}": value for name, value in values.items()}
    return scores, of_masks


def per_keypoint(truth: Truth, found: Detections) -> dict[str, float]:
    """Return the AP of each keypoint, as if it alone were labelled; {} if keypoints are not scored."""
    if truth.skeleton is None:
        return {}
    return {
        name: keypoint_ap(oks.with_one(truth, k), found, resamples=0).metrics["AP"][0]
        for k, name in enumerate(truth.skeleton.names)
    }


def draw(source: ObjectSource, truth: Truth, found: Detections, path: Path) -> None:
    """Write a PNG of evenly spaced test images: ground truth beside predictions."""
    which = np.unique(np.linspace(0, len(source) - 1, min(_PICTURES, len(source))).round().astype(int)).tolist()
    images = [np.ascontiguousarray(read(source, i).permute(1, 2, 0).numpy()) for i in which]
    draw_predictions(images, truth, found, path, which=which, names=[source.ids[i] for i in which])
