"""Evaluation of Detectron2's model: its detections, and the scores of its own evaluator."""

import contextlib
import io
import math
from typing import Any

import numpy as np

from sslbench.data.objects.types import ObjectSource
from sslbench.detection.batches import HALF
from sslbench.detection.detectron2.data import TEST, test_loader
from sslbench.detection.detectron2.library import load
from sslbench.detection.evaluate import joined
from sslbench.distributed.collectives import gather_objects, world_size
from sslbench.metrics.detection import Detections
from sslbench.metrics.detection import masks as rle
from sslbench.runtime.progress import Progress

Variants = dict[str, dict[str, float | None]]
_KINDS = {"bbox": "boxes", "segm": "masks", "keypoints": "keypoints"}


def detect(
    model: Any, cfg: Any, source: ObjectSource, *, workers: int = 0, progress: Progress | None = None
) -> tuple[Detections, Variants]:
    """Return the detections on every image of the registered test part, on every process.

    Args:
        model: trained and not wrapped; its mode is restored.
        cfg: configuration with the names of the data.
        source: the test part.
        workers: processes that decode.
        progress: called with the name of the step, images done, total.

    Returns:
        The detections, in pixels of the image; and the scores of Detectron2's COCOEvaluator, in percent (on the first
        process).

    Raises:
        DataError: an image cannot be read.
    """
    evaluation = load("evaluation")
    collected = _make_collector(len(source), progress)
    further = (("segm", cfg.MODEL.MASK_ON), ("keypoints", cfg.MODEL.KEYPOINT_ON))
    tasks = ("bbox", *(name for name, there in further if there))
    sigmas = list(cfg.TEST.KEYPOINT_OKS_SIGMAS)
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints
        # use_fast_impl is documented as unofficial, and exists only if Detectron2 is compiled.
        theirs = evaluation.COCOEvaluator(
            TEST, tasks=tasks, distributed=True, use_fast_impl=False, kpt_oks_sigmas=sigmas
        )
        evaluators = evaluation.DatasetEvaluators([theirs, collected])
        loader = test_loader(source, cfg, workers=workers)
        scores = evaluation.inference_on_dataset(model, loader, evaluators)
    parts = [part for own in gather_objects(collected.parts) for part in own]
    found = joined(sorted(parts, key=lambda part: int(part.images[0]) if len(part) else -1))
    return found, _variants(scores)


def _make_collector(n: int, progress: Progress | None) -> Any:
    """Return a Detectron2 evaluator that only collects predictions."""

    class Collector(load("evaluation").DatasetEvaluator):  # type: ignore[misc]
        def reset(self) -> None:
            self.parts: list[Detections] = []

        def process(self, inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> None:
            for entry, output in zip(inputs, outputs, strict=True):
                self.parts.append(_as_arrays(output["instances"].to("cpu"), entry["position"]))
            if progress is not None:
                progress("detecting on the test part", min(len(self.parts) * world_size(), n), n)

        def evaluate(self) -> None:
            return None

    return Collector()


def _as_arrays(instances: Any, position: int) -> Detections:
    masks = None
    if instances.has("pred_masks"):
        masks = tuple(rle.encode(mask.numpy()) for mask in instances.pred_masks)
    return Detections(
        np.full(len(instances), position, dtype=np.int64),
        instances.pred_boxes.tensor.detach().numpy(),
        instances.scores.detach().numpy(),
        instances.pred_classes.numpy().astype(np.int64),
        masks,
        instances.pred_keypoints.numpy() - np.array([HALF, HALF, 0], np.float32)
        if instances.has("pred_keypoints")
        else None,
    )


def _variants(scores: dict[str, dict[str, float]]) -> Variants:
    return {
        f"Detectron2's COCOEvaluator, {_KINDS.get(kind, kind)}": {
            name: None if math.isnan(value) else float(value) for name, value in values.items()
        }
        for kind, values in scores.items()
    }
