"""J and F of video objects against definitions spelled out pixel by pixel."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sslbench.metrics.dense import video


def slow_boundary(mask):
    """Pixels that differ from the right, lower or lower right neighbour inside the image."""
    height, width = mask.shape
    found = set()
    for y, x in itertools.product(range(height), range(width)):
        around = [(y, x + 1), (y + 1, x), (y + 1, x + 1)]
        if any(b < height and a < width and mask[y, x] != mask[b, a] for b, a in around):
            found.add((y, x))
    return found


def slow_f(truth, found, radius):
    a, b = slow_boundary(truth), slow_boundary(found)
    if not a or not b:
        return float(not a and not b)

    def share(points, others):
        near = [any((y - v) ** 2 + (x - u) ** 2 <= radius**2 for v, u in others) for y, x in points]
        return sum(near) / len(near)

    precision, recall = share(b, a), share(a, b)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


masks = arrays(np.bool_, (9, 11), elements=st.booleans())


@settings(max_examples=40, deadline=None)
@given(masks, masks, st.sampled_from([1, 2, 3]))
def test_the_boundary_measure_is_that_of_its_definition(truth, found, radius):
    assert video.boundary_measure(truth, found, boundary=radius) == pytest.approx(slow_f(truth, found, radius))
    assert video.boundary_measure(found, truth, boundary=radius) == pytest.approx(slow_f(truth, found, radius))


def test_the_tolerance_is_a_rounded_up_share_of_the_diagonal():
    assert video._radius((480, 854), 0.008) == 8
    assert video._radius((480, 854), 3) == 3


@pytest.mark.parametrize("frames", [1, 2, 5, 300])
def test_the_decay_of_any_number_of_frames(frames):
    """DAVIS numbers frames in 8 bits, so that its decay is NaN from 256 frames on."""
    values = np.linspace(1, 0, frames)[None]
    decay = video.object_values(video.VideoScores(values, values))[0, 3]
    assert np.isfinite(decay)
    if frames == 300:
        assert decay == pytest.approx(0.75, abs=0.01)


def test_a_video_of_two_frames_has_no_score():
    ids = np.ones((2, 4, 4), int)
    assert np.isnan(video.object_values(video.semi_supervised(ids, ids))).all()


def test_the_first_and_the_last_frame_are_given_or_left_out():
    truth = np.zeros((4, 8, 8), int)
    truth[:, 2:5, 2:5] = 1
    found = truth.copy()
    found[[0, -1]] = 0
    assert video.semi_supervised(truth, found).j.tolist() == [[1.0, 1.0]]
    assert video.semi_supervised(truth, found, ends=True).j.tolist() == [[0.0, 1.0, 1.0, 0.0]]


def test_an_object_that_was_not_given_is_refused():
    truth = np.zeros((4, 8, 8), int)
    truth[:, 2:5, 2:5] = 1
    with pytest.raises(ValueError, match="object 2, and the first frame has 1"):
        video.semi_supervised(truth, 2 * truth)
    with pytest.raises(ValueError, match="both are"):
        video.semi_supervised(truth, truth[:2])


def test_unlabelled_pixels_are_background_or_left_out():
    truth = np.zeros((3, 8, 8), int)
    truth[:, 2:6, 2:6] = 1
    truth[:, 2:6, 4:6] = 255
    found = np.zeros_like(truth)
    found[:, 2:6, 2:6] = 1
    assert video.semi_supervised(truth, found).j.tolist() == [[0.5]]
    scores, _ = video.unsupervised(truth, found)
    assert scores.j.tolist() == [[1.0, 1.0, 1.0]]


def test_proposals_are_assigned_as_the_best_of_all_assignments():
    random = np.random.default_rng(0)
    truth = random.integers(0, 3, (4, 12, 12))
    truth[0, 0, 0] = 2
    found = random.integers(0, 5, (4, 12, 12))
    scores, chosen = video.unsupervised(truth, found, boundary=1)

    def value(true, own):
        return (video.region_similarity(true, own) + video.boundary_measure(true, own, boundary=1)) / 2

    totals = {
        pair: np.mean([value(truth[t] == k + 1, found[t] == p) for k, p in enumerate(pair) for t in range(4)])
        for pair in itertools.permutations(range(1, 5), 2)
    }
    assert tuple(chosen.tolist()) == max(totals, key=totals.get)
    assert video.object_values(scores)[:, 0].mean() == pytest.approx(max(totals.values()))


def test_fewer_proposals_than_objects():
    truth = np.zeros((3, 8, 8), int)
    truth[:, :3], truth[:, 5:] = 1, 2
    scores, _ = video.unsupervised(truth, np.where(truth == 2, 1, 0))
    assert scores.j.mean(axis=1).tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="21 proposals"):
        video.unsupervised(truth, np.arange(192).reshape(3, 8, 8) % 22)


def test_numbers_of_objects_and_proposals_may_have_gaps():
    """Ids that no frame has are neither objects, whose empty masks would be right, nor proposals."""
    rng = np.random.default_rng(0)
    truth, found = rng.integers(0, 3, (2, 5, 8, 8))
    gaps = np.array([0, 3, 200])
    usual, renamed = video.semi_supervised(truth, found), video.semi_supervised(gaps[truth], gaps[found])
    assert np.array_equal(usual.j, renamed.j) and np.array_equal(usual.f, renamed.f) and len(usual.j) == 2
    (usual, proposals), (renamed, others) = (
        video.unsupervised(*ids) for ids in ((truth, found), (gaps[truth], gaps[found]))
    )
    assert np.array_equal(usual.j, renamed.j) and gaps[proposals].tolist() == others.tolist()
