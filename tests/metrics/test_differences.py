"""Is one model better than another on the same samples?"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from sslbench.metrics.classification import places
from sslbench.metrics.differences import Predictions, difference, holm, sign_flip
from sslbench.metrics.intervals import Units, half_samples, paired_difference, shrunk
from sslbench.metrics.summary import summarise
from sslbench.targets.classes import Classes


def null_pairs(generator, n, accuracy, agreement):
    """Two models that are equally good; they answer alike on a share of the samples."""
    common = generator.random(n) < accuracy
    return [np.where(generator.random(n) < agreement, common, generator.random(n) < accuracy) for _ in range(2)]


@pytest.mark.parametrize(("n", "accuracy", "agreement"), [(200, 0.7, 0.0), (500, 0.8, 0.7)])
def test_of_a_thousand_pairs_of_equal_models_95_percent_are_tied(n, accuracy, agreement):
    generator = np.random.default_rng(n)
    tied = 0
    for _ in range(1000):
        _, low, high = paired_difference(*null_pairs(generator, n, accuracy, agreement))
        tied += low <= 0 <= high
    assert tied / 1000 == pytest.approx(0.95, abs=0.015)


def test_few_samples_more_are_no_proof_and_eight_are():
    right = np.zeros(100, bool)
    assert paired_difference(np.arange(100) < 4, right)[1] <= 0
    assert paired_difference(np.arange(100) < 8, right)[1] > 0


@pytest.mark.parametrize("n", [3, 4, 5])
def test_a_few_samples_that_all_differ_are_no_proof(n):
    """McNemar's exact p is 2^(1 - n): above 5 % up to n = 5."""
    value, low, high = paired_difference(np.ones(n), np.zeros(n))
    assert value == 1 and low <= 0 and high >= 1
    assert low == pytest.approx(shrunk(1.0, 0.0, n)[1])
    assert sign_flip(np.ones(n)) == 2.0 ** (1 - n) > 0.05


def test_the_verdict_is_that_of_the_exact_test_but_for_a_few_counts():
    """Of all counts up to 20 of samples that only one model has right: never far on the wrong side of 5 %."""
    for only_a in range(21):
        for only_b in range(21):
            a = np.r_[np.ones(only_a), np.zeros(only_b), np.ones(400)]
            b = np.r_[np.zeros(only_a), np.ones(only_b), np.ones(400)]
            low, high = paired_difference(a, b)[1:]
            p = sign_flip(a - b)
            assert p < 0.065 or low <= 0 <= high
            assert p > 0.02 or not low <= 0 <= high


@pytest.mark.parametrize("metric", ["top1", "balanced_accuracy", "mAP", "macro_auroc", "brier"])
def test_three_samples_that_all_differ_are_tied_by_every_metric(metric):
    labels = np.array([0, 1, 2])
    right, wrong = np.eye(3), np.roll(np.eye(3), 1, axis=1)
    given = [Predictions.of(0, each, probabilities="scores") for each in (right, wrong)]
    found = difference(metric, Classes, labels, *given, resamples=100)
    assert found.low <= 0 <= found.high
    assert found.difference == pytest.approx(found.value_a - found.value_b) and found.difference != 0


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 5))
def test_mcnemar_is_a_sign_test_on_the_samples_that_differ(only_a, only_b, both):
    a = np.array([True] * only_a + [False] * only_b + [True] * both, dtype=bool)
    b = np.array([False] * only_a + [True] * only_b + [True] * both, dtype=bool)
    n, small = only_a + only_b, min(only_a, only_b)
    expected = min(1.0, 2 * sum(math.comb(n, i) for i in range(small + 1)) / 2**n)
    each = a.astype(float) - b
    assert sign_flip(each) == pytest.approx(expected) == pytest.approx(sign_flip(-each))


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_the_sign_flip_test_of_groups_is_all_sign_flips(sums):
    given = np.array(sums, dtype=float)
    flips = np.array(np.meshgrid(*[[-1, 1]] * len(sums))).reshape(len(sums), -1)
    expected = np.mean(np.abs(given @ flips) >= abs(given.sum()) - 1e-9)
    assert sign_flip(given) == pytest.approx(expected)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert np.isnan(holm([0.01, math.nan])[1]) and holm([0.01, math.nan])[0] == pytest.approx(0.01)
    assert holm([]) == []


def test_other_metrics_are_resampled_for_both_at_once():
    generator = np.random.default_rng(1)
    classes = generator.integers(0, 4, 120)
    scores = [generator.normal(size=(120, 4)) + strength * np.eye(4)[classes] for strength in (2.0, 1.0)]
    given = [Predictions.of(0, each) for each in scores]
    found = difference("macro_f1", Classes, classes, *given, seed=5, resamples=100)
    slow = []
    for weights in np.concatenate(list(half_samples(Units.of(120, None), 100, 5))):
        rows = np.flatnonzero(weights)
        values = [f1_score(classes[rows], each.argmax(1)[rows], average="macro") for each in scores]
        slow.append(values[0] - values[1])
    values = [f1_score(classes, each.argmax(1), average="macro") for each in scores]
    size = 16 / np.sum(1 / np.bincount(classes))
    assert (found.difference, found.low, found.high) == pytest.approx(
        shrunk(values[0] - values[1], float(np.std(slow)), size)
    )
    same = difference("macro_f1", Classes, classes, given[0], given[0], resamples=50)
    assert (same.difference, same.low, same.high) == (0, 0, 0)


