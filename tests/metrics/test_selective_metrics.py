"""Selective classification and conformal sets, against loops over the published formulas."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest

from sslbench.metrics.selective import SELECTIVE, ConformalSets, likely_coverage, selective_statistic


def areas(order, correct):
    """AURC of the samples in an order, one prefix after the other."""
    return np.mean([1 - np.mean([correct[i] for i in order[:k]]) for k in range(1, len(order) + 1)])


def orders(confidence):
    """All orders of falling confidence."""
    rows = range(len(confidence))
    return [o for o in permutations(rows) if all(confidence[a] >= confidence[b] for a, b in pairwise(o))]


def values(confidence, correct, weights=None):
    statistic = selective_statistic(np.asarray(confidence, float), np.asarray(correct))
    return statistic(np.ones((1, len(correct))) if weights is None else weights)


@pytest.mark.parametrize("confidence", [(4, 3, 1, 2, 0), (2, 1, 2, 1, 1), (1, 1, 1, 1, 1)])
def test_the_areas_are_means_over_prefixes_and_orders_of_equals(confidence):
    every = orders(confidence)
    for number in range(32):
        correct = np.array([number >> i & 1 for i in range(5)], dtype=bool)
        aurc, e_aurc, *_ = values(confidence, correct)[0]
        assert aurc == pytest.approx(np.mean([areas(order, correct) for order in every]))
        best = areas(np.argsort(~correct, kind="stable"), correct)
        assert e_aurc == pytest.approx(aurc - best) and e_aurc >= -1e-12


def test_accuracy_at_a_coverage_is_that_of_the_first_samples():
    generator = np.random.default_rng(0)
    confidence, correct = generator.permutation(100), generator.random(100) < 0.7
    order = np.argsort(-confidence)
    assert values(confidence, correct)[0, 2:] == pytest.approx([correct[order[:80]].mean(), correct[order[:95]].mean()])
    # 80 % of 6 equally sure samples: any 4.8 of them
    assert values(np.zeros(6), [True] * 3 + [False] * 3)[0, 2] == pytest.approx(0.5)


def test_confidence_that_says_nothing_leaves_the_error_as_it_is():
    generator = np.random.default_rng(1)
    correct = generator.random(300) < 0.7
    found = np.mean([values(generator.permutation(300), correct)[0] for _ in range(400)], axis=0)
    # The standard deviation of an area is 0.025, so that of the mean of 400 is 0.0013.
    assert found[0] == pytest.approx(1 - correct.mean(), abs=0.006)
    assert found[2:] == pytest.approx(correct.mean(), abs=0.006)


def test_weights_of_0_leave_samples_out():
    generator = np.random.default_rng(1)
    confidence, correct, kept = generator.integers(0, 9, 40), generator.random(40) < 0.6, generator.random(40) < 0.5
    found = values(confidence, correct, kept[None].astype(float))
    assert found == pytest.approx(values(confidence[kept], correct[kept]))
    assert len(SELECTIVE) == found.shape[1]


def slow_scores(rule, p, u):
    """Score of each class of one sample by the publications' formulas."""
    found = []
    for y in range(len(p)):
        above = [q for i, q in enumerate(p) if i != y and q >= p[y]]  # equal ones count as more likely
        if rule.rule == "lac":
            found.append(1 - p[y])
        else:
            extra = rule.penalty * max(0, len(above) + 1 - rule.free) if rule.rule == "raps" else 0
            found.append(sum(above) + u * p[y] + extra)
    return found


@pytest.mark.parametrize("name", ["lac", "aps", "raps"])
def test_sets_equal_loops_over_the_published_scores(name):
    generator = np.random.default_rng(2)
    p = generator.dirichlet(np.full(7, 0.4), size=60)
    p[::5, 1] = p[::5, 2]
    y = generator.integers(0, 7, 60)
    rule = ConformalSets(name, 0.2, seed=3, penalty=0.05, free=2)
    u, v = (np.random.default_rng([3, part]).random(30) for part in (0, 1))
    known = sorted(slow_scores(rule, p[i], u[i])[y[i]] for i in range(30))
    threshold = rule.threshold(p[:30], y[:30])
    assert threshold == pytest.approx(known[math.ceil(31 * 0.8) - 1])
    has, size = rule.sets(threshold, p[30:], y[30:])
    for i in range(30):
        within = [score <= threshold + 1e-12 for score in slow_scores(rule, p[30 + i], v[i])]
        assert (has[i], size[i]) == (within[y[30 + i]], sum(within))


@pytest.mark.parametrize("name", ["lac", "aps", "raps"])
def test_coverage_over_many_draws_is_what_was_asked(name):
    """Of 400 pairs of 50 calibration and 20 test samples, by a classifier that is unsure of the wrong classes."""
    generator, covered, inside = np.random.default_rng(4), [], []
    low, high = likely_coverage(50, 20, 0.2)
    for seed in range(400):
        y = generator.integers(0, 5, 70)
        logits = 1.5 * np.eye(5)[y] + generator.normal(size=(70, 5))
        p = np.exp(2 * logits) / np.exp(2 * logits).sum(axis=1, keepdims=True)
        rule = ConformalSets(name, 0.2, seed=seed)
        has, _ = rule.sets(rule.threshold(p[:50], y[:50]), p[50:], y[50:])
        covered.append(has.mean())
        inside.append(low <= has.mean() <= high)
    # k / (n + 1) = 41 / 51 is expected; 3 standard errors of the mean of 400 draws
    assert abs(np.mean(covered) - 41 / 51) < 3 * np.std(covered) / np.sqrt(400)
    assert np.mean(inside) > 0.93


def test_too_few_calibration_samples_give_sets_of_all_classes():
    p = np.random.default_rng(5).dirichlet(np.ones(3), size=8)
    rule = ConformalSets("lac", 0.1)
    has, size = rule.sets(rule.threshold(p, np.zeros(8, int)), p, np.ones(8, int))
    assert has.all() and (size == 3).all() and likely_coverage(8, 8, 0.1) == (1.0, 1.0)
    assert np.isfinite(rule.threshold(np.vstack([p, p[:1]]), np.zeros(9, int)))


def test_labels_that_say_nothing_need_nine_of_ten_classes():
    generator = np.random.default_rng(6)
    p, y = generator.dirichlet(np.ones(10), size=4000), generator.integers(0, 10, 4000)
    for name in ("lac", "aps"):
        rule = ConformalSets(name, 0.1)
        has, size = rule.sets(rule.threshold(p[:2000], y[:2000]), p[2000:], y[2000:])
        assert abs(has.mean() - 0.9) < 0.04 and abs(size.mean() - 9) < 0.3
