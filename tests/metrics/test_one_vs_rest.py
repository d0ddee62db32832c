"""Single-label ranking metrics and every class's own numbers, against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, f1_score, precision_recall_fscore_support, roc_auc_score

from sslbench.metrics import ranking
from sslbench.metrics.classification import LabelCounts, predicted_classes
from sslbench.metrics.groups import per_class
from sslbench.metrics.intervals import Units, resample_counts
from sslbench.metrics.ranking import OneVsRest
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel

METRICS = (ranking.voc_all_points, ranking.voc_11_point, ranking.non_interpolated, ranking.auroc)


def sample(n, n_classes, digits, seed):
    generator = np.random.default_rng(seed)
    classes = generator.integers(0, n_classes, n)
    return classes, np.round(generator.normal(size=(n, n_classes)) + np.eye(n_classes)[classes], digits)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 40), st.integers(2, 6), st.integers(0, 2), st.integers(0, 2**31))
def test_every_class_is_what_scikit_learn_says(n, n_classes, digits, seed):
    classes, scores = sample(n, n_classes, digits, seed)
    names = [f"c{c}" for c in range(n_classes)]
    table = per_class(Classes, names, classes, scores)
    expected = precision_recall_fscore_support(
        classes, predicted_classes(scores), labels=np.arange(n_classes), zero_division=np.nan
    )
    for name, column in zip(("precision", "recall", "f1", "n"), expected, strict=True):
        np.testing.assert_allclose([table[name][c] for c in names], column, atol=1e-9)
    for c, name in enumerate(names):
        own = classes == c
        if not own.any() or own.all():
            assert np.isnan(table["auroc"][name])
            continue
        assert table["auroc"][name] == pytest.approx(roc_auc_score(own, scores[:, c]), abs=1e-9)
        found = table["average_precision_noninterpolated"][name]
        assert found == pytest.approx(average_precision_score(own, scores[:, c]), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 50), st.integers(2, 8), st.integers(0, 2), st.integers(0, 2**31))
def test_sparse_sums_and_sorted_passes_count_what_sorting_each_weighting_counts(n, n_classes, digits, seed):
    classes, scores = sample(n, n_classes, digits, seed)
    weights = next(resample_counts(Units.of(n, None), 20, seed))
    passes = OneVsRest(classes, scores).means(METRICS, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_SMALL", 0)
        fast = OneVsRest(classes, scores).means(METRICS, weights)
    np.testing.assert_array_equal(fast, passes)
    total, number = np.zeros((2, 20, len(METRICS)))
    for c in np.unique(classes):
        for r, counts in enumerate(weights):
            values = np.array([ranking.single_class(m, classes == c, scores[:, c], counts) for m in METRICS])
            total[r] += np.nan_to_num(values)
            number[r] += ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(fast, total / number, atol=1e-9)


def test_small_chunks_give_the_same(monkeypatch):
    classes, scores = sample(60, 7, 1, 0)
    weights = next(resample_counts(Units.of(60, None), 10, 0))
    monkeypatch.setattr(ranking, "_SMALL", 0)
    whole = OneVsRest(classes, scores).means(METRICS, weights)
    monkeypatch.setattr(ranking, "_RANKED", 100)
    np.testing.assert_array_equal(OneVsRest(classes, scores).means(METRICS, weights), whole)
    monkeypatch.setattr(ranking, "_SUMS", 200)
    np.testing.assert_array_equal(OneVsRest(classes, scores).means(METRICS, weights), whole)


def test_macro_auroc_is_scikit_learns_one_against_the_rest():
    classes, _ = sample(200, 5, 2, 1)
    probabilities = np.random.default_rng(2).dirichlet(np.ones(5), 200)
    found = OneVsRest(classes, probabilities).means([ranking.auroc], np.ones((1, 200)))[0, 0]
    assert found == pytest.approx(roc_auc_score(classes, probabilities, multi_class="ovr", average="macro"), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.sampled_from([0.0, 0.5]), st.integers(0, 2**31))
def test_f1_of_several_labels_is_scikit_learns(n, n_classes, threshold, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, (n, n_classes)).astype(np.int8)
    scores = np.round(generator.normal(size=labels.shape), 1)
    micro, macro = LabelCounts(labels, scores, threshold).f1(np.ones((1, n)))[0]
    given_ = scores > threshold
    each = f1_score(labels, given_, average=None, zero_division=np.nan) if n_classes > 1 else None
    if each is None:
        each = np.array([f1_score(labels[:, 0], given_[:, 0], zero_division=np.nan)])
    overall = f1_score(labels.ravel(), given_.ravel(), zero_division=np.nan)
    np.testing.assert_allclose(micro, overall, atol=1e-9)
    np.testing.assert_allclose(macro, np.nanmean(each) if (~np.isnan(each)).any() else np.nan, atol=1e-9)


def test_ignored_labels_and_classes_without_a_classifier_are_left_out_of_f1():
    labels = np.array([[1, 1, -1], [0, 1, 1], [1, 0, -1]], dtype=np.int8)
    scores = np.array([[1.0, np.nan, 9.0], [1.0, np.nan, -1.0], [1.0, np.nan, 9.0]])
    micro, macro = LabelCounts(labels, scores).f1(np.ones((1, 3)))[0]
    assert macro == pytest.approx((0.8 + 0.0) / 2) and micro == pytest.approx(4 / 6)
    table = per_class(MultiLabel, "abc", labels, scores)
    assert table["n"] == {"a": 2, "b": 0, "c": 1} and table["recall"]["a"] == 1
    assert np.isnan(table["recall"]["b"]) and np.isnan(table["auroc"]["b"])
