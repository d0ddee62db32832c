"""Samples of one group (frames of a video) are never separated by a choice, and intervals resample whole groups."""

import dataclasses

import numpy as np
import pytest
from helpers.protocol_samples import features
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.data.groups import group_folds as real_group_folds
from sslbench.errors import UsageError
from sslbench.protocols import clustering, geometry, knn, linear, low_shot, lsr, retrieval, svm
from sslbench.protocols._parts import few_shot, selection
from sslbench.protocols._parts.selection import folds_of, holdout_rows, no_holdout
from sslbench.targets.classes import Classes

CASES = {
    "knn": (knn, knn.Settings(k=(1, 5))),
    "linear": (linear, linear.Settings(c=(0.01, 1.0))),
    "svm": (svm, svm.Settings(costs=(0.1, 1.0))),
    "low-shot": (low_shot, low_shot.Settings(k=(4,), draws=2, costs=(0.1, 1.0))),
    "low-shot logistic": (low_shot, low_shot.Settings(k=(4,), draws=2, classifier="logistic", c=(0.1, 1.0))),
    "lsr": (lsr, lsr.Settings(k=(4,), draws=2, l2=(1.0, 100.0))),
}


def grouped(n_groups=12, size=5, *, classes=3, seed=0, noise=0.05):
    """Features in groups of near-duplicates; every group has one class."""
    rng = np.random.default_rng(seed)
    y = np.arange(n_groups) % classes
    centres = 1.5 * np.eye(classes, 6)[y] + rng.normal(size=(n_groups, 6))
    x = np.repeat(centres, size, axis=0) + noise * rng.normal(size=(n_groups * size, 6))
    made = features(x, np.repeat(y, size), classes)
    return dataclasses.replace(made, groups=np.repeat(np.arange(n_groups), size) + 100)


@pytest.mark.parametrize("name", CASES)
def test_every_choice_is_made_on_groups_that_were_not_learned_from(name, monkeypatch):
    module, chosen = CASES[name]
    seen = []

    def holdout(labels, fraction, seed, *, groups=None, rank=None, _real=selection.holdout):
        seen.append(_real(labels, fraction, seed, groups=groups, rank=rank))
        fit, held = seen[-1]
        assert not set(groups[fit]) & set(groups[held])
        return fit, held

    def group_folds(labels, groups, number, _real=real_group_folds):
        seen.append(_real(labels, groups, number))
        for fold in range(number):
            assert not set(groups[seen[-1] == fold]) & set(groups[seen[-1] != fold])
        return seen[-1]

    monkeypatch.setattr(selection, "holdout", holdout)
    monkeypatch.setattr(selection, "group_folds", group_folds)
    # Fewer groups than k of a class: some group is drawn from twice, and the folds must know it.
    n_groups = 9 if name.startswith(("low-shot", "lsr")) else 12
    module.run(grouped(n_groups), grouped(seed=1), chosen, seed=0)
    assert seen, "nothing was held out"


def test_k_is_chosen_without_near_duplicates():
    """With single samples held out k=1 finds the copy of each; of new groups more neighbours know more."""
    train = grouped(90, 6, classes=2, noise=0.01)
    train = dataclasses.replace(train, x=np.asarray(train.x * [1, 0.15, 1, 1, 1, 1], np.float32))
    test = grouped(60, 1, classes=2, seed=5)
    torn = dataclasses.replace(train, groups=None)
    assert knn.run(torn, test, knn.Settings(k=(1, 40), vote="uniform"), seed=0).selected["k"] == 1
    assert knn.run(train, test, knn.Settings(k=(1, 40), vote="uniform"), seed=0).selected["k"] == 40


OF_COPIES = {"uniformity", "alignment", "silhouette", "ari", "nmi", "alpha_req", "rankme", "two_nn", "mle_dimension"}
"""Metrics that have other values on copies; so has a recall of equal scores."""


@pytest.mark.parametrize("name", [*CASES, "clustering", "geometry", "retrieval"])
def test_copies_of_the_test_samples_do_not_narrow_any_interval(name):
    module, chosen = (
        CASES.get(name)
        or {
            "clustering": (clustering, clustering.Settings(restarts=1, silhouette_samples=5000)),
            "geometry": (geometry, geometry.Settings()),
            "retrieval": (retrieval, retrieval.Settings(database="train")),
        }[name]
    )
    train, once = grouped(60, 1), dataclasses.replace(grouped(45, 1, seed=1, noise=1.0), groups=None)
    rows = np.repeat(np.arange(45), 20)
    copies = dataclasses.replace(once.select(rows), ids=tuple(f"s{i:05d}" for i in range(900)))
    together = dataclasses.replace(copies, groups=rows)
    found = [module.run(train, test, chosen, seed=0).metrics for test in (once, together, copies)]
    for metric in set(found[0]) - OF_COPIES:
        value, low, high = found[0][metric]
        if np.isnan(low) or high - low < 1e-6:
            continue
        widths = [each[metric][2] - each[metric][1] for each in found]
        assert found[1][metric][0] == pytest.approx(value, abs=0.05)
        assert widths[1] == pytest.approx(widths[0], rel=0.35), metric
        # Intervals over draws are wide; retrieval resamples labels, whatever the groups.
        assert name.startswith(("low-shot", "lsr", "retrieval")) or widths[2] < 0.6 * widths[1], metric


