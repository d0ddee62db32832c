"""Logistic regression on a device, and the squared hinge loss."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

from sslbench.solvers import logistic, transfer
from sslbench.solvers.logistic import Problem, fit, on_device, principal_axes
from sslbench.solvers.logistic.on_device import DeviceProblem
from sslbench.solvers.svm import newton_systems, squared_hinge
from sslbench.solvers.svm.features import rotate
from sslbench.solvers.svm.squared_hinge import solve


def objective(w, x, sign, cost, positive_weight=2.0):
    """The value and the gradient at (D + 1,) weights, the last of a feature that is 1."""
    full = np.column_stack([x, np.ones(len(x))])[sign != 0]
    y = sign[sign != 0]
    each = cost * np.where(y > 0, positive_weight, 1.0)
    slack = np.maximum(0, 1 - y * (full @ w))
    return w @ w / 2 + each @ slack**2, w - full.T @ (2 * each * slack * y)


def oracle(x, sign, cost):
    options = {"maxiter": 50000, "maxfun": 100000, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 50}
    start = np.zeros(x.shape[1] + 1)
    return minimize(objective, start, (x, sign, cost), jac=True, method="L-BFGS-B", options=options).x


def newton(x, signs, costs, **options):
    features = rotate(np.asarray(x, dtype=np.float64))
    found = solve(
        features,
        torch.from_numpy(np.asarray(signs, dtype=np.int8)),
        torch.from_numpy(np.asarray(costs, dtype=np.float64)),
        2.0,
        **options,
    )
    weight, bias = features.coefficients(found.v)
    return np.column_stack([weight, bias]), found


def sample(n, width, seed=0, classes=3):
    """Features like pooled ones, not negative and dominated by their mean; signs of some classes, some left out."""
    rng = np.random.default_rng(seed)
    x = np.maximum(rng.normal(size=(n, 5)) @ rng.normal(size=(5, width)) + 0.5 * rng.normal(size=(n, width)) + 1, 0)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    signs = np.where(x @ rng.normal(size=(width, classes)) + 0.1 * rng.normal(size=(n, classes)) > 0.3, 1, -1)
    signs[rng.random(signs.shape) < 0.1] = 0
    signs[:2] = [[1], [-1]]
    return x, signs.T


@pytest.mark.parametrize(("n", "width"), [(150, 12), (40, 90)])
def test_it_is_the_optimum_of_lbfgs_and_of_linearsvc(n, width):
    x, signs = sample(n, width)
    costs = np.repeat([0.01, 1.0, 100.0], len(signs))
    found, state = newton(x, np.tile(signs, (3, 1)), costs)
    assert state.converged.all()
    for w, sign, cost in zip(found, np.tile(signs, (3, 1)), costs, strict=True):
        expected = oracle(x, sign, cost)
        lowest = objective(expected, x, sign, cost)[0]
        assert objective(w, x, sign, cost)[0] <= lowest * (1 + 1e-6)
        assert np.linalg.norm(w - expected) <= 1e-3 * np.linalg.norm(expected)
        # Liblinear's stopping rule is loose, so its tolerance has to be very tight to reach the optimum.
        svc = LinearSVC(C=cost, dual=False, class_weight={1: 2, -1: 1}, tol=1e-9, max_iter=100000)
        svc.fit(x[sign != 0], sign[sign != 0])
        reference = np.r_[svc.coef_[0], svc.intercept_]
        assert np.linalg.norm(w - reference) <= 1e-3 * np.linalg.norm(reference)


WAYS = ("conjugate gradients", "samples", "samples without kept products", "features")


@pytest.mark.parametrize("ways", [*WAYS, "all"])
@pytest.mark.parametrize(("n", "width"), [(150, 12), (40, 90)])
def test_every_way_to_solve_a_newton_system_leads_to_the_same_optimum(n, width, ways, monkeypatch):
    x, signs = sample(n, width)
    expected, _ = newton(x, signs, [10.0] * len(signs), tolerance=1e-9)
    if ways == "conjugate gradients":
        monkeypatch.setattr(newton_systems, "_direct_operations", lambda *_: 1e30)
        monkeypatch.setattr("sslbench.solvers.svm.squared_hinge._EXACT_AFTER", 10**6)
    elif ways != "all":
        monkeypatch.setattr(newton_systems, "_direct_operations", lambda *_: 0.0)
        monkeypatch.setattr(newton_systems, "_in_sample_space", lambda *_: ways != "features")
    if ways == "samples without kept products":
        monkeypatch.setattr("sslbench.solvers.svm.features._GRAM_UP_TO", 0)
    found, state = newton(x, signs, [10.0] * len(signs))
    assert state.converged.all()
    assert (np.linalg.norm(found - expected, axis=1) <= 1e-4 * np.linalg.norm(expected, axis=1)).all()


@settings(max_examples=40, deadline=None)
@example(n=4, width=4, cost=1e3, scale=1e3, shift=0.0, oddity="none", seed=4)
@given(
    n=st.integers(4, 40),
    width=st.integers(1, 30),
    cost=st.sampled_from([1e-7, 1e-3, 1.0, 1e3]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    shift=st.sampled_from([0.0, 1.0, 100.0]),
    oddity=st.sampled_from(["none", "constant", "duplicates", "zero", "one positive"]),
    seed=st.integers(0, 1000),
)
def test_scales_shifts_and_degenerate_features_still_reach_the_optimum(n, width, cost, scale, shift, oddity, seed):
    rng = np.random.default_rng(seed)
    x = scale * (rng.normal(size=(n, width)) + shift)
    sign = rng.choice([-1, 1], n)
    sign[:2] = [1, -1]
    if oddity == "constant":
        x[:, 0] = shift
    elif oddity == "duplicates":
        x[n // 2 :] = x[: n - n // 2]
    elif oddity == "zero":
        x[:] = 0
    elif oddity == "one positive":
        sign[1:] = -1
    found, state = newton(x, [sign], [cost])
    assert state.converged.all()
    value, gradient = objective(found[0], x, sign, cost)
    full = np.column_stack([x, np.ones(n)])
    # What a Newton step still gains. What it promises is no measure: a sample that lies on the margin but for rounding
    # counts as outside, and its curvature, at large costs most of all there is, is missing from the Hessian.
    inside = 1 - sign * (full @ found[0]) > 0
    hessian = np.eye(width + 1) + (2 * cost * np.where(sign > 0, 2, 1) * inside * full.T) @ full
    step = np.linalg.solve(hessian, gradient)
    best = min(objective(found[0] - step / 2**halvings, x, sign, cost)[0] for halvings in range(30))
    assert value - best <= 1e-6 * value


@settings(max_examples=25, deadline=None)
@example(n=4, width=4, cost=1e3, scale=1e3, seed=4)
@given(
    n=st.integers(3, 12),
    width=st.integers(1, 12),
    cost=st.sampled_from([10.0, 1e3]),
    scale=st.sampled_from([30.0, 1e3]),
    seed=st.integers(0, 1000),
)
def test_at_huge_costs_and_features_no_solver_of_scikit_learns_finds_less(n, width, cost, scale, seed):
    rng = np.random.default_rng(seed)
    x = scale * rng.normal(size=(n, width))
    sign = np.where(np.arange(n) % 3 == 0, 1, -1)
    found, state = newton(x, [sign], [cost])
    assert state.converged.all()
    value = objective(found[0], x, sign, cost)[0]
    for dual in (True, False):
        svc = LinearSVC(C=cost, dual=dual, class_weight={1: 2, -1: 1}, tol=1e-10, max_iter=20000, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            svc.fit(x, sign)
        theirs = objective(np.r_[svc.coef_[0], svc.intercept_], x, sign, cost)[0]
        assert value <= theirs * (1 + 1e-6)
        if dual and svc.n_iter_ < svc.max_iter:
            assert value >= theirs * (1 - 1e-4), "what scikit-learn calls converged is no lower"


def relative_gap(w, x, sign, cost):
    """An upper bound of how far the objective is above its lowest value, relative to it; by strong convexity."""
    value, gradient = objective(w, x, sign, cost)
    return gradient @ gradient / 2 / value


@pytest.mark.parametrize("seed", range(4))
def test_where_rounding_ends_the_joint_solver_another_takes_over(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    x, sign = rng.normal(size=(30, 20)), rng.choice([-1, 1], 30)
    # Every gradient counts as rounding, so the joint solver ends where it begins, on every machine.
    monkeypatch.setattr("sslbench.solvers.svm.squared_hinge._ROUNDING", np.inf)
    found, state = newton(x, [sign], [10.0])
    assert state.converged.all() and relative_gap(found[0], x, sign, 10.0) <= 1e-6
    assert objective(found[0], x, sign, 10.0)[0] <= objective(oracle(x, sign, 10.0), x, sign, 10.0)[0] * (1 + 1e-6)
    monkeypatch.setattr(squared_hinge, "qr_is_affordable", lambda samples, width: False)
    alone, state = newton(x, [sign], [10.0])
    assert not state.converged.any() and relative_gap(alone[0], x, sign, 10.0) > 1e-6


def test_near_the_optimum_is_not_converged_either(monkeypatch):
    rng = np.random.default_rng(0)
    x, sign = rng.normal(size=(30, 20)), rng.choice([-1, 1], 30)
    before = newton(x, [sign], [10.0])[1]
    monkeypatch.setattr("sslbench.solvers.svm.squared_hinge._ROUNDING", np.inf)
    monkeypatch.setattr(squared_hinge, "qr_is_affordable", lambda samples, width: False)
    found, state = newton(x, [sign], [10.2], start=before)
    assert 1e-6 < relative_gap(found[0], x, sign, 10.2) < 1e-2
    assert not state.converged.any()


@pytest.mark.parametrize("affordable", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_where_rounding_ends_the_solver_converged_is_said_only_of_what_is_proven(affordable, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    x, sign = 1e3 * (rng.normal(size=(30, 20)) + 100), rng.choice([-1, 1], 30)
    monkeypatch.setattr(squared_hinge, "qr_is_affordable", lambda samples, width: affordable)
    found, state = newton(x, [sign], [1e3])
    assert state.converged.all() or not affordable
    # Rounding of the decision values, whose terms are a million times as large as their sum, is what is left.
    if state.converged.all():
        value, _ = objective(found[0], x, sign, 1e3)
        lowest = min(objective(mended, x, sign, 1e3)[0] for mended in (found[0], oracle(x, sign, 1e3)))
        assert value <= lowest * (1 + 1e-5)


@pytest.mark.parametrize("in_sample_space", [True, False])
@pytest.mark.parametrize("gram_up_to", [0, 2**26])
def test_a_newton_direction_solves_its_system(in_sample_space, gram_up_to, monkeypatch):
    monkeypatch.setattr("sslbench.solvers.svm.features._GRAM_UP_TO", gram_up_to)
    monkeypatch.setattr(newton_systems, "_in_sample_space", lambda *_: in_sample_space)
    rng = np.random.default_rng(3)
    features = rotate(rng.normal(size=(60, 20)))
    assert (features.gram is not None) == (gram_up_to > 0 and 4 * features.x.shape[1] >= 60)
    hessian_diagonal = torch.from_numpy(rng.uniform(1, 2, (3, 60)) * (rng.random((3, 60)) < 0.7))
    hessian_diagonal[2] = 0  # no sample inside the margin
    gradient, accuracy = torch.from_numpy(rng.normal(size=(3, features.x.shape[1]))), torch.full((3,), 1e-3)
    for exact in (True, False):
        everywhere = torch.full((3,), exact)
        found, direct = newton_systems.newton_directions(features, hessian_diagonal, gradient, accuracy, everywhere)
        for p in range(3):
            hessian = torch.eye(features.x.shape[1]) + (features.x * hessian_diagonal[p][:, None]).T @ features.x
            expected = -torch.linalg.solve(hessian, gradient[p])
            assert (found[p] - expected).norm() <= (1e-12 if direct[p] else 1e-2) * expected.norm()
        assert direct.all() or not exact


def test_a_warm_start_leads_to_the_same_optimum_in_fewer_steps():
    x, signs = sample(200, 20)
    before = newton(x, signs, [5.0] * 3)[1]
    cold, cold_state = newton(x, signs, [10.0] * 3)
    warm, warm_state = newton(x, signs, [10.0] * 3, start=before)
    np.testing.assert_allclose(warm, cold, atol=1e-3 * np.abs(cold).max())
    assert warm_state.steps.sum() < cold_state.steps.sum()


def test_decisions_are_of_all_samples_and_an_unfinished_problem_says_so():
    x, signs = sample(100, 10)
    w, state = newton(x, signs, [1.0] * 3)
    np.testing.assert_allclose(state.decision.numpy(), (x @ w[:, :-1].T + w[:, -1]).T, atol=1e-9)
    assert not newton(x, signs, [1000.0] * 3, max_iter=1)[1].converged.any()


N, D, K = 300, 6, 4


@pytest.fixture(params=["multinomial", "binary"])
def targets(request):
    rng = np.random.default_rng(0)
    classes = rng.integers(0, K, N)
    return classes if request.param == "multinomial" else rng.integers(-1, 2, (N, K)).astype(np.int8)


@pytest.fixture(params=["coordinates", "features"])
def both(request, targets, monkeypatch):
    """A problem and its form on a device, of stored coordinates or of features that are rotated in every pass."""
    monkeypatch.setattr(logistic, "_STORED_UP_TO", 0 if request.param == "features" else 2**27)
    monkeypatch.setattr(on_device, "_VALUES", 256 * D)  # two blocks
    rng = np.random.default_rng(1)
    features = rng.normal(3, 1, (N, D)).astype(np.float32) @ rng.normal(0, 1, (D, D)).astype(np.float32)
    features[:, 0] += np.abs(targets if targets.ndim == 1 else targets[:, 0])
    axes = principal_axes(features)
    x = axes.coordinates(features)
    return axes, Problem(x, targets, K), DeviceProblem(x, targets, K, "cpu")


def product(hessian, direction):
    return hessian.receive(hessian.product(hessian.send(direction)))


def point():
    rng = np.random.default_rng(2)
    return rng.normal(0, 1, (D, K)), rng.normal(0, 1, K)


@pytest.mark.parametrize(("precision", "within"), [(np.float64, 1e-11), (np.float32, 1e-4)])
def test_each_pass_equals_that_of_numpy(both, precision, within):
    _, slow, fast = both
    weight, bias = point()
    expected, found = (each.loss_and_gradient(precision, weight, bias) for each in (slow, fast))
    for name in ("values", "by_weight", "by_bias"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=within, atol=within)
    direction = np.random.default_rng(3).normal(0, 1, (D + 1, K))
    hessians = [each.hessian(precision, weight, bias) for each in (slow, fast)]
    np.testing.assert_allclose(*(product(each, direction) for each in hessians), rtol=within, atol=within)
    np.testing.assert_allclose(*(each.diagonal() for each in hessians), rtol=within, atol=within)


def test_probabilities_that_do_not_fit_are_computed_again(both, monkeypatch):
    *_, fast = both
    stored = product(fast.hessian(np.float64, *point()), np.ones((D + 1, K)))
    monkeypatch.setattr(transfer, "free_memory", lambda device: 0.0)
    again = fast.hessian(np.float64, *point())
    assert not again._parts
    np.testing.assert_array_equal(product(again, np.ones((D + 1, K))), stored)


def test_samples_that_do_not_fit_are_sent_block_by_block(both, monkeypatch):
    _, slow, fast = both
    monkeypatch.setattr(transfer, "free_memory", lambda device: 0.0)
    assert fast._samples is None
    found, expected = (each.loss_and_gradient(np.float64, *point()) for each in (fast, slow))
    np.testing.assert_allclose(found.by_weight, expected.by_weight, rtol=1e-11, atol=1e-12)


def test_sums_decisions_and_losses_equal_those_of_numpy(both):
    _, slow, fast = both
    weight, bias = point()
    for name in ("positive", "known", "x_positive", "x_known"):
        np.testing.assert_allclose(getattr(fast.class_sums, name), getattr(slow.class_sums, name), atol=1e-12)
    np.testing.assert_allclose(fast.bias_hessian(weight, bias), slow.bias_hessian(weight, bias), rtol=1e-4, atol=1e-4)
    model = logistic.Fit(weight, bias, True, 0, 0.0)
    decided = [np.concatenate([block for _, block in each.decide(model)]) for each in (slow, fast)]
    np.testing.assert_allclose(decided[1], decided[0], rtol=1e-4, atol=1e-4)
    assert fast.loss(model) == pytest.approx(slow.loss(model), rel=1e-5)


@pytest.mark.parametrize("c", [0.01, 10.0])
def test_the_optimum_is_the_same_and_proven(both, c):
    axes, slow, fast = both
    options = {"start": None, "max_iter": 1000, "tolerance": 1e-9}
    expected, found = (fit(each, axes.variance, c, **options) for each in (slow, fast))
    assert found.converged and found.gap <= 1e-9
    np.testing.assert_allclose(found.weight, expected.weight, atol=1e-3 * np.abs(expected.weight).max())


def test_eigenvectors_equal_those_of_numpy():
    matrix = np.cov(np.random.default_rng(0).normal(size=(6, 50)))
    values, vectors = on_device.eigenvectors(matrix, "cpu")
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix), rtol=1e-12)
    np.testing.assert_allclose(vectors @ np.diag(values) @ vectors.T, matrix, atol=1e-12)


@pytest.mark.parametrize("centred_only", [False, True])
def test_the_covariance_equals_that_of_numpy(centred_only, monkeypatch):
    x = np.random.default_rng(0).normal(5, 2, (700, 5)).astype(np.float32)
    monkeypatch.setattr(on_device, "_ROWS", 512)
    mean, std = x.mean(0, dtype=np.float64), np.ones(5) if centred_only else x.std(0, dtype=np.float64)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 3)))[0]
    for axes in (None, turn):
        standardised = (x - mean) / std if axes is None else (x - mean) / std @ axes
        expected = standardised.T @ standardised / len(x)
        np.testing.assert_allclose(on_device.covariance(x, mean, std, axes, "cpu"), expected, rtol=1e-12, atol=1e-12)
