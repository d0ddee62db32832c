""""""

import numpy as np
import pytest
from helpers.protocol_samples import features
from helpers.targets import shifted_pairs, warped_pairs
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from sslbench.errors import DataError, UsageError
from sslbench.metrics import ranking
from sslbench.metrics.intervals import over_trainings, student_half_width
from sslbench.metrics.metric import ANY, LOSS
from sslbench.protocols import low_shot
from sslbench.protocols._parts import few_shot
from sslbench.protocols._parts.few_shot import statistics
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled

SMALL = {"k": (2, 6), "draws": 3, "costs": (0.1, 10.0), "c": (0.01, 1.0)}
UNCHOSEN = {"costs": (1.0,), "c": (1.0,)}  # without cross-validation


def unit(x):
    x = x.astype(np.float64)
    return x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-5)


def drawn(train, k, seed):
    draw = few_shot.k_with_and_without if isinstance(train.target, MultiLabel) else few_shot.k_per_class
    return draw(train.target, k, few_shot.ByName(train.ids, seed))


def run(train, test, seed=0, **changes):
    return low_shot.run(train, test, low_shot.Settings(**{**SMALL, **changes}), seed=seed)


def test_svms_are_those_of_linearsvc_on_the_drawn_images(blobs):
    train, test = blobs()
    outcome = run(train, test, k=(5,), costs=(10.0,), draws=2, seed=3)
    scores = []
    for seed in (6, 7):
        draw = drawn(train, 5, seed)
        x, columns = unit(train.x[draw.rows]), []
        for c in range(4):
            model = LinearSVC(C=10.0, class_weight={1: 2, -1: 1}, max_iter=50000, tol=1e-8)
            model.fit(x, np.where(draw.labels.values == c, 1, -1))
            columns.append(model.decision_function(unit(test.x)))
        scores.append(np.stack(columns, axis=1))
    np.testing.assert_allclose(outcome.scores, scores[0], atol=2e-3)
    right = [np.mean(s.argmax(axis=1) == test.target.values) for s in scores]
    assert outcome.metrics["top1"][0] == pytest.approx(np.mean(right))
    assert outcome.selected["draws"]["seeds"] == [6, 7]


def test_mean_average_precision_of_single_labels_leads_and_is_chosen_by_on_request(blobs):
    """Places205 in VISSL: every class against the rest, the cost with the highest mean over draws and classes."""
    train, test = blobs()
    costs = (0.001, 1.0, 1000.0)
    outcome = run(train, test, k=(5,), costs=costs, draws=2, select="test", metric="mAP")
    means = {}
    for cost in costs:
        found = []
        for seed in (0, 1):
            draw = drawn(train, 5, seed)
            for c in range(4):
                model = LinearSVC(C=cost, class_weight={1: 2, -1: 1}, max_iter=50000, tol=1e-8)
                model.fit(unit(train.x[draw.rows]), np.where(draw.labels.values == c, 1, -1))
                decision = model.decision_function(unit(test.x))
                found.append(ranking.single_class(ranking.voc_all_points, test.target.values == c, decision))
        means[f"{cost:g}"] = np.mean(found)
    assert outcome.headline == "mAP" and outcome.metrics["mAP"][0] == pytest.approx(max(means.values()), abs=2e-3)
    assert outcome.selected["mean on test"]["k=5"] == pytest.approx(means, abs=2e-3)
    assert outcome.variants["k=5"]["mAP"] == pytest.approx(outcome.metrics["mAP"][0])
    with pytest.raises(UsageError, match="metric=top1 needs one label per sample"):
        run(*blobs(multi=True), metric="top1")


