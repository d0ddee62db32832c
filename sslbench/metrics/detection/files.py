"""Files of detections and of the objects that they are scored against.

Detections are COCO result files: a JSON list of image_id, category_id, bbox, score and, with masks, segmentation, with
keypoints these, as x, y and score of each.
Objects are arrays in an .npz.
"""

import dataclasses
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.errors import ResultError
from sslbench.metrics.detection import masks as rle
from sslbench.metrics.detection.keypoints import Skeleton
from sslbench.metrics.detection.masks import text
from sslbench.metrics.detection.matches import FREQUENCIES, Detections, Federated, Truth, corner_and_size
from sslbench.paths import not_written, temporary_beside

_COLUMNS = ("images", "boxes", "labels", "crowd", "difficult", "areas")


def write_results(
    path: Path, detections: Detections, image_numbers: Sequence[int], class_numbers: Sequence[int]
) -> None:
    """Write the file that pycocotools' `loadRes` reads; it appears when it is complete."""
    boxes = corner_and_size(detections.boxes).tolist()
    rows: list[dict[str, Any]] = [
        {
            "image_id": int(image_numbers[image]),
            "category_id": int(class_numbers[label]),
            "bbox": box,
            "score": float(score),
        }
        for image, label, box, score in zip(detections.images, detections.labels, boxes, detections.scores, strict=True)
    ]
    for row, mask in zip(rows, detections.masks or (), strict=False):
        row["segmentation"] = text(mask)
    if detections.keypoints is not None:
        for row, points in zip(rows, detections.keypoints, strict=True):
            row["keypoints"] = points.ravel().tolist()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary_beside(path) as temporary:
            temporary.write_text(json.dumps(rows, allow_nan=False), encoding="utf-8")
            temporary.replace(path)
    except OSError as error:
        raise ResultError(not_written(path, error)) from error


def read_results(
    path: Path, image_numbers: Sequence[int], class_numbers: Sequence[int], sizes: npt.NDArray[np.integer]
) -> Detections:
    """Return the detections of a file of `write_results`, as they were written.

    `sizes`: (N, 2), height and width of each image, for masks.
    """
    images = {number: i for i, number in enumerate(image_numbers)}
    classes = {number: i for i, number in enumerate(class_numbers)}
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        # x + (x2 - x) is x2 again in double precision for coordinates of single precision.
        boxes = np.array([row["bbox"] for row in rows], dtype=np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        parts = [row.get("segmentation") for row in rows]
        masked = bool(parts) and all(part is not None for part in parts)
        places = [images[row["image_id"]] for row in rows]
        of_rows = [sizes[i] for i in places] if masked else []
        masks = tuple(rle.to_rle(part, int(h), int(w)) for part, (h, w) in zip(parts, of_rows, strict=False))
        points = None
        if rows and all(row.get("keypoints") for row in rows):
            points = _narrow(np.array([row["keypoints"] for row in rows], dtype=np.float64).reshape(len(rows), -1, 3))
        return Detections(
            np.array(places, dtype=np.int64),
            _narrow(boxes),
            _narrow(np.array([row["score"] for row in rows], dtype=np.float64)),
            np.array([classes[row["category_id"]] for row in rows], dtype=np.int64),
            masks if masked else None,
            points,
        )
    except OSError as error:
        raise ResultError(
            f"the predictions of the record are gone: cannot read {path}: {error.strerror or error}",
            "Copy them with the record, or run that evaluation again.",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ResultError(f"{path} is damaged, or of other data: {error!r}", "Run that evaluation again.") from error


def _narrow(values: npt.NDArray[np.float64]) -> npt.NDArray[np.floating]:
    """Return values in single precision where they are those of single precision, as networks compute them."""
    narrow = values.astype(np.float32)
    return narrow if np.array_equal(narrow, values) else values


@dataclasses.dataclass(frozen=True, eq=False)
class TestObjects:
    """Objects of a test part, with all that its files of detections refer to.

    Attributes:
        truth: the objects, with masks where those are scored.
        ids: (N,), id of each image.
        image_numbers: (N,), the manifest's id of each image.
        class_numbers: (C,), the manifest's id of each class.
        sizes: int64 (N, 2), height and width of each image; 0, 0 where the manifest leaves them out.
    """

    __test__ = False  # not a class of tests

    truth: Truth
    ids: Sequence[str]
    image_numbers: tuple[int, ...]
    class_numbers: tuple[int, ...]
    sizes: npt.NDArray[np.int64]


def write_objects(path: Path, objects: TestObjects) -> None:
    """Write the objects of a test part as .npz; the file appears when it is complete."""
    truth = objects.truth
    arrays: dict[str, Any] = {name: getattr(truth, name) for name in _COLUMNS}
    arrays |= {"ids": np.asarray(objects.ids, np.str_), "classes": np.asarray(truth.classes, np.str_)}
    arrays |= {"image_numbers": np.asarray(objects.image_numbers), "sizes": objects.sizes}
    arrays |= {"class_numbers": np.asarray(objects.class_numbers)}
    arrays |= {} if truth.groups is None else {"groups": truth.groups}
    if truth.federated is not None:
        looked_for = truth.federated
        arrays |= {"negative": looked_for.negative, "not_exhaustive": looked_for.not_exhaustive}
        arrays |= {"frequencies": np.asarray(looked_for.frequencies, np.str_)}
    if truth.keypoints is not None and truth.skeleton is not None:
        skeleton = json.dumps(dataclasses.asdict(truth.skeleton)).encode()
        arrays |= {"keypoints": truth.keypoints, "skeleton": np.frombuffer(skeleton, np.uint8)}
    if truth.masks is not None:
        counts = json.dumps([text(mask) for mask in truth.masks]).encode()
        arrays["masks"] = np.frombuffer(counts, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary_beside(path) as temporary:
            with temporary.open("wb") as file:
                np.savez_compressed(file, **arrays)
            temporary.replace(path)
    except OSError as error:
        raise ResultError(not_written(path, error)) from error


def read_objects(path: Path) -> TestObjects:
    """Return the objects of a file of `write_objects`; nothing pickled is loaded."""
    try:
        with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as arrays:
            masks = json.loads(arrays["masks"].tobytes()) if "masks" in arrays.files else None
            columns: dict[str, Any] = {name: arrays[name] for name in _COLUMNS}
            if "skeleton" in arrays.files:
                skeleton = Skeleton.of_record(json.loads(arrays["skeleton"].tobytes()))
                columns |= {"keypoints": arrays["keypoints"], "skeleton": skeleton}
            ids, classes = (tuple(arrays[name].tolist()) for name in ("ids", "classes"))
            runs = None if masks is None else tuple({**mask, "counts": mask["counts"].encode()} for mask in masks)
            federated = None
            if "negative" in arrays.files:
                named = {name: name for name in FREQUENCIES}
                frequencies = tuple(named[name] for name in arrays["frequencies"].tolist())
                federated = Federated(arrays["negative"], arrays["not_exhaustive"], frequencies)
            truth = Truth(len(ids), classes, **columns, masks=runs, groups=arrays.get("groups"), federated=federated)
            images, numbers = (tuple(int(n) for n in arrays[name]) for name in ("image_numbers", "class_numbers"))
            return TestObjects(truth, ids, images, numbers, arrays["sizes"])
    except OSError as error:
        raise ResultError(
            f"the objects of the test part are gone: cannot read {path}: {error.strerror or error}",
            "Copy the file with the record, or run that evaluation again.",
        ) from error
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise ResultError(f"{path} is damaged: {error}", "Run that evaluation again.") from error
