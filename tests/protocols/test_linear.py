import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from sslbench.data.source import Labels
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.protocols import _logistic, linear


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("c", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("width", [10, 150])
def test_coefficients_are_scikit_learns(blobs, n_classes, c, width):
    train, test = blobs(n_classes=n_classes, width=width, spread=3.0)
    axes = _logistic.principal_axes(train.x)
    usable = np.arange(n_classes)
    problem = linear._problem(axes.project(train.x), train.labels, usable)
    model = _logistic.fit(problem, axes.variance, c, start=None, max_iter=1000, tolerance=linear.Settings().tolerance)
    scaler = StandardScaler().fit(train.x.astype(np.float64))
    x = scaler.transform(train.x.astype(np.float64))
    theirs = LogisticRegression(C=c, tol=1e-9, max_iter=20000).fit(x, train.labels.values)
    np.testing.assert_allclose((axes.rotation @ model.weight).T, theirs.coef_, atol=1e-3)
    np.testing.assert_allclose(model.bias - model.bias.mean() * (n_classes > 2), theirs.intercept_, atol=1e-3)
    outcome = linear.run(train, test, linear.Settings(c=(c,)), seed=0)
    right = theirs.predict(scaler.transform(test.x.astype(np.float64))) == test.labels.values
    assert abs(outcome.metrics["top1"][0] - right.mean()) * len(test) <= 1
    assert outcome.converged and "on" not in outcome.selected


def test_single_precision_for_very_many_features_gives_the_same_model(blobs, monkeypatch):
    train, test = blobs(400, 200, width=30, spread=3.0)
    double = linear.run(train, test, linear.Settings(c=(0.01,)), seed=0)
    monkeypatch.setattr(_logistic, "_DOUBLE_UP_TO", 0)
    single = linear.run(train, test, linear.Settings(c=(0.01,)), seed=0)
    assert single.converged
    np.testing.assert_allclose(single.scores - single.scores[:, :1], double.scores - double.scores[:, :1], atol=1e-3)


def test_labels_are_learned_one_by_one_and_ignored_samples_left_out(blobs):
    train, test = blobs(multi=True)
    outcome = linear.run(train, test, linear.Settings(c=(0.1,)), seed=0)
    scaler = StandardScaler().fit(train.x.astype(np.float64))
    for c in range(4):
        known = train.labels.values[:, c] >= 0
        theirs = LogisticRegression(C=0.1, tol=1e-9, max_iter=5000)
        theirs.fit(scaler.transform(train.x.astype(np.float64))[known], train.labels.values[known, c])
        expected = theirs.decision_function(scaler.transform(test.x.astype(np.float64)))
        np.testing.assert_allclose(outcome.scores[:, c], expected, atol=1e-3)


@pytest.mark.parametrize("change", [lambda x: 1e-3 * x, lambda x: 1e3 * x, lambda x: x + 50, lambda x: 1e-3 * x - 1])
def test_scale_and_offset_of_the_features_do_not_matter(blobs, change):
    train, test = blobs(400, 500, width=20)
    plain = linear.run(train, test, linear.Settings(), seed=0)
    moved = [Features(change(p.x.astype(np.float64)).astype(np.float32), p.labels, p.ids) for p in (train, test)]
    other = linear.run(*moved, linear.Settings(), seed=0)
    assert other.metrics["top1"][0] == pytest.approx(plain.metrics["top1"][0], abs=1.01e-3)
    assert other.selected["c"] == plain.selected["c"]


def test_c_is_chosen_on_a_part_of_train_and_not_on_test(blobs):
    train, test = blobs(300, 100)
    outcome = linear.run(train, test, linear.Settings(), seed=0)
    assert outcome.selected["on"] == "held-out 20 % of train"
    assert {"c", "score", "gradient", "iterations", "seed"} <= set(outcome.selected)
    shuffled = np.random.default_rng(0).permutation(test.labels.values)
    other = Features(test.x, Labels("single", test.labels.classes, shuffled), test.ids)
    assert linear.run(train, other, linear.Settings(), seed=0).selected == outcome.selected


def test_a_choice_at_the_edge_of_the_grid_and_an_unfinished_solver_are_said(blobs):
    train, test = blobs(300, 100)
    assert "of those tried" in linear.run(train, test, linear.Settings(c=(1e-9, 1e-3)), seed=0).notes[0]
    stopped = linear.run(train, test, linear.Settings(c=(10.0,), max_iter=2), seed=0)
    assert stopped.converged is False and "did not converge" in stopped.notes[0]


def test_rare_classes_constant_features_and_more_features_than_samples(make):
    generator = np.random.default_rng(0)
    values = np.r_[np.arange(40) % 3, 3]
    x = generator.normal(size=(41, 60))
    x[:, 5] = 7
    train, test = make(x, values, 6), make(x, values, 6)
    outcome = linear.run(train, test, linear.Settings(), seed=0)
    assert np.isfinite(outcome.scores).all() and outcome.converged
    assert "class4, class5" in outcome.notes[0]
    assert not np.isin(outcome.scores.argmax(1), [4, 5]).any()
    two = make([[0.0, 1], [1, 0]], [0, 1], 2)
    assert linear.run(two, two, linear.Settings(), seed=0).metrics["top1"][0] == 1


def test_shuffled_labels_land_at_chance(blobs):
    train, test = blobs(400, 400)
    shuffled = np.random.default_rng(0).permutation(train.labels.values)
    outcome = linear.run(
        Features(train.x, Labels("single", train.labels.classes, shuffled), train.ids), test, linear.Settings(), seed=0
    )
    assert outcome.metrics["top1"][0] == pytest.approx(0.25, abs=0.08)


def test_what_cannot_be_learned_is_refused(blobs, make):
    train, test = blobs()
    with pytest.raises(DataError, match="one class, 'class0'"):
        linear.run(make(train.x, np.zeros(len(train)), 4), test, linear.Settings(), seed=0)
    for bad in ({"c": ()}, {"c": (0.0,)}, {"holdout": 1.0}, {"max_iter": 0}):
        with pytest.raises(UsageError):
            linear.run(train, test, linear.Settings(**bad), seed=0)
    none = Features(train.x, Labels("none", (), np.zeros((len(train), 0), np.int8)), train.ids)
    with pytest.raises(DataError, match="train samples have no labels"):
        linear.run(none, test, linear.Settings(), seed=0)
