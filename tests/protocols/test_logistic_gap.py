"""The bound of the distance to the optimum against dense Newton's methods in float64, where convergence is hard."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.features.array import Features
from sslbench.protocols import linear
from sslbench.solvers import logistic
from sslbench.solvers.logistic import newton
from sslbench.solvers.logistic import problem as logistic_problem
from sslbench.solvers.ridge import fit_regression
from sslbench.targets.multilabel import MultiLabel


def wrong_probabilities(z, y):
    """(N, K) softmax with 0 for the sample's own class, and the losses; exact where both are tiny."""
    rows = np.arange(len(y))
    over = z - z[rows, y][:, None]
    over[rows, y] = -np.inf
    top = np.maximum(over.max(axis=1), 0)
    others = np.exp(over - top[:, None])
    total = others.sum(axis=1) + np.exp(-top)
    losses = np.where(top == 0, np.log1p(others.sum(axis=1)), top + np.log(total))
    return others / total[:, None], losses


def multinomial_oracle(x, y, outputs, c):
    """Lowest mean objective, and the objective as a function of (D + 1, K) weights."""
    n, width = x.shape
    full, penalty = np.column_stack([x, np.ones(n)]), 1 / (c * n)

    def value(point):
        return wrong_probabilities(full @ point, y)[1].mean() + penalty / 2 * np.sum(point[:-1] ** 2)

    def derivatives(point):
        wrong, _ = wrong_probabilities(full @ point, y)
        missing = wrong.sum(axis=1)
        residual, p = wrong.copy(), wrong.copy()
        residual[np.arange(n), y] = -missing
        p[np.arange(n), y] = 1 - missing
        away = np.where(np.arange(outputs) == y[:, None], missing[:, None], 1 - p)
        gradient = full.T @ residual / n
        gradient[:-1] += penalty * point[:-1]
        hessian = np.zeros((outputs, width + 1, outputs, width + 1))
        for a, b in itertools.product(range(outputs), repeat=2):
            h = p[:, a] * (away[:, a] if a == b else -p[:, b])
            hessian[a, :, b] = (full * h[:, None]).T @ full / n
            if a == b:
                hessian[a, :-1, b, :-1] += penalty * np.eye(width)
        size = outputs * (width + 1)
        return gradient, np.linalg.lstsq(hessian.reshape(size, size), gradient.T.ravel(), rcond=1e-15)[0]

    return descend(value, derivatives, np.zeros((width + 1, outputs))), value


def binary_oracle(x, t, c):
    """The same for one label, 1, 0 or -1 (unknown); (D + 1, 1) weights."""
    n, width = x.shape
    full, penalty, sign, known = np.column_stack([x, np.ones(n)]), 1 / (c * n), np.where(t > 0, 1.0, -1.0), t >= 0

    def value(point):
        margin = sign * (full @ point)[:, 0]
        return np.sum(np.logaddexp(0, -margin)[known]) / n + penalty / 2 * np.sum(point[:-1] ** 2)

    def derivatives(point):
        wrong = known / (1 + np.exp(sign * (full @ point)[:, 0]))
        gradient = -full.T @ (sign * wrong) / n
        gradient[:-1] += penalty * point[:-1, 0]
        hessian = (full * (wrong * (1 - wrong))[:, None]).T @ full / n + np.diag([penalty] * width + [0])
        return gradient[:, None], np.linalg.lstsq(hessian, gradient, rcond=1e-15)[0]

    return descend(value, derivatives, np.zeros((width + 1, 1))), value


def descend(value, derivatives, point):
    lowest = value(point)
    for _ in range(500):
        _, step = derivatives(point)
        step = step.reshape(point.shape[1], -1).T
        reach = next((r for r in 0.5 ** np.arange(40) if value(point - r * step) < lowest), 0.0)
        if not reach:
            break
        point = point - reach * step
        lowest = value(point)
    return lowest


def blobs_of(n, width, classes, apart, seed=0):
    rng = np.random.default_rng(seed)
    y = np.r_[np.arange(classes), rng.integers(0, classes, n - classes)]
    return (rng.normal(size=(n, width)) + apart * rng.normal(size=(classes, width))[y]).astype(np.float32), y


