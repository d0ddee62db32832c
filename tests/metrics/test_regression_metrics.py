"""Metrics of predicted numbers: scikit-learn's and SciPy's values, also where samples count several times."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from sslbench.metrics import regression
from sslbench.metrics.summary import summarise
from sslbench.targets.numbers import Numbers


def numbers(n, columns, seed, digits, offset=0.0):
    """Values and predictions that are right in part; few digits make many equal ones."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, columns))
    return np.round(values, digits) + offset, np.round(values + 0.5 * rng.normal(size=values.shape), digits) + offset


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(3, 60),
    columns=st.integers(1, 3),
    digits=st.integers(0, 3),
    offset=st.sampled_from([0.0, -3.0, 1e5]),
    seed=st.integers(0, 2**31),
)
def test_equal_to_scikit_learn_and_scipy_with_and_without_repeated_samples(n, columns, digits, offset, seed):
    values, predicted = numbers(n, columns, seed, digits, offset)
    drawn = np.random.default_rng(seed).integers(0, n, n)
    counts = np.stack([np.ones(n), np.bincount(drawn, minlength=n)])
    errors = regression.Errors(values, predicted).statistic(counts)
    ranks = regression.Ranks(values, predicted).correlation(counts)[:, 0]
    for row, chosen in enumerate((np.arange(n), drawn)):
        y, p = values[chosen], predicted[chosen]
        assert errors[row, 1:] == pytest.approx([mean_absolute_error(y, p), root_mean_squared_error(y, p)], abs=1e-9)
        if np.ptp(y, axis=0).all():
            assert errors[row, 0] == pytest.approx(r2_score(y, p), abs=1e-9 * (1 + abs(r2_score(y, p))))
        else:
            assert np.isnan(errors[row, 0])
        if np.ptp(y, axis=0).all() and np.ptp(p, axis=0).all():
            expected = np.mean([spearmanr(y[:, c], p[:, c])[0] for c in range(columns)])
            assert ranks[row] == pytest.approx(expected, abs=1e-9)
        else:
            assert np.isnan(ranks[row])


def test_the_summary_leads_with_r2_and_its_intervals_hold_the_values():
    values, predicted = numbers(200, 2, 0, 3)
    found, name, each = summarise(Numbers, ("height", "width"), values, predicted, seed=0)
    assert name == "r2" and set(found) == {"r2", "mae", "rmse", "spearman"}
    assert all(low < value < high for value, low, high in found.values())
    assert found["r2"][0] == Numbers.headline(values, predicted) == pytest.approx(np.mean(list(each.values())))
    worse, _, _ = summarise(Numbers, ("height", "width"), values, -10 * predicted, seed=0)
    assert worse["r2"][2] < 0 and worse["spearman"][0] < -0.8, "no metric is cut off at 0"


def test_a_prediction_of_the_mean_explains_nothing():
    values, _ = numbers(50, 1, 3, 3)
    assert regression.r2(values, np.full_like(values, values.mean())) == pytest.approx(0, abs=1e-12)
    assert np.isnan(regression.spearman(values, np.zeros_like(values)))
    assert regression.r2(values, values) == 1 and regression.spearman(values, values**3) == pytest.approx(1)