def test_of_samples_in_groups_the_groups_are_what_counts():
    """Twenty copies of each sample say no more than one."""
    generator = np.random.default_rng(3)
    a, b = generator.random((2, 60)) < [[0.8], [0.6]]
    groups = np.repeat(np.arange(60), 20)
    once = paired_difference(a, b)
    assert paired_difference(np.repeat(a, 20), np.repeat(b, 20), Units.of(1200, groups)) == pytest.approx(once)
    narrow = paired_difference(np.repeat(a, 20), np.repeat(b, 20))
    assert once[2] - once[1] > 3.5 * (narrow[2] - narrow[1])
    assert sign_flip(Units.of(1200, groups).sums(np.repeat(a * 1.0 - b, 20))) == pytest.approx(sign_flip(a * 1.0 - b))


def test_groups_of_equal_models_are_tied_95_percent_of_the_time():
    generator = np.random.default_rng(4)
    tied, groups = 0, np.repeat(np.arange(40), 20)
    for _ in range(500):
        a, b = (generator.random(800) < np.repeat(generator.beta(0.5, 0.3, 40), 20) for _ in range(2))
        low, high = paired_difference(a, b, Units.of(800, groups))[1:]
        tied += low <= 0 <= high
    assert tied / 500 == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize(("draws", "metric"), [(3, "top1"), (5, "balanced_accuracy")])
def test_two_exchangeable_backbones_are_different_in_about_five_percent_over_draws(draws, metric):
    """Every draw is worth some points more or less, by chance and for each backbone on its own; the test set too.

    Told apart may be at most 5 %; 0 to 8 % is what 400 pairs show of that (three standard errors of 5 % are 3.3 %).
    By the first draw alone it would be more than a third.
    """
    generator, n, repeats = np.random.default_rng(draws), 400, 400 if metric == "top1" else 150
    labels, apart, by_first = np.arange(n) % 4, 0, 0
    hard = generator.normal(size=n)
    for repeat in range(repeats):
        given = []
        for _ in range(2):
            right = hard + generator.normal(size=(draws, n)) + 0.5 * generator.normal(size=(draws, 1)) > -0.7
            scores = [np.eye(4)[np.where(each, labels, (labels + 1) % 4)] for each in right]
            given.append(Predictions.of(0, scores[0], scores))
        found = difference(metric, Classes, labels, *given, seed=repeat, resamples=100)
        apart += not found.low <= 0 <= found.high
        first = difference("top1", Classes, labels, *[Predictions.of(0, each.scores[0]) for each in given])
        by_first += not first.low <= 0 <= first.high
    assert apart / repeats < 0.083
    assert by_first / repeats > 0.3


def test_a_real_difference_is_found_over_draws():
    generator, labels = np.random.default_rng(0), np.arange(500) % 4
    given = []
    for chance in (0.8, 0.6):
        right = generator.random((5, 500)) < chance + 0.02 * generator.normal(size=(5, 1))
        given.append(Predictions.of(0, np.zeros((500, 4)), places=np.where(right, 0, 1)))
    found = difference("top1", Classes, labels, *given)
    assert found.low > 0.1 and found.p is None
    assert found.value_a == pytest.approx(0.8, abs=0.04)


def test_places_say_what_scores_say():
    generator, labels = np.random.default_rng(0), np.arange(90) % 6
    scores = [[generator.normal(size=(90, 6)) for _ in range(3)] for _ in range(2)]
    whole = [Predictions.of(0, each[0], each) for each in scores]
    short = [Predictions.of(0, e[0], places=np.stack([places(labels, one) for one in e])) for e in scores]
    for metric in ("top1", "top5"):
        assert difference(metric, Classes, labels, *whole) == difference(metric, Classes, labels, *short)
    with pytest.raises(KeyError):
        difference("macro_f1", Classes, labels, *short)


def test_seeds_that_only_one_model_has_widen_the_interval():
    labels = np.arange(200) % 4

    def model(accuracies, seeds):
        parts = []
        for seed, accuracy in zip(seeds, accuracies, strict=True):
            wrong = np.arange(200) >= round(200 * accuracy)
            parts.append(Predictions.of(seed, np.eye(4)[np.where(wrong, (labels + 1) % 4, labels)]))
        return Predictions.together(parts)

    one = model([0.75], [0])
    many = model([0.70, 0.80, 0.90], [0, 1, 2])
    found = difference("top1", Classes, labels, many, one)
    assert found.value_a == pytest.approx(0.8) and found.value_b == pytest.approx(0.75)
    assert found.low < -0.3 < 0.3 < found.high
    alike = difference("top1", Classes, labels, many, model([0.60, 0.70, 0.80], [0, 1, 2]))
    assert alike.low > 0, "seed by seed the one is always the better by as much"


def test_every_interval_holds_its_value_even_with_a_thousand_classes():
    generator = np.random.default_rng(0)
    classes = np.arange(3000) % 1000
    scores = (generator.normal(size=(3000, 1000)) + 3 * np.eye(1000)[classes]).astype(np.float32)
    names = [str(c) for c in range(1000)]
    metrics, _, _ = summarise(Classes, names, classes, scores, seed=0, resamples=30, probabilities="softmax")
    assert set(metrics) == {
        *("top1", "top5", "balanced_accuracy", "macro_f1", "macro_auroc", "mAP", "mAP_11pt", "mAP_noninterpolated"),
        *("ece", "ece_adaptive", "nll", "brier"),
    }
    assert all(low <= value <= high for value, low, high in metrics.values())


def test_without_probabilities_there_is_no_calibration():
    metrics, _, _ = summarise(Classes, "ab", np.array([0, 1, 1]), np.eye(2)[[0, 1, 0]], seed=0, resamples=10)
    assert not {"ece", "nll", "brier"} & set(metrics)
