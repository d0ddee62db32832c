"""PCK of joints against loops over joints, frames and clips."""

import math

import numpy as np
import pytest

from sslbench.metrics.dense import poses
from sslbench.metrics.intervals import Units
from sslbench.metrics.summary import summarise
from sslbench.targets.videos import Poses


def slow_pck(clips, alpha):
    """Mean over joints of the share of right frames; `clips` are (predicted, true, counted)."""
    right, all_frames = {}, {}
    for predicted, true, counted in clips:
        for t in range(len(true)):
            own = [true[t, j] for j in range(true.shape[1]) if counted[t, j]]
            if not own:
                continue
            width = max(x for x, _ in own) - min(x for x, _ in own)
            height = max(y for _, y in own) - min(y for _, y in own)
            size = 0.6 * math.sqrt(width**2 + height**2)
            for j in range(true.shape[1]):
                if not counted[t, j]:
                    continue
                all_frames[j] = all_frames.get(j, 0) + 1
                x, y = predicted[t, j] - true[t, j]
                right[j] = right.get(j, 0) + (math.sqrt(x**2 + y**2) / size <= alpha)  # NaN is not
    return sum(right[j] / all_frames[j] for j in all_frames) / len(all_frames)


def clips(seed):
    rng = np.random.default_rng(seed)
    found = []
    for frames in (3, 7, 5):
        true = rng.normal(size=(frames, 6, 2)) * 20 + 50
        predicted = true + rng.normal(size=true.shape) * 4
        predicted[rng.random((frames, 6)) < 0.1] = np.nan
        counted = rng.random((frames, 6)) < 0.9
        counted[:, 5] = False
        found.append((predicted, true, counted))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_pck_is_that_of_loops_over_joints_and_frames(seed):
    rows = np.stack([poses.joint_counts(*clip) for clip in clips(seed)])
    values = poses.pose_measure(rows, Units.of(3, None)).statistic(np.ones((1, 3)))[0]
    assert values.tolist() == pytest.approx([slow_pck(clips(seed), alpha) for alpha in poses.ALPHAS])


def test_a_frame_without_joints_counts_for_nothing():
    true = np.zeros((1, 2, 2))
    assert poses.joint_counts(true, true, np.zeros((1, 2), bool)).tolist() == [[0, 0]] * 3


def test_a_joint_that_is_never_given_is_left_out_of_the_mean_and_named():
    rows = np.stack([poses.joint_counts(*clip) for clip in clips(1)]).reshape(3, -1)
    names = ("neck", "belly", "face", "hip", "knee", "wrist")
    metrics, headline, each = summarise(Poses, names, np.zeros((3, 0), np.int8), rows, seed=0)
    assert headline == "pose_pck@0.1" and math.isnan(each["wrist"])
    assert metrics[headline][0] == pytest.approx(np.mean([each[name] for name in names[:-1]]))
    low, high = metrics[headline][1:]
    assert 0 <= low <= metrics[headline][0] <= high <= 1
