"""Average precision of LVIS against a slow count, against faster-coco-eval, and at the edges."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.metrics.detection import THRESHOLDS, Detections, Truth, coco_ap, lvis_ap
from sslbench.metrics.detection.lvis import MOST
from sslbench.metrics.detection.matches import Federated

RANGES = {"all": (0, 1e10), "s": (0, 32**2), "m": (32**2, 96**2), "l": (96**2, 1e10)}


def sample(seed, *, n_images=8, classes=6, objects=40, found=120):
    """Objects, detections near them and elsewhere, and random sets of classes that were looked for."""
    rng = np.random.default_rng(seed)
    corner, size = rng.uniform(0, 150, (objects, 2)), np.exp(rng.uniform(1.5, 5, (objects, 2)))
    boxes = np.concatenate([corner, corner + size], axis=1).round(1)
    images, labels = rng.integers(0, n_images, objects), rng.integers(0, classes, objects)
    positive = set(zip(images.tolist(), labels.tolist(), strict=True))
    negative, partly = [], []
    for image in range(n_images):
        for label in range(classes):
            if (image, label) in positive:
                if rng.random() < 0.3:
                    partly.append((image, label))
            elif rng.random() < 0.4:
                negative.append((image, label))
    pairs = [np.array(of, dtype=np.int64).reshape(-1, 2) for of in (negative, partly)]
    federated = Federated(*pairs, tuple("rcf"[i % 3] for i in range(classes)))
    no = np.zeros(objects, np.bool_)
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) * rng.uniform(0.5, 1, objects)
    names = tuple(f"c{i}" for i in range(classes))
    truth = Truth(n_images, names, images, boxes, labels, no, no, areas, federated=federated)
    source = rng.integers(0, objects, found)
    scale = np.tile(boxes[source, 2:] - boxes[source, :2], 2)
    near = boxes[source] + rng.normal(0, rng.choice([0.02, 0.1, 0.4], (found, 1)), (found, 4)) * scale
    near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
    moved = rng.random(found) < 0.4
    detections = Detections(
        np.where(moved, rng.integers(0, n_images, found), images[source]),
        near,
        rng.permutation(found) / found,
        np.where(rng.random(found) < 0.3, rng.integers(0, classes, found), labels[source]),
    )
    return truth, detections


def overlap(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0) * max(height, 0)
    return common / (sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)) - common)


def slow(truth, detections, area, threshold, label):
    """Average precision and recall of one class, counted object by object as the paper describes it."""
    low, high = RANGES[area]
    negative = {tuple(pair) for pair in truth.federated.negative.tolist()}
    partly = {tuple(pair) for pair in truth.federated.not_exhaustive.tolist()}
    outcomes, total = [], 0
    for image in range(truth.n_images):
        own = [i for i in range(len(detections)) if detections.images[i] == image]
        own = sorted(own, key=lambda i: -detections.scores[i])[:MOST]
        own = [i for i in own if detections.labels[i] == label]
        objects = [j for j in range(len(truth)) if truth.images[j] == image and truth.labels[j] == label]
        counted = {j: low <= truth.areas[j] <= high for j in objects}
        total += sum(counted.values())
        if not objects and (image, label) not in negative:
            continue
        free = set(objects)
        for i in own:
            near = [(overlap(detections.boxes[i], truth.boxes[j]), j) for j in free]
            near = [(value, j) for value, j in near if value >= threshold]
            best = max([x for x in near if counted[x[1]]] or near, default=None)
            x1, y1, x2, y2 = detections.boxes[i]
            if best is not None:
                free.discard(best[1])
                if counted[best[1]]:
                    outcomes.append((detections.scores[i], True))
            elif low <= (x2 - x1) * (y2 - y1) <= high and (image, label) not in partly:
                outcomes.append((detections.scores[i], False))
    if not total:
        return np.nan, np.nan
    outcomes.sort(reverse=True)
    right = np.cumsum([hit for _, hit in outcomes]) if outcomes else np.zeros(0)
    precision, recall = right / np.arange(1, len(right) + 1), right / total
    at = [max([p for p, r in zip(precision, recall, strict=True) if r >= level], default=0.0) for level in LEVELS]
    return float(np.mean(at)), float(recall[-1]) if len(recall) else 0.0


LEVELS = np.linspace(0, 1, 101)


def mean(values):
    values = np.array(values)
    return float(np.nanmean(values)) if not np.isnan(values).all() else np.nan


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_lvis_ap_is_that_of_a_slow_count(seed):
    truth, detections = sample(seed)
    got = lvis_ap(truth, detections, resamples=0)
    classes = range(len(truth.classes))
    tables = {
        area: np.array([[slow(truth, detections, area, t, c) for t in THRESHOLDS] for c in classes]) for area in RANGES
    }
    ap = tables["all"][:, :, 0]
    wanted = {"AP": mean(ap), "AP50": mean(ap[:, 0]), "AP75": mean(ap[:, 5]), "AR300": mean(tables["all"][:, :, 1])}
    wanted |= {f"AP{area}": mean(tables[area][:, :, 0]) for area in "sml"}
    kinds = np.array(truth.federated.frequencies)
    wanted |= {f"AP{kind}": mean(ap[kinds == kind]) for kind in "rcf"}
    assert set(wanted) == set(got.metrics)
    for name, value in wanted.items():
        assert got.metrics[name][0] == pytest.approx(value, abs=1e-9, nan_ok=True), name
    assert list(got.per_class.values()) == pytest.approx(ap.mean(axis=1), abs=1e-9, nan_ok=True)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_lvis_ap_is_that_of_a_library(seed):
    """Its precisions without a value are -1, as in lvis-api; AR has other names there."""
    from faster_coco_eval.core.coco import COCO
    from faster_coco_eval.core.faster_eval_api import COCOeval_faster

    truth, detections = sample(seed)
    federated = truth.federated

    def of(pairs, image):
        return [int(label) + 1 for i, label in pairs.tolist() if i == image]

    images = [
        {
            "id": i + 1,
            "height": 500,
            "width": 500,
            "neg_category_ids": of(federated.negative, i),
            "not_exhaustive_category_ids": of(federated.not_exhaustive, i),
        }
        for i in range(truth.n_images)
    ]
    categories = [{"id": c + 1, "name": n, "frequency": federated.frequencies[c]} for c, n in enumerate(truth.classes)]

    def rows(images_, labels, boxes, **more):
        for i, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
            row = {"id": i + 1, "image_id": int(images_[i]) + 1, "category_id": int(labels[i]) + 1, "iscrowd": 0}
            yield row | {"bbox": [x1, y1, x2 - x1, y2 - y1], **{key: float(of_all[i]) for key, of_all in more.items()}}

    there = list(rows(truth.images, truth.labels, truth.boxes, area=truth.areas))
    areas = np.prod(detections.boxes[:, 2:] - detections.boxes[:, :2], axis=1)
    found = list(rows(detections.images, detections.labels, detections.boxes, score=detections.scores, area=areas))
    tables = [{"info": {}, "images": images, "categories": categories, "annotations": part} for part in (there, found)]
    silent = {"iouType": "bbox", "lvis_style": True, "print_function": lambda *_: None}
    evaluation = COCOeval_faster(COCO(tables[0]), COCO(tables[1]), **silent)
    evaluation.params.maxDets = [300]
    evaluation.evaluate()
    evaluation.accumulate()
    precision = np.asarray(evaluation.eval["precision"])[..., -1]
    precision = np.where(precision < 0, np.nan, precision)
    got = lvis_ap(truth, detections, resamples=0).metrics
    assert got["AP"][0] == pytest.approx(mean(precision[:, :, :, 0]), abs=1e-9)
    assert got["AP50"][0] == pytest.approx(mean(precision[0, :, :, 0]), abs=1e-9)
    for k, kind in enumerate("rcf"):
        assert got[f"AP{kind}"][0] == pytest.approx(mean(precision[:, :, k::3, 0]), abs=1e-9, nan_ok=True)
    for a, area in enumerate("sml", 1):
        assert got[f"AP{area}"][0] == pytest.approx(mean(precision[:, :, :, a]), abs=1e-9, nan_ok=True)


def test_where_every_class_was_looked_for_it_is_cocos():
    truth, detections = sample(3)
    pairs = {(i, c) for i in range(truth.n_images) for c in range(len(truth.classes))}
    absent = pairs - set(zip(truth.images.tolist(), truth.labels.tolist(), strict=True))
    everything = Federated(np.array(sorted(absent)), np.zeros((0, 2), np.int64), truth.federated.frequencies)
    full = lvis_ap(dataclasses.replace(truth, federated=everything), detections, resamples=0).metrics
    coco = coco_ap(truth, detections, resamples=0).metrics
    for name in ("AP", "AP50", "AP75", "APs", "APm", "APl"):
        assert full[name][0] == pytest.approx(coco[name][0], abs=1e-9), name
    assert full["AP"][0] < lvis_ap(truth, detections, resamples=0).metrics["AP"][0]


def test_the_300_best_detections_of_an_image_count_over_all_classes():
    truth, _ = sample(0, n_images=2, objects=2)
    truth = dataclasses.replace(truth, images=np.array([0, 1]), labels=np.array([0, 1]))
    images, labels = np.zeros(301, np.int64), np.full(301, 1)
    labels[-1] = 0
    scores = np.linspace(1, 0.1, 301)
    detections = Detections(images, np.tile(truth.boxes[:1], (301, 1)), scores, labels)
    assert lvis_ap(truth, detections, resamples=0).per_class["c0"] == 0
    assert lvis_ap(truth, detections.select(np.arange(1, 301)), resamples=0).per_class["c0"] == pytest.approx(1)


def test_intervals_hold_the_value_and_data_without_such_sets_are_refused():
    truth, detections = sample(5, n_images=20)
    metrics = lvis_ap(truth, detections, resamples=50).metrics
    assert all(low <= value <= high for value, low, high in metrics.values() if not np.isnan(value))
    assert metrics["AP"][1] < metrics["AP"][0] < metrics["AP"][2]
    with pytest.raises(ValueError, match="the classes that were looked for"):
        lvis_ap(dataclasses.replace(truth, federated=None), detections)