@pytest.mark.parametrize("backend", ["faiss", "torch"])
def test_leave_one_out_leaves_the_whole_group_out(backend):
    train = grouped(10, 7, noise=0.2)
    found = knn.run(
        train, train, knn.Settings(k=(3,), leave_one_out=True, backend=backend, metric="l2", vote="uniform"), seed=0
    )
    for i in range(len(train)):
        others = np.flatnonzero(train.groups != train.groups[i])
        near = others[np.argsort(((train.x[others] - train.x[i]) ** 2).sum(axis=1))[:3]]
        wanted = np.bincount(train.target.values[near], minlength=3) / 3
        assert found.scores[i] == pytest.approx(wanted)
    one = dataclasses.replace(train, groups=np.zeros(70, np.int64))
    with pytest.raises(UsageError, match="all samples belong to one group"):
        knn.run(one, one, knn.Settings(k=(3,), leave_one_out=True), seed=0)


@pytest.mark.parametrize(("name", "what"), [("knn", "select k on"), ("linear", "select c on")])
def test_a_train_part_of_one_group_is_told(name, what):
    module, chosen = CASES[name]
    train = grouped()
    for groups, why in (
        (np.zeros(60, np.int64), "All training samples belong to one group, so no group can be held out"),
        (
            train.target.values,
            "The training samples belong to 3 groups, and holding out any of them would remove a class",
        ),
    ):
        notes = module.run(dataclasses.replace(train, groups=groups), grouped(seed=1), chosen, seed=0).notes
        assert any(why in note and what in note for note in notes)


def test_a_cost_that_cannot_be_chosen_because_of_groups_is_told():
    train = grouped(3, 20)
    assert "the training samples of one group" in svm.run(train, grouped(seed=1), svm.Settings(), seed=0).notes[0]


def test_nothing_is_held_out_of_too_few_groups():
    labels = Classes(("a", "b"), np.arange(20) % 2)
    assert holdout_rows(labels, 0.2, 0, np.zeros(20, np.int64)) is None
    assert no_holdout(None).startswith("Train is too small")
    fit, held = holdout_rows(labels, 0.2, 0, None)
    assert len(fit) == 16 and len(held) == 4


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 4), st.integers(2, 4))
def test_folds_keep_groups_and_have_every_class_that_has_enough_groups(seed, classes, number):
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 30, 120)
    of_group = rng.integers(0, classes, 30)
    values = of_group[groups]
    folds = folds_of(values, number, groups)
    assert set(folds) <= set(range(number))
    assert all(len(set(folds[groups == group])) == 1 for group in set(groups))
    for c in set(values):
        if len(set(groups[values == c])) >= number:
            assert len(set(folds[values == c])) == number
    sizes = np.bincount(folds, minlength=number)
    assert sizes.max() - sizes.min() <= 2 * classes * np.bincount(groups).max()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6))
def test_k_samples_are_of_as_many_groups_as_possible_and_smaller_draws_lie_in_larger_ones(seed, k):
    rng = np.random.default_rng(seed)
    labels = features(np.zeros((90, 1)), np.arange(90) % 3, 3).target
    groups = rng.integers(0, 12, 90)
    order = few_shot.ByName(list(map(str, range(90))), seed)
    small, large = (few_shot.k_per_class(labels, number, order, groups=groups) for number in (k, k + 1))
    assert set(small.rows) < set(large.rows)
    for c in range(3):
        own = small.rows[labels.values[small.rows] == c]
        assert len(own) == k
        possible = len(set(groups[labels.values == c]))
        assert len(set(groups[own])) == min(k, possible)
    alone = few_shot.k_per_class(labels, k, order, groups=np.arange(90))
    np.testing.assert_array_equal(alone.rows, few_shot.k_per_class(labels, k, order).rows)


@pytest.mark.parametrize("stratified", [True, False])
def test_a_share_of_train_is_one_of_whole_groups(stratified):
    train = grouped(40, 5)
    for seed in range(5):
        order = few_shot.ByName(train.ids, seed)
        draw = few_shot.share(train.target, 0.2, seed, order, stratified=stratified, groups=train.groups)
        drawn = set(train.groups[draw.rows])
        assert set(np.flatnonzero(np.isin(train.groups, list(drawn)))) == set(draw.rows.tolist())
        assert 0.1 <= len(draw.rows) / 200 <= 0.3
        whole = few_shot.share(train.target, 1.0, seed, order, stratified=stratified, groups=train.groups)
        assert len(whole.rows) == 200


@pytest.mark.parametrize("stratified", [True, False])
def test_numbers_of_groups_move_no_share_of_train(stratified):
    train = grouped(40, 5)
    order = few_shot.ByName(train.ids, 0)
    rows = [
        few_shot.share(train.target, 0.2, 0, order, stratified=stratified, groups=groups).rows
        for groups in (train.groups, 100 - train.groups)
    ]
    np.testing.assert_array_equal(*rows)


def test_the_scores_of_all_draws_are_handed_back():
    found = lsr.run(grouped(60, 1), grouped(seed=1), lsr.Settings(k=(4,), draws=3), seed=0)
    assert len(found.draws) == 3
    np.testing.assert_array_equal(found.scores, found.draws[0])
    means = [np.mean(each.argmax(axis=1) == grouped(seed=1).target.values) for each in found.draws]
    assert found.metrics["top1"][0] == pytest.approx(np.mean(means))