def test_multi_label_svms_see_their_own_positives_and_negatives_only(blobs):
    train, test = blobs(multi=True)
    outcome = run(train, test, k=(5,), costs=(1.0,), draws=1)
    labels = drawn(train, 5, 0)
    for c, name in enumerate(train.target.classes):
        own = labels.labels.values[:, c]
        rows = labels.rows[own >= 0]
        assert (own == 1).sum() == 5 and (own == 0).sum() == 15
        model = LinearSVC(C=1.0, class_weight={1: 2, -1: 1}, max_iter=50000, tol=1e-8)
        model.fit(unit(train.x[rows]), np.where(own[own >= 0] > 0, 1, -1))
        np.testing.assert_allclose(outcome.scores[:, c], model.decision_function(unit(test.x)), atol=2e-3)
        known = test.target.values[:, c] >= 0
        expected = ranking.single_class(
            ranking.voc_all_points, test.target.values[known, c], outcome.scores[known, c].astype(np.float64)
        )
        assert outcome.per_class[name] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_logistic_regression_is_that_of_scikit_learn(n_classes, blobs):
    train, test = blobs(n_classes=n_classes)
    outcome = run(train, test, k=(8,), c=(0.1,), draws=1, classifier="logistic")
    draw = drawn(train, 8, 0)
    scaler = StandardScaler().fit(train.x[draw.rows].astype(np.float64))
    model = LogisticRegression(C=0.1, solver="newton-cholesky", tol=1e-7)
    model.fit(scaler.transform(train.x[draw.rows]), draw.labels.values)
    expected = model.decision_function(scaler.transform(test.x))
    ours = outcome.scores[:, 1] - outcome.scores[:, 0] if n_classes == 2 else outcome.scores
    np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_logistic_regression_with_several_labels_leaves_out_what_was_not_drawn(blobs):
    train, test = blobs(multi=True)
    outcome = run(train, test, k=(6,), c=(0.5,), draws=1, classifier="logistic")
    draw = drawn(train, 6, 0)
    scaler = StandardScaler().fit(train.x[draw.rows].astype(np.float64))
    for c in range(4):
        known = draw.labels.values[:, c] >= 0
        model = LogisticRegression(C=0.5, solver="newton-cholesky", tol=1e-7)
        model.fit(scaler.transform(train.x[draw.rows[known]]), draw.labels.values[known, c])
        np.testing.assert_allclose(outcome.scores[:, c], model.decision_function(scaler.transform(test.x)), atol=1e-4)


def held_out_by_svms(x, y, cost):
    decision = np.zeros((len(y), y.max() + 1))
    for fit, held in StratifiedKFold(3).split(x, y):
        for c in range(y.max() + 1):
            model = LinearSVC(C=cost, class_weight={1: 2, -1: 1}, max_iter=50000, tol=1e-8)
            decision[held, c] = model.fit(x[fit], np.where(y[fit] == c, 1, -1)).decision_function(x[held])
    return decision.argmax(axis=1)


@pytest.mark.parametrize("classifier", ["svm", "logistic"])
def test_the_strength_is_chosen_by_cross_validation_inside_each_draw(classifier, blobs):
    train, test = blobs(spread=2.5)
    strengths = (0.001, 0.1, 10.0)
    outcome = run(train, test, k=(9,), costs=strengths, c=strengths, classifier=classifier)
    chosen = outcome.selected["cost" if classifier == "svm" else "c"]["k=9"]
    assert outcome.selected["on"].startswith("cross-validation")
    for seed, ours in enumerate(chosen):
        draw = drawn(train, 9, seed)
        x, y, accuracy = train.x[draw.rows].astype(np.float64), draw.labels.values, []
        for strength in strengths:
            if classifier == "svm":
                predicted = held_out_by_svms(unit(x), y, strength)
            else:
                model = LogisticRegression(C=strength, tol=1e-8, max_iter=10000)
                predicted = cross_val_predict(model, StandardScaler().fit_transform(x), y, cv=StratifiedKFold(3))
            accuracy.append(np.mean(predicted == y))
        assert ours == strengths[int(np.argmax(accuracy))]
    assert outcome.variants["k=9"]["train"] > 0.5


def test_with_one_sample_per_class_a_fixed_strength_is_used(blobs):
    for multi in (False, True):
        train, test = blobs(multi=multi)
        cost = run(train, test, k=(1,), fixed_cost=3.0).selected["cost"]["k=1"]
        assert cost == [3.0] * 3
        n = [len(drawn(train, 1, seed).rows) for seed in range(3)]
        c = run(train, test, k=(1,), classifier="logistic", fixed_lambda=0.5).selected["c"]["k=1"]
        assert c == [2.0 * each for each in n]


