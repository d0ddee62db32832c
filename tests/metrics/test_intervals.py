"""Intervals of one result, of differences and over trainings."""

import math
import time

import numpy as np
import pytest
import trainings_coverage
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from sslbench.metrics import ranking
from sslbench.metrics.answers import places
from sslbench.metrics.differences import Predictions, difference, holm, sign_flip
from sslbench.metrics.intervals import (
    Units,
    biases,
    bootstrap,
    ends,
    half_samples,
    mean_errors,
    on_halves,
    over_trainings,
    paired_difference,
    resample_counts,
    shrunk,
    standard_errors,
    student,
)
from sslbench.metrics.summary import one_measure, summarise, with_intervals
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers


def test_95_percent_intervals_cover_the_truth_95_percent_of_the_time():
    generator = np.random.default_rng(1)
    chance, n = 0.7, 200
    outcomes = (generator.random((n, 4000)) < chance).astype(float)
    found = bootstrap(lambda counts: counts @ outcomes / n, Units.of(n, None), n=1000, seed=0)
    assert np.mean((found.low <= chance) & (chance <= found.high)) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (0.0, np.inf), (-np.inf, np.inf)])
def test_every_interval_holds_its_value_in_all_digits(bounds):
    for value in (0.0, 0.1, 1 / 3, 1.0):
        for error in (0.0, 1e-3, 0.4):
            for n in (1, 2, 3, 7):
                low, high = ends(value, error, size=n, bounds=bounds)
                assert low <= value <= high, (value, error, n)


def test_two_models_of_one_quality_are_tied_95_percent_of_the_time():
    generator = np.random.default_rng(2)
    covered = 0
    for _ in range(1000):
        a, b = generator.random((2, 200)) < 0.7
        _, low, high = paired_difference(a, b)
        covered += low <= 0 <= high
    assert covered / 1000 == pytest.approx(0.95, abs=0.02)


def test_a_model_is_tied_with_itself_and_a_better_one_is_not():
    right = np.random.default_rng(3).random(500) < 0.6
    assert paired_difference(right, right) == (0.0, 0.0, 0.0)
    better = right | (np.arange(500) % 10 == 0)
    difference, low, high = paired_difference(better, right)
    assert 0 < low < difference < high
    with pytest.raises(ValueError, match="same samples"):
        paired_difference(right, right[:-1])


def test_resamples_draw_every_time_as_many_as_there_are_samples():
    counts = np.concatenate(list(resample_counts(Units.of(50, None), 2000, seed=0)))
    assert counts.shape == (2000, 50) and (counts.sum(axis=1) == 50).all()
    assert counts.var() == pytest.approx(1 - 1 / 50, abs=0.03)
    again = np.concatenate(list(resample_counts(Units.of(50, None), 2000, seed=0)))
    np.testing.assert_array_equal(counts, again)


def test_summary_of_single_labels_is_what_a_slow_bootstrap_gives():
    generator = np.random.default_rng(4)
    truth = generator.integers(0, 6, 150)
    scores = generator.normal(size=(150, 6))
    scores[np.arange(150), truth] += 1
    metrics, headline, recall = summarise(Classes, "abcdef", truth, scores, seed=7, resamples=50)
    predicted, slow = scores.argmax(1), []
    for weights in np.concatenate(list(half_samples(Units.of(150, None), 50, seed=7))):
        rows = np.flatnonzero(weights)
        slow.append(f1_score(truth[rows], predicted[rows], average="macro"))
    value = f1_score(truth, predicted, average="macro")
    size = 36 / np.sum(1 / np.bincount(truth))
    wanted = ends(value, float(np.std(slow)), size=size, bias=np.mean(slow) - value)
    assert metrics["macro_f1"] == pytest.approx((value, *wanted))
    assert headline == "top1" and set(recall) == set("abcdef")
    assert metrics["top5"][0] > metrics["top1"][0]


def test_summary_without_five_classes_has_no_top5():
    metrics, _, _ = summarise(Classes, "ab", np.array([0, 1, 1]), np.eye(2)[[0, 1, 0]], seed=0)
    assert np.isnan(metrics["top5"]).all() and metrics["top1"][0] == pytest.approx(2 / 3)


def test_summary_of_many_labels_is_fast_and_has_the_mean_average_precision():
    generator = np.random.default_rng(5)
    labels = (generator.random((1000, 20)) < 0.07).astype(np.int8)
    labels[generator.random(labels.shape) < 0.03] = -1
    labels[:, 3] = 0
    scores = generator.normal(size=labels.shape) + labels
    scores[:, 4] = np.nan
    start = time.process_time()
    metrics, headline, per_class = summarise(MultiLabel, [f"c{i}" for i in range(20)], labels, scores, seed=0)
    assert time.process_time() - start < 6
    assert headline == "mAP" and metrics["mAP"][0] == pytest.approx(ranking.mean_average_precision(labels, scores))
    assert np.isnan(per_class["c3"]) and np.isnan(per_class["c4"])
    assert all(low <= value <= high for value, low, high in metrics.values())


