"""Evaluation of a detector, also one in a file, on a test set: detections (of augmented views), scores and pictures."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torchvision.ops import batched_nms, clip_boxes_to_image

from sslbench.data.decode.files import UnreadableImage, decode
from sslbench.data.objects import ObjectSource
from sslbench.detection.batches import HALF, read, resize, test_images
from sslbench.detection.models.boxes import InstancePredictions, Size, rescale
from sslbench.detection.models.detector import Detector
from sslbench.detection.pictures import draw_predictions
from sslbench.detection.recipe import DetectionRecipe, view_sizes
from sslbench.detection.saved import read_detector
from sslbench.distributed.collectives import gather_objects, rank, world_size
from sslbench.errors import DataError
from sslbench.metrics.detection import Detections, DetectionScores, Truth, coco_ap, keypoint_ap, lvis_ap, oks, voc_ap
from sslbench.metrics.detection import masks as rle
from sslbench.runtime.progress import Progress


def detect_views(detector: Detector, views: Sequence[Tensor], size: Size) -> InstancePredictions:
    """Return the detections in one image, in pixels of the image.

    With several views, or `tta_flip`, the detections of all views are joined by non-maximum suppression per class, and
    the mask of a joined detection is the mean of its probabilities in every view: Detectron2's GeneralizedRCNNWithTTA.

    `views`: uint8 (3, h, w), the image in each size.
    """
    device = next(detector.parameters()).device
    flips = (False, True) if detector.recipe.tta_flip else (False,)
    if len(views) * len(flips) == 1:
        seen = views[0].shape[1], views[0].shape[2]
        return rescale(detector([views[0].to(device)])[0], seen=seen, size=size)
    every = [(view.flip(2) if flip else view, flip) for view in views for flip in flips]
    found = []  # in pixels of the upright image, without masks
    for view, flip in every:
        one = detector([view.to(device)], with_masks=False)[0]
        boxes = _mirrored(one.boxes, view.shape[2]) if flip else one.boxes
        found.append(InstancePredictions(boxes * _factors(view, size).to(boxes), one.scores, one.classes))
    boxes = clip_boxes_to_image(torch.cat([one.boxes for one in found]), size)
    scores, classes = torch.cat([one.scores for one in found]), torch.cat([one.classes for one in found])
    keep = batched_nms(boxes, scores, classes, detector.recipe.nms)[: detector.recipe.detections]
    merged = InstancePredictions(boxes[keep], scores[keep], classes[keep])
    if not detector.recipe.masks:
        return rescale(merged, seen=size, size=size)
    if not len(merged.boxes):  # with masks, none of them: the detections of all images are joined
        none = torch.zeros((0, *size), dtype=torch.bool, device=device)
        return InstancePredictions(merged.boxes, merged.scores, merged.classes, none)
    total: Tensor | int = 0
    for view, flip in every:
        boxes = merged.boxes / _factors(view, size).to(merged.boxes)
        masks = detector.masks(
            [view.to(device)],
            [InstancePredictions(_mirrored(boxes, view.shape[2]) if flip else boxes, merged.scores, merged.classes)],
        )[0]
        total = total + (masks.flip(2) if flip else masks)
    merged = InstancePredictions(merged.boxes, merged.scores, merged.classes, torch.as_tensor(total) / len(every))
    return rescale(merged, seen=size, size=size)


def _factors(view: Tensor, size: Size) -> Tensor:
    y, x = size[0] / view.shape[1], size[1] / view.shape[2]
    return torch.tensor([x, y, x, y])


def _mirrored(boxes: Tensor, width: int) -> Tensor:
    x1, y1, x2, y2 = boxes.unbind(1)
    return torch.stack((width - x2, y1, width - x1, y2), dim=1)


_PICTURES = 6
_ALONE = Detections(np.zeros(0, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))


def detect(
    detector: Detector, source: ObjectSource, *, workers: int = 0, progress: Progress | None = None
) -> Detections:
    """Return the detections on every image, in pixels of the image, on every process."""
    # Images are processed one at a time, so that no result depends on the padding of a batch.
    detector.eval()
    positions = list(range(rank(), len(source), world_size()))
    parts: list[Detections] = []
    images = test_images(source, detector.recipe, positions, workers=workers)
    with torch.inference_mode():
        for position, (views, size) in zip(positions, images, strict=True):
            parts.append(_as_arrays(detect_views(detector, views, size), position))
            if progress is not None:
                progress("detecting on the test part", min(len(parts) * world_size(), len(source)), len(source))
    return gathered(parts)


def _as_arrays(found: InstancePredictions, position: int) -> Detections:
    masks = None if found.masks is None else tuple(rle.encode(mask.cpu().numpy()) for mask in found.masks)
    return Detections(
        np.full(len(found.scores), position, dtype=np.int64),
        found.boxes.cpu().numpy(),
        found.scores.cpu().numpy(),
        found.classes.cpu().numpy(),
        masks,
        _keypoints(found),
    )


def _keypoints(found: InstancePredictions) -> npt.NDArray[np.float32] | None:
    """Return the keypoints as COCO's files have them: the centre of the first pixel is 0."""
    return None if found.keypoints is None else found.keypoints.cpu().numpy() - np.array([HALF, HALF, 0], np.float32)


