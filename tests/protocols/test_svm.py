import dataclasses

import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from sklearn.model_selection import cross_val_score
from sklearn.svm import LinearSVC

from sslbench.errors import DataError, UsageError
from sslbench.metrics import ranking
from sslbench.protocols import svm
from sslbench.protocols._parts import selection
from sslbench.protocols._parts.selection import signed_targets
from sslbench.protocols.svm import make_solver
from sslbench.solvers import svm as svm_solver
from sslbench.solvers.svm import PreparedRows, relative_gaps
from sslbench.solvers.svm import features as svm_features

COSTS = (0.01, 0.1, 1.0, 10.0)


def unit(x):
    x = x.astype(np.float64)
    return x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("solver", ["newton", "liblinear"])
def test_multi_label_is_the_voc07_protocol_step_by_step(solver, blobs):
    train, test = blobs(multi=True)
    outcome = svm.run(train, test, svm.Settings(costs=COSTS, solver=solver), seed=0)
    assert outcome.converged and outcome.headline == "mAP"
    for c, name in enumerate(train.target.classes):
        target = np.where(train.target.values[:, c] > 0, 1, -1)
        models = [LinearSVC(C=cost, class_weight={1: 2, -1: 1}, max_iter=20000) for cost in COSTS]
        means = [cross_val_score(m, unit(train.x), target, cv=3, scoring="average_precision").mean() for m in models]
        best = int(np.argmax(means))
        assert outcome.selected["cost"][name] == COSTS[best]
        known = test.target.values[:, c] >= 0
        decision = models[best].fit(unit(train.x), target).decision_function(unit(test.x))
        np.testing.assert_allclose(outcome.scores[:, c], decision, atol=1e-2)
        expected = ranking.single_class(ranking.voc_all_points, test.target.values[known, c], decision[known])
        assert outcome.per_class[name] == pytest.approx(expected, abs=5e-3)


def test_ignored_training_samples_are_negatives_or_dropped(blobs):
    train, test = blobs(multi=True)
    kept = svm.run(train, test, svm.Settings(costs=(1.0,)), seed=0)
    dropped = svm.run(train, test, svm.Settings(costs=(1.0,), ignore_in_training="drop"), seed=0)
    known = train.target.values[:, 0] >= 0
    model = LinearSVC(C=1.0, class_weight={1: 2, -1: 1}, max_iter=20000)
    model.fit(unit(train.x)[known], np.where(train.target.values[known, 0] > 0, 1, -1))
    np.testing.assert_allclose(dropped.scores[:, 0], model.decision_function(unit(test.x)), atol=1e-2)
    assert np.abs(kept.scores[:, 0] - dropped.scores[:, 0]).max() > 2e-2


@pytest.mark.parametrize("multi", [False, True])
def test_both_solvers_give_the_same_numbers(multi, blobs):
    train, test = blobs(multi=multi)
    found = [
        svm.run(train, test, svm.Settings(costs=COSTS[::-1], solver=name, tolerance=1e-6, max_iter=100000), seed=0)
        for name in ("newton", "liblinear", "auto")
    ]
    assert all(outcome.converged for outcome in found)
    first, *others = ({k: v for k, v in outcome.selected.items() if k != "gap"} for outcome in found)
    assert all(other == first for other in others)
    np.testing.assert_allclose(found[0].scores, found[1].scores, atol=1e-3)
    np.testing.assert_array_equal(found[0].scores, found[2].scores)
    for name, value in found[0].metrics.items():
        assert value == pytest.approx(found[1].metrics[name], abs=1e-3, nan_ok=True)


def test_the_first_of_equal_costs_wins_whatever_their_order(make):
    x = np.repeat([[1.0, 0.1], [0.1, 1.0]], 15, axis=0) + 0.01 * np.random.default_rng(0).normal(size=(30, 2))
    y = np.repeat([0, 1], 15)
    for values in (y, np.stack([y, 1 - y], axis=1)):
        train = make(x, values, 2)
        for costs in ((10.0, 1.0, 100.0), (100.0, 1.0, 10.0)):
            chosen = svm.run(train, train, svm.Settings(costs=costs), seed=0).selected
            assert chosen["score"] == 1
            assert set(np.ravel(list(chosen["cost"].values()) if np.ndim(values) == 2 else chosen["cost"])) == {
                costs[0]
            }


