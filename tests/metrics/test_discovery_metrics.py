"""CorLoc, mask IoU and saliency against counts of single pixels and thresholds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.metrics.dense import discovery

ends = st.tuples(st.integers(0, 8), st.integers(0, 8)).map(sorted)
box = st.tuples(ends, ends).map(lambda both: (both[0][0], both[1][0], both[0][1], both[1][1]))


def pixels(one):
    left, upper, right, lower = one
    return {(x, y) for x in range(left, right) for y in range(upper, lower)}


@settings(max_examples=100, deadline=None)
@given(box, st.lists(box, max_size=4))
def test_overlaps_are_those_of_sets_of_pixels(one, others):
    for ours, other in zip(discovery.overlaps(one, others), others, strict=True):
        union = pixels(one) | pixels(other)
        assert ours == pytest.approx(len(pixels(one) & pixels(other)) / len(union) if union else 0.0)


def test_half_an_overlap_counts_and_images_without_objects_do_not():
    assert discovery.is_located([0, 0, 10, 10], [[0, 0, 10, 20], [50, 50, 60, 60]]) == 1.0
    assert discovery.is_located([0, 0, 10, 10], [[0, 0, 10, 21]]) == 0.0
    assert math.isnan(discovery.is_located([0, 0, 10, 10], np.zeros((0, 4))))
    assert math.isnan(discovery.mask_iou(np.ones((2, 2), bool), np.zeros((0, 2, 2), bool)))


@pytest.mark.parametrize("kind", ["some", "all", "none", "nothing predicted"])
def test_saliency_at_every_threshold(kind):
    random = np.random.default_rng(1)
    truth = {"some": random.random((6, 7)) < 0.4, "all": np.ones((6, 7), bool)}.get(kind, np.zeros((6, 7), bool))
    saliency = np.round(random.random((6, 7)) * 255) / 255  # on the thresholds themselves
    if kind == "nothing predicted":
        truth, saliency = random.random((6, 7)) < 0.4, np.zeros((6, 7))
    ours = discovery.saliency_values(saliency, truth)
    for t, value in zip(discovery.THRESHOLDS, ours.f, strict=True):
        found = saliency > t
        right = (found & truth).sum()
        precision = right / found.sum() if found.any() else 1.0
        recall = right / truth.sum() if truth.any() else 1.0
        both = 0.3 * precision + recall
        assert value == pytest.approx(1.3 * precision * recall / both if both else 0.0)
    assert ours.accuracy == np.mean((saliency > 0.5) == truth)


def test_the_threshold_is_one_for_all_images():
    f = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    assert discovery.max_f(np.array([[1.0, 1.0], [1.0, 0.0]]), f).tolist() == [[0.5], [1.0]]
