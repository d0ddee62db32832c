"""Metrics of features, clusters, groups and corruptions."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.stats import ortho_group
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score

from sslbench.metrics import robustness, spectrum
from sslbench.metrics.clustering import ContingencyTable, agreement, agreement_with_intervals, silhouette
from sslbench.metrics.groups import by_group, warning
from sslbench.metrics.intervals import Units
from sslbench.metrics.spectrum import (
    alignment,
    alpha_req,
    cka_matrix,
    effective_rank,
    feature_std,
    lidar,
    rankme,
    uniformity,
    unit_length,
)
from sslbench.metrics.summary import summarise
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel


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
    """100 draws from one distribution with more samples than directions, and the values of an endless sample."""
    generator = np.random.default_rng(0)
    basis = ortho_group.rvs(10, random_state=0)

    def measured(n):
        classes = generator.integers(0, 3, n)
        x = (generator.normal(size=(n, 10)) * np.arange(1, 11) ** -0.5 + np.eye(10)[classes]) @ basis
        centred, unit = spectrum.spectrum(x, centred=True), unit_length(x)
        found = [rankme(spectrum.spectrum(x, centred=False)), effective_rank(centred), alpha_req(centred, (2, 10))]
        return [*found, uniformity(unit[:3000]), feature_std(unit), alignment(unit, classes)]

    truth = [value for value, _, _ in measured(20_000)]
    held = np.zeros(len(truth))
    for _ in range(100):
        held += [low <= true <= high for true, (_, low, high) in zip(truth, measured(500), strict=True)]
    assert np.all((held > 86) & (held < 100)), held


def slow_lidar(x, groups):
    means = np.stack([x[groups == g].mean(axis=0) for g in np.unique(groups)])
    spreads = [np.cov(x[groups == g].T, ddof=0) for g in np.unique(groups)]
    within = sqrtm(np.mean(spreads, axis=0) + 1e-4 * np.eye(x.shape[1]))
    values = np.linalg.eigvalsh(np.linalg.solve(within, np.linalg.solve(within, np.cov(means.T, ddof=0)).T))
    share = np.maximum(values, 0) / np.maximum(values, 0).sum() + 1e-7
    return np.exp(-np.sum(share * np.log(share)))


@pytest.mark.parametrize("width", [5, 120])
def test_lidar_is_the_rank_of_the_groups_and_its_interval_that_of_groups_left_out(width):
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 2)
    x = (generator.normal(size=(40, width)) * np.linspace(2, 0.1, width))[groups] + generator.normal(size=(80, width))
    value, low, high = lidar(x, groups)
    assert value == pytest.approx(slow_lidar(x, groups), rel=1e-4)
    if width == 5:
        without = [slow_lidar(x[groups != g], groups[groups != g]) for g in range(40)]
        assert (high - low) / 2 == pytest.approx(2.02 * np.sqrt(39 * np.var(without)), rel=0.15)
    assert np.isnan(lidar(x, np.zeros(80, int))[0])


@pytest.mark.parametrize("dimension", [1, 3])
def test_intrinsic_dimensions_are_those_of_the_samples_whatever_the_width(dimension):
    generator = np.random.default_rng(0)
    x = generator.random((600, dimension)) @ generator.normal(size=(dimension, 9))
    x[-1] = x[0]  # a copy has no second distance
    distances = np.sort(np.linalg.norm(x[:, None] - x, axis=2), axis=1)[:, 1:21]
    kept = distances[(distances[:, 0] > 1e-9)]
    found = spectrum.two_nn(np.where(distances < 1e-9, 0, distances))
    assert found[0] == pytest.approx(1 / np.mean(np.log(kept[:, 1] / kept[:, 0])))
    assert found[1] < dimension < found[2]
    value = spectrum.mle_dimension(kept)[0]
    slow = [np.mean([np.log(row[-1] / r) for r in row[:-1]]) for row in kept]
    assert value == pytest.approx(1 / np.mean(slow)) and value == pytest.approx(dimension, rel=0.15)
    assert np.isnan(spectrum.two_nn(np.zeros((5, 3)))[0])


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


def test_features_of_other_images_have_no_debiased_cka():
    rng, found = np.random.default_rng(0), []
    for _ in range(50):
        x, _ = pair(60, (20, 20), int(rng.integers(1000)))
        shuffled = rng.permutation(x + rng.normal(size=x.shape))
        found.append((linear_cka(x, shuffled), linear_cka(x, shuffled, debiased=True)))
    plain, debiased = np.mean(found, axis=0)
    assert abs(debiased) < 0.02 and plain > 0.2  # the plain one is large for few images of many features


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


def labels(most):
    return st.integers(1, 60).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, most), min_size=n, max_size=n),
            st.lists(st.integers(0, most), min_size=n, max_size=n),
        )
    )


def best_by_trying(classes, clusters):
    """The accuracy under the best of all one-to-one matchings."""
    numbers = range(max(classes.max(), clusters.max()) + 1)
    return max(np.mean(np.array(order)[clusters] == classes) for order in itertools.permutations(numbers))


@hypothesis_settings(max_examples=50, deadline=None)
@given(labels(4))
def test_agreement_is_that_of_scikit_learn_and_of_all_matchings(pair):
    classes, clusters = (np.array(each, dtype=np.int64) for each in pair)
    found = agreement(classes, clusters)
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(classes, clusters), abs=1e-9)
    assert found["ari"] == pytest.approx(adjusted_rand_score(classes, clusters), abs=1e-9)
    assert found["accuracy"] == pytest.approx(best_by_trying(classes, clusters), abs=1e-12)


@hypothesis_settings(max_examples=40, deadline=None)
@given(labels(5), st.integers(0, 2**31))
def test_names_of_clusters_do_not_matter(pair, seed):
    classes, clusters = (np.array(each, dtype=np.int64) for each in pair)
    renamed = np.random.default_rng(seed).permutation(6)[clusters]
    assert agreement(classes, renamed) == pytest.approx(agreement(classes, clusters), abs=1e-12)


def test_many_classes_agree_with_scikit_learn():
    generator = np.random.default_rng(0)
    classes, clusters = generator.integers(0, 300, 5000), generator.integers(0, 450, 5000)
    found = agreement(classes, clusters)
    assert found["nmi"] == pytest.approx(normalized_mutual_info_score(classes, clusters), abs=1e-9)
    assert found["ari"] == pytest.approx(adjusted_rand_score(classes, clusters), abs=1e-9)


def test_weights_count_a_sample_as_often_as_they_say():
    generator = np.random.default_rng(1)
    classes, clusters, weights = (generator.integers(0, 4, 50) for _ in range(3))
    table, again = ContingencyTable(classes, clusters), [np.repeat(each, weights) for each in (classes, clusters)]
    counts = table.counts(weights.astype(np.float64))
    assert table.nmi(counts) == pytest.approx(normalized_mutual_info_score(*again), abs=1e-9)
    assert table.ari(counts) == pytest.approx(adjusted_rand_score(*again), abs=1e-9)
    assert table.accuracy(counts, {0: 1, 1: 2}) == np.mean(np.array([1, 2, -1, -1])[again[1]] == again[0])


def test_a_cluster_without_a_class_is_wrong():
    classes, clusters = np.array([0, 0, 1, 1]), np.array([0, 2, 1, 1])
    assert agreement(classes, clusters)["accuracy"] == 0.75


def test_intervals_of_clusters_hold_the_truth_about_as_often_as_they_say():
    """Clusters that are right with probability 0.7: accuracy is 0.7, ARI that of an endless sample."""
    generator = np.random.default_rng(2)

    def draw(n):
        classes = generator.integers(0, 3, n)
        return classes, np.where(generator.random(n) < 0.7, classes, generator.integers(0, 3, n))

    truth = agreement(*draw(100_000))
    matching = {0: 0, 1: 1, 2: 2}
    held = dict.fromkeys(truth, 0)
    for i in range(100):
        for name, (_, low, high) in agreement_with_intervals(*draw(300), matching, seed=i, resamples=40).items():
            held[name] += low <= truth[name] <= high
    assert all(88 < count <= 100 for count in held.values()), held


def test_clusters_that_know_nothing_have_an_ari_near_zero():
    generator = np.random.default_rng(3)
    value, low, high = agreement_with_intervals(*generator.integers(0, 10, (2, 2000)), {}, seed=0)["ari"]
    assert abs(value) < 0.01 and low < 0 < high


def test_silhouette_is_that_of_scikit_learn_and_of_a_seeded_part_of_many():
    generator = np.random.default_rng(4)
    clusters = generator.integers(0, 3, 200)
    x = generator.normal(size=(200, 5)) + clusters[:, None]
    value, low, high = silhouette(x, clusters, most=200, seed=0)
    assert value == pytest.approx(silhouette_score(x, clusters), abs=1e-9)
    assert low < value < high
    part = silhouette(x, clusters, most=50, seed=0)
    assert part == silhouette(x, clusters, most=50, seed=0) != silhouette(x, clusters, most=50, seed=1)
    rows = np.sort(np.random.default_rng(0).choice(200, 50, replace=False))
    assert part[0] == pytest.approx(silhouette_score(x[rows], clusters[rows]), abs=1e-9)


def test_one_cluster_has_no_silhouette():
    assert np.isnan(silhouette(np.eye(3), np.zeros(3, np.int64), most=10, seed=0)).all()
    assert np.isnan(silhouette(np.eye(3), np.arange(3), most=10, seed=0)).all()


FEW = st.lists(st.integers(0, 6), min_size=1, max_size=25)  # many ties


def slow_detection(known, unknown):
    """Return AUROC, AUPR and FPR95 by counting pairs and trying every threshold."""
    pairs = [(u > k) + 0.5 * (u == k) for u in unknown for k in known]
    aupr, recall_before, candidates = 0.0, 0.0, []
    for threshold in sorted({*known, *unknown}, reverse=True):
        found, false = sum(u >= threshold for u in unknown), sum(k >= threshold for k in known)
        recall = found / len(unknown)
        aupr += (recall - recall_before) * found / (found + false)
        if recall_before < 1:  # once all are found, a lower threshold only adds false alarms
            candidates.append((abs(recall - 0.95), threshold, false / len(known)))
        recall_before = recall
    nearest = min(distance for distance, *_ in candidates)
    fpr = min((threshold, rate) for distance, threshold, rate in candidates if distance == nearest)[1]
    return np.mean(pairs), aupr, fpr


def detected(known, unknown):
    """AUROC, AUPR and FPR95 of samples that all count once."""
    return tuple(robustness.detection_statistic(known, unknown)(np.ones((1, len(known) + len(unknown))))[0])


@settings(max_examples=60, deadline=None)
@given(FEW, FEW)
def test_detection_of_the_unknown_and_of_the_known_by_every_threshold(known, unknown):
    known, unknown = np.array(known, np.float32), np.array(unknown, np.float32)
    assert detected(known, unknown) == pytest.approx(slow_detection(known, unknown), abs=1e-12)
    # The known as positives (AUPR-In): the same function of the negated scores with the parts exchanged.
    swapped = detected(-unknown, -known)
    assert swapped == pytest.approx(slow_detection(-unknown, -known), abs=1e-12)
    assert swapped[0] == pytest.approx(detected(known, unknown)[0])


def test_fpr95_of_many_samples_is_the_share_of_the_known_above_the_5_percent_quantile_of_the_unknown():
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(0, 1, 20_000), rng.normal(2, 1, 20_000)
    auroc, _, fpr95 = detected(known, unknown)
    assert fpr95 == pytest.approx(np.mean(known >= np.quantile(unknown, 0.05)), abs=1e-4)
    assert auroc == pytest.approx(0.9214, abs=5e-3)  # Phi(2 / sqrt(2))


def test_intervals_hold_the_values_and_shrink_with_the_square_root_of_the_samples():
    rng, widths = np.random.default_rng(1), []
    for n in (200, 3200):
        known, unknown = rng.normal(0, 1, n), rng.normal(1, 1, n)
        found = robustness.unknown_detection(known, unknown, Units.of(2 * n, None), seed=0, resamples=200)
        for name, value in zip(found, detected(known, unknown), strict=True):
            assert found[name][0] == pytest.approx(value) and found[name][1] < value < found[name][2]
        widths.append(found["unknown_auroc"][2] - found["unknown_auroc"][1])
    assert 3 < widths[0] / widths[1] < 5.3


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 5))
def test_mce_and_relative_mce_of_images_are_those_of_the_error_rates(seed, corruptions, severities):
    rng, n = np.random.default_rng(seed), 20
    wrong, clean = rng.random((n, corruptions, severities)) < 0.6, rng.random(n) < 0.3
    theirs, theirs_clean = rng.uniform(0.5, 0.9, (corruptions, severities)), 0.4
    names = [f"corruption{c}" for c in range(corruptions)]
    found = robustness.corruption_means(wrong, clean, names, list(range(1, severities + 1)), theirs, theirs_clean)
    shares, growths = [], []
    for c in range(corruptions):
        own = their = own_growth = their_growth = 0.0
        for s in range(severities):
            error = sum(bool(one) for one in wrong[:, c, s]) / n
            own, their = own + error, their + theirs[c, s]
            own_growth += error - sum(map(bool, clean)) / n
            their_growth += theirs[c, s] - theirs_clean
        shares.append(own / their)
        growths.append(own_growth / their_growth)
    value = {name: float(np.mean(found.values(name))) for name in ("mce", "relative_mce", "corruption_error")}
    assert value["mce"] == pytest.approx(sum(shares) / corruptions)
    assert value["relative_mce"] == pytest.approx(sum(growths) / corruptions)
    assert value["corruption_error"] == pytest.approx(np.mean(wrong))


def test_each_group_has_the_metric_and_interval_of_its_own_samples_the_worst_first():
    generator = np.random.default_rng(0)
    classes = generator.integers(0, 5, 300)
    groups = np.array(["north", "south", "east"])[generator.integers(0, 3, 300)]
    strength = np.where(groups == "south", 0.5, 2.5)
    scores = generator.normal(size=(300, 5)) + strength[:, None] * np.eye(5)[classes]
    for metric in ("top1", "balanced_accuracy", "macro_auroc"):
        found = by_group(metric, Classes, classes, [scores], list(groups), seed=3, resamples=100)
        assert found[0].name == "south" and [g.value for g in found] == sorted(g.value for g in found)
        for group in found:
            rows = groups == group.name
            alone = summarise(Classes, "abcde", classes[rows], scores[rows], seed=3, resamples=100)[0][metric]
            assert group.n == rows.sum() and (group.value, group.low, group.high) == pytest.approx(alone)


def test_a_group_without_a_value_comes_last():
    labels = np.array([[1], [0], [0], [0]], dtype=np.int8)
    scores = np.array([[0.9], [0.1], [0.2], [0.3]])
    found = by_group("mAP", MultiLabel, labels, [scores], ["a", "a", "b", "b"], seed=0, resamples=10)
    assert [group.name for group in found] == ["a", "b"] and found[0].value == 1 and np.isnan(found[1].value)


def test_a_small_worst_group_is_told():
    classes, scores = np.arange(40) % 2, np.eye(2)[np.arange(40) % 2]
    found = by_group("top1", Classes, classes, [scores], ["a"] * 3 + ["b"] * 37, seed=0, resamples=10)
    assert "'a', has only 3 test samples" in warning("site", found[0])
    assert warning("site", found[1]) is None


def test_an_unknown_metric_is_a_key_error():
    with pytest.raises(KeyError):
        by_group("nmi", Classes, np.array([0, 1]), [np.eye(2)], ["a", "b"], seed=0)


def test_the_largest_error_is_the_worst():
    scores = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]])
    labels = np.array([0, 0, 1, 1])
    found = by_group("nll", Classes, labels, [scores], ["a", "a", "b", "b"], seed=0, probabilities="scores")
    assert [group.name for group in found] == ["b", "a"] and found[0].value > found[1].value
