import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from sslbench.metrics import spectrum
from sslbench.metrics.spectrum import cka_matrix


def linear_cka(x, y, *, debiased=False):
    return cka_matrix([x], [y], debiased=debiased)[0, 0]


def slow_cka(x, y, debiased):
    """HSIC from Gram matrices written out as in the papers."""
    n = len(x)
    centring = np.eye(n) - 1 / n

    def hsic(k, other):
        if not debiased:
            return np.trace(centring @ k @ centring @ other)
        k, other = k - np.diag(np.diag(k)), other - np.diag(np.diag(other))
        ones = np.ones(n)
        first = np.trace(k @ other) + (ones @ k @ ones) * (ones @ other @ ones) / ((n - 1) * (n - 2))
        return first - 2 / (n - 2) * (ones @ k @ other @ ones)

    grams = [a.astype(np.float64) @ a.astype(np.float64).T for a in (x, y)]
    return hsic(*grams) / np.sqrt(hsic(grams[0], grams[0]) * hsic(grams[1], grams[1]))


def pair(n, widths, seed, offset=0.0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, widths[0]))
    y = x[:, : widths[1]] @ generator.normal(size=(min(widths), widths[1])) + generator.normal(size=(n, widths[1]))
    return x + offset, y - offset


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize(("n", "widths"), [(60, (5, 3)), (12, (40, 20)), (25, (20, 30))])
def test_cka_is_that_of_gram_matrices(n, widths, debiased):
    x, y = pair(n, widths, n, offset=3.0)
    assert linear_cka(x, y, debiased=debiased) == pytest.approx(slow_cka(x, y, debiased), abs=1e-10)


@pytest.mark.parametrize("debiased", [False, True])
def test_a_matrix_mixes_both_ways_to_compute_and_blocks_of_rows(monkeypatch, debiased):
    generator = np.random.default_rng(0)
    xs = [generator.normal(size=(30, width)).astype(np.float32) for width in (2, 50, 31)]
    ys = [generator.normal(size=(30, width)).astype(np.float32) for width in (29, 4)]
    monkeypatch.setattr(spectrum, "_CENTRED_ROWS", 7)
    expected = [[slow_cka(x, y, debiased) for y in ys] for x in xs]
    np.testing.assert_allclose(cka_matrix(xs, ys, debiased=debiased), expected, atol=1e-7)


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.integers(4, 40), st.integers(1, 12), st.integers(0, 1000), st.floats(0.01, 100), st.booleans())
def test_rotation_scale_offset_and_order_change_nothing(n, width, seed, scale, debiased):
    x, y = pair(n, (width, width), seed)
    turn = ortho_group.rvs(width, random_state=seed) if width > 1 else np.array([[-1.0]])
    order = np.random.default_rng(seed).permutation(n)
    value = linear_cka(x, y, debiased=debiased)
    again = linear_cka(scale * x[order] @ turn + 5, y[order], debiased=debiased)
    assert again == pytest.approx(value, abs=1e-7, nan_ok=True)
    assert linear_cka(y, x, debiased=debiased) == pytest.approx(value, abs=1e-9, nan_ok=True)
    if not debiased:
        assert -1e-9 <= value <= 1 + 1e-9
        assert linear_cka(x, scale * x @ turn) == pytest.approx(1, abs=1e-7)


def test_unrelated_features_are_alike_only_to_the_biased_estimator():
    generator = np.random.default_rng(0)
    values = np.array(
        [
            [linear_cka(*generator.normal(size=(2, 50, 100)), debiased=debiased) for debiased in (False, True)]
            for _ in range(30)
        ]
    )
    assert values[:, 0].min() > 0.5
    assert abs(values[:, 1].mean()) < 0.03


def test_a_constant_layer_has_no_similarity():
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    same = np.full((20, 2), 0.1, np.float32)
    assert np.isnan(linear_cka(x, same)) and np.isnan(linear_cka(same, x, debiased=True))


def test_other_numbers_of_samples_are_refused():
    with pytest.raises(ValueError, match=r"\[4, 5\]"):
        linear_cka(np.eye(4), np.eye(5))
    with pytest.raises(ValueError, match="at least 4"):
        linear_cka(np.eye(3), np.eye(3), debiased=True)