def test_blocks_of_problems_change_nothing_but_the_memory(blobs):
    train, _ = blobs(multi=True)
    targets = np.where(train.target.values > 0, 1, -1).astype(np.int8)
    folds = np.repeat((np.arange(len(train)) % 3)[:, None], 4, axis=1).astype(np.int16)
    of_sizes = [svm.Settings(costs=COSTS, solver="newton", max_memory=size) for size in (1.0, 1e-9)]
    whole, single = (make_solver(unit(train.x), settings, 0)[0] for settings in of_sizes)
    parts = [{(p.column, p.place): p.decision for p in s.held_out(targets, folds)} for s in (whole, single)]
    assert len(parts[0]) == len(parts[1]) == 4 * len(COSTS)
    for key, decision in parts[0].items():
        np.testing.assert_allclose(parts[1][key], decision, atol=2e-3)
    costs = [0.1, 10.0, 1.0, 0.01]
    np.testing.assert_allclose(whole.fit(targets, costs).weight, single.fit(targets, costs).weight, atol=2e-3)


@pytest.mark.parametrize("solver", ["newton", "liblinear"])
def test_held_out_decisions_are_of_models_that_did_not_see_the_sample(solver, blobs):
    train, _ = blobs(multi=True)
    x, targets = unit(train.x), np.where(train.target.values > 0, 1, -1).astype(np.int8)
    targets[:7, 1] = 0
    folds = np.repeat((np.arange(len(x)) % 3)[:, None], 4, axis=1).astype(np.int16)
    folds[:7, 1] = -1
    settings = svm.Settings(costs=(1.0,), solver=solver)
    for part in make_solver(x, settings, 0)[0].held_out(targets, folds):
        target, fold = targets[:, part.column], folds[:, part.column]
        assert (part.decision[target == 0] == 0).all()
        for held in range(3):
            fit, rows = (fold != held) & (target != 0), fold == held
            model = LinearSVC(C=1.0, class_weight={1: 2, -1: 1}, max_iter=20000).fit(x[fit], target[fit])
            np.testing.assert_allclose(part.decision[rows], model.decision_function(x[rows]), atol=1e-2)


@pytest.mark.parametrize("solver", ["newton", "liblinear"])
def test_a_fold_that_leaves_one_class_predicts_that_class(solver, make):
    x = np.random.default_rng(0).normal(size=(3, 4))
    outcome = svm.run(
        make(x, [0, 0, 1], 2), make(x, [0, 0, 1], 2), svm.Settings(costs=(0.1, 1.0), solver=solver), seed=0
    )
    assert outcome.selected["on"].startswith("2-fold") and np.isfinite(outcome.scores).all()
    assert 1 / 3 <= outcome.selected["score"] <= 2 / 3 + 1e-9


def test_intercept_scaling_is_that_of_linearsvc(blobs):
    train, test = blobs()
    scores = []
    for solver in ("newton", "liblinear"):
        settings = svm.Settings(costs=(0.1,), intercept_scaling=5.0, solver=solver)
        scores.append(svm.run(train, test, settings, seed=0).scores)
    np.testing.assert_allclose(*scores, atol=1e-2)
    assert np.abs(svm.run(train, test, svm.Settings(costs=(0.1,)), seed=0).scores - scores[0]).max() > 3e-2


def test_auto_takes_liblinear_for_very_many_axes_and_says_so(blobs, monkeypatch):
    monkeypatch.setattr("sslbench.protocols.svm._NEWTON_UP_TO", 5)
    assert "Liblinear was used" in svm.run(*blobs(), svm.Settings(costs=(1.0,)), seed=0).notes[-1]


def test_single_label_has_one_cost_and_takes_the_largest_decision(blobs):
    train, test = blobs(spread=1.0)
    outcome = svm.run(train, test, svm.Settings(costs=COSTS), seed=0)
    assert outcome.selected["cost"] in COSTS and outcome.headline == "top1"
    assert outcome.metrics["top1"][0] == np.mean(outcome.scores.argmax(1) == test.target.values) > 0.5
    assert not np.isnan(outcome.train)


def test_few_positives_reduce_the_folds_and_none_leave_the_class_out(make):
    generator = np.random.default_rng(0)
    values = np.zeros((60, 4), np.int8)
    values[:30, 0], values[:2, 1], values[5, 2] = 1, 1, 1
    train = make(generator.normal(size=(60, 8)), values, 4)
    outcome = svm.run(train, train, svm.Settings(costs=COSTS), seed=0)
    assert "class3" in outcome.notes[0] and "class1, class2" in outcome.notes[1]
    assert np.isnan(outcome.per_class["class3"]) and np.isnan(outcome.scores[:, 3]).all()
    assert np.isfinite(outcome.per_class["class2"])
    expected = np.mean([outcome.per_class[f"class{c}"] for c in range(3)])
    assert outcome.metrics["mAP"][0] == pytest.approx(expected)
    non_interpolated = [average_precision_score(values[:, c], outcome.scores[:, c]) for c in range(3)]
    assert outcome.metrics["mAP_noninterpolated"][0] == pytest.approx(np.mean(non_interpolated))