@pytest.mark.parametrize("multi", [False, True])
@pytest.mark.parametrize("classifier", ["svm", "logistic"])
def test_selection_on_test_takes_the_best_mean_and_says_so(classifier, multi, blobs):
    train, test = blobs(spread=2.5, multi=multi)
    strengths = (0.001, 0.1, 100.0)
    outcome = run(train, test, costs=strengths, c=strengths, classifier=classifier, select="test", draws=2)
    assert outcome.selected["on"].startswith("test")
    for k in (2, 6):
        singles = [
            run(train, test, k=(k,), costs=(s,), c=(s,), classifier=classifier, draws=2).metrics[outcome.headline][0]
            for s in strengths
        ]
        best = strengths[int(np.argmax(singles))]
        assert outcome.selected["cost" if classifier == "svm" else "c"][f"k={k}"] == [best] * 2
        assert outcome.variants[f"k={k}"][outcome.headline] == pytest.approx(max(singles))
        assert list(outcome.selected["mean on test"][f"k={k}"].values()) == pytest.approx(singles)
    assert "on" not in run(train, test, costs=(1.0,), c=(1.0,), classifier=classifier, select="test").selected


def test_draws_are_recorded_repeatable_and_differ(blobs):
    train, test = blobs()
    first, again, other = (run(train, test, seed=seed, **UNCHOSEN) for seed in (0, 0, 1))
    assert first.selected["draws"] == again.selected["draws"]
    assert set(first.selected["draws"]["seeds"]).isdisjoint(other.selected["draws"]["seeds"])
    samples = first.selected["draws"]["samples_sha256"]
    assert list(samples) == ["k=2", "k=6"] and all(len(set(digests)) == 3 for digests in samples.values())
    assert set(samples["k=6"]).isdisjoint(other.selected["draws"]["samples_sha256"]["k=6"])
    assert samples["k=2"][0] == drawn(train, 2, 0).digest(train.ids)
    assert run(train, test, k=(6,), **UNCHOSEN).selected["draws"]["samples_sha256"]["k=6"] == samples["k=6"]


def test_every_k_has_mean_spread_and_interval_and_the_largest_leads(blobs):
    train, test = blobs()
    outcome = run(train, test, draws=4, **UNCHOSEN)
    assert list(outcome.variants) == ["k=2", "k=6"]
    for k in (2, 6):
        single = [run(train, test, k=(k,), draws=1, seed=seed, **UNCHOSEN) for seed in range(4)]
        values = [one.metrics["top1"][0] for one in single]
        low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
        expected = {
            "top1": np.mean(values), "top1_min": min(values), "top1_max": max(values), "top1_low": max(low, 0),
            "top1_high": min(high, 1), "top1_std": np.std(values, ddof=1), "train": np.mean([o.train for o in single]),
        }  # fmt: skip
        assert outcome.variants[f"k={k}"] == pytest.approx(expected)
    value, low, high = outcome.metrics["top1"]
    assert value == pytest.approx(np.mean(values))
    assert low < outcome.variants["k=6"]["top1_low"] and high > outcome.variants["k=6"]["top1_high"]
    np.testing.assert_array_equal(outcome.scores, single[0].scores)
    assert outcome.per_class["class1"] == pytest.approx(np.mean([one.per_class["class1"] for one in single]))


def test_the_interval_over_draws_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [statistics(list(0.5 + 0.02 * rng.normal(size=5))) for _ in range(2000)]
    covered = np.mean([one["low"] <= 0.5 <= one["high"] for one in found])
    assert abs(covered - 0.95) < 0.015
    values = [(0.5, 0.41, 0.58), (0.7, 0.6, 0.8), (0.6, 0.49, 0.69)]
    half = stats.t.ppf(0.975, 2) * 0.1 / np.sqrt(3)
    assert over_trainings(values) == pytest.approx((0.6, 0.6 - np.hypot(0.1, half), 0.6 + np.hypot(0.09, half)))
    assert over_trainings([(0.5, 0.41, 0.58)]) == pytest.approx((0.5, 0.41, 0.58))
    assert over_trainings([(0.9, 0.5, 0.99), (0.1, 0.0, 0.5)])[1:] == (0.0, 1.0)
    assert np.isnan(student_half_width([0.5])) and statistics([0.5])["mean"] == 0.5


def test_intervals_over_draws_are_clipped_to_the_bounds_of_the_metric():
    errors = [(30.0, 25.0, 36.0), (34.0, 29.0, 41.0)]
    half = student_half_width([30.0, 34.0])
    assert over_trainings(errors, LOSS) == pytest.approx(
        (32.0, max(32.0 - np.hypot(5, half), 0), 32.0 + np.hypot(6.5, half))
    )
    mean, low, high = over_trainings([(-1.4, -2.0, -0.9), (-1.6, -2.2, -1.1)], ANY)
    assert low < mean < high < 0
    found = statistics([-1.4, -1.6], ANY)
    assert found["low"] < found["mean"] < found["high"]


