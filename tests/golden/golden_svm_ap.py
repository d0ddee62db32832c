"""Average precision and the VOC07 SVM, as VISSL computes them."""

import dataclasses

import numpy as np
import pytest
from golden_cases import Case, option
from golden_losses import not_offered

from sslbench.features.array import Features
from sslbench.metrics import ranking
from sslbench.protocols import svm
from sslbench.protocols.svm import make_solver
from sslbench.targets.multilabel import MultiLabel


def average_precision(case: Case) -> None:
    """VISSL takes tied samples in an arbitrary order, and leaves out samples of a weight other than 1."""
    given, wanted = case.inputs(), case.expected()
    targets, scores = given["targets"].ravel(), given["scores"].ravel()
    weights = (given["weights"].ravel() == 1).astype(float) if "weights" in given else None
    value = ranking.single_class(ranking.voc_all_points, targets, scores, weights)
    recorded = float(wanted["ap"].ravel()[0])
    kept = slice(None) if weights is None else weights == 1
    if not (targets[kept] > 0).any():
        assert np.isnan(value) and (np.isnan(recorded) or recorded == 0)  # 0 where no sample is left
        return
    worst, best = _bounds(targets[kept] > 0, scores[kept])
    for name, bound in (("ap_ties_worst", worst), ("ap_ties_best", best)):
        if name in wanted:
            assert float(wanted[name]) == pytest.approx(bound, rel=1e-9)
    assert worst - 1e-9 <= value <= best + 1e-9
    assert worst - 1e-9 <= recorded <= best + 1e-9
    if len(np.unique(scores[kept])) == len(scores[kept]):
        assert value == pytest.approx(recorded, rel=1e-9)


def _bounds(positive: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
    """Return the lowest and highest interpolated average precision of any order of tied samples, by a plain loop."""
    values = []
    for first in (positive, ~positive):
        ranked = positive[np.lexsort((first, -scores))]
        precisions = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
        values.append(float(np.mean([precisions[i:].max() for i in np.flatnonzero(ranked)])))
    return values[0], values[1]


def mean_average_precision(case: Case) -> None:
    given, wanted = case.inputs(), case.expected()
    targets, scores = given["targets"], given["scores"]
    values = ranking.per_class(ranking.voc_all_points, targets, scores)
    recorded = np.where(wanted["AP"] == -1, np.nan, wanted["AP"])
    kept = [column >= 0 for column in targets.T]
    tied = [len(np.unique(column[rows])) < rows.sum() for column, rows in zip(scores.T, kept, strict=True)]
    np.testing.assert_array_equal(np.isnan(values), np.isnan(recorded))
    for c in np.flatnonzero(np.isfinite(recorded)):
        if tied[c]:
            # The reference takes tied samples in an arbitrary order; ours is the lowest value of any order.
            worst, best = _bounds(targets[kept[c], c] > 0, scores[kept[c], c])
            assert worst - 1e-6 <= recorded[c] <= best + 1e-6 and values[c] <= recorded[c] + 1e-6
        else:
            assert values[c] == pytest.approx(float(recorded[c]), abs=1e-6)
    mean = ranking.mean_average_precision(targets, scores)
    assert mean == pytest.approx(float(np.nanmean(values)) if not np.isnan(values).all() else np.nan, nan_ok=True)
    if not any(tied):
        assert mean == pytest.approx(float(wanted["mAP"]), abs=1e-6, nan_ok=True)


def linear_svm(case: Case) -> None:
    """Compare models, the choice of their costs, and the scores on test.

    Ours are the optimum. Where liblinear stopped before (large costs, few iterations), its models are as far away as
    its objective allows, and the choice and the scores are those of other models.
    """
    given, wanted, args = case.inputs(), case.expected(), case.args
    for name, value in (("loss", "squared_hinge"), ("penalty", "l2")):
        if option(args, name, default=value) != value:
            not_offered(f"an SVM with {name}={args[name]}")
    weights = option(args, "class_weight", default={"1": 2, "-1": 1})
    settings = svm.Settings(
        costs=_costs(args, wanted["crossval_ap"].shape[1]),
        normalise=option(args, "normalize", default=True),
        folds=option(args, "cross_val_folds", default=3),
        positive_weight=float(weights["1"] / weights["-1"]),
        intercept_scaling=option(args, "intercept_scaling", default=1.0),
    )
    train, test = (_features(given[f"{part}_x"], given[f"{part}_y"]) for part in ("train", "test"))
    outcome = svm.run(train, test, settings, seed=0)
    assert outcome.converged
    classes = range(given["train_y"].shape[1])
    distances = _distances(given, wanted, settings)
    scores_ap = wanted["test_ap"].reshape(len(classes), -1)[:, 0]
    chosen = list(outcome.selected.get("cost", dict.fromkeys(train.target.classes, settings.costs[0])).values())
    lengths = np.linalg.norm(np.c_[_normalised(given["test_x"], settings), np.ones(len(test.x))], axis=1)
    compared = []
    for c in classes:
        recorded = wanted["decision"][c, settings.costs.index(chosen[c])]
        far = distances[c, settings.costs.index(chosen[c])]
        assert (np.abs(outcome.scores[:, c] - recorded) <= far * lengths + 1e-4 * np.abs(recorded).max()).all()
        theirs = wanted["decision"][c, settings.costs.index(float(wanted["chosen_cost"][c]))]
        known = given["test_y"][:, c] >= 0
        ours = ranking.single_class(ranking.voc_all_points, given["test_y"][known, c], theirs[known])
        assert ours == pytest.approx(float(scores_ap[c]), rel=1e-9, nan_ok=True)
        enough = np.bincount(given["train_y"][:, c] == 1, minlength=2).min() >= settings.folds
        if enough and distances[c].max() < 0.01 * np.linalg.norm(wanted["coef"][c], axis=1).max():
            row = wanted["crossval_ap"][c]
            assert row[settings.costs.index(chosen[c])] == pytest.approx(row.max(), abs=5e-3)
            assert chosen[c] == wanted["chosen_cost"][c] or np.sort(row)[-2] > row.max() - 5e-3
            if chosen[c] == wanted["chosen_cost"][c]:
                value = list(outcome.per_class.values())[c]
                assert value == pytest.approx(float(scores_ap[c]), abs=5e-3, nan_ok=True)
                compared.append(c)
    if len(compared) == len(classes):
        if len(settings.costs) > 1:
            assert outcome.selected["score"] == pytest.approx(wanted["crossval_ap"].max(axis=1).mean(), abs=5e-3)
        assert outcome.metrics["mAP"][0] == pytest.approx(np.nanmean(scores_ap), abs=5e-3)


def _costs(args: dict[str, object], number: int) -> tuple[float, ...]:
    """Return the costs; VISSL appends powers to the list, and to the recorded one too."""
    costs = list(option(args, "costs_list", default=[0.1, 0.01]))
    if len(costs) < number:
        costs += [option(args, "base", default=-1.0) ** k for k in range(*option(args, "power_range", default=(4, 20)))]
    assert len(costs) == number
    return tuple(map(float, costs))


def _normalised(x: np.ndarray, settings: svm.Settings) -> np.ndarray:
    return x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-5) if settings.normalise else x


