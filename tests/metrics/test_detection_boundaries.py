"""Boundary AP (Cheng et al. 2021) against a slow count on bitmaps and against faster-coco-eval."""

import dataclasses
import math

import numpy as np
import pytest
from faster_coco_eval.core.coco import COCO
from faster_coco_eval.core.faster_eval_api import COCOeval_faster
from test_detection_metrics import RANGES, nanmean, slow_coco

from sslbench.metrics.detection import Detections, Truth, coco_ap, lvis_ap, masks
from sslbench.metrics.detection.average_precision import detector_difference
from sslbench.metrics.detection.matches import Federated

HEIGHT, WIDTH = 70, 110
STEPS = 3  # 2 % of the diagonal of 130 pixels


def blob(rng, centre, radius):
    """A wavy disk, cut by the image's edge if it lies there."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    angle = np.arctan2(rows - centre[0], columns - centre[1])
    wave = 1 + 0.15 * np.sin(rng.integers(2, 6) * angle + rng.uniform(0, 6))
    return np.hypot(rows - centre[0], columns - centre[1]) < radius * wave


def scene(seed, *, objects=20, found=50, n_images=5):
    """Objects and detections, which are the objects moved and grown, with their bitmaps."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform((0, 0), (HEIGHT, WIDTH), (objects, 2))
    radii = rng.uniform(6, 30, objects)
    there = [blob(rng, *pair) for pair in zip(centres, radii, strict=True)]
    images, labels = rng.integers(0, n_images, objects), rng.integers(0, 2, objects)
    source = rng.integers(0, objects, found)
    mine = [blob(rng, centres[i] + rng.normal(0, 2, 2), radii[i] * rng.uniform(0.9, 1.1)) for i in source]
    for bitmap in (*there, *mine):
        bitmap[HEIGHT // 2, WIDTH // 2] |= not bitmap.any()
    truth = Truth(
        n_images,
        ("a", "b"),
        images,
        boxes_around(there),
        labels,
        rng.random(objects) < 0.1,
        np.zeros(objects, np.bool_),
        np.array([b.sum() for b in there], float),
        tuple(map(masks.encode, there)),
    )
    detections = Detections(
        images[source],
        boxes_around(mine),
        rng.permutation(found) / found,
        labels[source],
        tuple(map(masks.encode, mine)),
    )
    return truth, detections, there, mine


def boxes_around(bitmaps):
    rows = [np.argwhere(bitmap) for bitmap in bitmaps]
    return np.array([[*r.min(axis=0)[::-1], *(r.max(axis=0)[::-1] + 1)] for r in rows], dtype=float)


def slow_boundary(bitmap, steps):
    """Pixels with one outside of the mask, or of the image, not more than `steps` away in a row and in a column."""
    height, width = bitmap.shape
    near = np.zeros_like(bitmap)
    for y, x in np.argwhere(bitmap):
        inside = y >= steps and x >= steps and y + steps < height and x + steps < width
        near[y, x] = not inside or not bitmap[y - steps : y + steps + 1, x - steps : x + steps + 1].all()
    return near


def slow_overlaps(truth, there, mine):
    edges, of_mine = ([slow_boundary(b, STEPS) for b in part] for part in (there, mine))
    table = np.zeros((len(mine), len(there)))
    for d, i in np.ndindex(table.shape):
        common = (mine[d] & there[i]).sum()
        if truth.crowd[i]:
            table[d, i] = common / mine[d].sum()
            continue
        of_edges = (of_mine[d] & edges[i]).sum() / (of_mine[d] | edges[i]).sum()
        table[d, i] = min(common / (mine[d] | there[i]).sum(), of_edges)
    return table


@pytest.mark.parametrize("size", [(20, 30), (70, 110), (300, 11)])
def test_the_boundary_is_that_of_a_slow_count(size):
    rng = np.random.default_rng(sum(size))
    steps = max(1, round(0.02 * math.hypot(*size)))
    for _ in range(5):
        bitmap = np.zeros(size, np.bool_)
        for corner in rng.uniform(0, 0.8, (3, 2)) * size:
            y, x = corner.astype(int)
            bitmap[y : y + size[0] // 3, x : x + size[1] // 3] = True
        found = masks.boundary(masks.encode(bitmap))
        whole = np.zeros(size, np.bool_)
        part = found.pixels.shape
        whole[found.top : found.top + part[0], found.left : found.left + part[1]] = found.pixels
        np.testing.assert_array_equal(whole, slow_boundary(bitmap, steps))


def test_a_mask_without_pixels_overlaps_nothing():
    empty = masks.boundary(masks.encode(np.zeros((10, 12), np.bool_)))
    full = masks.boundary(masks.encode(np.ones((10, 12), np.bool_)))
    assert masks.boundary_overlap(empty, full) == masks.boundary_overlap(empty, empty) == 0
    assert masks.boundary_overlap(full, full) == 1


@pytest.mark.parametrize("seed", range(4))
def test_boundary_ap_is_that_of_a_slow_count(seed):
    truth, detections, there, mine = scene(seed)
    got = coco_ap(truth, detections, kind="boundaries", resamples=0)
    overlaps, sizes = slow_overlaps(truth, there, mine), np.array([b.sum() for b in mine])
    slow = {area: slow_coco(truth, detections, area, overlaps=overlaps, sizes=sizes)[0] for area in RANGES}
    wanted = {"AP": slow["all"], "AP50": slow["all"][0], "AP75": slow["all"][5]}
    wanted |= {f"AP{area[0]}": slow[area] for area in ("small", "medium", "large")}
    for name, values in wanted.items():
        assert got.metrics[name][0] == pytest.approx(nanmean(values), abs=1e-9, nan_ok=True), name
    assert list(got.per_class.values()) == pytest.approx(slow["all"].mean(axis=0), abs=1e-9)
    assert list(got.per_class_50.values()) == pytest.approx(slow["all"][0], abs=1e-9)
    # On these masks boundaries matter.
    assert got.metrics["AP"][0] < coco_ap(truth, detections, kind="masks", resamples=0).metrics["AP"][0] - 0.05


@pytest.mark.parametrize("seed", range(4, 8))
def test_boundary_ap_is_that_of_faster_coco_eval(seed):
    truth, detections, _, _ = scene(seed)
    got = coco_ap(truth, detections, kind="boundaries", resamples=0).metrics
    names = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
    for name, value in zip(names, library_values(truth, detections), strict=True):
        assert got[name][0] == pytest.approx(value, abs=1e-9, nan_ok=True), name


def library_values(truth, detections):
    """The twelve values of faster-coco-eval, written in its own tables."""
    images = [{"id": i + 1, "height": HEIGHT, "width": WIDTH} for i in range(truth.n_images)]
    tables = {"info": {}, "images": images, "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]}
    rows = [[], []]
    for part, of in zip(rows, (truth, detections), strict=True):
        areas = [float(masks.decode(mask).sum()) for mask in of.masks]
        for i, mask in enumerate(of.masks):
            row = {"id": i + 1, "image_id": int(of.images[i]) + 1, "category_id": int(of.labels[i]) + 1}
            part.append(row | {"segmentation": mask, "area": areas[i], "bbox": [0, 0, 1, 1], "iscrowd": 0})
    for i, row in enumerate(rows[0]):
        row["iscrowd"] = int(truth.crowd[i])
    for i, row in enumerate(rows[1]):
        row["score"] = float(detections.scores[i])
    evaluation = COCOeval_faster(
        *(COCO(tables | {"annotations": part}) for part in rows), iouType="boundary", print_function=lambda *_: None
    )
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    values = np.asarray(evaluation.stats[:12], dtype=float)
    return np.where(values < 0, np.nan, values)


def test_intervals_hold_the_value_and_lvis_takes_boundaries():
    truth, detections, _, _ = scene(9)
    for value, low, high in coco_ap(truth, detections, kind="boundaries", resamples=50).metrics.values():
        assert np.isnan(value) or low <= value <= high
    no_pairs = np.zeros((0, 2), np.int64)
    federated = dataclasses.replace(truth, federated=Federated(no_pairs, no_pairs, ("r", "f")))
    of_lvis = lvis_ap(federated, detections, kind="boundaries", resamples=0).metrics["APf"][0]
    assert of_lvis < lvis_ap(federated, detections, kind="masks", resamples=0).metrics["APf"][0]


def test_detectors_are_compared_by_boundaries():
    truth, detections, there, _ = scene(10)
    exact = Detections(truth.images, truth.boxes, np.ones(len(truth)), truth.labels, tuple(map(masks.encode, there)))
    found = detector_difference(truth, {"0": exact}, {"0": detections}, "boundary_AP", "area", seed=0, resamples=20)
    ap = coco_ap(truth, detections, kind="boundaries", resamples=0).metrics["AP"][0]
    assert found.value_b == pytest.approx(ap, abs=1e-9)
    assert found.difference > 0.3
    with pytest.raises(KeyError):
        detector_difference(
            dataclasses.replace(truth, masks=None), {"0": exact}, {"0": exact}, "boundary_AP", "coco", seed=0
        )
