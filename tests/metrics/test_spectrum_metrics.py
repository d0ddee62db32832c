import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from sslbench.metrics import spectrum
from sslbench.metrics.intervals import Units
from sslbench.metrics.spectrum import alignment, alpha_req, effective_rank, feature_std, rankme, uniformity, unit_length


def features(n, width, seed, decay=1.0):
    generator = np.random.default_rng(seed)
    scale = np.arange(1, width + 1) ** -decay
    return generator.normal(size=(n, width)) * scale @ ortho_group.rvs(width, random_state=seed) + 0.3


def slow_rankme(x, epsilon=1e-7):
    singular = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    p = singular / singular.sum() + epsilon
    return np.exp(-sum(each * np.log(each) for each in p if each > 0))


def slow_alpha(x, first, last):
    """The authors' weights, by a general solver."""
    values = np.linalg.eigvalsh(np.cov(x.T.astype(np.float64)))[::-1]
    ranks = np.arange(first, min(last, np.sum(values > 1e-10)) + 1)
    weight = np.sqrt(1 / ranks)
    design = np.column_stack([-np.log(ranks), np.ones(len(ranks))])
    return np.linalg.lstsq(design * weight[:, None], np.log(values[ranks - 1]) * weight, rcond=None)[0][0]


def pairs(x, keep):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.array(
        [np.sum((unit[i] - unit[j]) ** 2) for i in range(len(x)) for j in range(i) if keep(i, j)], dtype=np.float64
    )


@pytest.mark.parametrize(("n", "width"), [(200, 12), (30, 40), (25, 25)])
def test_ranks_are_those_of_a_singular_value_decomposition(n, width):
    x = features(n, width, n)
    centred = x - x.mean(axis=0)
    assert rankme(spectrum.spectrum(x, centred=False))[0] == pytest.approx(slow_rankme(x), rel=1e-6)
    assert effective_rank(spectrum.spectrum(x, centred=True))[0] == pytest.approx(slow_rankme(centred, 0), rel=1e-6)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("n", "width"), [(50, 8), (9, 20)])
def test_the_spectrum_is_of_projections_on_principal_directions(n, width, centred):
    x = features(n, width, n)
    given = x - x.mean(axis=0) if centred else x
    _, singular, directions = np.linalg.svd(given, full_matrices=False)
    found = spectrum.spectrum(x, centred=centred)
    np.testing.assert_allclose(found.values, singular**2 / n, atol=1e-12)
    np.testing.assert_allclose(found.squares, (given @ directions.T) ** 2, atol=1e-9)


@pytest.mark.parametrize(("n", "width"), [(300, 30), (40, 60)])
def test_alpha_is_a_weighted_line_through_the_logarithms(n, width):
    x = features(n, width, n, decay=0.7)
    assert alpha_req(spectrum.spectrum(x, centred=True), (4, 100))[0] == pytest.approx(slow_alpha(x, 4, 100), rel=1e-6)


def test_alpha_finds_the_exponent_of_a_power_law():
    values = np.arange(1, 201.0) ** -1.3
    found = spectrum.Spectrum(values, np.tile(values, (10, 1)), Units.of(10, None))
    assert alpha_req(found, (4, 100))[0] == pytest.approx(1.3)
    assert np.isnan(alpha_req(spectrum.Spectrum(values[:5], found.squares[:, :5], found.units), (4, 100))).all()


def test_uniformity_alignment_and_std_are_means_over_pairs():
    x, classes = features(40, 6, 0), np.arange(40) % 7
    unit = unit_length(x)
    assert uniformity(unit)[0] == pytest.approx(np.log(np.mean(np.exp(-2 * pairs(x, lambda i, j: True)))), rel=1e-9)
    same = pairs(x, lambda i, j: classes[i] == classes[j])
    assert alignment(unit, classes)[0] == pytest.approx(same.mean(), rel=1e-9)
    assert feature_std(unit)[0] == pytest.approx(unit.std(axis=0).mean() * np.sqrt(6), rel=1e-9)
    assert np.isnan(alignment(unit, np.arange(40))).all(), "no two samples of one class"


def test_uniformity_in_blocks_is_that_of_one(monkeypatch):
    unit = unit_length(features(50, 4, 1))
    whole = uniformity(unit)
    monkeypatch.setattr(spectrum, "_ROWS", 7)
    assert uniformity(unit) == pytest.approx(whole, rel=1e-12)


@hypothesis_settings(max_examples=30, deadline=None)
@given(st.integers(2, 30), st.integers(2, 12), st.integers(0, 1000), st.floats(0.01, 100))
def test_rotation_and_scale_change_nothing(n, width, seed, scale):
    x = features(n, width, seed)
    turned = scale * x @ ortho_group.rvs(width, random_state=seed + 1)

    def measured(given):
        centred, unit = spectrum.spectrum(given, centred=True), unit_length(given)
        ranks = [rankme(spectrum.spectrum(given, centred=False)), effective_rank(centred)]
        return np.array([*ranks, uniformity(unit), alignment(unit, np.arange(n) % 2)])

    np.testing.assert_allclose(measured(turned), measured(x), rtol=1e-5, atol=1e-7)
    ranks = measured(x)[:2, 0]
    assert np.all(ranks <= min(n, width) * 1.001) and np.all(ranks >= 1 - 1e-6)


def test_extremes():
    """Isotropic features use every direction; collapsed ones a single one, or none after centring."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(20000, 8))
    assert rankme(spectrum.spectrum(x, centred=False))[0] == pytest.approx(8, abs=0.01)
    assert feature_std(unit_length(x))[0] == pytest.approx(1, abs=0.01)
    same = np.tile(generator.normal(size=(1, 8)), (50, 1))
    assert rankme(spectrum.spectrum(same, centred=False))[0] == pytest.approx(1, abs=1e-3)
    assert np.isnan(effective_rank(spectrum.spectrum(np.zeros((5, 3)), centred=True))[0])
    assert uniformity(unit_length(same))[0] == pytest.approx(0, abs=1e-9)
    assert feature_std(unit_length(same))[0] == pytest.approx(0, abs=1e-9)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """150 draws from one distribution with more samples than directions, and the values of an endless sample."""
    generator = np.random.default_rng(0)
    basis = ortho_group.rvs(10, random_state=0)

    def measured(n):
        classes = generator.integers(0, 3, n)
        x = (generator.normal(size=(n, 10)) * np.arange(1, 11) ** -0.5 + np.eye(10)[classes]) @ basis
        centred, unit = spectrum.spectrum(x, centred=True), unit_length(x)
        found = [rankme(spectrum.spectrum(x, centred=False)), effective_rank(centred), alpha_req(centred, (2, 10))]
        return [*found, uniformity(unit[:5000]), feature_std(unit), alignment(unit, classes)]

    truth = [value for value, _, _ in measured(30_000)]
    held = np.zeros(len(truth))
    for _ in range(150):
        held += [low <= true <= high for true, (_, low, high) in zip(truth, measured(1000), strict=True)]
    assert np.all(held / 150 > 0.86), held / 150
    assert np.all(held / 150 < 1.0), held / 150
