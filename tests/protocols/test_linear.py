import tracemalloc

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.protocols import linear
from sslbench.protocols._parts import selection
from sslbench.solvers import logistic
from sslbench.solvers.logistic import problem as logistic_problem
from sslbench.targets.classes import Classes
from sslbench.targets.none import Unlabelled


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("c", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("width", [10, 150])
def test_coefficients_are_scikit_learns(blobs, n_classes, c, width):
    train, test = blobs(n_classes=n_classes, width=width, spread=3.0)
    axes = logistic.principal_axes(train.x)
    usable = np.arange(n_classes)
    problem = linear._problem(axes.project(train.x), train.target, usable)
    model = logistic.fit(problem, axes.variance, c, start=None, max_iter=1000, tolerance=linear.Settings().tolerance)
    scaler = StandardScaler().fit(train.x.astype(np.float64))
    x = scaler.transform(train.x.astype(np.float64))
    theirs = LogisticRegression(C=c, tol=1e-9, max_iter=20000).fit(x, train.target.values)
    np.testing.assert_allclose((axes.rotation @ model.weight).T, theirs.coef_, atol=1e-3)
    np.testing.assert_allclose(model.bias - model.bias.mean() * (n_classes > 2), theirs.intercept_, atol=1e-3)
    outcome = linear.run(train, test, linear.Settings(c=(c,)), seed=0)
    right = theirs.predict(scaler.transform(test.x.astype(np.float64))) == test.target.values
    assert abs(outcome.metrics["top1"][0] - right.mean()) * len(test) <= 1
    assert outcome.converged and "on" not in outcome.selected


GRID = (1e-4, 1e-3, 1e-2)


@pytest.mark.parametrize("settings", [linear.Settings(c=GRID), linear.Settings(c=GRID, select_on="test")])
@pytest.mark.parametrize("kind", [{"multi": True}, {"n_classes": 2}, {"n_classes": 5}])
def test_coordinates_that_are_not_stored_give_the_same_model(blobs, kind, settings, monkeypatch):
    train, test = blobs(400, 200, width=30, spread=3.0, **kind)
    stored = linear.run(train, test, settings, seed=0)
    monkeypatch.setattr(logistic, "_STORED_UP_TO", 0)
    found = linear.run(train, test, settings, seed=0)
    assert found.converged and found.train == stored.train
    assert {**found.selected, "gap": 0, "iterations": 0, "gap_while_choosing": 0} == {
        **stored.selected,
        **dict.fromkeys(("gap", "iterations", "gap_while_choosing"), 0),
    }
    offsets = [part.scores[:, :1] * ("multi" not in kind) for part in (found, stored)]
    np.testing.assert_allclose(found.scores - offsets[0], stored.scores - offsets[1], atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_memory_mapped_features_are_neither_copied_nor_standardised(blobs, tmp_path, dtype, monkeypatch):
    train, test = blobs(15_000, 100, width=200, spread=3.0)
    np.save(tmp_path / "x.npy", train.x.astype(dtype))
    there = Features(np.load(tmp_path / "x.npy", mmap_mode="r"), train.target, train.ids)
    here = Features(np.array(there.x), train.target, train.ids)
    settings = linear.Settings(c=(1e-4, 1e-3))
    expected = linear.run(here, test, settings, seed=0)
    monkeypatch.setattr(logistic, "_STORED_UP_TO", 0)
    for module in (logistic, selection):
        monkeypatch.setattr(module, "_ROWS", 256)
    monkeypatch.setattr(logistic_problem, "_VALUES", 2**16)
    tracemalloc.start()
    found = linear.run(there, test, settings, seed=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.converged and found.selected["c"] == expected.selected["c"]
    assert found.metrics["top1"] == expected.metrics["top1"]
    # Less than the features in half precision; the coordinates have 24 MB.
    assert peak < 6e6, f"{peak / 1e6:.1f} MB"


def test_labels_are_learned_one_by_one_and_ignored_samples_left_out(blobs):
    train, test = blobs(multi=True)
    outcome = linear.run(train, test, linear.Settings(c=(0.1,)), seed=0)
    scaler = StandardScaler().fit(train.x.astype(np.float64))
    for c in range(4):
        known = train.target.values[:, c] >= 0
        theirs = LogisticRegression(C=0.1, tol=1e-9, max_iter=5000)
        theirs.fit(scaler.transform(train.x.astype(np.float64))[known], train.target.values[known, c])
        expected = theirs.decision_function(scaler.transform(test.x.astype(np.float64)))
        np.testing.assert_allclose(outcome.scores[:, c], expected, atol=1e-3)


def test_scale_and_offset_of_the_features_do_not_matter(blobs):
    train, test = blobs(300, 500, width=20)
    plain = linear.run(train, test, linear.Settings(), seed=0)
    for scale, offset in ((1e3, 0), (1, 50), (1e-3, -1)):
        moved = [
            Features((scale * p.x.astype(np.float64) + offset).astype(np.float32), p.target, p.ids)
            for p in (train, test)
        ]
        other = linear.run(*moved, linear.Settings(), seed=0)
        assert other.metrics["top1"][0] == pytest.approx(plain.metrics["top1"][0], abs=1.01e-3)
        assert other.selected["c"] == plain.selected["c"]


def test_c_is_chosen_on_a_part_of_train_and_not_on_test(blobs):
    train, test = blobs(300, 100)
    outcome = linear.run(train, test, linear.Settings(), seed=0)
    assert outcome.selected["on"] == "held-out 20 % of train"
    assert {"c", "score", "gap", "gap_while_choosing", "iterations", "seed"} <= set(outcome.selected)
    shuffled = np.random.default_rng(0).permutation(test.target.values)
    other = Features(test.x, Classes(test.target.classes, shuffled), test.ids)
    assert linear.run(train, other, linear.Settings(), seed=0).selected == outcome.selected


def test_a_choice_at_the_edge_of_the_grid_and_an_unfinished_solver_are_said(blobs):
    train, test = blobs(300, 100)
    assert "value tried" in linear.run(train, test, linear.Settings(c=(1e-9, 1e-3)), seed=0).notes[0]
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


def test_what_cannot_be_learned_is_refused(blobs, make):
    train, test = blobs()
    with pytest.raises(DataError, match="one class, 'class0'"):
        linear.run(make(train.x, np.zeros(len(train)), 4), test, linear.Settings(), seed=0)
    for bad in ({"c": ()}, {"c": (0.0,)}, {"holdout": 1.0}, {"max_iter": 0}, {"patience": -1}):
        with pytest.raises(UsageError):
            linear.run(train, test, linear.Settings(**bad), seed=0)
    none = Features(train.x, Unlabelled(len(train)), train.ids)
    with pytest.raises(DataError, match="train samples have no labels"):
        linear.run(none, test, linear.Settings(), seed=0)


def logistic_oracle(x, values, c, kind):
    """The lowest value of the objective in float64, by another optimiser than the one that is tested."""
    width = x.shape[1]
    outputs = values.shape[1] if kind == "multi" else int(values.max()) + 1

    def objective(flat):
        w = flat.reshape(width + 1, outputs)
        z = x @ w[:-1] + w[-1]
        if kind == "multi":
            known = values >= 0
            sign = np.where(values > 0, 1.0, -1.0)
            loss = np.sum(np.logaddexp(0, -sign * z) * known)
            by_z = -sign / (1 + np.exp(sign * z)) * known
        else:
            shifted = z - z.max(axis=1, keepdims=True)
            p = np.exp(shifted) / np.exp(shifted).sum(axis=1, keepdims=True)
            own = np.arange(outputs) == values[:, None]
            loss, by_z = -np.sum(np.log(p[own])), p - own
        gradient = np.vstack([x.T @ by_z + w[:-1] / c, by_z.sum(axis=0)])
        return loss + np.sum(w[:-1] ** 2) / (2 * c), gradient.ravel()

    found = minimize(
        objective, np.zeros((width + 1) * outputs), jac=True, method="CG", options={"maxiter": 20000, "gtol": 1e-7}
    )
    return found.fun, found.x.reshape(width + 1, outputs), objective


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("c", [1e-2, 10.0])
@pytest.mark.parametrize("way", ["double", "single, then Newton", "single, then double"])
def test_objective_and_coefficients_are_those_of_a_slow_oracle(blobs, multi, c, way, monkeypatch):
    if way != "double":
        monkeypatch.setattr(logistic, "_SINGLE_FROM", 0)
    if way == "single, then double":
        monkeypatch.setattr(logistic_problem, "STORED_UP_TO", 0)
    train, _ = blobs(200, multi=multi, spread=3.0)
    axes = logistic.principal_axes(train.x)
    problem = linear._problem(axes.project(train.x), train.target, np.arange(4))
    model = logistic.fit(problem, axes.variance, c, start=None, max_iter=1000, tolerance=1e-10)
    assert model.converged and model.gap <= 1e-10
    x = StandardScaler().fit_transform(train.x.astype(np.float64))
    lowest, theirs, objective = logistic_oracle(x, train.target.values, c, train.target.name)
    bias = model.bias if multi else model.bias - model.bias.mean() + theirs[-1].mean()
    ours = np.vstack([axes.rotation @ model.weight, bias])
    assert objective(ours.ravel())[0] <= lowest * (1 + 1e-6)
    np.testing.assert_allclose(ours, theirs, atol=1e-3 * np.abs(theirs).max())


def test_a_large_problem_is_solved_in_both_precisions_to_the_same_model(blobs, monkeypatch):
    train, test = blobs(1200, 300, width=40, n_classes=6, spread=4.0)
    double = linear.run(train, test, linear.Settings(), seed=0)
    monkeypatch.setattr(logistic, "_SINGLE_FROM", 0)
    mixed = linear.run(train, test, linear.Settings(), seed=0)
    assert mixed.converged and mixed.selected["c"] == double.selected["c"]
    np.testing.assert_allclose(mixed.scores - mixed.scores[:, :1], double.scores - double.scores[:, :1], atol=1e-4)


def test_a_path_is_refined_around_its_best(blobs):
    train, test = blobs(300, 100, spread=4.0)
    coarse = (1e-6, 1e-4, 1e-2, 1.0, 1e2)
    plain = linear.run(train, test, linear.Settings(c=coarse), seed=0)
    fine = linear.run(train, test, linear.Settings(c=coarse, refine=3), seed=0)
    assert fine.selected["tried"] == plain.selected["tried"] + 6
    assert fine.selected["score"] >= plain.selected["score"]
    eighths = 4 * np.log10(fine.selected["c"])
    assert eighths == pytest.approx(round(eighths), abs=1e-6), "two decades halved three times"


def test_chosen_on_test_only_if_asked_for_and_said(blobs):
    train, test = blobs(200, 200, spread=4.0, width=30)
    grid = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    asked = linear.run(train, test, linear.Settings(c=grid, select_on="test"), seed=0)
    assert asked.selected["on"] == "test"
    each = [linear.run(train, test, linear.Settings(c=(c,)), seed=0).metrics["top1"][0] for c in grid]
    assert asked.metrics["top1"][0] == pytest.approx(max(each), abs=0.005 + 1e-9)


def test_features_are_used_as_they_are_if_asked_for(blobs):
    train, test = blobs(200, 100, spread=3.0)
    stretched = [Features((p.x * np.geomspace(0.1, 10, 10)).astype(np.float32), p.target, p.ids) for p in (train, test)]
    outcome = linear.run(*stretched, linear.Settings(c=(0.01,), scale="none"), seed=0)
    theirs = LogisticRegression(C=0.01, tol=1e-9, max_iter=20000)
    theirs.fit(stretched[0].x.astype(np.float64), train.target.values)
    expected = theirs.decision_function(stretched[1].x.astype(np.float64))
    np.testing.assert_allclose(outcome.scores - outcome.scores.mean(axis=1, keepdims=True), expected, atol=1e-3)


def test_collapsed_and_duplicated_features_are_no_trouble(blobs, make):
    train, test = blobs(200, 100)
    twice = [Features(np.hstack([p.x, p.x]), p.target, p.ids) for p in (train, test)]
    assert logistic.principal_axes(twice[0].x).rotation.shape[1] == 10
    single, double = (linear.run(*parts, linear.Settings(c=(1.0,)), seed=0) for parts in ((train, test), twice))
    assert double.converged and double.metrics["top1"][0] == pytest.approx(single.metrics["top1"][0], abs=0.021)
    flat = make(np.ones((40, 5)), np.arange(40) % 4, 4)
    outcome = linear.run(flat, flat, linear.Settings(), seed=0)
    assert outcome.converged and outcome.metrics["top1"][0] == 0  # all classes are tied, and none is predicted


@pytest.mark.parametrize("target", [-3.3, -1.8, 0.4])
def test_the_refined_search_closes_in_on_the_best_from_either_side(target, monkeypatch):
    monkeypatch.setattr(linear, "fit", lambda problem, variance, c, **given: c)
    monkeypatch.setattr(linear, "_start", lambda tried, c: None)

    def judge(c):
        return -abs(np.log10(c) - target), 0.0

    best, tried = linear.search(
        None, None, [1e-6, 1e-4, 1e-2, 1.0, 1e2], judge, patience=0, refine=4, max_iter=1, tolerance=1.0
    )
    assert abs(np.log10(best.c) - target) <= 1 / 16 + 1e-9, "eight values per decade"
    assert len(tried) == 5 + 8 and [p.c for p in tried] == sorted(p.c for p in tried)


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_the_hessian_is_the_derivative_of_the_gradient(blobs, multi, stored, monkeypatch):
    monkeypatch.setattr(logistic, "_STORED_UP_TO", 2**27 if stored else 0)
    train, _ = blobs(80, multi=multi)
    axes = logistic.principal_axes(train.x)
    problem = linear._problem(axes.coordinates(train.x), train.target, np.arange(4))
    rng = np.random.default_rng(0)
    at, along = 0.3 * rng.normal(size=(11, 4)), rng.normal(size=(11, 4))

    def gradient(point):
        slope = problem.loss_and_gradient(np.float64, point[:-1], point[-1])
        return np.vstack([slope.by_weight, slope.by_bias])

    expected = (gradient(at + 1e-5 * along) - gradient(at - 1e-5 * along)) / 2e-5
    for precision in (np.float64, np.float32):
        hessian = logistic_problem.Hessian(problem, precision, at[:-1], at[-1])
        np.testing.assert_allclose(hessian.product(along), expected, atol=1e-5)
        columns = [hessian.product(unit.reshape(11, 4)).ravel() for unit in np.eye(44)]
        np.testing.assert_allclose(hessian.diagonal().ravel(), np.diag(columns), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_score_and_loss_of_many_samples_need_no_room_for_all_scores_and_are_the_same(monkeypatch, dtype):
    rng, n, classes = np.random.default_rng(0), 30_000, 40
    x, values = rng.normal(size=(n, 6)).astype(dtype), rng.integers(0, classes, n)
    labels = Classes(tuple(map(str, range(classes + 1))), values)  # one class has no sample
    model = logistic.Fit(rng.normal(size=(6, classes)), rng.normal(size=classes), True, 1, 0.0)
    logits = x.astype(np.float64) @ model.weight + model.bias
    problem = logistic.Problem(x, values, classes)
    monkeypatch.setattr(logistic_problem, "_LOGITS", 2**16)
    tracemalloc.start()
    score, loss = linear._headline(model, problem, np.arange(classes), labels, labels), problem.loss(model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert score == np.mean(logits.argmax(axis=1) == values)
    own = logits[np.arange(n), values]
    assert loss == pytest.approx(np.mean(np.log(np.exp(logits).sum(axis=1)) - own), rel=1e-6)
    assert peak < logits.nbytes / 4
