"""Relative poses by a small network: angles against scipy, features from which the pose follows, floors."""

import dataclasses

import numpy as np
import pytest
from helpers.targets import UNSEEN
from scipy.spatial.transform import Rotation

from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench_visbench import relative_pose
from sslbench_visbench.metrics import pose_measures, rotation_angles
from sslbench_visbench.targets import CameraPairs

NAMES = ("qw", "qx", "qy", "qz", "tx", "ty", "tz")


def test_angles_are_scipys_for_quaternions_of_any_length_and_sign():
    a, b = np.random.default_rng(0).normal(size=(2, 200, 4))
    turns = [Rotation.from_quat(np.roll(q, -1, axis=1)) for q in (a, b)]
    np.testing.assert_allclose(rotation_angles(a, b), np.degrees((turns[0] * turns[1].inv()).magnitude()), atol=1e-6)
    np.testing.assert_allclose(rotation_angles(a, -3 * a), 0, atol=1e-6)


def test_metrics_are_means_and_medians_of_pairs():
    rng = np.random.default_rng(1)
    scores, values = rng.normal(size=(2, 31, 7))
    found = {}
    for measure in pose_measures(scores, values):
        found |= dict(zip(measure.names, measure.statistic(np.ones((1, 31)))[0].tolist(), strict=True))
    angles = rotation_angles(scores[:, :4], values[:, :4])
    assert found["rotation_error"] == pytest.approx(angles.mean())
    assert found["rotation_median"] == pytest.approx(np.median(angles))
    assert found["rotation@30"] == pytest.approx((angles <= 30).mean())
    assert found["translation_error"] == pytest.approx(np.sqrt(((scores - values)[:, 4:] ** 2).sum(axis=1)).mean())
    assert "translation_error" not in [n for m in pose_measures(scores, values[:, :4]) for n in m.names]


def pairs(n, seed, numbers=7):
    """Turns about z of up to 60 degrees: the features of the images say their angles."""
    rng = np.random.default_rng(seed)
    angles = rng.uniform(0, np.radians(60), (n, 2))
    half = (angles[:, 1] - angles[:, 0]) / 2
    zero = np.zeros(n)
    poses = np.column_stack([np.cos(half), zero, zero, np.sin(half), angles[:, 1] - angles[:, 0], zero, zero])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=2).reshape(n, -1).astype(np.float32)
    labels = CameraPairs(NAMES[:numbers], poses[:, :numbers], UNSEEN, np.zeros((n, 2), np.int64))
    return Features(x, labels, tuple(f"{seed}-{i:04d}" for i in range(n)), regions=2)


@pytest.mark.parametrize("numbers", [4, 7])
def test_poses_that_follow_from_the_features_are_learnt(numbers):
    train, test = pairs(400, 1, numbers), pairs(100, 2, numbers)
    found = relative_pose.run(train, test, relative_pose.Settings(), seed=0)
    value, low, high = found.metrics["rotation_error"]
    assert (
        found.headline == "rotation_error" and low <= value <= high and value < 5 < 15 < found.chance["rotation_error"]
    )
    angles = rotation_angles(np.tile(train.target.values.mean(axis=0)[:4], (100, 1)), test.target.values[:, :4])
    assert found.chance["rotation_error"] == pytest.approx(angles.mean())
    assert ("translation_error" in found.metrics) == (numbers == 7) and found.scores.shape == (100, 7)


def test_the_seed_alone_decides_the_network():
    train, test = pairs(400, 1), pairs(100, 2)
    runs = [relative_pose.run(train, test, relative_pose.Settings(epochs=2), seed=seed) for seed in (0, 0, 1)]
    first, again, other = (found.scores for found in runs)
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_settings_and_labels_that_cannot_work_are_one_message():
    train = pairs(10, 1)
    nan, infinite = float("nan"), float("inf")
    wrong = {
        "epochs": [0],
        "batch_size": [1],
        "lr": [0.0, nan, infinite],
        "weight_decay": [-1.0, nan],
        "hidden": [(0,)],
    }
    for change in ({name: value} for name, values in wrong.items() for value in values):
        with pytest.raises(UsageError, match="relative-pose: "):
            relative_pose.check(relative_pose.Settings(**change), train.target)
    with pytest.raises(DataError, match="train or test alone has translations"):
        relative_pose.run(train, pairs(5, 2, 4), relative_pose.Settings(epochs=1), seed=0)
    with pytest.raises(DataError, match=r"diverged with lr=1e\+30.*\nGive a smaller lr="):
        relative_pose.run(train, pairs(5, 2), relative_pose.Settings(lr=1e30, epochs=2), seed=0)
    x = np.array(train.x)
    x[3, 1] = np.inf
    with pytest.raises(DataError, match="1-0003"):
        relative_pose.run(dataclasses.replace(train, x=x), train, relative_pose.Settings(epochs=1), seed=0)


def test_poses_without_meaning_are_not_predicted_better_than_by_their_mean():
    train, test = pairs(300, 1), pairs(300, 2)
    mixed = train.target.select(np.random.default_rng(3).permutation(300))
    found = relative_pose.run(dataclasses.replace(train, target=mixed), test, relative_pose.Settings(), seed=0)
    assert found.metrics["rotation_error"][0] > found.chance["rotation_error"] - 2
