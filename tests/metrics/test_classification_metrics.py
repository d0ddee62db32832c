import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score

from sslbench.metrics import classification


def test_top_k_counts_ties_for_the_lower_class_number():
    scores = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    right = classification.top_k_correct(np.array([0, 1]), scores, 1)
    assert right.tolist() == [True, False]
    assert classification.top_k_correct(np.array([0, 1]), scores, 2).tolist() == [True, True]


def test_top_k_is_not_a_number_with_fewer_classes():
    assert np.isnan(classification.top_k_accuracy(np.array([0, 1]), np.eye(2), 5))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(2, 9), st.integers(0, 2**31))
def test_equal_to_a_stable_sort_and_to_scikit_learn(n, n_classes, seed):
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, n_classes, n)
    scores = np.round(generator.normal(size=(n, n_classes)), 1)
    order = np.argsort(-scores, axis=1, kind="stable")
    for k in range(1, n_classes + 1):
        expected = [truth[i] in order[i, :k] for i in range(n)]
        assert classification.top_k_correct(truth, scores, k).tolist() == expected
    predicted = order[:, 0]
    recall = classification.per_class_recall(truth, predicted, n_classes)
    present = np.unique(truth)
    sklearns = recall_score(truth, predicted, labels=present, average=None, zero_division=0)
    np.testing.assert_allclose(recall[present], sklearns, atol=1e-12)
    assert np.isnan(np.delete(recall, present)).all()
    assert classification.balanced_accuracy(truth, predicted, n_classes) == pytest.approx(recall[present].mean())
    assert classification.macro_f1(truth, predicted, n_classes) == pytest.approx(
        f1_score(truth, predicted, average="macro", zero_division=0), abs=1e-9
    )
    if len(present) == n_classes:
        assert balanced_accuracy_score(truth, predicted) == pytest.approx(np.mean(recall))
