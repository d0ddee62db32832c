"""Average precision of LVIS, of keypoints and of the boundaries of masks, against slow oracles."""

import dataclasses
import math

import numpy as np
import pytest
from faster_coco_eval.core.coco import COCO
from faster_coco_eval.core.faster_eval_api import COCOeval_faster
from helpers.drawn_poses import NAMES, PERSON, by_pycocotools, drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from test_detection_metrics import RANGES, nanmean, slow_coco

from sslbench.errors import UsageError
from sslbench.metrics.detection import (
    THRESHOLDS,
    Detections,
    Truth,
    areas_of,
    coco_ap,
    keypoint_ap,
    lvis_ap,
    masks,
    oks,
)
from sslbench.metrics.detection.average_precision import detector_difference
from sslbench.metrics.detection.files import TestObjects, read_objects, write_objects
from sslbench.metrics.detection.keypoints import COCO_SIGMAS, Skeleton, labelled, similarity
from sslbench.metrics.detection.lvis import MOST
from sslbench.metrics.detection.matches import Federated

LVIS_RANGES = {"all": (0, 1e10), "s": (0, 32**2), "m": (32**2, 96**2), "l": (96**2, 1e10)}


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
    low, high = LVIS_RANGES[area]
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
    at = [precision[recall >= level].max(initial=0.0) for level in LEVELS]
    return float(np.mean(at)), float(recall[-1]) if len(recall) else 0.0


LEVELS = np.linspace(0, 1, 101)


def mean(values):
    values = np.array(values)
    return float(np.nanmean(values)) if not np.isnan(values).all() else np.nan


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_lvis_ap_is_that_of_a_slow_count(seed):
    truth, detections = sample(seed, n_images=4, objects=24, found=60)
    got = lvis_ap(truth, detections, resamples=0)
    classes = range(len(truth.classes))
    tables = {
        area: np.array([[slow(truth, detections, area, t, c) for t in THRESHOLDS] for c in classes])
        for area in LVIS_RANGES
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


@pytest.mark.parametrize("seed", range(12))
def test_the_values_are_those_of_pycocotools(seed):
    own = ("hip", "knee", "left_toe", "right_toe", "tail")
    skeleton = PERSON if seed % 2 else Skeleton(own, sigmas=(0.1, 0.05, 0.2, 0.03, 0.08))
    truth, found = drawn(seed, skeleton, difficult=seed % 3 == 0)
    mine = np.array([keypoint_ap(truth, found, resamples=0).metrics[name][0] for name in NAMES])
    np.testing.assert_allclose(mine, by_pycocotools(truth, found), rtol=0, atol=1e-9)


def test_the_similarity_is_the_sum_of_its_definition():
    truth, found = drawn(7)
    table = similarity(found.keypoints, truth.keypoints, truth.boxes, truth.areas, PERSON.sigmas)
    for d, points in enumerate(found.keypoints):
        for g, there in enumerate(truth.keypoints):
            terms = [
                math.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * truth.areas[g] * (2 * sigma) ** 2))
                for (x, y, _), (a, b, seen), sigma in zip(points, there, PERSON.sigmas, strict=True)
                if seen > 0
            ]
            if terms:
                assert table[d, g] == pytest.approx(sum(terms) / len(terms), abs=1e-12)


def test_difficult_objects_are_left_out_with_their_detections():
    truth, found = drawn(3)
    hard = np.arange(len(truth)) % 2 == 0
    without = dataclasses.replace(truth, difficult=hard)
    own = keypoint_ap(without, found, resamples=0).metrics
    perfect = Detections(
        truth.images, truth.boxes, np.linspace(0.1, 1, len(truth)), truth.labels, keypoints=truth.keypoints
    )
    assert keypoint_ap(without, perfect, resamples=0).metrics["AP"][0] == pytest.approx(1.0)
    few = keypoint_ap(dataclasses.replace(truth, crowd=truth.crowd | hard), found, resamples=0).metrics
    assert own["AR"][0] == pytest.approx(few["AR"][0], abs=0.05)


def test_objects_without_labelled_keypoints_do_not_count():
    truth, _ = drawn(5)
    none = ~labelled(truth.keypoints).any(axis=1) & ~truth.crowd
    assert none.any()
    right = ~truth.crowd & ~none
    perfect = Detections(
        truth.images[right],
        truth.boxes[right],
        np.ones(right.sum()),
        truth.labels[right],
        keypoints=truth.keypoints[right],
    )
    metrics = keypoint_ap(truth, perfect, resamples=0).metrics
    assert (metrics["AP"][0], metrics["AR"][0]) == pytest.approx((1.0, 1.0))


def test_one_keypoint_alone():
    """Of detections that are right in one keypoint and wrong in the others, which stay near the box."""
    truth, _ = drawn(11)
    corners = truth.boxes[:, None, [2, 1]]
    points = np.concatenate([np.broadcast_to(corners, (len(truth), 17, 2)), np.ones((len(truth), 17, 1))], axis=2)
    seen = truth.keypoints[:, 4, 2] > 0
    points[seen, 4] = truth.keypoints[seen, 4]
    found = Detections(truth.images, truth.boxes, np.linspace(0.1, 1, len(truth)), truth.labels, keypoints=points)
    assert keypoint_ap(oks.with_one(truth, 4), found, resamples=0).metrics["AP"][0] == pytest.approx(1.0)
    assert keypoint_ap(oks.with_one(truth, 3), found, resamples=0).metrics["AP"][0] == pytest.approx(0.0)