def test_shares_of_train_keep_every_class_and_stand_beside_k(blobs):
    train, test = blobs()
    outcome = run(train, test, fractions=(0.1, 0.5), **UNCHOSEN)
    assert list(outcome.variants) == ["10 %", "50 %", "k=2", "k=6"]
    order = few_shot.ByName(train.ids, 0)
    draw = few_shot.share(train.target, 0.1, 0, order, stratified=True)
    np.testing.assert_array_equal(np.bincount(draw.labels.values), [3, 3, 3, 3])
    only = run(train, test, k=(), fractions=(0.1, 0.5), **UNCHOSEN)
    assert only.metrics["top1"][0] == pytest.approx(outcome.variants["50 %"]["top1"])
    assert "50 % of train" in only.notes[0] and "6 images per class" in outcome.notes[0]
    alike = few_shot.share(train.target, 0.1, 0, order, stratified=False)
    assert len(alike.rows) == 12 and len(np.unique(alike.rows)) == 12
    multi, test = blobs(multi=True)
    assert run(multi, test, k=(), fractions=(0.2,)).metrics["mAP"][0] > 0.3


def test_a_share_with_one_class_learns_nothing_and_says_so(blobs):
    train, test = blobs()
    outcome = run(train, test, k=(), fractions=(0.001,), draws=1)
    assert "one class only" in outcome.notes[1] and outcome.metrics["top1"][0] == 0  # all classes are tied


def test_classes_that_train_lacks_are_left_out_and_said(make, blobs):
    train, test = blobs()
    kept = train.select(np.flatnonzero(train.target.values != 2))
    for classifier in ("svm", "logistic"):
        outcome = run(kept, test, classifier=classifier, **UNCHOSEN)
        assert "class2" in outcome.notes[1] and (outcome.scores.argmax(axis=1) != 2).all()


def test_what_cannot_be_drawn_is_refused_before_any_work(blobs, make):
    train, _ = blobs()
    check = low_shot.check
    with pytest.raises(
        UsageError, match=r"train has too few samples for k=31: 30 of class 'class0'\nThe largest possible k is"
    ):
        check(low_shot.Settings(k=(1, 31)), train.target)
    few = make(np.zeros((12, 2)), np.r_[np.zeros(9), np.ones(3)], 2)
    outcome = run(*[make(np.eye(12), few.target.values, 2)] * 2, k=(1, 2, 4, 8, 16))
    assert list(outcome.variants) == ["k=1", "k=2"] and "3 of class 'class1'): 4, 8, 16" in outcome.notes[1]
    multi, _ = blobs(multi=True)
    with pytest.raises(UsageError, match="k need k with and 3 k without"):
        check(low_shot.Settings(k=(50,)), multi.target)
    nothing = Unlabelled(5)
    with pytest.raises(DataError, match="have no labels"):
        check(low_shot.Settings(), nothing)
    for labels in (shifted_pairs().target, warped_pairs().target):
        with pytest.raises(DataError, match="low-shot draws samples of classes, and the train samples have pairs of"):
            few_shot.check_labels("low-shot", labels)
    with pytest.raises(DataError, match="at least two classes"):
        check(low_shot.Settings(), make(np.zeros((5, 1)), np.zeros(5), 3).target)
    with pytest.raises(UsageError, match="fractions should be above 0 to 1"):
        check(low_shot.Settings(fractions=(10.0,)), train.target)
    for bad in ({"k": ()}, {"k": (0,)}, {"k": (2, 2)}, {"draws": 0}, {"folds": 1}, {"costs": ()}, {"c": (-1.0,)},
                {"fixed_cost": 0.0}):  # fmt: skip
        with pytest.raises(UsageError):
            check(low_shot.Settings(**bad), train.target)


