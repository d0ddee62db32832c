"""Boundary scores: matching against trying every assignment, lines moved within and beyond the tolerance."""

import itertools
import math

import numpy as np
import pytest

from sslbench.metrics.dense.contours import contour_counts, contour_measure, matched_pixels


def largest_matching(found, truth, radius):
    """Size of the largest one-to-one matching, by trying all assignments."""
    a, b = sorted((list(zip(*np.nonzero(m), strict=True)) for m in (found, truth)), key=len)
    return max(
        sum(math.dist(p, q) <= radius for p, q in zip(a, chosen, strict=True))
        for chosen in itertools.permutations(b, len(a))
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_matching_is_the_largest_and_one_to_one(seed):
    rng = np.random.default_rng(seed)
    maps = np.zeros((2, 36), dtype=bool)
    for each in maps:
        each[rng.choice(36, 6, replace=False)] = True
    found, truth = maps.reshape(2, 6, 6)
    tolerance = 1.5 / math.hypot(6, 6)
    parts = matched_pixels(found, truth, tolerance=tolerance)
    assert parts[0].sum() == parts[1].sum() == largest_matching(found, truth, 1.5)
    assert not (parts[0] & ~found).any() and not (parts[1] & ~truth).any()


def test_the_nearer_of_two_pixels_is_matched():
    found, truth = np.zeros((2, 9, 9), dtype=bool)
    found[4, [2, 5]] = truth[4, 4] = True
    in_found, _ = matched_pixels(found, truth, tolerance=3 / math.hypot(9, 9))
    assert in_found[4, 5] and not in_found[4, 2]


def scores(*counts):
    """ODS, OIS and AP of the counts of images."""
    return contour_measure(np.stack(counts).reshape(len(counts), -1)).statistic(np.ones((1, len(counts))))[0]


def line(column):
    image = np.zeros((30, 40))
    image[:, column] = 1
    return image


@pytest.mark.parametrize(("column", "score"), [(20, 1.0), (22, 1.0), (23, 0.0)])
def test_a_moved_line_counts_within_the_tolerance_only(column, score):
    # The diagonal is 50 pixels, so that the tolerance is 2.5 pixels.
    counts = contour_counts(line(column), line(20)[None] > 0, tolerance=0.05)
    assert scores(counts) == pytest.approx([score] * 3)


def test_a_line_of_one_of_two_annotators_is_precise_and_half_complete():
    counts = contour_counts(line(10), np.stack([line(10), line(30)]) > 0)
    assert counts[0].tolist() == [30, 60, 30, 30]
    assert scores(counts)[0] == pytest.approx(2 / 3)


def test_nothing_found_scores_0():
    assert scores(contour_counts(np.zeros((30, 40)), line(10)[None] > 0)).tolist() == [0, 0, 0]
