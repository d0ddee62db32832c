"""Data for Detectron2: registered in its catalogue during a run, decoded by sslbench."""

import contextlib
import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sslbench.data.objects import ObjectSource
from sslbench.data.splits import Parts
from sslbench.detection.batches import HALF, read
from sslbench.detection.detectron2.config import changed
from sslbench.detection.detectron2.library import load
from sslbench.detection.evaluate import gathered
from sslbench.distributed.collectives import world_size
from sslbench.errors import ResultError, SslbenchError, UsageError
from sslbench.metrics.detection import Detections
from sslbench.metrics.detection import masks as rle
from sslbench.metrics.detection.keypoints import labelled
from sslbench.metrics.detection.masks import text
from sslbench.metrics.detection.matches import corner_and_size
from sslbench.paths import not_written
from sslbench.runtime.progress import Progress

TRAIN, TEST = "sslbench_train", "sslbench_test"
"""Names of the registered data; their suffix differs from Detectron2's own (coco_2017_train)."""


@contextlib.contextmanager
def registered(data: Parts[ObjectSource], cfg: Any, folder: Path, mirrored: Sequence[str] = ()) -> Iterator[Any]:
    """Register both parts in this process's Detectron2 catalogue during the block."""
    catalog = load("data")
    masks = _mask_form(data.train, cfg)
    truth = folder / "truth.json"
    points = bool(cfg.MODEL.KEYPOINT_ON)
    write_truth(data.test, truth, masks=bool(masks), keypoints=points)
    train = (TRAIN, lambda: entries(data.train, masks, keypoints=points))
    parts = (train, (TEST, lambda: entries(data.test, None)))
    for name, part in parts:
        catalog.DatasetCatalog.register(name, part)
    catalog.MetadataCatalog.get(TRAIN).set(thing_classes=list(data.train.target.classes))
    skeleton = data.train.target.skeleton
    if points and skeleton is not None:
        names = skeleton.names
        partners = range(len(names)) if cfg.INPUT.RANDOM_FLIP == "none" else skeleton.mirrored(mirrored)
        pairs = [(names[a], names[b]) for a, b in enumerate(partners) if a < b]
        catalog.MetadataCatalog.get(TRAIN).set(keypoint_names=list(names), keypoint_flip_map=pairs)
    catalog.MetadataCatalog.get(TEST).set(
        thing_classes=list(data.test.target.classes),
        thing_dataset_id_to_contiguous_id={number: i for i, number in enumerate(data.test.target.class_numbers)},
        json_file=str(truth),
    )
    try:
        yield changed(cfg, {"DATASETS.TRAIN": (TRAIN,), "DATASETS.TEST": (TEST,)})
    finally:
        for name, _ in parts:
            catalog.DatasetCatalog.remove(name)
            catalog.MetadataCatalog.remove(name)


def _mask_form(source: ObjectSource, cfg: Any) -> str | None:
    if not cfg.MODEL.MASK_ON:
        return None
    form = str(cfg.INPUT.MASK_FORMAT)
    all_masks = [mask for objects in source.target.objects for mask in objects.masks or ()]
    if form == "polygon" and not all(
        isinstance(mask, list) and all(isinstance(part, list) and len(part) >= 6 for part in mask) for mask in all_masks
    ):
        raise UsageError(
            f"d2.INPUT.MASK_FORMAT=polygon, but {source.name} has masks that are not polygons",
            "Leave it out: bitmask supports every form.",
        )
    return form


def entries(source: ObjectSource, masks: str | None, *, keypoints: bool = False) -> list[dict[str, Any]]:
    """Return one dict per image in Detectron2's format; `position` is the image's position in the source."""
    boxes = load("structures").BoxMode.XYXY_ABS
    found = []
    for i in range(len(source)):
        objects = source.target.objects[i]
        height, width = (int(side) for side in source.target.sizes[i])
        rows: list[dict[str, Any]] = [
            {"bbox": box, "bbox_mode": boxes, "category_id": label, "iscrowd": int(crowd)}
            for box, label, crowd in zip(
                objects.boxes.tolist(), objects.classes.tolist(), objects.crowd.tolist(), strict=True
            )
        ]
        if masks:
            shapes = source.masks_of(i) if masks == "bitmask" else objects.masks or ()
            for row, shape in zip(rows, shapes, strict=True):
                row["segmentation"] = shape
        if keypoints and objects.keypoints is not None:
            for row, points in zip(rows, objects.keypoints + np.array([HALF, HALF, 0]), strict=True):
                row["keypoints"] = points.ravel().tolist()
        entry = {
            "position": i,
            "image_id": source.target.numbers[i],
            "height": height,
            "width": width,
            "annotations": rows,
        }
        found.append(entry)
    return found