def fitted(x, targets, outputs, c, *, tolerance=1e-10, max_iter=1000):
    """The problem, the fit, and its (D + 1, K) weights on the standardised features."""
    axes = logistic.principal_axes(x)
    problem = logistic.Problem(axes.coordinates(x), targets, outputs)
    model = logistic.fit(problem, axes.variance, c, start=None, max_iter=max_iter, tolerance=tolerance)
    return model, np.vstack([axes.rotation @ model.weight, model.bias]), (x.astype(np.float64) - axes.mean) / axes.std


def test_biases_take_a_newton_step_where_probabilities_are_nearly_certain():
    one, two = np.ones((300, 1), np.int8), np.zeros(300, np.int64)  # targets
    # The loss falls like exp(-b), b the difference of the biases, so that Newton's step changes b by 1.
    for targets, bias, wanted in ((one, [18.0], [-1.0]), (two, [9.0, -9.0], [-0.5, 0.5])):
        problem, weight = logistic.Problem(np.zeros((300, 1)), targets, len(bias)), np.zeros((1, len(bias)))
        loss = problem.loss_and_gradient(np.float64, weight, np.array(bias))
        step = newton._bias_step(problem, newton.Certificate(weight, np.array(bias), loss, 1.0))
        assert step == pytest.approx(np.array(wanted), rel=1e-3)


WAYS = ["double", "single, then double", "single, nothing stored", "not rotated"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    if request.param != "double":
        monkeypatch.setattr(logistic, "_SINGLE_FROM", 0)
    if request.param == "single, nothing stored":
        monkeypatch.setattr(logistic_problem, "STORED_UP_TO", 0)
    if request.param == "not rotated":
        monkeypatch.setattr(logistic, "_STORED_UP_TO", 0)
    return request.param


@pytest.mark.parametrize(
    ("n", "width", "classes", "apart", "c"),
    [(60, 5, 3, 3.0, 1e6), (200, 20, 4, 5.0, 1e6), (100, 10, 3, 3.0, 1e8), (40, 60, 3, 1.0, 1e6), (300, 20, 5, 1.0, 1)],
)
def test_converged_is_at_the_optimum_of_separable_samples_and_weak_penalties_too(n, width, classes, apart, c, way):
    x, y = blobs_of(n, width, classes, apart)
    model, point, standard = fitted(x, y, classes, c)
    lowest, value = multinomial_oracle(standard, y, classes, c)
    assert model.converged and model.gap <= 1e-10
    assert value(point) / lowest - 1 <= model.gap + 1e-12


@pytest.mark.parametrize("c", [0.01, 1e4])
def test_labels_of_which_some_are_unknown_converge_each(way, c):
    x, y = blobs_of(120, 8, 3, 2.0)
    targets = (y[:, None] == np.arange(3)).astype(np.int8)
    targets[np.random.default_rng(1).random(targets.shape) < 0.1] = -1
    model, point, standard = fitted(x, targets, 3, c)
    both = [binary_oracle(standard, targets[:, k], c) for k in range(3)]
    lowest, found = sum(low for low, _ in both), sum(value(point[:, k : k + 1]) for k, (_, value) in enumerate(both))
    assert model.converged and model.gap <= 1e-10
    assert found / lowest - 1 <= model.gap + 1e-12


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["multinomial", "binary"]),
    c=st.sampled_from([1e-3, 1.0, 1e3]),
    away=st.sampled_from([1e-6, 1e-3, 0.1, 1.0]),
    only_bias=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_at_any_point_the_bound_holds(kind, c, away, only_bias, seed):
    rng = np.random.default_rng(seed)
    x, y = blobs_of(30, 4, 3, 1.0, seed)
    targets = y if kind == "multinomial" else (y[:, None] == 0).astype(np.int8)
    outputs = 3 if kind == "multinomial" else 1
    axes = logistic.principal_axes(x)
    problem = logistic.Problem(axes.coordinates(x), targets, outputs)
    best = logistic.fit(problem, axes.variance, c, start=None, max_iter=1000, tolerance=1e-10)
    weight = best.weight + (0 if only_bias else away * rng.normal(size=best.weight.shape))
    bias = best.bias + away * rng.normal(size=outputs)
    penalty = 1 / (c * len(x))
    slope = problem.loss_and_gradient(np.float64, weight, bias)
    bound, _ = newton.relative_gap(problem, slope, weight, bias, penalty)
    standard = (x.astype(np.float64) - axes.mean) / axes.std
    lowest, value = multinomial_oracle(standard, y, 3, c) if outputs == 3 else binary_oracle(standard, targets[:, 0], c)
    true = value(np.vstack([axes.rotation @ weight, bias])) / lowest - 1
    assert bound >= true * (1 - 1e-6) - 1e-12
    better = newton.certify(problem, weight, bias, penalty, 0.0)
    assert better.gap <= bound
    assert better.gap >= value(np.vstack([axes.rotation @ weight, better.bias])) / lowest - 1 - 1e-12


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_step_of_the_biases_is_newtons(outputs):
    """Oracle: the dense Hessian by the biases in float64, pseudo-inverted, since a common bias changes nothing."""
    x, y = blobs_of(40, 4, 3, 1.0)
    problem = logistic.Problem(x, y if outputs == 3 else (y[:, None] == 0).astype(np.int8), outputs)
    rng = np.random.default_rng(1)
    weight, bias = rng.normal(size=(4, outputs)) / 5, rng.normal(size=outputs) / 2
    logits = x @ weight + bias
    if outputs == 1:
        p = 1 / (1 + np.exp(-logits))
        hessian, gradient = p.T @ (1 - p), (p - (y[:, None] == 0)).sum(axis=0)
    else:
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        hessian, gradient = np.diag(p.sum(axis=0)) - p.T @ p, (p - np.eye(3)[y]).sum(axis=0)
    at = newton.Certificate(weight, bias, problem.loss_and_gradient(np.float64, weight, bias), np.inf)
    wanted = np.linalg.pinv(hessian, rcond=1e-10) @ gradient
    assert 0.1 < np.abs(wanted).max() < 2, "a step that is not cut"
    np.testing.assert_allclose(newton._bias_step(problem, at), wanted, rtol=1e-4, atol=1e-5)


