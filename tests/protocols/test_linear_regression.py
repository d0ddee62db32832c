"""The linear probe of labels that are numbers: scikit-learn's ridge regression, its strength chosen on train."""

import dataclasses

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.preprocessing import StandardScaler

from sslbench.errors import UsageError
from sslbench.features.array import Features
from sslbench.protocols import linear
from sslbench.solvers import ridge
from sslbench.targets.numbers import Numbers


def sample(n, width=12, columns=2, noise=1.0, seed=0):
    """(train, test) whose numbers are linear in the features but for noise."""
    rng = np.random.default_rng(7)
    weight, mixing = rng.normal(size=(width, columns)), rng.normal(size=(width, width))
    parts = []
    for part, size in enumerate((n, 300)):
        rng = np.random.default_rng([seed, part])
        x = rng.normal(size=(size, width)) @ mixing
        values = x @ weight + noise * rng.normal(size=(size, columns)) + 40
        labels = Numbers(tuple("xyz"[:columns]), values)
        parts.append(Features(x.astype(np.float32), labels, tuple(f"s{i:05d}" for i in range(size))))
    return parts


@pytest.mark.parametrize(("n", "width"), [(150, 12), (30, 60)])
@pytest.mark.parametrize("alpha", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("scale", ["standard", "none"])
def test_coefficients_are_those_of_scikit_learns_ridge(n, width, alpha, scale):
    train, test = sample(n, width)
    x = train.x.astype(np.float64)
    scaler = StandardScaler(with_mean=scale == "standard", with_std=scale == "standard").fit(x)
    theirs = Ridge(alpha=alpha, solver="svd").fit(scaler.transform(x), train.target.values)
    ours = ridge.fit_regression(train.x, train.target.values, standardise=scale == "standard")
    np.testing.assert_allclose((ours.axes.rotation @ ours.weights(alpha)).T, theirs.coef_, rtol=1e-6, atol=1e-9)
    outcome = linear.run(train, test, linear.Settings(alpha=(alpha,), scale=scale), seed=0)
    expected = theirs.predict(scaler.transform(test.x.astype(np.float64)))
    np.testing.assert_allclose(outcome.scores, expected, rtol=1e-5)
    assert outcome.metrics["r2"][0] == pytest.approx(r2_score(test.target.values, expected), abs=1e-6)


def test_the_strength_is_the_best_of_the_path_on_a_part_of_train_and_refitted_on_all_of_it():
    train, test = sample(40, 30, noise=8.0)
    outcome = linear.run(train, test, linear.Settings(), seed=0)
    assert outcome.headline == "r2" and set(outcome.per_class) == {"x", "y"}
    assert outcome.selected["on"] == "held-out 20 % of train"
    fixed = linear.run(train, test, linear.Settings(alpha=(outcome.selected["alpha"],)), seed=0)
    np.testing.assert_array_equal(fixed.scores, outcome.scores)
    assert outcome.selected["alpha"] >= 1 and outcome.train > outcome.metrics["r2"][0]
    other = dataclasses.replace(test, target=Numbers(("x", "y"), test.target.values[::-1].copy()))
    assert linear.run(train, other, linear.Settings(), seed=0).selected == outcome.selected


def test_chosen_on_test_only_if_asked_for_and_said():
    train, test = sample(40, 30, noise=8.0)
    grid = (1e-2, 1.0, 10.0, 1e2, 1e4)
    asked = linear.run(train, test, linear.Settings(select_on="test", alpha=grid), seed=0)
    assert asked.selected["on"] == "test"
    everything = [linear.run(train, test, linear.Settings(alpha=(a,)), seed=0) for a in grid]
    assert asked.metrics["r2"][0] == max(each.metrics["r2"][0] for each in everything)


def test_an_end_of_the_path_is_said_and_impossible_settings_are_refused():
    train, test = sample(100)
    assert "smallest value tried" in linear.run(train, test, linear.Settings(alpha=(1.0, 1e6)), seed=0).notes[0]
    with pytest.raises(UsageError, match="alpha should be"):
        linear.run(train, test, linear.Settings(alpha=(0.0,)), seed=0)


def test_numbers_that_have_nothing_to_do_with_the_features_are_not_predicted():
    train, test = sample(200)
    values = np.random.default_rng(1).permutation(train.target.values)
    shuffled = dataclasses.replace(train, target=train.target.changed(values=values))
    assert abs(linear.run(shuffled, test, linear.Settings(), seed=0).metrics["r2"][0]) < 0.05