def test_halves_are_halves_and_of_whole_groups():
    groups = np.repeat(np.arange(9), 4)[np.random.default_rng(0).permutation(36)]
    weights = np.concatenate(list(half_samples(Units.of(36, groups), 500, seed=1)))
    assert set(np.unique(weights)) == {0.0, 1.0}
    of_groups = np.stack([weights[:, groups == g].mean(axis=1) for g in range(9)], axis=1)
    assert set(np.unique(of_groups)) == {0.0, 1.0} and (of_groups.sum(axis=1) == 5).all()
    assert of_groups.mean(axis=0) == pytest.approx(5 / 9, abs=0.08)
    pieces = np.concatenate(list(half_samples(Units.of(36, groups), 500, seed=1, block=100)))
    np.testing.assert_array_equal(pieces, weights)


@pytest.mark.parametrize("n", [2, 3, 10, 51])
def test_the_standard_error_of_a_mean_is_that_of_its_formula(n):
    each = np.random.default_rng(n).normal(size=(n, 2))
    units = Units.of(n, None)
    found = standard_errors(on_halves(lambda w: w @ each / w.sum(axis=1, keepdims=True), units, n=20000, seed=0), units)
    formula = each.std(axis=0, ddof=1) / np.sqrt(n)
    assert mean_errors(each, units) == pytest.approx(formula)
    assert found == pytest.approx(formula, rel=0.03)
    copies = np.repeat(each, 20, axis=0)
    assert mean_errors(copies, Units.of(20 * n, np.repeat(np.arange(n), 20))) == pytest.approx(formula)


def test_bias_that_falls_with_the_number_of_samples_is_found():
    each = np.random.default_rng(0).normal(size=(40, 1))
    units = Units.of(40, None)

    def variance(weights):
        total = weights.sum(axis=1, keepdims=True)
        return weights @ each**2 / total - (weights @ each / total) ** 2

    value = variance(np.ones((1, 40)))[0]
    found = biases(value, on_halves(variance, units, n=20000, seed=0), units, np.ones(1))
    assert found == pytest.approx(-value / 39, rel=0.05), "the variance by N is too small by 1 in N"


@pytest.mark.parametrize("n", [1, 2, 3, 10])
def test_wilson_where_all_are_right_and_where_none_is(n):
    values, classes = np.eye(2)[np.zeros(n, int)], np.zeros(n, int)
    right = summarise(Classes, "ab", classes, values, seed=0, resamples=20)[0]["top1"]
    assert right == pytest.approx((1.0, n / (n + 1.959964**2), 1.0))
    wrong = summarise(Classes, "ab", classes + 1, values, seed=0, resamples=20)[0]["top1"]
    assert wrong == pytest.approx((0.0, 0.0, 1.959964**2 / (n + 1.959964**2)))


def test_a_single_sample_has_no_interval_where_nothing_is_known():
    found = summarise(Numbers, ("x",), np.array([[1.0]]), np.array([[2.0]]), seed=0, resamples=20)[0]
    assert found["mae"][0] == 1 and np.isnan(found["mae"][1:]).all()


@pytest.mark.parametrize("positives", [8, 20])
def test_intervals_of_average_precision_cover_the_truth_at_few_positives(positives):
    """Nominal 95 %; of 150 samples at least 89 % (three standard errors below). Percentiles covered 73 to 82 %."""
    generator, n = np.random.default_rng(positives), positives * 10
    target = (generator.random(100_000) < 0.1).astype(np.int8)[:, None]
    truth = ranking.mean_average_precision(target, generator.normal(size=target.shape) + 2.5 * target)
    covered = 0
    for repeat in range(150):
        labels = (generator.random((n, 1)) < 0.1).astype(np.int8)
        scores = generator.normal(size=labels.shape) + 2.5 * labels
        low, high = summarise(MultiLabel, "a", labels, scores, seed=repeat, resamples=100)[0]["mAP"][1:]
        covered += low <= truth <= high or not labels.any()
    assert covered / 150 > 0.89


def interval(metric, classes, scores, groups=None, *, seed=0, resamples=10):
    """A metric of one class per sample with its interval, without the other metrics."""
    units = Units.of(len(classes), groups)
    return with_intervals(one_measure(metric, Classes, classes, scores, units), units, seed, resamples)[metric]


