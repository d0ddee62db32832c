"""Metrics of robustness against slow second implementations, with ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.metrics import robustness
from sslbench.metrics.intervals import Units

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


@settings(max_examples=200, deadline=None)
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
        found = robustness.unknown_detection(known, unknown, Units.of(2 * n, None), seed=0)
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