def test_many_separable_samples_in_single_precision_are_at_the_optimum(monkeypatch):
    x, y = blobs_of(6000, 32, 10, 2.2)
    double, expected, _ = fitted(x, y, 10, 100.0)
    monkeypatch.setattr(logistic, "_SINGLE_FROM", 0)
    monkeypatch.setattr(logistic, "_STORED_UP_TO", 0)
    single, found, _ = fitted(x, y, 10, 100.0)
    assert double.converged and single.converged
    assert np.linalg.norm(found[:-1] - expected[:-1]) <= 1e-4 * np.linalg.norm(expected[:-1])


def test_every_fit_that_is_compared_is_as_near_as_it_says(way):
    x, y = blobs_of(150, 12, 4, 1.5)
    axes = logistic.principal_axes(x)
    problem = logistic.Problem(axes.coordinates(x), y, 4)
    grid = [10.0**e for e in range(-6, 7, 2)]
    options = {"patience": 0, "refine": 0, "max_iter": 1000, "tolerance": 1e-10}
    _, tried = linear.search(problem, axes.variance, grid, lambda fit: (0.0, 0.0), **options)
    assert [point.c for point in tried] == grid
    standard = (x.astype(np.float64) - axes.mean) / axes.std
    for point in tried:
        lowest, value = multinomial_oracle(standard, y, 4, point.c)
        found = value(np.vstack([axes.rotation @ point.fit.weight, point.fit.bias]))
        assert point.fit.converged and point.fit.gap <= linear.TOLERANCE
        assert found / lowest - 1 <= point.fit.gap + 1e-12


def test_what_is_not_at_the_optimum_is_not_called_converged(blobs):
    train, test = blobs(300, 100)
    for steps in (1, 3, 6):
        outcome = linear.run(train, test, linear.Settings(c=(1e6,), max_iter=steps), seed=0)
        assert outcome.converged is False and outcome.selected["gap"] > 1e-10
        assert "exceeds its minimum" in outcome.notes[0]
    several = linear.run(train, test, linear.Settings(c=(1e5, 1e6), max_iter=3), seed=0)
    assert any("2 of 2 fits did not converge to 0.0001" in note for note in several.notes)
    assert several.selected["gap_while_choosing"] > 1e-4