def test_twenty_near_duplicates_per_group_do_not_narrow_an_interval():
    """Nominal 95 %; of 150 samples of 40 groups at least 90 %. With single samples resampled it was 37 %."""
    generator, covered, without = np.random.default_rng(0), 0, 0
    groups = np.repeat(np.arange(40), 20)
    classes = np.arange(800) % 2
    for _ in range(150):
        wrong = np.repeat(generator.random(40) < 0.3, 20) ^ (generator.random(800) < 0.01)
        scores = np.eye(2)[classes ^ wrong]
        truth = 0.7 * 0.99 + 0.3 * 0.01
        for grouped in (True, False):
            _, low, high = interval("top1", classes, scores, groups if grouped else None)
            covered += grouped and low <= truth <= high
            without += not grouped and low <= truth <= high
    assert covered / 150 > 0.9 and without / 150 < 0.5


def test_rare_classes_do_not_narrow_the_interval_of_balanced_accuracy():
    """Ten classes of 50 samples and ten of one or two: of 100 test sets at least 90 % of the intervals hold 0.7."""
    generator, covered = np.random.default_rng(0), 0
    classes = np.r_[np.repeat(np.arange(10), 50), np.arange(10, 20), np.arange(15, 20)]
    for repeat in range(100):
        right = generator.random(len(classes)) < 0.7
        scores = np.eye(20)[np.where(right, classes, (classes + 1) % 20)]
        _, low, high = interval("balanced_accuracy", classes, scores, seed=repeat, resamples=60)
        covered += low <= 0.7 <= high
    assert covered / 100 > 0.9


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
    found = difference("macro_f1", Classes, classes, *given, seed=5, resamples=30)
    slow = []
    for weights in np.concatenate(list(half_samples(Units.of(120, None), 30, 5))):
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

    Told apart may be at most 5 %; 0 to 8 % is what 400 pairs show of that (three standard errors of 5 % are 3.3 %). The
    metric that is resampled has 100 pairs.
    By the first draw alone it would be more than a third.
    """
    generator, n, repeats = np.random.default_rng(draws), 400, 400 if metric == "top1" else 100
    labels, apart, by_first = np.arange(n) % 4, 0, 0
    hard = generator.normal(size=n)
    for repeat in range(repeats):
        given = []
        for _ in range(2):
            right = hard + generator.normal(size=(draws, n)) + 0.5 * generator.normal(size=(draws, 1)) > -0.7
            scores = [np.eye(4)[np.where(each, labels, (labels + 1) % 4)] for each in right]
            given.append(Predictions.of(0, scores[0], scores))
        found = difference(metric, Classes, labels, *given, seed=repeat, resamples=40)
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


def test_every_interval_holds_its_value_even_with_hundreds_of_classes():
    generator = np.random.default_rng(0)
    classes = np.arange(1500) % 300
    scores = (generator.normal(size=(1500, 300)) + 3 * np.eye(300)[classes]).astype(np.float32)
    names = [str(c) for c in range(300)]
    metrics, _, _ = summarise(Classes, names, classes, scores, seed=0, resamples=40, probabilities="softmax")
    assert set(metrics) == {
        *("top1", "top5", "balanced_accuracy", "macro_f1", "macro_auroc", "mAP", "mAP_11pt", "mAP_noninterpolated"),
        *("ece", "ece_adaptive", "nll", "brier"),
    }
    assert all(low <= value <= high for value, low, high in metrics.values())


def test_without_probabilities_there_is_no_calibration():
    metrics, _, _ = summarise(Classes, "ab", np.array([0, 1, 1]), np.eye(2)[[0, 1, 0]], seed=0, resamples=10)
    assert not {"ece", "nll", "brier"} & set(metrics)


def test_the_half_widths_are_added_as_squares():
    values = [(0.60, 0.50, 0.68), (0.66, 0.57, 0.75), (0.63, 0.52, 0.70)]
    mean, low, high = over_trainings(values)
    between = student(2) * np.std([0.60, 0.66, 0.63], ddof=1) / np.sqrt(3)
    assert mean == pytest.approx(0.63)
    assert (mean - low, high - mean) == pytest.approx((np.hypot(0.10, between), np.hypot(0.08, between)))


def test_one_training_keeps_its_interval_and_values_that_are_missing_are_left_out():
    assert over_trainings([(0.5, 0.4, 0.7)]) == pytest.approx((0.5, 0.4, 0.7))
    assert over_trainings([(0.5, 0.4, 0.7), (np.nan,) * 3]) == pytest.approx((0.5, 0.4, 0.7))
    assert np.isnan(over_trainings([(np.nan,) * 3])).all()


@pytest.mark.parametrize("trainings", [2, 3, 5])
@pytest.mark.parametrize("between", [0.0, 0.4])
def test_the_interval_covers_the_truth(trainings, between):
    """Of 150 intervals of 95 % fewer than 132 come up once in 10,000 times."""
    covered, _ = trainings_coverage.coverage(trainings, 200, between, repeats=150)
    assert covered >= 132 / 150


def test_the_interval_of_one_training_does_not():
    covered, _ = trainings_coverage.coverage(1, 1000, 0.4, repeats=150)
    assert covered < 0.8