def test_multi_label_costs_are_chosen_per_class_by_average_precision(blobs):
    train, test = blobs(multi=True, spread=2.5)
    strengths = (0.01, 1.0, 100.0)
    chosen = run(train, test, k=(6,), costs=strengths, draws=1).selected["cost"]["k=6"][0]
    draw = drawn(train, 6, 0)
    for c, name in enumerate(train.target.classes):
        known = draw.labels.values[:, c] >= 0
        x, y = unit(train.x[draw.rows[known]]), np.where(draw.labels.values[known, c] > 0, 1, -1)
        scores = []
        for cost in strengths:
            model = LinearSVC(C=cost, class_weight={1: 2, -1: 1}, max_iter=50000, tol=1e-8)
            decided = [
                (y[held], model.fit(x[fit], y[fit]).decision_function(x[held]))
                for fit, held in StratifiedKFold(3).split(x, y)
            ]
            scores.append(np.mean([average_precision_score(a, b) for a, b in decided]))
        assert chosen[name] == strengths[int(np.argmax(scores))]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 5), st.integers(1, 4))
def test_draws_have_k_of_each_class_and_smaller_ones_lie_in_larger_ones(seed, classes, k):
    rng = np.random.default_rng(seed)
    y = np.r_[np.repeat(np.arange(classes), 5), rng.integers(0, classes, 10)]
    labels = features(np.zeros((len(y), 1)), rng.permutation(y), classes + 1).target
    order = few_shot.ByName([f"{i}.png" for i in range(len(y))], seed)
    large, small = few_shot.k_per_class(labels, k + 1, order), few_shot.k_per_class(labels, k, order)
    assert (np.diff(large.rows) > 0).all() and set(small.rows) < set(large.rows)
    np.testing.assert_array_equal(np.bincount(large.labels.values), [k + 1] * classes)
    np.testing.assert_array_equal(labels.values[large.rows], large.labels.values)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 4), st.integers(1, 3))
def test_multi_label_draws_have_k_with_and_the_rest_without_and_never_the_ignored(seed, classes, k):
    rng = np.random.default_rng(seed)
    values = rng.choice([-1, 0, 1], size=(120, classes), p=[0.1, 0.5, 0.4])
    labels = features(np.zeros((120, 1)), values, classes).target
    order = few_shot.ByName([f"{i}.png" for i in range(120)], seed)
    draw, smaller = few_shot.k_with_and_without(labels, k + 1, order), few_shot.k_with_and_without(labels, k, order)
    assert ((draw.labels.values > 0).sum(axis=0) == k + 1).all()
    assert ((draw.labels.values == 0).sum(axis=0) == (classes - 1) * (k + 1)).all()
    assert (draw.labels.values >= 0).any(axis=1).all()
    taken = draw.labels.values >= 0
    np.testing.assert_array_equal(draw.labels.values[taken], values[draw.rows][taken])
    assert set(smaller.rows) <= set(draw.rows)


def test_draws_depend_on_file_names_alone_and_on_the_seed():
    """Class folders may be renamed and listed in another order."""
    ids = [f"{folder}/{name}.png" for folder in ("cat", "dog") for name in ("a", "b", "c", "d", "e", "f")]
    other = [f"{folder}/{name}.png" for folder in ("apple", "wolf") for name in ("a", "b", "c", "d", "e", "f")]
    labels = features(np.zeros((12, 1)), np.repeat([0, 1], 6), 2).target
    renamed = features(np.zeros((12, 1)), np.repeat([1, 0], 6), 2).target
    drawn = [few_shot.k_per_class(labels, 2, few_shot.ByName(ids, seed)).rows.tolist() for seed in range(20)]
    again = [few_shot.k_per_class(renamed, 2, few_shot.ByName(other, seed)).rows.tolist() for seed in range(20)]
    assert drawn == again and len(set(map(tuple, drawn))) > 5  # of 15: classes with equal names have equal draws
    listed = np.random.default_rng(0).permutation(12)
    moved = labels.select(listed)
    rows = few_shot.k_per_class(moved, 2, few_shot.ByName([ids[i] for i in listed], 0)).rows
    assert sorted(ids[listed[row]] for row in rows) == sorted(ids[row] for row in drawn[0])


def test_every_image_of_a_class_is_drawn_alike():
    labels = features(np.zeros((30, 1)), np.arange(30) % 2, 2).target
    drawn = [few_shot.k_per_class(labels, 3, few_shot.ByName(list(map(str, range(30))), seed)) for seed in range(500)]
    times = np.bincount(np.concatenate([draw.rows for draw in drawn]), minlength=30)
    assert times.sum() == 3000 and times.min() > 65 and times.max() < 135  # 100 each, +- 4 standard deviations
