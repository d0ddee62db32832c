"""Kinds of errors of detectors, and differences between two of them."""

import dataclasses

import numpy as np
import pytest

from sslbench.metrics.detection import Detections, Truth, coco_ap, voc_ap
from sslbench.metrics.detection.average_precision import class_curves, class_scores, detector_difference
from sslbench.metrics.detection.errors import KINDS, error_analysis


def truth_of(rows, *, images=None, classes="ab", crowd=()):
    rows = np.array(rows, dtype=np.float64).reshape(-1, 6)
    flags = np.zeros(len(rows), np.bool_)
    crowds = flags.copy()
    crowds[list(crowd)] = True
    areas = (rows[:, 4:] - rows[:, 2:4]).prod(axis=1)
    number = images or int(rows[:, 0].max()) + 1
    return Truth(
        number, tuple(classes), rows[:, 0].astype(int), rows[:, 2:], rows[:, 1].astype(int), crowds, flags, areas
    )


def found_of(rows):
    rows = np.array(rows, dtype=np.float64).reshape(-1, 7)
    return Detections(rows[:, 0].astype(int), rows[:, 2:6], rows[:, 6], rows[:, 1].astype(int))


def iou(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)]
    return width * height / (sum(areas) - width * height)


def slow(truth, found):
    """The kinds of all wrong detections, what each would find, and the missed objects, by plain loops."""
    kinds, target, missed = {}, {}, set()
    for image in range(truth.n_images):
        objects = [j for j in range(len(truth)) if truth.images[j] == image]
        rows = sorted((i for i in range(len(found)) if found.images[i] == image), key=lambda i: -found.scores[i])
        used = {}
        for i in rows:
            able = [(iou(found.boxes[i], truth.boxes[j]), j) for j in objects if truth.labels[j] == found.labels[i]]
            able = [(overlap, j) for overlap, j in able if overlap >= 0.5 and j not in used]
            if able:
                used[max(able)[1]] = i
        usable = {}
        for i in rows:
            if i in used.values():
                continue
            own = max(
                [(iou(found.boxes[i], truth.boxes[j]), j) for j in objects if truth.labels[j] == found.labels[i]],
                default=(0, -1),
            )
            other = max(
                [(iou(found.boxes[i], truth.boxes[j]), j) for j in objects if truth.labels[j] != found.labels[i]],
                default=(0, -1),
            )
            if 0.1 <= own[0] <= 0.5:
                kinds[i], goal = "localisation", own[1]
            elif other[0] >= 0.5:
                kinds[i], goal = "classification", other[1]
            else:
                goal = None
                kinds[i] = "duplicate" if own[0] >= 0.5 else "background" if max(own[0], other[0]) <= 0.1 else "both"
            if goal is not None and goal not in used:
                target[i] = goal if goal not in usable else None
                usable.setdefault(goal, i)
        missed |= {j for j in objects if j not in used and j not in usable}
    return kinds, target, missed


def mended_ap50(truth, found, kind):
    """AP50 after the detections themselves were changed, by COCO's evaluator."""
    kinds, target, missed = slow(truth, found)
    if kind == "missed":
        kept = np.array([j not in missed for j in range(len(truth))])
        columns = {
            name: getattr(truth, name)[kept] for name in ("images", "boxes", "labels", "crowd", "difficult", "areas")
        }
        return coco_ap(dataclasses.replace(truth, **columns), found, resamples=0).metrics["AP50"][0]
    boxes, labels, kept = found.boxes.copy(), found.labels.copy(), np.ones(len(found), np.bool_)
    for i, own in kinds.items():
        if own == kind:
            if target.get(i) is None:
                kept[i] = False
            else:
                boxes[i], labels[i] = truth.boxes[target[i]], truth.labels[target[i]]
    changed = Detections(found.images[kept], boxes[kept], found.scores[kept], labels[kept])
    return coco_ap(truth, changed, resamples=0).metrics["AP50"][0]


def world(seed, images=40):
    rng = np.random.default_rng(seed)
    objects, found = [], []
    for image in range(images):
        for _ in range(1 + rng.poisson(1.5)):
            label, side, corner = rng.choice(3, p=[0.5, 0.3, 0.2]), rng.uniform(30, 90, 2), rng.uniform(0, 900, 2)
            box = np.r_[corner, corner + side]
            objects.append((image, label, *box))
            for _ in range(rng.choice(4, p=[0.2, 0.45, 0.25, 0.1])):
                own = label if rng.random() < 0.8 else rng.integers(3)
                moved = box + np.r_[side, side] * rng.choice([0.02, 0.3, 0.45]) * rng.choice([-1, 1])
                found.append((image, own, *moved, rng.random()))
        corner = rng.uniform(0, 900, 2)
        found.append((image, rng.integers(3), *corner, *(corner + 60), 0.6 * rng.random()))
    return truth_of(objects, images=images, classes="abc"), found_of(found)


