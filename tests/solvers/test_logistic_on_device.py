"""The GPU's form of a logistic regression beside numpy's, on the CPU: every pass over the samples, and the optimum."""

import numpy as np
import pytest

from sslbench.solvers import logistic
from sslbench.solvers.logistic import Problem, fit, on_device, principal_axes
from sslbench.solvers.logistic.on_device import DeviceProblem

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
    np.testing.assert_allclose(*(each.product(direction) for each in hessians), rtol=within, atol=within)
    np.testing.assert_allclose(*(each.diagonal() for each in hessians), rtol=within, atol=within)


def test_probabilities_that_do_not_fit_are_computed_again(both, monkeypatch):
    *_, fast = both
    stored = fast.hessian(np.float64, *point()).product(np.ones((D + 1, K)))
    monkeypatch.setattr(DeviceProblem, "free_memory", lambda self: 0.0)
    again = fast.hessian(np.float64, *point())
    assert not again._parts
    np.testing.assert_array_equal(again.product(np.ones((D + 1, K))), stored)


def test_samples_that_do_not_fit_are_sent_block_by_block(both, monkeypatch):
    _, slow, fast = both
    monkeypatch.setattr(DeviceProblem, "free_memory", lambda self: 0.0)
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
        expected = logistic._covariance(x, mean, std, axes, "cpu")
        np.testing.assert_allclose(on_device.covariance(x, mean, std, axes, "cpu"), expected, rtol=1e-12, atol=1e-12)
