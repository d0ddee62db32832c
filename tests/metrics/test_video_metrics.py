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
    """0.008 of the diagonal of 480 x 854 pixels are 7.84 pixels."""
    columns = np.broadcast_to(np.arange(854), (480, 854))
    moved = [video.boundary_measure(columns < 400, columns < 400 + n) for n in (8, 9)]
    assert moved == [1.0, 0.0]


@pytest.mark.parametrize("frames", [1, 2, 5, 300])
def test_the_decay_of_any_number_of_frames(frames):
    """DAVIS numbers frames in 8 bits, so that its decay is NaN from 256 frames on."""
    values = np.linspace(1, 0, frames)[None]
    decay = video.object_values(video.VideoScores(values, values))[0, 3]
    assert np.isfinite(decay)
    if frames == 300:
        assert decay == pytest.approx(0.75, abs=0.01)


def test_a_video_of_two_frames_has_no_score():
    empty = np.zeros((1, 0))
    assert np.isnan(video.object_values(video.VideoScores(empty, empty))).all()
