"""Boundary scores: matching against trying every assignment, lines moved within and beyond the tolerance."""

import itertools
import math

import numpy as np
import pytest
from scipy import ndimage

from sslbench.metrics.dense.contours import contour_counts, contour_measure, matched_pixels, thinned


def largest_matching(found, truth, radius):
    """Size of the largest one-to-one matching, by trying all assignments."""
    a, b = sorted((list(zip(*np.nonzero(m), strict=True)) for m in (found, truth)), key=len)
    return max(
        sum(math.dist(p, q) <= radius for p, q in zip(a, chosen, strict=True))
        for chosen in itertools.permutations(b, len(a))
    )


def removed_by_guo_and_hall(mask, y, x, turn):
    """Whether a pass removes the pixel (y, x), by the conditions of Guo and Hall, 1989, with their names."""
    ring = [(-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1)]
    height, width = mask.shape
    p1, p2, p3, p4, p5, p6, p7, p8 = (
        0 <= y + dy < height and 0 <= x + dx < width and bool(mask[y + dy, x + dx]) for dy, dx in ring
    )
    lines = sum(not a and (b or c) for a, b, c in ((p2, p3, p4), (p4, p5, p6), (p6, p7, p8), (p8, p1, p2)))
    pairs = [
        sum(a or b for a, b in each)
        for each in (((p1, p2), (p3, p4), (p5, p6), (p7, p8)), ((p2, p3), (p4, p5), (p6, p7), (p8, p1)))
    ]
    kept = (p6 or p7 or not p1) and p8 if turn == 0 else (p2 or p3 or not p5) and p4
    return lines == 1 and 2 <= min(pairs) <= 3 and not kept


@pytest.mark.parametrize("seed", range(12))
def test_thinning_is_that_of_passes_over_all_pixels(seed):
    rng = np.random.default_rng(seed)
    mask = ndimage.gaussian_filter(rng.normal(size=(int(rng.integers(1, 24)), 20)), rng.uniform(0, 3)) > 0
    wanted, before = mask.copy(), None
    while before is None or (wanted != before).any():
        before = wanted
        for turn in (0, 1):
            drop = [place for place in np.argwhere(wanted) if removed_by_guo_and_hall(wanted, *place, turn)]
            wanted = wanted.copy()
            wanted[tuple(np.array(drop, dtype=int).reshape(-1, 2).T)] = False
    assert np.array_equal(thinned(mask), wanted)


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


@pytest.mark.parametrize("background", [0.0, 0.05, 0.2, 0.6, 0.97])
def test_a_perfect_detector_is_perfect_with_any_background(background):
    truth = line(10) + line(30)
    counts = contour_counts(np.where(truth > 0, 1.0, background), truth[None] > 0)
    assert scores(counts) == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_the_mean_of_the_best_precision_at_each_recall(seed):
    rng = np.random.default_rng(seed)
    truth, predicted = 50, rng.integers(1, 80, 99)
    right = rng.integers(0, np.minimum(predicted, truth) + 1)
    counts = np.stack([right, np.full(99, truth), right, predicted], axis=1).astype(float)
    best = [
        max([hit / found for hit, found in zip(right, predicted, strict=True) if 100 * hit >= level * truth] or [0])
        for level in range(101)
    ]
    assert scores(counts)[2] == pytest.approx(np.mean(best))
    worse = counts.copy()
    worse[rng.integers(0, 99), 3] += 1000  # a threshold that finds much that is wrong
    assert scores(worse)[2] <= scores(counts)[2]
    worse[:50] = counts[50]  # in place of some thresholds others again: no new point
    assert scores(worse)[2] <= scores(counts)[2]


def test_an_image_of_which_nothing_is_found_adds_no_wrong_pixels_to_ois():
    found = contour_counts(line(10), line(10)[None] > 0)
    missed = contour_counts(0.5 * line(30), line(10)[None] > 0)
    ods, ois, _ = scores(found, missed)
    assert ods == ois == pytest.approx(2 / 3)