def test_classes_with_one_sample_or_none_work(make):
    generator = np.random.default_rng(0)
    train = make(generator.normal(size=(31, 8)), np.r_[np.arange(30) % 2, 2], 4)
    outcome = svm.run(train, train, svm.Settings(costs=COSTS), seed=0)
    assert "class3" in outcome.notes[0] and np.isfinite(outcome.scores).all()
    pair = make([[0.0, 1], [1, 0]], [0, 1], 2)
    assert "one training sample" in svm.run(pair, pair, svm.Settings(costs=COSTS), seed=0).notes[0]


def test_an_unfinished_solver_marks_the_result(blobs):
    for solver in ("newton", "liblinear"):
        outcome = svm.run(*blobs(), svm.Settings(costs=(100.0, 1000.0), max_iter=1, solver=solver), seed=0)
        assert outcome.converged is False and "did not converge" in outcome.notes[-1]
        assert outcome.notes[-2].startswith("During the selection of the cost, ")


def test_what_cannot_be_learned_is_refused(blobs, make):
    train, test = blobs()
    with pytest.raises(DataError, match="no class has both positive and negative"):
        svm.run(make(train.x, np.zeros(len(train)), 4), test, svm.Settings(), seed=0)
    for bad in ({"costs": ()}, {"costs": (-1.0,)}, {"folds": 1}, {"max_iter": 0}, {"intercept_scaling": 0}):
        with pytest.raises(UsageError):
            svm.run(train, test, svm.Settings(**bad), seed=0)


@pytest.mark.parametrize("solver", ["newton", "liblinear"])
@pytest.mark.parametrize("scaling", [1.0, 5.0])
def test_the_bound_of_the_distance_to_the_optimum_holds_and_stands_in_the_record(solver, scaling, blobs):
    train, test = blobs(200, 50, spread=3.0)
    settings = svm.Settings(costs=(5.0,), solver=solver, intercept_scaling=scaling)
    outcome = svm.run(train, test, settings, seed=0)
    exact = svm.run(train, test, dataclasses.replace(settings, solver="newton", tolerance=1e-10), seed=0)
    assert exact.selected["gap"] <= 1e-12
    assert outcome.selected["gap"] <= (1e-8 if solver == "newton" else 1e-2)
    rough = svm.run(train, test, dataclasses.replace(settings, max_iter=1), seed=0)
    assert rough.converged is False and rough.selected["gap"] > 1e-6
    x = PreparedRows(train.x, True)[:]
    targets, _ = signed_targets(train.target, ignore=False)
    make = {
        name: make_solver(x, dataclasses.replace(settings, **how), 0)[0].fit(targets, [5.0] * 4)
        for name, how in {"exact": {"solver": "newton", "tolerance": 1e-10}, "rough": {"max_iter": 1}}.items()
    }

    def values(models):
        slack = np.maximum(0, 1 - targets * (x @ models.weight.T + models.bias))
        each = 5.0 * np.where(targets > 0, 2, 1) * slack**2
        return (models.weight**2).sum(axis=1) / 2 + (models.bias / scaling) ** 2 / 2 + each.sum(axis=0)

    bounds = relative_gaps(x, targets, [5.0] * 4, make["rough"], positive_weight=2.0, intercept_scaling=scaling)
    assert (values(make["rough"]) <= values(make["exact"]) * (1 + bounds)).all()


@pytest.mark.parametrize("multi", [False, True])
def test_features_read_in_blocks_give_the_same_models_and_bounds(multi, blobs, monkeypatch):
    train, test = blobs(150, 60, multi=multi)
    whole = svm.run(train, test, svm.Settings(costs=COSTS), seed=0)
    monkeypatch.setattr(svm_solver, "_ROWS", 32)
    monkeypatch.setattr(svm_features, "_ROWS", 32)
    monkeypatch.setattr(selection, "_ROWS", 32)
    blocks = svm.run(train, test, svm.Settings(costs=COSTS), seed=0)
    assert blocks.converged and blocks.train == whole.train
    assert {**blocks.selected, "gap": 0} == {**whole.selected, "gap": 0}
    np.testing.assert_allclose(blocks.scores, whole.scores, atol=1e-5)
    assert blocks.selected["gap"] == pytest.approx(whole.selected["gap"], abs=1e-6)
