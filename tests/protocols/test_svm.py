import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from sklearn.model_selection import cross_val_score
from sklearn.svm import LinearSVC

from sslbench.errors import DataError, UsageError
from sslbench.metrics import ranking
from sslbench.protocols import svm

COSTS = (0.01, 0.1, 1.0, 10.0)


def unit(x):
    x = x.astype(np.float64)
    return x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-5)


def test_multi_label_is_the_voc07_protocol_step_by_step(blobs):
    train, test = blobs(multi=True)
    outcome = svm.run(train, test, svm.Settings(costs=COSTS), seed=0)
    assert outcome.converged and outcome.headline == "mAP"
    for c, name in enumerate(train.labels.classes):
        target = np.where(train.labels.values[:, c] > 0, 1, -1)
        models = [LinearSVC(C=cost, class_weight={1: 2, -1: 1}, max_iter=20000) for cost in COSTS]
        means = [cross_val_score(m, unit(train.x), target, cv=3, scoring="average_precision").mean() for m in models]
        best = int(np.argmax(means))
        assert outcome.selected["cost"][name] == COSTS[best]
        known = test.labels.values[:, c] >= 0
        decision = models[best].fit(unit(train.x), target).decision_function(unit(test.x))
        np.testing.assert_allclose(outcome.scores[:, c], decision, atol=1e-2)
        expected = ranking.single_class(ranking.voc_all_points, test.labels.values[known, c], decision[known])
        assert outcome.per_class[name] == pytest.approx(expected, abs=5e-3)


def test_ignored_training_samples_are_negatives_or_dropped(blobs):
    train, test = blobs(multi=True)
    kept = svm.run(train, test, svm.Settings(costs=(1.0,)), seed=0)
    dropped = svm.run(train, test, svm.Settings(costs=(1.0,), ignore_in_training="drop"), seed=0)
    known = train.labels.values[:, 0] >= 0
    model = LinearSVC(C=1.0, class_weight={1: 2, -1: 1}, max_iter=20000)
    model.fit(unit(train.x)[known], np.where(train.labels.values[known, 0] > 0, 1, -1))
    np.testing.assert_allclose(dropped.scores[:, 0], model.decision_function(unit(test.x)), atol=1e-2)
    assert np.abs(kept.scores[:, 0] - dropped.scores[:, 0]).max() > 2e-2


def test_single_label_has_one_cost_and_takes_the_largest_decision(blobs):
    train, test = blobs(spread=1.0)
    outcome = svm.run(train, test, svm.Settings(costs=COSTS), seed=0)
    assert outcome.selected["cost"] in COSTS and outcome.headline == "top1"
    assert outcome.metrics["top1"][0] == np.mean(outcome.scores.argmax(1) == test.labels.values) > 0.5
    assert not np.isnan(outcome.train)


def test_few_positives_reduce_the_folds_and_none_leave_the_class_out(make):
    generator = np.random.default_rng(0)
    values = np.zeros((60, 4), np.int8)
    values[:30, 0], values[:2, 1], values[5, 2] = 1, 1, 1
    train = make(generator.normal(size=(60, 8)), values, 4)
    outcome = svm.run(train, train, svm.Settings(costs=COSTS), seed=0)
    assert "class3" in outcome.notes[0] and "class1, class2" in outcome.notes[1]
    assert np.isnan(outcome.per_class["class3"]) and np.isnan(outcome.scores[:, 3]).all()
    assert np.isfinite(outcome.per_class["class2"])
    expected = np.mean([outcome.per_class[f"class{c}"] for c in range(3)])
    assert outcome.metrics["mAP"][0] == pytest.approx(expected)
    non_interpolated = [average_precision_score(values[:, c], outcome.scores[:, c]) for c in range(3)]
    assert outcome.metrics["mAP_noninterpolated"][0] == pytest.approx(np.mean(non_interpolated))


def test_classes_with_one_sample_or_none_work(make):
    generator = np.random.default_rng(0)
    train = make(generator.normal(size=(31, 8)), np.r_[np.arange(30) % 2, 2], 4)
    outcome = svm.run(train, train, svm.Settings(costs=COSTS), seed=0)
    assert "class3" in outcome.notes[0] and np.isfinite(outcome.scores).all()
    pair = make([[0.0, 1], [1, 0]], [0, 1], 2)
    assert "one training sample" in svm.run(pair, pair, svm.Settings(costs=COSTS), seed=0).notes[0]


def test_an_unfinished_solver_marks_the_result(blobs):
    outcome = svm.run(*blobs(), svm.Settings(costs=(1000.0,), max_iter=1), seed=0)
    assert outcome.converged is False and "did not converge" in outcome.notes[-1]


def test_what_cannot_be_learned_is_refused(blobs, make):
    train, test = blobs()
    with pytest.raises(DataError, match="nothing to learn"):
        svm.run(make(train.x, np.zeros(len(train)), 4), test, svm.Settings(), seed=0)
    for bad in ({"costs": ()}, {"costs": (-1.0,)}, {"folds": 1}, {"max_iter": 0}):
        with pytest.raises(UsageError):
            svm.run(train, test, svm.Settings(**bad), seed=0)
