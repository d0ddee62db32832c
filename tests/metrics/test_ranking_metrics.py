import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from sslbench.metrics import ranking
from sslbench.metrics.ranking import single_class


def slow_interpolated(targets, scores):
    """The definition, threshold by threshold: at each recall the highest precision at that recall or above."""
    points = []
    for threshold in sorted(set(scores), reverse=True):
        chosen = scores >= threshold
        hits = (targets[chosen] > 0).sum()
        points.append((hits / (targets > 0).sum(), hits / chosen.sum()))
    area, before = 0.0, 0.0
    for recall, _ in points:
        area += (recall - before) * max(p for r, p in points if r >= recall)
        before = recall
    eleven = np.mean([max(p for r, p in points if r >= level / 10 - 1e-12) for level in range(11)])
    return area, eleven


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 40), st.integers(0, 2), st.integers(0, 2**31))
def test_equal_to_the_definitions_and_to_scikit_learn(n, digits, seed):
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, 2, n)
    targets[:2] = 1, 0
    scores = np.round(generator.normal(size=n), digits)
    weights = generator.integers(1, 4, n)
    area, eleven = slow_interpolated(targets, scores)
    assert single_class(ranking.voc_all_points, targets, scores) == pytest.approx(area, abs=1e-9)
    assert single_class(ranking.voc_11_point, targets, scores) == pytest.approx(eleven, abs=1e-9)
    for ours, theirs in ((ranking.non_interpolated, average_precision_score), (ranking.auroc, roc_auc_score)):
        assert single_class(ours, targets, scores) == pytest.approx(theirs(targets, scores), abs=1e-9)
        expected = theirs(targets, scores, sample_weight=weights)
        assert single_class(ours, targets, scores, weights) == pytest.approx(expected, abs=1e-9)
    # A weight is a repetition, which is what the bootstrap relies on.
    repeated = single_class(ranking.voc_all_points, np.repeat(targets, weights), np.repeat(scores, weights))
    assert single_class(ranking.voc_all_points, targets, scores, weights) == pytest.approx(repeated, abs=1e-9)


@pytest.mark.parametrize("metric", [ranking.voc_all_points, ranking.voc_11_point, ranking.non_interpolated])
def test_ties_do_not_depend_on_the_order_of_the_samples(metric):
    generator = np.random.default_rng(0)
    targets, scores = generator.integers(0, 2, 60), np.round(generator.normal(size=60), 0)
    shuffled = generator.permutation(60)
    assert single_class(metric, targets[shuffled], scores[shuffled]) == single_class(metric, targets, scores)


def test_ignored_samples_and_classes_without_positives_are_left_out():
    labels = np.array([[1, 0, -1], [0, 0, 1], [-1, 0, 0]])
    scores = np.array([[0.5, 0.1, 0.9], [0.1, 0.2, 0.8], [0.9, 0.3, 0.1]])
    values = ranking.per_class(ranking.voc_all_points, labels, scores)
    np.testing.assert_array_equal(values, [1.0, np.nan, 1.0])
    assert ranking.mean_average_precision(labels, scores) == 1.0
    assert np.isnan(ranking.mean_average_precision(np.zeros((3, 2), int), scores[:, :2]))
