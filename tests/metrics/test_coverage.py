"""The intervals hold the truth about as often as they say: a small part of `coverage_table.py`, with bounds.

Of 60 intervals that hold the truth in 95 % of cases 57 do, give or take 1.7; fewer than 52 come up once in 200 times.
Of intervals of 80 % as many hold it once in eight times, of those of 70 % once in 450. Too wide an interval is no
failure here; the widths are bounded where Wilson's is known.
"""

import coverage_of_kinds
import coverage_table
import numpy as np
import pytest

from sslbench.metrics.differences import difference_of_means

REPEATS, FEWEST = 60, 52 / 60

CASES = [
    (coverage_table.iid, ("top1", "balanced_accuracy", "macro_f1", "mAP", "macro_auroc"), 3),
    (coverage_table.iid, ("top1", "balanced_accuracy", "macro_f1", "mAP", "macro_auroc"), 30),
    (coverage_table.rare, ("top1", "balanced_accuracy", "macro_f1"), 100),
    (coverage_table.grouped, ("top1", "balanced_accuracy", "macro_f1", "mAP", "macro_auroc"), 400),
    (coverage_table.one_label, ("mAP", "mAP_noninterpolated", "macro_auroc", "macro_f1"), 80),
]


@pytest.mark.parametrize(("draw", "metrics", "n"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_intervals_hold_the_truth_as_often_as_they_say(draw, metrics, n, monkeypatch):
    monkeypatch.setattr(coverage_table, "RESAMPLES", 80)
    monkeypatch.setattr(coverage_table, "VERY_MANY", 30_000)
    found = coverage_table.measured(draw, metrics, n, REPEATS)
    assert set(found) == {*metrics, "difference"}
    assert {name: share for name, share in found.items() if share < FEWEST} == {}


OTHERS = [
    ("clusters", 30, ("nmi", "silhouette")),
    ("points", 16, ("pck_per_class@0.05", "pck_per_class@0.1")),
    ("geometry", 200, ("rankme", "effective_rank", "alpha_req")),
    ("transfers", 300, ("logme", "leep", "nce")),
]
"""Those that had covered 0 to 84 %."""


@pytest.mark.parametrize(("kind", "n", "metrics"), OTHERS)
def test_intervals_of_other_metrics_hold_the_truth(kind, n, metrics):
    """Of 40 intervals 38 do; fewer than 32 come up once in 1,000 times."""
    found = coverage_of_kinds.measured(kind, n, 40, resamples=40, most=2000)
    assert {name: found[name][2] for name in metrics if found[name][2] < 32 / 40} == {}


@pytest.mark.parametrize("between", [0.0, 0.1])
def test_a_further_untrained_network_is_seldom_above_three_of_them(between):
    """Networks that differ by chance: 2.5 % of 500 give or take 0.7; against one network it is up to a third."""
    rng = np.random.default_rng(0)
    above, above_one = 0, 0
    for _ in range(500):
        shares = np.clip(0.35 + between * rng.normal(size=(4, 1)) + 0.2 * rng.normal(size=200), 0, 1)
        right = (rng.random((4, 200)) < shares).astype(float)
        floor = [("seed 0", own) for own in right[:3]]
        above += difference_of_means([("seed 0", right[3])], floor).low > 0
        above_one += difference_of_means([("seed 0", right[3])], floor[:1]).low > 0
    assert above <= 20 and above_one >= above
    assert between < 0.1 or above_one > 75
