import time

import numpy as np
import pytest
from sklearn.metrics import f1_score

from sslbench.metrics import ranking
from sslbench.metrics.intervals import bootstrap, paired_difference, resample_counts
from sslbench.metrics.summary import summarise


def test_95_percent_intervals_cover_the_truth_95_percent_of_the_time():
    generator = np.random.default_rng(1)
    chance, n = 0.7, 200
    outcomes = (generator.random((n, 4000)) < chance).astype(float)
    low, high = bootstrap(lambda counts: counts @ outcomes / n, n, n=1000, seed=0)
    assert np.mean((low <= chance) & (chance <= high)) == pytest.approx(0.95, abs=0.015)


def test_two_models_of_one_quality_are_tied_95_percent_of_the_time():
    generator = np.random.default_rng(2)
    covered = 0
    for repeat in range(1000):
        a, b = generator.random((2, 200)) < 0.7
        _, low, high = paired_difference(a, b, n=400, seed=repeat)
        covered += low <= 0 <= high
    assert covered / 1000 == pytest.approx(0.95, abs=0.02)


def test_a_model_is_tied_with_itself_and_a_better_one_is_not():
    right = np.random.default_rng(3).random(500) < 0.6
    assert paired_difference(right, right, seed=0) == (0.0, 0.0, 0.0)
    better = right | (np.arange(500) % 10 == 0)
    difference, low, high = paired_difference(better, right, seed=0)
    assert 0 < low < difference < high
    with pytest.raises(ValueError, match="same samples"):
        paired_difference(right, right[:-1], seed=0)


def test_resamples_draw_every_time_as_many_as_there_are_samples():
    counts = np.concatenate(list(resample_counts(50, 2000, seed=0)))
    assert counts.shape == (2000, 50) and (counts.sum(axis=1) == 50).all()
    assert counts.var() == pytest.approx(1 - 1 / 50, abs=0.03)
    again = np.concatenate(list(resample_counts(50, 2000, seed=0)))
    np.testing.assert_array_equal(counts, again)


def test_summary_of_single_labels_is_what_a_slow_bootstrap_gives():
    generator = np.random.default_rng(4)
    truth = generator.integers(0, 6, 150)
    scores = generator.normal(size=(150, 6))
    scores[np.arange(150), truth] += 1
    metrics, headline, recall = summarise("single", "abcdef", truth, scores, seed=7, resamples=200)
    predicted, slow = scores.argmax(1), []
    for counts in np.concatenate(list(resample_counts(150, 200, seed=7))):
        rows = np.repeat(np.arange(150), counts.astype(int))
        slow.append(f1_score(truth[rows], predicted[rows], average="macro"))
    value, half = f1_score(truth, predicted, average="macro"), 1.959964 * np.std(slow)
    assert metrics["macro_f1"] == pytest.approx((value, value - half, value + half))
    assert headline == "top1" and set(recall) == set("abcdef")
    assert metrics["top5"][0] > metrics["top1"][0]


def test_summary_without_five_classes_has_no_top5():
    metrics, _, _ = summarise("single", "ab", np.array([0, 1, 1]), np.eye(2)[[0, 1, 0]], seed=0)
    assert np.isnan(metrics["top5"]).all() and metrics["top1"][0] == pytest.approx(2 / 3)


def test_summary_of_many_labels_is_fast_and_has_the_mean_average_precision():
    generator = np.random.default_rng(5)
    labels = (generator.random((5000, 20)) < 0.07).astype(np.int8)
    labels[generator.random(labels.shape) < 0.03] = -1
    labels[:, 3] = 0
    scores = generator.normal(size=labels.shape) + labels
    scores[:, 4] = np.nan
    start = time.perf_counter()
    metrics, headline, per_class = summarise("multi", [f"c{i}" for i in range(20)], labels, scores, seed=0)
    assert time.perf_counter() - start < 30
    assert headline == "mAP" and metrics["mAP"][0] == pytest.approx(ranking.mean_average_precision(labels, scores))
    assert np.isnan(per_class["c3"]) and np.isnan(per_class["c4"])
    assert all(low <= value <= high for value, low, high in metrics.values())
