"""PCK and errors of matches against sums spelled out point by point."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.metrics.dense import correspondence
from sslbench.metrics.dense.correspondence import MatchErrors, PairHits


def repeated(weights):
    """Rows of the data as whole numbers of copies."""
    return [row for row, number in enumerate(weights) for _ in range(number)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12), st.data())
def test_averages_are_those_of_copied_pairs(rows, data):
    points = np.array([row[0] for row in rows])
    found = np.array([data.draw(st.integers(0, number)) for number in points])[:, None]
    classes, weights = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
    pairs, copies = PairHits(found, points, classes), repeated(weights)
    own = weights[None].astype(float)
    scored = [row for row in copies if points[row]]
    shares = {row: found[row, 0] / points[row] for row in scored}
    by_class = [[shares[row] for row in scored if classes[row] == c] for c in range(3)]
    for ours, values in (
        (pairs.per_image(own), [shares[row] for row in scored]),
        (pairs.per_class(own), [np.mean(each) for each in by_class if each]),
    ):
        assert ours[0, 0] == pytest.approx(np.mean(values) if values else np.nan, nan_ok=True)
    total = sum(points[row] for row in copies)
    wanted = sum(found[row, 0] for row in copies) / total if total else np.nan
    assert pairs.per_point(own)[0, 0] == pytest.approx(wanted, nan_ok=True)


def test_values_with_intervals_are_the_ratios_of_the_counts_and_swaps_are_left_out_where_not_counted():
    rng = np.random.default_rng(0)
    points, classes = rng.integers(0, 9, 40), rng.integers(0, 3, 40)
    found, swapped = np.sort(rng.integers(0, points[:, None] + 1, (40, 4)), axis=1), rng.integers(0, points + 1)
    pairs, images = PairHits(found, points, classes, swapped), np.arange(80).reshape(40, 2)
    values = correspondence.pck_with_intervals(pairs, images)
    shares = [(c, own / number) for c, own, number in zip(classes, found, points, strict=True) if number]
    by_class = [np.mean([share for each, share in shares if each == c], axis=0) for c in range(3)]
    swaps = values.pop(correspondence.SWAPPED.name)
    ratio, total = swapped.sum() / points.sum(), points.sum()
    assert swaps[0] == pytest.approx(ratio)
    # Pairs without a common image: the linearised error of a ratio, with the images as units.
    scored = points > 0
    error = (
        np.sqrt(np.sum((swapped - ratio * points)[scored] ** 2))
        / total
        * np.sqrt(2 * scored.sum() / (2 * scored.sum() - 1))
    )
    assert swaps[2] - swaps[1] == pytest.approx(2 * 1.96 * error, rel=0.1)
    wanted = np.concatenate(
        [np.mean([s for _, s in shares], axis=0), found.sum(axis=0) / total, np.mean(by_class, axis=0)]
    )
    np.testing.assert_allclose([value for value, _, _ in values.values()], wanted)
    assert correspondence.pck_with_intervals(PairHits(found, points, classes), images) == values


def test_a_distance_on_the_threshold():
    for strict in (False, True):
        found = correspondence.hits([[3.0, 4.0]], [[0.0, 0.0]], 50.0, (0.1,), strict=strict)
        assert found.tolist() == [[not strict]]


def slow_auc(errors, limit):
    """Area below the polygon through (0, 0) and (i-th error, i / n), cut at the limit, flat from the last one on."""
    errors, area, x, y = sorted(errors), 0.0, 0.0, 0.0
    for i, error in enumerate(errors, start=1):
        if error >= limit:
            break
        area += (error - x) * (y + i / len(errors)) / 2
        x, y = error, i / len(errors)
    return (area + (limit - x) * y) / limit


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 3)), min_size=1, max_size=15), st.data())
def test_recall_and_area_are_those_of_copied_pairs(rows, data):
    errors, pairs = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    weights = np.array(data.draw(st.lists(st.integers(0, 1), min_size=4, max_size=4)))
    own = [error for error, pair in zip(errors, pairs, strict=True) if weights[pair]]
    ours, once = MatchErrors(errors, pairs), weights[None].astype(float)
    if not own:
        assert np.isnan(ours.recall(once)).all() and np.isnan(ours.auc(once)).all()
        return
    for column, limit in enumerate(correspondence.PIXELS):
        assert ours.recall(once)[0, column] == pytest.approx(np.mean(np.array(own) <= limit))
        assert ours.auc(once)[0, column] == pytest.approx(slow_auc(own, limit))


def test_perfect_matches_have_an_area_of_one():
    errors = MatchErrors(np.array([0.0, 0.0, np.inf]), np.array([0, 0, 1]))
    assert errors.auc(np.array([[1.0, 0.0]]), (5,))[0, 0] == 1.0
    assert errors.recall(np.ones((1, 2)), (5,))[0, 0] == pytest.approx(2 / 3)


def test_points_behind_the_horizon_are_infinite():
    h = np.array([[1.0, 0, 0], [0, 1, 0], [-1, 0, 1]])
    assert correspondence.apply_homography(h, np.array([[0.5, 1.0], [2.0, 1.0]])).tolist() == [[1, 2], [np.inf, np.inf]]


def test_swaps_are_misses_that_hit_another_point_of_the_part():
    target = np.array([[0.0, 0], [10, 0], [20, 0], [30, 0]])
    predicted = np.array([[10.0, 0], [10, 0], [30, 0], [99, 0]])
    every = np.ones(4, bool)
    swaps = correspondence.swaps(predicted, target, np.array([0, 0, 1, 2]), every, 1.0)
    assert swaps.tolist() == [True, False, False, False]
    on_the_limit = np.array([[9.0, 0], [9, 0], [30, 0], [99, 0]])
    swaps = correspondence.swaps(on_the_limit, target, np.array([0, 0, 1, 2]), every, 1.0)
    assert swaps.tolist() == [True, False, False, False], "a distance equal to the limit is a hit"
    hidden = np.array([True, False, True, True])
    assert not correspondence.swaps(predicted, target, np.array([0, 0, 1, 2]), hidden, 1.0).any()
