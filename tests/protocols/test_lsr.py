import numpy as np
import pytest
from sklearn.linear_model import Ridge

from sslbench.errors import DataError, UsageError
from sslbench.protocols import lsr
from sslbench.protocols._parts import few_shot


def draw_of(train, k, seed):
    return few_shot.k_per_class(train.target, k, few_shot.ByName(train.ids, seed))


def slow(train, test, rows, l2, n_classes):
    """The textbook way: standardise, append 100, ridge without intercept."""
    x = train.x[rows].astype(np.float64)
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
    given, asked = (np.c_[(part - mean) / std, np.full(len(part), 100.0)] for part in (x, test.x.astype(np.float64)))
    target = 2.0 * np.eye(n_classes)[train.target.values[rows]] - 1
    return asked @ Ridge(alpha=l2, fit_intercept=False, solver="cholesky").fit(given, target).coef_.T


@pytest.mark.parametrize(("k", "width"), [(1, 10), (9, 10), (2, 60)])
def test_scores_are_those_of_ridge_regression(k, width, blobs):
    train, test = blobs(width=width)
    outcome = lsr.run(train, test, lsr.Settings(k=(k,), draws=2, l2=(64.0,)), seed=4)
    expected = [slow(train, test, draw_of(train, k, seed).rows, 64.0, 4) for seed in (8, 9)]
    np.testing.assert_allclose(outcome.scores, expected[0], rtol=1e-5, atol=1e-6)
    right = [np.mean(scores.argmax(axis=1) == test.target.values) for scores in expected]
    assert outcome.metrics["top1"][0] == pytest.approx(np.mean(right))
    assert (outcome.variants[f"k={k}"]["top1_min"], outcome.variants[f"k={k}"]["top1_max"]) == pytest.approx(
        (min(right), max(right))
    )
    assert outcome.selected["draws"]["seeds"] == [8, 9] and "on" not in outcome.selected


def test_the_scale_and_the_offset_of_features_change_nothing(blobs, make):
    train, test = blobs()
    moved = [make(1000 * part.x + 50, part.target.values, 4) for part in (train, test)]
    plain, other = (lsr.run(*pair, lsr.Settings(k=(5,)), seed=0) for pair in ((train, test), moved))
    assert plain.metrics["top1"][0] == pytest.approx(other.metrics["top1"][0], abs=0.02)


def test_of_several_l2_one_is_chosen_inside_each_draw_or_on_test_and_marked(blobs):
    train, test = blobs(spread=2.5)
    strengths = (1.0, 100.0, 1e6)
    inside = lsr.run(train, test, lsr.Settings(k=(1, 8), l2=strengths), seed=0)
    assert inside.selected["on"].startswith("cross-validation")
    assert inside.selected["l2"]["k=1"] == [1024.0] * 3, "one sample per class leaves nothing to choose on"
    for seed, chosen in enumerate(inside.selected["l2"]["k=8"]):
        draw = draw_of(train, 8, seed)
        folds = few_shot.stratified_folds(draw.labels.values, 3, None)
        assert chosen == max(strengths, key=lambda l2: held_out_right(train, draw, folds, l2))
    on_test = lsr.run(train, test, lsr.Settings(k=(8,), l2=strengths, select="test"), seed=0)
    assert on_test.selected["on"].startswith("test")
    singles = [lsr.run(train, test, lsr.Settings(k=(8,), l2=(v,)), seed=0).metrics["top1"][0] for v in strengths]
    assert on_test.metrics["top1"][0] == max(singles)


def held_out_right(train, draw, folds, l2):
    total = 0
    for fold in range(3):
        rows, held = draw.rows[folds != fold], train.select(draw.rows[folds == fold])
        total += np.sum(slow(train, held, rows, l2, 4).argmax(axis=1) == held.target.values)
    return total


def test_a_class_that_train_lacks_is_never_predicted(blobs):
    train, test = blobs()
    kept = train.select(np.flatnonzero(train.target.values != 1))
    outcome = lsr.run(kept, test, lsr.Settings(k=(5,)), seed=0)
    assert (outcome.scores.argmax(axis=1) != 1).all() and outcome.per_class["class1"] == 0


def test_what_cannot_work_is_refused(blobs):
    train, _ = blobs()
    with pytest.raises(UsageError, match="train has too few samples for k=31: 30 of class 'class0'"):
        lsr.check(lsr.Settings(k=(31,)), train.target)
    with pytest.raises(DataError, match="samples have several"):
        lsr.check(lsr.Settings(), blobs(multi=True)[0].target)
    for bad in ({"k": ()}, {"k": (0,)}, {"draws": 0}, {"l2": ()}, {"l2": (0.0,)}, {"folds": 1}):
        with pytest.raises(UsageError):
            lsr.check(lsr.Settings(**bad), train.target)