def hidden(n, width, small, make, seed=0):
    """Two classes told apart by one feature that varies `small` times as much as the others."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    x = rng.normal(size=(n, width))
    x[:, width // 2] = small * (y - 0.5 + 0.1 * rng.normal(size=n))
    return make(x.astype(np.float32), y, 2), x, y


@pytest.mark.parametrize("small", [1e-3, 1e-7, 1e-10])
@pytest.mark.parametrize("mixed", [False, True])
def test_features_used_as_they_are_keep_the_axis_that_varies_least(small, mixed, make):
    train, x, y = hidden(200, 6, small, make)
    if mixed:
        # Two small features that must be told apart from each other and from the large ones.
        x = np.column_stack([x, 3 * small * np.random.default_rng(1).normal(size=len(x)) + x[:, 3]])
        train = make(x.astype(np.float32), y, 2)
    axes = logistic.principal_axes(train.x, standardise=False)
    assert axes.rotation.shape == (x.shape[1], x.shape[1])
    np.testing.assert_allclose(axes.rotation.T @ axes.rotation, np.eye(x.shape[1]), atol=1e-13)
    strong = 1e4 / small**2
    outcome = linear.run(train, train, linear.Settings(c=(strong,), scale="none"), seed=0)
    # At C = 1e24 the penalty is so small that the gradient's rounding hides how near the optimum is.
    assert outcome.metrics["top1"][0] == 1.0 and (outcome.converged or small == 1e-10)
    plain = linear.run(train, train, linear.Settings(c=(1.0,)), seed=0)
    assert plain.metrics["top1"][0] == 1.0


def test_fewer_samples_than_features_keep_the_axis_that_varies_least(make):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 100)) * np.geomspace(1, 1e-8, 100)
    axes = logistic.principal_axes(x, standardise=False)
    assert axes.rotation.shape == (100, 29)
    np.testing.assert_allclose(axes.rotation.T @ axes.rotation, np.eye(29), atol=1e-13)
    centred = x - x.mean(axis=0)
    expected = np.linalg.svd(centred, compute_uv=False)[:29] ** 2 / 30
    np.testing.assert_allclose(np.sort(axes.variance)[::-1], expected, rtol=1e-6)
    np.testing.assert_allclose(axes.project(x) @ axes.rotation.T, centred, atol=1e-13)


@pytest.mark.parametrize("small", [1e-3, 1e-7])
def test_ridge_regression_on_features_as_they_are_is_that_of_an_orthogonal_decomposition(small):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 8)) * np.where(np.arange(8) % 2, 1.0, small)
    values = (x[:, [0, 2]] / small) @ np.array([[1.0], [2.0]]) + 0.1 * rng.normal(size=(120, 1))
    for alpha in (1e-3 * small**2, 10.0 * small**2):
        model = fit_regression(x, values, standardise=False)
        found = model.predict(x, alpha)
        centred = x - x.mean(axis=0)
        stacked = np.vstack([centred, np.sqrt(alpha) * np.eye(8)])
        weights = np.linalg.lstsq(stacked, np.vstack([values - values.mean(), np.zeros((8, 1))]), rcond=None)[0]
        np.testing.assert_allclose(found, centred @ weights + values.mean(), atol=1e-6)


def test_a_path_ends_early_only_if_asked_for(blobs):
    train, test = blobs(60, 100, width=40, spread=4.0)
    everything = linear.run(train, test, linear.Settings(), seed=0)
    assert everything.selected["tried"] == len(linear.Settings().c)
    early = linear.run(train, test, linear.Settings(patience=2), seed=0)
    assert early.selected["tried"] < everything.selected["tried"]


def test_a_score_that_rises_late_is_found(monkeypatch):
    """The loss grows with every value, the score falls for four of them and then rises above all."""
    monkeypatch.setattr(linear, "fit", lambda problem, variance, c, **given: c)
    monkeypatch.setattr(linear, "_start", lambda tried, c: None)
    scores = dict(zip([10.0**e for e in range(7)], [0.85, 0.8, 0.8, 0.8, 0.8, 0.8, 0.895], strict=True))
    options = {"refine": 0, "max_iter": 1, "tolerance": 1.0}

    def judge(c):
        return scores[c], c

    assert linear.search(None, None, list(scores), judge, patience=0, **options)[0].score == 0.895
    assert linear.search(None, None, list(scores), judge, patience=4, **options)[0].score == 0.85


def test_separate_classes_and_no_features_at_all(make):
    flat = make(np.ones((40, 5)), np.arange(40) % 4, 4)
    outcome = linear.run(flat, flat, linear.Settings(), seed=0)
    assert outcome.converged and outcome.selected["gap"] <= 1e-8
    labels = MultiLabel(("a", "b"), (np.arange(40)[:, None] % np.array([2, 3]) == 0).astype(np.int8))
    several = Features(flat.x, labels, flat.ids)
    assert linear.run(several, several, linear.Settings(), seed=0).converged
