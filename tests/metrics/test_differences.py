"""Is one model better than another on the same samples?"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from sslbench.metrics.intervals import holm, mcnemar, paired_difference, paired_statistics, resample_counts
from sslbench.metrics.summary import one_measure, summarise


def null_pairs(generator, n, accuracy, agreement):
    """Two models that are equally good; they answer alike on a share of the samples."""
    common = generator.random(n) < accuracy
    return [np.where(generator.random(n) < agreement, common, generator.random(n) < accuracy) for _ in range(2)]


@pytest.mark.parametrize(("n", "accuracy", "agreement"), [(200, 0.7, 0.0), (500, 0.8, 0.7)])
def test_of_a_thousand_pairs_of_equal_models_95_percent_are_tied(n, accuracy, agreement):
    generator = np.random.default_rng(n)
    tied = 0
    for repeat in range(1000):
        _, low, high = paired_difference(*null_pairs(generator, n, accuracy, agreement), n=2000, seed=repeat)
        tied += low <= 0 <= high
    assert tied / 1000 == pytest.approx(0.95, abs=0.015)


def test_four_samples_more_are_no_proof_and_eight_are():
    right = np.zeros(100, bool)
    assert paired_difference(np.arange(100) < 4, right, n=4000, seed=0)[1] <= 0
    assert paired_difference(np.arange(100) < 8, right, n=4000, seed=0)[1] > 0


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 5))
def test_mcnemar_is_a_sign_test_on_the_samples_that_differ(only_a, only_b, both):
    a = np.array([True] * only_a + [False] * only_b + [True] * both, dtype=bool)
    b = np.array([False] * only_a + [True] * only_b + [True] * both, dtype=bool)
    n, small = only_a + only_b, min(only_a, only_b)
    expected = min(1.0, 2 * sum(math.comb(n, i) for i in range(small + 1)) / 2**n)
    assert mcnemar(a, b) == pytest.approx(expected) == pytest.approx(mcnemar(b, a))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert np.isnan(holm([0.01, math.nan])[1]) and holm([0.01, math.nan])[0] == pytest.approx(0.01)
    assert holm([]) == []


def test_other_metrics_are_resampled_for_both_at_once():
    generator = np.random.default_rng(1)
    classes = generator.integers(0, 4, 120)
    scores = [generator.normal(size=(120, 4)) + strength * np.eye(4)[classes] for strength in (2.0, 1.0)]
    measures = [one_measure("macro_f1", "single", classes, each) for each in scores]
    of_both = [lambda counts, m=m: m.statistic(counts)[:, [m.names.index("macro_f1")]] for m in measures]
    found = paired_statistics(*of_both, 120, n=300, seed=5)
    slow = []
    for counts in np.concatenate(list(resample_counts(120, 300, 5))):
        rows = np.repeat(np.arange(120), counts.astype(int))
        values = [f1_score(classes[rows], each.argmax(1)[rows], average="macro") for each in scores]
        slow.append(values[0] - values[1])
    values = [f1_score(classes, each.argmax(1), average="macro") for each in scores]
    assert found == pytest.approx((values[0] - values[1], *np.quantile(slow, [0.025, 0.975])))
    assert paired_statistics(of_both[0], of_both[0], 120, n=50, seed=0) == (0, 0, 0)


def test_resamples_do_not_depend_on_how_many_are_held_at_a_time():
    whole = np.concatenate(list(resample_counts(31, 40, 3)))
    pieces = list(resample_counts(31, 40, 3, block=100))
    assert len(pieces) > 10
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_every_interval_holds_its_value_even_with_a_thousand_classes():
    generator = np.random.default_rng(0)
    classes = np.arange(3000) % 1000
    scores = (generator.normal(size=(3000, 1000)) + 3 * np.eye(1000)[classes]).astype(np.float32)
    names = [str(c) for c in range(1000)]
    metrics, _, _ = summarise("single", names, classes, scores, seed=0, resamples=100, probabilities="softmax")
    assert set(metrics) == {
        *("top1", "top5", "balanced_accuracy", "macro_f1", "macro_auroc", "mAP", "mAP_11pt", "mAP_noninterpolated"),
        *("ece", "ece_adaptive", "nll", "brier"),
    }
    assert all(low <= value <= high for value, low, high in metrics.values())


def test_without_probabilities_there_is_no_calibration():
    metrics, _, _ = summarise("single", "ab", np.array([0, 1, 1]), np.eye(2)[[0, 1, 0]], seed=0, resamples=10)
    assert not {"ece", "nll", "brier"} & set(metrics)