def _distances(given: dict[str, np.ndarray], wanted: dict[str, np.ndarray], settings: svm.Settings) -> np.ndarray:
    """Return bounds of the distance of the recorded models from the optimum, (C, costs), and check ours by them.

    The objective is strongly convex: a model is within the square root of twice what it lacks to the optimum.
    """
    x = np.asarray(_normalised(given["train_x"], settings), dtype=np.float64)
    distances = np.zeros(wanted["coef"].shape[:2])
    for c, i in np.ndindex(distances.shape):
        sign = np.where(given["train_y"][:, c] > 0, 1, -1)
        one = dataclasses.replace(settings, costs=(settings.costs[i],))
        model = make_solver(x, one, 0)[0].fit(sign.astype(np.int8)[:, None], [settings.costs[i]])
        ours = np.r_[model.weight[0], model.bias[0] / settings.intercept_scaling]
        theirs = np.r_[wanted["coef"][c, i], wanted["intercept"][c, i] / settings.intercept_scaling]
        rows = np.c_[x, np.full(len(x), settings.intercept_scaling)]
        weights = settings.costs[i] * np.where(sign > 0, settings.positive_weight, 1.0)
        best, found = (0.5 * w @ w + weights @ np.square(np.maximum(0, 1 - sign * (rows @ w))) for w in (ours, theirs))
        assert best <= found * (1 + 1e-6)
        distances[c, i] = np.sqrt(2 * max(found - best, 0.0)) + 1e-3 * np.linalg.norm(ours)
        assert np.linalg.norm(ours - theirs) <= distances[c, i]
    return distances


def _features(x: np.ndarray, y: np.ndarray) -> Features:
    classes = tuple(f"class{c}" for c in range(y.shape[1]))
    return Features(x, MultiLabel(classes, y.astype(np.int8)), tuple(f"{i:05d}" for i in range(len(x))))


PATTERNS = {
    "04_svm_ap/ap_*": average_precision,
    "04_svm_ap/meter_*": mean_average_precision,
    "04_svm_ap/svm_*": linear_svm,
}