def test_intervals_contain_the_value_and_differences_compare_keypoints():
    truth, found = drawn(21)
    low, high = (keypoint_ap(truth, found, resamples=50).metrics["AP"][end] for end in (1, 2))
    assert low <= keypoint_ap(truth, found, resamples=0).metrics["AP"][0] <= high and low < high
    worse = dataclasses.replace(found, keypoints=found.keypoints + np.array([40.0, 0, 0]))
    pair = detector_difference(truth, {"a": found}, {"a": worse}, "keypoint_AP", "coco", seed=0, resamples=50)
    value = keypoint_ap(truth, found, resamples=0).metrics["AP"][0]
    assert pair.value_a == pytest.approx(value) and pair.value_b < pair.value_a
    with pytest.raises(KeyError):
        detector_difference(truth, {"a": found}, {"a": worse}, "uniform_keypoint_AP", "coco", seed=0, resamples=5)


def test_mirrored_keypoints():
    assert PERSON.mirrored() == (0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15)
    assert Skeleton(("Left Eye", "tail", "Right Eye")).mirrored() == (2, 1, 0)
    assert Skeleton(("eye-left", "eye-right", "cleft")).mirrored() == (1, 0, 2)
    assert Skeleton(("a", "b", "c")).mirrored(["a:c"]) == (2, 1, 0)
    assert Skeleton(("a", "b"), mirrors=(("a", "b"),)).mirrored() == (1, 0)
    for skeleton, pairs, words in (
        (Skeleton(("a", "b")), [], "no name has the word left or right"),
        (Skeleton(("left_eye", "nose")), [], "'left_eye' has no partner"),
        (Skeleton(("a", "b", "c")), ["a:b", "b:c"], "two pairs"),
        (Skeleton(("a", "b")), ["a:d"], "'a:d' is not a pair"),
    ):
        with pytest.raises(UsageError, match=words):
            skeleton.mirrored(pairs)


def test_sigmas():
    assert PERSON.sigmas[:3] == (0.026, 0.025, 0.025) and PERSON.prefix == "keypoint_"
    assert Skeleton(("a", "b")).with_sigmas(0.05).prefix == "uniform_keypoint_"
    assert Skeleton(tuple(COCO_SIGMAS)).with_sigmas(0.05) == PERSON
    assert Skeleton(("a", "b"), sigmas=(0.1, 0.2)).with_sigmas().sigmas == (0.1, 0.2)
    with pytest.raises(UsageError, match="not known"):
        Skeleton(("a", "b")).with_sigmas()


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


@pytest.mark.parametrize("drawn_truth", [lambda: scene(0)[0], lambda: sample(0)[0]], ids=["masks", "federated"])
def test_objects_come_back_from_their_file(drawn_truth, tmp_path):
    truth = drawn_truth()
    n, c = truth.n_images, len(truth.classes)
    ids = tuple(f"{i}.png" for i in range(n))
    sizes = np.full((n, 2), (HEIGHT, WIDTH))
    write_objects(tmp_path / "o.npz", TestObjects(truth, ids, tuple(range(5, 5 + n)), tuple(range(3, 3 + c)), sizes))
    again = read_objects(tmp_path / "o.npz")
    assert (again.ids, again.image_numbers[0], again.class_numbers[0]) == (ids, 5, 3)
    np.testing.assert_equal(dataclasses.asdict(again.truth), dataclasses.asdict(truth))


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


@pytest.mark.parametrize("seed", range(2))
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


@pytest.mark.parametrize("seed", range(4, 6))
@pytest.mark.parametrize(("kind", "shape"), [("boxes", "bbox"), ("masks", "segm"), ("boundaries", "boundary")])
def test_ap_is_that_of_faster_coco_eval(kind, shape, seed):
    truth, detections, _, _ = scene(seed)
    got = coco_ap(truth, detections, kind=kind, resamples=0).metrics
    names = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
    for name, value in zip(names, library_values(truth, detections, shape), strict=True):
        assert got[name][0] == pytest.approx(value, abs=1e-9, nan_ok=True), name


def library_values(truth, detections, shape):
    """The twelve values of faster-coco-eval, written in its own tables."""
    images = [{"id": i + 1, "height": HEIGHT, "width": WIDTH} for i in range(truth.n_images)]
    tables = {"info": {}, "images": images, "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]}
    rows = [[], []]
    for part, of in zip(rows, (truth, detections), strict=True):
        areas = truth.areas if of is truth else areas_of(detections, masks=shape != "bbox")
        for i, (mask, (x1, y1, x2, y2)) in enumerate(zip(of.masks, of.boxes.tolist(), strict=True)):
            row = {"id": i + 1, "image_id": int(of.images[i]) + 1, "category_id": int(of.labels[i]) + 1, "iscrowd": 0}
            part.append(row | {"segmentation": mask, "area": float(areas[i]), "bbox": [x1, y1, x2 - x1, y2 - y1]})
    for i, row in enumerate(rows[0]):
        row["iscrowd"] = int(truth.crowd[i])
    for i, row in enumerate(rows[1]):
        row["score"] = float(detections.scores[i])
    evaluation = COCOeval_faster(
        *(COCO(tables | {"annotations": part}) for part in rows), iouType=shape, print_function=lambda *_: None
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
