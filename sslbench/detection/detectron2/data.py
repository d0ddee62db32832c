"""Data for Detectron2: registered in its catalogue during a run, decoded by sslbench."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sslbench.data.objects.types import ObjectSource
from sslbench.data.splits import Parts
from sslbench.detection.batches import HALF, read
from sslbench.detection.detectron2.library import load
from sslbench.errors import ResultError, SslbenchError, UsageError
from sslbench.metrics.detection.keypoints import labelled
from sslbench.metrics.detection.masks import text
from sslbench.metrics.detection.matches import corner_and_size
from sslbench.paths import not_written

TRAIN, TEST = "sslbench_train", "sslbench_test"
"""Names of the registered data; their suffix differs from Detectron2's own (coco_2017_train)."""


@contextlib.contextmanager
def registered(data: Parts[ObjectSource], cfg: Any, folder: Path, mirrored: Sequence[str] = ()) -> Iterator[Any]:
    """Register both parts in this process's Detectron2 catalogue during the block.

    Args:
        data: the two parts.
        cfg: configuration, which says whether keypoints, and whether and in which form masks are used.
        folder: of the COCO file of the test part, which Detectron2's evaluator reads.
        mirrored: the recipe's pairs of keypoints that change places in a mirrored image.

    Yields:
        The configuration with the names of the data.

    Raises:
        UsageError: polygons are requested and some masks are not polygons.
        DataError: a mask is damaged.
    """
    catalog = load("data")
    masks = _mask_form(data.train, cfg)
    truth = folder / "truth.json"
    points = bool(cfg.MODEL.KEYPOINT_ON)
    write_truth(data.test, truth, masks=bool(masks), keypoints=points)
    train = (TRAIN, lambda: entries(data.train, masks, keypoints=points))
    parts = (train, (TEST, lambda: entries(data.test, None)))
    for name, part in parts:
        catalog.DatasetCatalog.register(name, part)
    catalog.MetadataCatalog.get(TRAIN).set(thing_classes=list(data.train.classes))
    if points:
        catalog.MetadataCatalog.get(TRAIN).set(**_skeleton(data.train, cfg, mirrored))
    catalog.MetadataCatalog.get(TEST).set(
        thing_classes=list(data.test.classes),
        thing_dataset_id_to_contiguous_id={number: i for i, number in enumerate(data.test.class_numbers)},
        json_file=str(truth),
    )
    named = cfg.clone()
    named.defrost()
    named.DATASETS.TRAIN, named.DATASETS.TEST = (TRAIN,), (TEST,)
    named.freeze()
    try:
        yield named
    finally:
        for name, _ in parts:
            catalog.DatasetCatalog.remove(name)
            catalog.MetadataCatalog.remove(name)


def _skeleton(source: ObjectSource, cfg: Any, mirrored: Sequence[str]) -> dict[str, Any]:
    """Return Detectron2's names of keypoints, and pairs that change places in a mirrored image."""
    if source.skeleton is None:
        return {}
    names = source.skeleton.names
    partners = range(len(names)) if cfg.INPUT.RANDOM_FLIP == "none" else source.skeleton.mirrored(mirrored)
    pairs = [(names[a], names[b]) for a, b in enumerate(partners) if a < b]
    return {"keypoint_names": list(names), "keypoint_flip_map": pairs}


def _mask_form(source: ObjectSource, cfg: Any) -> str | None:
    if not cfg.MODEL.MASK_ON:
        return None
    form = str(cfg.INPUT.MASK_FORMAT)
    all_masks = [mask for objects in source.objects for mask in objects.masks or ()]
    if form == "polygon" and not all(_is_polygons(mask) for mask in all_masks):
        raise UsageError(
            f"d2.INPUT.MASK_FORMAT=polygon, but {source.name} has masks that are not polygons",
            "Leave it out: bitmask supports every form.",
        )
    return form


def _is_polygons(mask: Any) -> bool:
    return isinstance(mask, list) and all(isinstance(part, list) and len(part) >= 6 for part in mask)


def entries(source: ObjectSource, masks: str | None, *, keypoints: bool = False) -> list[dict[str, Any]]:
    """Return one dict per image in Detectron2's format; `position` is the image's position in the source.

    Args:
        source: the images and objects.
        masks: "bitmask" or "polygon" for objects with masks.
        keypoints: with those of the objects, moved by half a pixel as Detectron2 does on reading COCO's files.
    """
    boxes = load("structures").BoxMode.XYXY_ABS
    found = []
    for i in range(len(source)):
        objects = source.objects[i]
        height, width = (int(side) for side in source.sizes[i])
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
        entry = {"position": i, "image_id": source.numbers[i], "height": height, "width": width, "annotations": rows}
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
        return self._seen(entry, picture)

    def _seen(self, entry: dict[str, Any], picture: Tensor) -> dict[str, Any]:
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
        """Iterate over the lists.

        Raises:
            DataError: an image cannot be read, or is of another size than its annotations are for.
        """
        for batch in self.loader:
            for entry in batch:
                if "failed" in entry:
                    raise entry["failed"]
            yield batch


def train_loader(source: ObjectSource, cfg: Any, *, workers: int) -> CheckedLoader:
    """Return endless batches of this process, by Detectron2's own loader and sampler."""
    used = _with_workers(cfg, workers)
    mapper = Mapper(source, used, train=True)
    return CheckedLoader(load("data").build_detection_train_loader(used, mapper=mapper))


def test_loader(source: ObjectSource, cfg: Any, *, workers: int) -> CheckedLoader:
    """Return every image of this process's share once, by Detectron2's own loader and sampler."""
    used = _with_workers(cfg, workers)
    return CheckedLoader(load("data").build_detection_test_loader(used, TEST, mapper=Mapper(source, used, train=False)))


def _with_workers(cfg: Any, workers: int) -> Any:
    changed = cfg.clone()
    changed.defrost()
    changed.DATALOADER.NUM_WORKERS = workers
    changed.freeze()
    return changed


def write_truth(source: ObjectSource, path: Path, *, masks: bool, keypoints: bool = False) -> None:
    """Write the ground truth as a COCO file with the manifest's ids; difficult objects become ordinary ones.

    Raises:
        DataError: a mask is missing or damaged.
    """
    annotations: list[dict[str, Any]] = []
    for i, number in enumerate(source.numbers):
        objects = source.objects[i]
        shapes = source.masks_of(i) if masks else (None,) * len(objects)
        rows = zip(corner_and_size(objects.boxes).tolist(), objects.classes.tolist(), shapes, strict=True)
        for k, (box, label, shape) in enumerate(rows):
            row = {"id": len(annotations) + 1, "image_id": int(number), "category_id": source.class_numbers[label]}
            row |= {"bbox": box, "area": float(objects.areas[k]), "iscrowd": int(objects.crowd[k])}
            if shape is not None:
                row["segmentation"] = text(shape)
            if keypoints and objects.keypoints is not None:
                row["keypoints"] = objects.keypoints[k].ravel().tolist()
                row["num_keypoints"] = int(labelled(objects.keypoints[k]).sum())
            annotations.append(row)
    images = [
        {"id": int(number), "height": int(height), "width": int(width)}
        for number, (height, width) in zip(source.numbers, source.sizes, strict=True)
    ]
    categories = [
        {"id": int(number), "name": name} for number, name in zip(source.class_numbers, source.classes, strict=True)
    ]
    content = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    try:
        path.write_text(json.dumps(content), encoding="utf-8")
    except OSError as error:
        raise ResultError(not_written(path, error)) from error