@pytest.mark.parametrize("seed", range(4))
def test_costs_are_the_gains_of_mended_detections(seed):
    truth, found = world(seed)
    errors = error_analysis(truth, found, resamples=0)
    assert errors.ap50 == pytest.approx(coco_ap(truth, found, resamples=0).metrics["AP50"][0], abs=1e-12)
    kinds, _, missed = slow(truth, found)
    wanted = {kind: sum(own == kind for own in kinds.values()) for kind in KINDS} | {"missed": len(missed)}
    assert errors.counts == wanted and min(wanted.values()) > 0, "every kind occurs"
    for kind in KINDS:
        assert errors.costs[kind][0] == pytest.approx(mended_ap50(truth, found, kind) - errors.ap50, abs=1e-12), kind


BOX = (0, 0, 100, 100)
SCENES = {
    "classification": [(0, 1, *BOX, 0.9)],
    "localisation": [(0, 0, 60, 0, 160, 100, 0.9)],
    "both": [(0, 1, 60, 0, 160, 100, 0.9)],
    "duplicate": [(0, 0, *BOX, 0.9), (0, 0, 2, 0, 102, 100, 0.8)],
    "background": [(0, 0, 300, 300, 400, 400, 0.9)],
}


@pytest.mark.parametrize("kind", SCENES)
def test_a_scene_has_the_error_that_it_shows(kind):
    truth = truth_of([(0, 0, *BOX), (1, 1, *BOX)])
    errors = error_analysis(truth, found_of(SCENES[kind]), resamples=0)
    assert [KINDS[place] for place in errors.kinds if place >= 0] == [kind]
    assert errors.missed.tolist() == [kind in ("both", "background"), True]


def test_detections_of_crowds_count_as_nothing():
    truth = truth_of([(0, 0, *BOX), (0, 0, 200, 200, 400, 400)], crowd=(1,), classes="a")
    errors = error_analysis(truth, found_of([(0, 0, 210, 210, 300, 300, 0.9), (0, 0, *BOX, 0.5)]), resamples=0)
    assert errors.kinds.tolist() == [-2, -1] and errors.ap50 == pytest.approx(1) and not errors.missed.any()


def test_intervals_hold_the_cost_and_narrow_with_images():
    small, large = (error_analysis(*world(1, images), resamples=100).costs["background"] for images in (20, 160))
    assert small[1] <= small[0] <= small[2] and large[2] - large[1] < small[2] - small[1]


def test_scores_of_classes_are_those_of_the_whole_and_curves_end_at_their_recall():
    truth, found = world(2)
    whole, scores = coco_ap(truth, found, resamples=0), class_scores(truth, found, "coco", resamples=50)
    for metric in ("AP", "AP50", "AP75", "AR100"):
        mean = np.mean([own[metric][0] for own in scores.values()])
        assert mean == pytest.approx(whole.metrics[metric][0], abs=1e-9)
        assert all(own[metric][1] <= own[metric][0] <= own[metric][2] for own in scores.values())
    assert {name: own["AP50"][0] for name, own in scores.items()} == pytest.approx(whole.per_class_50)
    kinds, _, _ = slow(truth, found)
    for curve in class_curves(truth, found, "coco"):
        assert (np.diff(curve.scores) <= 0).all() and (np.diff(curve.recall) >= 0).all()
        if curve.overlap == 0.5:
            label = truth.classes.index(curve.name)
            right = sum(found.labels[i] == label and i not in kinds for i in range(len(found)))
            assert curve.recall[-1] == pytest.approx(right / (truth.labels == label).sum())
            assert curve.precision[-1] == pytest.approx(right / (found.labels == label).sum())


def two_classes(n=30, seed=0):
    """One object of each of two classes on every image."""
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 50, (2 * n, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(20, 40, (2 * n, 2))], axis=1).astype(np.float32)
    images, labels, flags = np.repeat(np.arange(n), 2), np.tile([0, 1], n), np.zeros(2 * n, dtype=np.bool_)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1).astype(np.float64)
    return Truth(n, ("a", "b"), images, boxes, labels, flags, flags, areas, None)


def found(truth, jitter, seed):
    """Every object, moved by so many pixels."""
    rng = np.random.default_rng(seed)
    boxes = truth.boxes + rng.normal(0, jitter, truth.boxes.shape).astype(np.float32)
    return Detections(truth.images, boxes, rng.uniform(0.3, 1, len(truth)).astype(np.float32), truth.labels)