class Mapper:
    """Mapper from an entry to the model's input: decoded by sslbench, augmented by Detectron2."""

    def __init__(self, source: ObjectSource, cfg: Any, *, train: bool) -> None:
        """Set the source of the entries and the configuration; workers call the mapper."""
        self.source, self.bgr = source, cfg.INPUT.FORMAT == "BGR"
        self.theirs = load("data").DatasetMapper(cfg, train)

    def __call__(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Map an entry; an error is put into it, since DataLoader would raise it as text of a traceback."""
        try:
            picture = read(self.source, entry["position"])
        except SslbenchError as error:
            return {**entry, "failed": error}
        pixels = picture.permute(1, 2, 0).numpy()
        height, width = pixels.shape[:2]
        seen = load("data.transforms").AugInput(np.ascontiguousarray(pixels[:, :, ::-1] if self.bgr else pixels))
        moves = self.theirs.augmentations(seen)
        result = {**entry, "height": height, "width": width}
        result["image"] = torch.from_numpy(np.ascontiguousarray(seen.image.transpose(2, 0, 1)))
        # The rows are changed in place.
        result["annotations"] = [dict(row) for row in entry["annotations"]]
        if self.theirs.is_train:
            self.theirs._transform_annotations(result, moves, seen.image.shape[:2])
        return result


class CheckedLoader:
    """Detectron2 loader that raises the errors in its entries."""

    def __init__(self, loader: Any) -> None:
        """Wrap an iterable of lists of entries."""
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """Iterate over the lists."""
        for batch in self.loader:
            for entry in batch:
                if "failed" in entry:
                    raise entry["failed"]
            yield batch


def train_loader(source: ObjectSource, cfg: Any, *, workers: int) -> CheckedLoader:
    """Return endless batches of this process, by Detectron2's own loader and sampler."""
    used = changed(cfg, {"DATALOADER.NUM_WORKERS": workers})
    mapper = Mapper(source, used, train=True)
    return CheckedLoader(load("data").build_detection_train_loader(used, mapper=mapper))


def test_loader(source: ObjectSource, cfg: Any, *, workers: int) -> CheckedLoader:
    """Return every image of this process's share once, by Detectron2's own loader and sampler."""
    used = changed(cfg, {"DATALOADER.NUM_WORKERS": workers})
    return CheckedLoader(load("data").build_detection_test_loader(used, TEST, mapper=Mapper(source, used, train=False)))


def write_truth(source: ObjectSource, path: Path, *, masks: bool, keypoints: bool = False) -> None:
    """Write the ground truth as a COCO file with the manifest's ids; difficult objects become ordinary ones."""
    annotations: list[dict[str, Any]] = []
    for i, number in enumerate(source.target.numbers):
        objects = source.target.objects[i]
        shapes = source.masks_of(i) if masks else (None,) * len(objects)
        rows = zip(corner_and_size(objects.boxes).tolist(), objects.classes.tolist(), shapes, strict=True)
        for k, (box, label, shape) in enumerate(rows):
            row = {
                "id": len(annotations) + 1,
                "image_id": int(number),
                "category_id": source.target.class_numbers[label],
            }
            row |= {"bbox": box, "area": float(objects.areas[k]), "iscrowd": int(objects.crowd[k])}
            if shape is not None:
                row["segmentation"] = text(shape)
            if keypoints and objects.keypoints is not None:
                row["keypoints"] = objects.keypoints[k].ravel().tolist()
                row["num_keypoints"] = int(labelled(objects.keypoints[k]).sum())
            annotations.append(row)
    images = [
        {"id": int(number), "height": int(height), "width": int(width)}
        for number, (height, width) in zip(source.target.numbers, source.target.sizes, strict=True)
    ]
    categories = [
        {"id": int(number), "name": name}
        for number, name in zip(source.target.class_numbers, source.target.classes, strict=True)
    ]
    content = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    try:
        path.write_text(json.dumps(content), encoding="utf-8")
    except OSError as error:
        raise ResultError(not_written(path, error)) from error


Variants = dict[str, dict[str, float | None]]
_KINDS = {"bbox": "boxes", "segm": "masks", "keypoints": "keypoints"}


def detect(
    model: Any, cfg: Any, source: ObjectSource, *, workers: int = 0, progress: Progress | None = None
) -> tuple[Detections, Variants]:
    """Return the detections on every image of the registered test part, on every process."""
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
    variants: Variants = {
        f"Detectron2's COCOEvaluator, {_KINDS.get(kind, kind)}": {
            name: None if math.isnan(value) else float(value) for name, value in values.items()
        }
        for kind, values in scores.items()
    }
    return gathered(collected.parts), variants


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
