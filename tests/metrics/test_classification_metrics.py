import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score

from sslbench.metrics import classification


def test_ties_count_against_a_class_whatever_its_number():
    scores = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    truth = np.array([0, 1, 1])
    assert classification.top_k_correct(truth, scores, 1).tolist() == [False, False, False]
    assert classification.top_k_correct(truth, scores, 2).tolist() == [True, True, False]
    assert classification.predicted_classes(scores).tolist() == [-1, -1, 2]


def test_top_k_is_not_a_number_with_fewer_classes():
    assert np.isnan(classification.top_k_accuracy(np.array([0, 1]), np.eye(2), 5))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(2, 9), st.integers(0, 2**31))
def test_equal_to_a_stable_sort_and_to_scikit_learn(n, n_classes, seed):
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, n_classes, n)
    scores = np.round(generator.normal(size=(n, n_classes)), 1)
    order = [
        sorted(range(n_classes), key=lambda c: (-row[c], c == own)) for own, row in zip(truth, scores, strict=True)
    ]
    for k in range(1, n_classes + 1):
        expected = [own in ranked[:k] for own, ranked in zip(truth, order, strict=True)]
        assert classification.top_k_correct(truth, scores, k).tolist() == expected
    predicted = classification.predicted_classes(scores)
    recall = classification.per_class_recall(truth, predicted, n_classes)
    present = np.unique(truth)
    sklearns = recall_score(truth, predicted, labels=present, average=None, zero_division=0)
    np.testing.assert_allclose(recall[present], sklearns, atol=1e-12)
    assert np.isnan(np.delete(recall, present)).all()
    assert classification.balanced_accuracy(truth, predicted, n_classes) == pytest.approx(recall[present].mean())
    counted = np.union1d(truth, predicted[predicted >= 0])
    assert classification.macro_f1(truth, predicted, n_classes) == pytest.approx(
        f1_score(truth, predicted, labels=counted, average="macro", zero_division=0), abs=1e-9
    )
    if len(present) == n_classes:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a prediction of none is no class of the truth
            sklearns = balanced_accuracy_score(truth, predicted)
        assert sklearns == pytest.approx(np.mean(recall))
