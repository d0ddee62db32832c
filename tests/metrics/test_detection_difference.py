"""The difference of two detectors on the same images: its value, its interval, and when they are tied."""

import numpy as np
import pytest

from sslbench.metrics.detection import Detections, Truth, coco_ap, voc_ap
from sslbench.metrics.detection.average_precision import detector_difference


def world(n=30, seed=0):
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
    truth = world()
    good, poor = found(truth, 1, 1), found(truth, 5, 2)
    difference, low, high = ap_difference(truth, good, poor, metric, seed=0, resamples=200)
    assert difference == pytest.approx(ap(truth, good, metric) - ap(truth, poor, metric), abs=1e-9)
    assert 0.1 < low < difference < high
    back = ap_difference(truth, poor, good, metric, seed=0, resamples=200)
    assert back == pytest.approx((-difference, -high, -low), abs=1e-9)


def test_two_that_find_the_same_are_tied_however_few_images_there_are():
    truth = world(6)
    one = found(truth, 3, 1)
    assert ap_difference(truth, one, one, "coco", seed=0, resamples=100) == (0, 0, 0)
    _, low, high = ap_difference(truth, one, found(truth, 3, 2), "coco", seed=0, resamples=400)
    assert low < 0 < high


@pytest.mark.parametrize(("n", "significant"), [(1, False), (3, False), (5, False), (8, True)])
def test_a_few_images_that_all_agree_are_no_significant_difference(n, significant):
    """One detector finds everything, the other nothing: no resample differs. As McNemar's test, 5 against 0 is tied."""
    truth = world(n)
    right = found(truth, 0, 1)
    value, low, high = ap_difference(truth, right, found(truth, 500, 2), "coco", seed=0, resamples=50)
    assert (value, high) == pytest.approx((1, 1), abs=0.01)
    assert (low > 0) is significant


def test_pairing_makes_the_interval_narrower_than_those_of_the_two_alone():
    """What is hard on an image is hard for both: that cancels."""
    truth = world(40)
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
        truth = world(25, seed=trial)
        pair = [found(truth, 3, 1000 + 2 * trial + k) for k in (0, 1)]
        _, low, high = ap_difference(truth, *pair, "coco", seed=trial, resamples=100)
        tied += low <= 0 <= high
    assert tied >= 35


def test_frames_of_a_video_stay_together():
    """Ten copies of each image say no more than one, if they are said to belong together."""
    once = world(20)
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
