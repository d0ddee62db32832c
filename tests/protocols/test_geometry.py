import dataclasses

import numpy as np
import pytest

from sslbench.errors import DataError, UsageError
from sslbench.metrics.catalog import METRICS
from sslbench.protocols import geometry
from sslbench.protocols.geometry import Settings
from sslbench.targets.none import Unlabelled


def unlabelled(part):
    return dataclasses.replace(part, target=Unlabelled(len(part)))


def test_no_labels_are_needed_and_only_alignment_uses_them(blobs):
    train, test = blobs(80, 60, width=12)
    labelled = geometry.run(train, test, Settings(), seed=0)
    without = geometry.run(unlabelled(train), unlabelled(test), Settings(), seed=0)
    assert set(labelled.metrics) - set(without.metrics) == {"alignment"}
    assert all(labelled.metrics[name] == without.metrics[name] for name in without.metrics)
    assert without.headline == "rankme" and all(METRICS[name].scale == 1 for name in labelled.metrics)
    assert without.scores.shape == (60, 0)


def test_one_part_is_looked_at(blobs):
    train, test = blobs(80, 60)
    _, other = blobs(80, 60, seed=9)
    assert (
        geometry.run(train, test, Settings(), seed=0).metrics == geometry.run(other, test, Settings(), seed=0).metrics
    )
    found = geometry.run(train, test, Settings(part="train"), seed=0)
    assert found.metrics == geometry.run(test, train, Settings(), seed=0).metrics
    assert geometry.part(Settings(part="train")) == "train"


def test_values_are_those_of_a_singular_value_decomposition(blobs):
    _, test = blobs(10, 90, width=7)
    singular = np.linalg.svd(test.x.astype(np.float64), compute_uv=False)
    p = singular / singular.sum() + 1e-7
    value, low, high = geometry.run(test, test, Settings(), seed=0).metrics["rankme"]
    assert value == pytest.approx(np.exp(-np.sum(p * np.log(p))), rel=1e-8)
    assert low < value < high


def test_of_many_samples_some_are_drawn_and_it_is_said(blobs):
    _, test = blobs(10, 90)
    outcome = geometry.run(test, test, Settings(samples=40), seed=0)
    assert outcome.notes == ("Measured on a random subset of 40 of 90 samples.",)
    assert outcome.metrics != geometry.run(test, test, Settings(samples=40), seed=1).metrics
    assert geometry.run(test, test, Settings(samples=90), seed=0).notes == ()


def test_a_collapsed_backbone_shows(blobs):
    train, test = blobs(10, 50, width=8)
    same = dataclasses.replace(test, x=np.tile(test.x[:1], (50, 1)))
    metrics = geometry.run(train, same, Settings(), seed=0).metrics
    assert metrics["rankme"][0] == pytest.approx(1, abs=1e-3)
    assert metrics["feature_std"][0] == pytest.approx(0, abs=1e-6)
    assert np.isnan(metrics["alpha_req"][0])


def test_impossible_settings_and_features_are_refused(blobs):
    train, test = blobs(20, 20)
    with pytest.raises(UsageError, match="samples"):
        geometry.run(train, test, Settings(samples=1), seed=0)
    with pytest.raises(UsageError, match="alpha_ranks"):
        geometry.run(train, test, Settings(alpha_ranks=(4, 5)), seed=0)
    with pytest.raises(DataError, match="at least 2"):
        geometry.run(train, test.select(np.array([0])), Settings(), seed=0)
    x = test.x.copy()
    x[3] = np.inf
    with pytest.raises(DataError, match="s00003"):
        geometry.run(train, dataclasses.replace(test, x=x), Settings(), seed=0)


def test_dimensions_are_of_neighbours_apart_from_the_group_and_groups_give_lidar(blobs):
    _, test = blobs(10, 60, width=6)
    alone = geometry.run(test, test, Settings(), seed=0).metrics
    assert "lidar" not in alone and {"two_nn", "mle_dimension"} <= alone.keys()
    # Frames of one video are nearly copies, which say nothing of the dimension.
    frames = dataclasses.replace(
        test,
        x=np.repeat(test.x, 2, axis=0) + np.random.default_rng(0).normal(size=(120, 6)).astype(np.float32) * 1e-4,
        target=Unlabelled(120),
        ids=tuple(f"{i:03d}" for i in range(120)),
        groups=np.repeat(np.arange(60), 2),
    )
    together = geometry.run(frames, frames, Settings(), seed=0).metrics
    assert together["lidar"][0] <= 6 and together["mle_dimension"][0] == pytest.approx(
        alone["mle_dimension"][0], rel=0.4
    )
    few = test.select(np.arange(2))
    assert "two_nn" not in geometry.run(few, few, Settings(), seed=0).metrics