def ap_difference(truth, first, second, metric, *, seed, resamples):
    """One training each: value, low and high end."""
    found = detector_difference(truth, {"0": first}, {"0": second}, "AP", metric, seed=seed, resamples=resamples)
    return found.difference, found.low, found.high


def ap(truth, detections, metric):
    rule = metric if metric != "coco" else None
    scores = voc_ap(truth, detections, rule, resamples=0) if rule else coco_ap(truth, detections, resamples=0)
    return scores.metrics["AP"][0]


@pytest.mark.parametrize("metric", ["coco", "11-point", "area"])
def test_the_difference_is_that_of_the_two_scores_and_turns_its_sign_with_them(metric):
    truth = two_classes()
    good, poor = found(truth, 1, 1), found(truth, 5, 2)
    difference, low, high = ap_difference(truth, good, poor, metric, seed=0, resamples=200)
    assert difference == pytest.approx(ap(truth, good, metric) - ap(truth, poor, metric), abs=1e-9)
    assert 0.1 < low < difference < high
    back = ap_difference(truth, poor, good, metric, seed=0, resamples=200)
    assert back == pytest.approx((-difference, -high, -low), abs=1e-9)


def test_two_that_find_the_same_are_tied_however_few_images_there_are():
    truth = two_classes(6)
    one = found(truth, 3, 1)
    assert ap_difference(truth, one, one, "coco", seed=0, resamples=100) == (0, 0, 0)
    _, low, high = ap_difference(truth, one, found(truth, 3, 2), "coco", seed=0, resamples=400)
    assert low < 0 < high


@pytest.mark.parametrize(("n", "significant"), [(1, False), (3, False), (5, False), (8, True)])
def test_a_few_images_that_all_agree_are_no_significant_difference(n, significant):
    """One detector finds everything, the other nothing: no resample differs. As McNemar's test, 5 against 0 is tied."""
    truth = two_classes(n)
    right = found(truth, 0, 1)
    value, low, high = ap_difference(truth, right, found(truth, 500, 2), "coco", seed=0, resamples=50)
    assert (value, high) == pytest.approx((1, 1), abs=0.01)
    assert (low > 0) is significant


def test_pairing_makes_the_interval_narrower_than_those_of_the_two_alone():
    """What is hard on an image is hard for both: that cancels."""
    truth = two_classes(40)
    hard = np.repeat(np.random.default_rng(5).uniform(0, 8, truth.n_images), 2)[:, None].astype(np.float32)
    noise = np.random.default_rng(6).normal(size=truth.boxes.shape).astype(np.float32)
    scores = np.random.default_rng(7).uniform(0.3, 1, len(truth)).astype(np.float32)
    pair = [Detections(truth.images, truth.boxes + k * hard * noise, scores, truth.labels) for k in (0.9, 1.0)]
    _, low, high = ap_difference(truth, *pair, "coco", seed=0, resamples=400)
    alone = [coco_ap(truth, one, seed=0, resamples=400).metrics["AP"] for one in pair]
    assert high - low < 0.6 * min(top - bottom for _, bottom, top in alone)


def test_equal_detectors_are_called_tied_about_nineteen_times_in_twenty():
    tied = 0
    for trial in range(40):
        truth = two_classes(25, seed=trial)
        pair = [found(truth, 3, 1000 + 2 * trial + k) for k in (0, 1)]
        _, low, high = ap_difference(truth, *pair, "area", seed=trial, resamples=100)
        tied += low <= 0 <= high
    assert tied >= 35


def test_frames_of_a_video_stay_together():
    """Ten copies of each image say no more than one, if they are said to belong together."""
    once = two_classes(20)
    good, poor = found(once, 2, 1), found(once, 5, 2)
    images = np.concatenate([once.images + 20 * i for i in range(10)])
    columns = {
        name: np.concatenate([getattr(once, name)] * 10) for name in ("boxes", "labels", "crowd", "difficult", "areas")
    }
    given = {"n_images": 200, "classes": once.classes, "images": images, **columns}
    together, alone = Truth(**given, groups=np.arange(200) % 20), Truth(**given)
    many = [
        Detections(images, *(np.concatenate([c] * 10) for c in (f.boxes, f.scores, f.labels))) for f in (good, poor)
    ]
    widths = []
    for truth, pair in ((once, (good, poor)), (together, many), (alone, many)):
        _, low, high = ap_difference(truth, *pair, "area", seed=0, resamples=300)
        _, below, above = voc_ap(truth, pair[1], "area", seed=0, resamples=300).metrics["AP"]
        widths.append((high - low, above - below))
    assert widths[1] == pytest.approx(widths[0], rel=0.25)
    assert max(widths[2]) < 0.6 * min(widths[1])
