"""Metrics of places, against scikit-learn and numpy."""

import dataclasses
import math

import numpy as np
import pytest
from sklearn.metrics.pairwise import haversine_distances

from sslbench.metrics.catalog import find
from sslbench.metrics.differences import Predictions, difference
from sslbench.metrics.intervals import Units
from sslbench.metrics.regression import (
    ACCURACY,
    EARTH_RADIUS,
    PLACES,
    great_circle_distances,
    located_within,
    weighted_medians,
)
from sslbench.metrics.summary import one_measure, summarise_places
from sslbench.targets.numbers import Numbers


def anywhere(n, seed):
    """Places uniform on the sphere, and the poles and both sides of the date line."""
    generator = np.random.default_rng(seed)
    latitudes = np.degrees(np.arcsin(generator.uniform(-1, 1, n)))
    places = np.column_stack([latitudes, generator.uniform(-180, 180, n)])
    places[:6] = [[90, 0], [-90, 77], [0, 180], [0, -180], [10, 179.999], [10, -179.999]]
    return places


def test_distances_are_those_of_scikit_learn():
    one, other = anywhere(200, 0), anywhere(200, 1)[::-1]
    expected = EARTH_RADIUS * haversine_distances(np.radians(one), np.radians(other))
    for shift in (0, 1, 50):
        rolled = np.roll(other, -shift, axis=0)
        rows = np.arange(200)
        assert great_circle_distances(one, rolled) == pytest.approx(expected[rows, (rows + shift) % 200], abs=1e-6)
    assert great_circle_distances(one, other[3]) == pytest.approx(expected[:, 3], abs=1e-6)


def test_the_date_line_and_the_poles_are_no_borders():
    places = [[0.0, 180.0], [0.0, 179.9], [90.0, 0.0], [0.0, 0.0]]
    others = [[0.0, -180.0], [0.0, -179.9], [90.0, 120.0], [0.0, 180.0]]
    found = great_circle_distances(places, others)
    degree = math.pi * EARTH_RADIUS / 180
    assert found == pytest.approx([0, 0.2 * degree, 0, 180 * degree], abs=1e-6)


def test_an_image_at_the_distance_itself_is_within_it():
    assert located_within(np.array([1.0, 25.0, 200.0, 750.0, 2500.0])).tolist() == np.triu(np.ones((5, 5))).tolist()


def test_weighted_medians_are_those_of_repeated_values():
    generator = np.random.default_rng(0)
    for n in (1, 2, 5, 8):
        values = generator.integers(0, 4, n).astype(float)
        weights = generator.integers(0, 3, (20, n)).astype(float)
        weights[:, 0] += 1
        expected = [np.median(np.repeat(values, row.astype(int))) for row in weights]
        assert weighted_medians(values, weights).tolist() == expected


def test_metrics_of_a_case_by_hand():
    """Errors of 0, 10, 100, 500, 1,000 and 10,000 km along the equator."""
    errors = np.array([0, 10, 100, 500, 1000, 10000])
    true = np.zeros((6, 2))
    predicted = np.column_stack([np.zeros(6), np.degrees(errors / EARTH_RADIUS)])
    found = summarise_places(true, predicted, seed=0)
    assert tuple(found) == tuple(metric.name for metric in PLACES)
    assert [found[metric.name][0] for metric in ACCURACY] == pytest.approx(np.array([1, 2, 3, 4, 5]) / 6)
    assert found["median_error_km"][0] == pytest.approx(300) and found["mean_error_km"][0] == pytest.approx(11610 / 6)
    for metric in PLACES:
        value, low, high = found[metric.name]
        assert low <= value <= high and low < high


def test_intervals_keep_groups_together():
    true, predicted = anywhere(40, 0), anywhere(40, 0)
    predicted[:30] = anywhere(40, 1)[:30]
    rows = np.repeat(np.arange(40), 9)
    once = summarise_places(true, predicted, seed=0)
    together = summarise_places(true[rows], predicted[rows], seed=0, groups=rows)
    apart = summarise_places(true[rows], predicted[rows], seed=0)
    for name in ("accuracy@200km", "mean_error_km", "median_error_km"):
        widths = [each[name][2] - each[name][1] for each in (once, together, apart)]
        assert widths[1] == pytest.approx(widths[0], rel=0.35) and widths[2] < 0.6 * widths[1], name


def test_two_models_are_compared_in_kilometres_image_by_image():
    true = anywhere(60, 0)
    near, far = true.copy(), anywhere(60, 5)
    near[:20] = far[:20]
    answers = [Predictions.of(0, places) for places in (near, far)]
    expected = [great_circle_distances(true, places).mean() for places in (near, far)]
    found = difference("mean_error_km", Numbers, true, *answers)
    assert [found.value_a, found.value_b] == pytest.approx(expected) and found.high < 0
    found = difference("accuracy@200km", Numbers, true, *answers)
    assert found.difference == pytest.approx(40 / 60) and found.low > 0
    same = difference("median_error_km", Numbers, true, answers[0], answers[0])
    assert (same.difference, same.low, same.high) == (0, 0, 0)


def test_other_numbers_have_no_metrics_of_places():
    values = np.zeros((4, 3))
    with pytest.raises(KeyError):
        one_measure("accuracy@200km", Numbers, values, values, Units.of(4, None))
    places = one_measure("accuracy@200km", Numbers, values[:, :2], values[:, :2], Units.of(4, None))
    assert places.names == tuple(metric.name for metric in ACCURACY)


def test_the_worst_group_has_the_unit_and_direction_of_its_metric():
    worst = find("worst_group(a (b)).accuracy@25km")
    assert (worst.scale, worst.direction) == (100, 1)
    assert find("worst_group(site).median_error_km").text == "km, less is better"
    assert dataclasses.replace(worst, name="accuracy@25km").title == "Share of images located within 25 km (city)"
