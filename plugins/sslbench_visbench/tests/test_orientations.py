"""Errors of orientations against loops over pixels with angles, not vectors."""

import math

import numpy as np
import pytest

from sslbench_visbench.metrics import orientation_measures, orientation_row


def slow_row(predicted, target):
    """Values of an image from angles: undirected difference, weights, and the median by expanding weights."""
    weighted = []
    for r in range(target.shape[1]):
        for c in range(target.shape[2]):
            if np.isnan(target[:, r, c]).any():
                continue
            a = math.degrees(math.atan2(predicted[1, r, c], predicted[0, r, c])) / 2
            b = math.degrees(math.atan2(target[1, r, c], target[0, r, c])) / 2
            difference = abs(a - b) % 180
            weighted.append((min(difference, 180 - difference), math.hypot(*target[:, r, c])))
    total = sum(weight for _, weight in weighted)
    cumulative, median = 0.0, math.nan
    for error, weight in sorted(weighted):
        cumulative += weight
        if math.isnan(median) and cumulative >= total / 2:
            median = error
    below = [sum(w for e, w in weighted if e < limit) / total for limit in (11.25, 22.5)]
    return [total, sum(e * w for e, w in weighted) / total, median, *below]


def test_an_image_against_loops_over_its_pixels():
    rng = np.random.default_rng(0)
    for _ in range(5):
        predicted, target = rng.normal(size=(2, 2, 6, 7))
        predicted += 2 * target
        target /= np.maximum(1, np.hypot(*target))
        target[:, 2, 3] = np.nan
        np.testing.assert_allclose(orientation_row(predicted, target), slow_row(predicted, target), rtol=1e-9)


def test_opposite_directions_are_one_orientation_and_random_ones_are_at_chance():
    angles = np.random.default_rng(1).uniform(0, math.pi, (2, 100, 100))
    predicted, target = (np.stack([np.cos(2 * a), np.sin(2 * a)]) for a in angles)
    turned = np.stack([np.cos(2 * (angles[1] + math.pi)), np.sin(2 * (angles[1] + math.pi))])
    assert orientation_row(turned, target)[1] == pytest.approx(0, abs=1e-6)
    assert orientation_row(predicted, target)[1] == pytest.approx(45, abs=1)
    assert orientation_row(np.zeros_like(target), target)[1] == 45


def test_images_without_coherence_do_not_count():
    rows = np.stack([orientation_row(np.ones((2, 2, 2)), np.zeros((2, 2, 2))), [1, 30, 30, 0, 0]])
    (measure,) = orientation_measures(rows)
    assert measure.statistic(np.ones((1, 2)))[0].tolist() == [30, 30, 0, 0]
    assert np.isnan(orientation_measures(rows[:1])[0].statistic(np.ones((1, 1)))).all()