def gathered(of_images: list[Detections]) -> Detections:
    """Concatenate the detections of all processes, in the order of the images whatever the number of processes."""
    everywhere = [part for of_process in gather_objects(of_images) for part in of_process]
    parts = sorted(everywhere, key=lambda part: int(part.images[0]) if len(part) else -1)
    columns = [(p.images, p.boxes, p.scores, p.labels) for p in (_ALONE, *parts)]
    images, boxes, scores, labels = (np.concatenate(column) for column in zip(*columns, strict=True))
    has_masks = bool(parts) and all(p.masks is not None for p in parts)
    masks = tuple(mask for p in parts for mask in p.masks or ()) if has_masks else None
    points = [p.keypoints for p in parts if p.keypoints is not None]
    return Detections(images, boxes, scores, labels, masks, np.concatenate(points) if points else None)


def truth_of(test: ObjectSource, recipe: DetectionRecipe) -> Truth:
    """Return the objects of a test part with all that the recipe scores."""
    skeleton = test.target.skeleton if recipe.keypoints else None
    skeleton = None if skeleton is None else skeleton.with_sigmas(recipe.oks_sigma)
    return test.truth(masks=recipe.masks, skeleton=skeleton)


def score(
    truth: Truth, found: Detections, recipe: DetectionRecipe, *, seed: int, resamples: int = 1000
) -> tuple[DetectionScores, dict[str, tuple[float, float, float]]]:
    """Return the scores of the boxes by the recipe's metric, and COCO's or LVIS's of any masks and keypoints.

    The latter are named mask_AP, ..., boundary_AP, ... where boundaries have to overlap too, and keypoint_AP, ... or
    uniform_keypoint_AP, ....
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


Picture = str | Path | Image.Image | npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, eq=False)
class ImageDetections:
    """Objects detected in one image, by descending score.

    Attributes:
        boxes: float32 (n, 4), x1, y1, x2, y2 in pixels of the image; the first pixel reaches from 0 to 1.
        scores: float32 (n,), 0 to 1.
        labels: n class names.
        masks: bool (n, height, width); None without a mask head.
        keypoints: float32 (n, K, 3), x, y and score of each keypoint, in COCO's pixels: the centre of the first one is
            0, 0; None without a keypoint head.
    """

    boxes: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    labels: tuple[str, ...]
    masks: npt.NDArray[np.bool_] | None = None
    keypoints: npt.NDArray[np.float32] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedDetector:
    """Trained detector for images.

    Attributes:
        detector: the network, in evaluation mode.
        classes: names of its classes.
        backbone: name of its backbone.
        recipe: recipe of its training.
        keypoints: names of its keypoints.
    """

    detector: Detector
    classes: tuple[str, ...]
    backbone: str
    recipe: DetectionRecipe
    keypoints: tuple[str, ...] = ()

    def predict(self, images: Iterable[Picture]) -> list[ImageDetections]:
        """Return the objects in each image, processed one at a time as in evaluation.

        Args:
            images: files, Pillow's images, or arrays uint8 (height, width, 3) in RGB.

        Raises:
            DataError: an image cannot be read.
        """
        results = []
        for image in images:
            picture = _opened(image)
            size = int(picture.shape[1]), int(picture.shape[2])
            views = [resize(picture, seen) for seen in view_sizes(*size, self.recipe)]
            with torch.inference_mode():
                found = detect_views(self.detector, views, size)
            labels = tuple(self.classes[number] for number in found.classes.tolist())
            masks = None if found.masks is None else found.masks.cpu().numpy()
            boxes, scores = found.boxes.cpu().numpy(), found.scores.cpu().numpy()
            results.append(ImageDetections(boxes, scores, labels, masks, _keypoints(found)))
        return results


def load_detector(path: str | Path, *, device: str = "cpu") -> TrainedDetector:
    """Load a detector that `sslbench eval detection` wrote as NAME.detector.torch.

    Args:
        path: of the file.
        device: of the computation.

    Raises:
        WeightsError: the file cannot be read or holds no detector.
    """
    detector, about = read_detector(Path(path), device)
    return TrainedDetector(detector, about.classes, about.backbone, about.recipe, about.keypoints)


def _opened(image: Picture) -> torch.Tensor:
    """Return an image as uint8 (3, height, width)."""
    try:
        if isinstance(image, str | Path):
            return decode(Path(image).read_bytes(), str(image)).image
        array = np.asarray(image.convert("RGB")) if isinstance(image, Image.Image) else image
        return decode(array, "an array").image
    except UnreadableImage as error:
        raise DataError(f"an image cannot be read: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {image}: {error.strerror or error}") from error
