"""Python interface for detecting objects in images with a trained detector."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from sslbench.data.decode.files import UnreadableImage, decode
from sslbench.detection.augmented import detect_views
from sslbench.detection.batches import HALF, resize
from sslbench.detection.models.detector import Detector
from sslbench.detection.recipe import DetectionRecipe, view_sizes
from sslbench.detection.saved import read_detector
from sslbench.errors import DataError

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
        return [self._found(image) for image in images]

    @torch.inference_mode()
    def _found(self, image: Picture) -> ImageDetections:
        picture = _opened(image)
        size = int(picture.shape[1]), int(picture.shape[2])
        views = [resize(picture, seen) for seen in view_sizes(*size, self.recipe)]
        found = detect_views(self.detector, views, size)
        labels = tuple(self.classes[number] for number in found.classes.tolist())
        masks = None if found.masks is None else found.masks.cpu().numpy()
        points = None
        if found.keypoints is not None:
            points = found.keypoints.cpu().numpy() - np.array([HALF, HALF, 0], np.float32)
        return ImageDetections(found.boxes.cpu().numpy(), found.scores.cpu().numpy(), labels, masks, points)


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
