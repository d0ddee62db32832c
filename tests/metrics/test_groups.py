import numpy as np
import pytest

from sslbench.metrics.groups import by_group, warning
from sslbench.metrics.summary import summarise
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel


def test_each_group_has_the_metric_and_interval_of_its_own_samples_the_worst_first():
    generator = np.random.default_rng(0)
    classes = generator.integers(0, 5, 300)
    groups = np.array(["north", "south", "east"])[generator.integers(0, 3, 300)]
    strength = np.where(groups == "south", 0.5, 2.5)
    scores = generator.normal(size=(300, 5)) + strength[:, None] * np.eye(5)[classes]
    for metric in ("top1", "balanced_accuracy", "macro_auroc"):
        found = by_group(metric, Classes, classes, [scores], list(groups), seed=3, resamples=100)
        assert found[0].name == "south" and [g.value for g in found] == sorted(g.value for g in found)
        for group in found:
            rows = groups == group.name
            alone = summarise(Classes, "abcde", classes[rows], scores[rows], seed=3, resamples=100)[0][metric]
            assert group.n == rows.sum() and (group.value, group.low, group.high) == pytest.approx(alone)


def test_a_group_without_a_value_comes_last():
    labels = np.array([[1], [0], [0], [0]], dtype=np.int8)
    scores = np.array([[0.9], [0.1], [0.2], [0.3]])
    found = by_group("mAP", MultiLabel, labels, [scores], ["a", "a", "b", "b"], seed=0, resamples=10)
    assert [group.name for group in found] == ["a", "b"] and found[0].value == 1 and np.isnan(found[1].value)


def test_a_small_worst_group_is_told():
    classes, scores = np.arange(40) % 2, np.eye(2)[np.arange(40) % 2]
    found = by_group("top1", Classes, classes, [scores], ["a"] * 3 + ["b"] * 37, seed=0, resamples=10)
    assert "'a', has only 3 test samples" in warning("site", found[0])
    assert warning("site", found[1]) is None


def test_an_unknown_metric_is_a_key_error():
    with pytest.raises(KeyError):
        by_group("nmi", Classes, np.array([0, 1]), [np.eye(2)], ["a", "b"], seed=0)


def test_the_largest_error_is_the_worst():
    scores = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]])
    labels = np.array([0, 0, 1, 1])
    found = by_group("nll", Classes, labels, [scores], ["a", "a", "b", "b"], seed=0, probabilities="scores")
    assert [group.name for group in found] == ["b", "a"] and found[0].value > found[1].value
