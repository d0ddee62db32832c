"""Average precision and the VOC07 SVM, as VISSL computes them."""

import dataclasses

import numpy as np
import pytest
from golden_cases import Case

from sslbench.data.source import Labels
from sslbench.features.array import Features
from sslbench.metrics import ranking
from sslbench.protocols import svm
from sslbench.protocols.svm.choice import make_solver


def average_precision(case: Case) -> None:
    given, wanted = case.inputs(), case.expected()
    value = ranking.single_class(ranking.voc_all_points, given["targets"], given["scores"], given.get("weights"))
    if np.isnan(wanted["ap"][0]):
        assert np.isnan(value)
        return
    assert wanted["ap_ties_worst"] - 1e-9 <= value <= wanted["ap_ties_best"] + 1e-9
    if not case.meta["has_ties"]:
        assert value == pytest.approx(float(wanted["ap"][0]), rel=1e-9)


def mean_average_precision(case: Case) -> None:
    given, wanted = case.inputs(), case.expected()
    targets, scores = given["targets"], given["scores"]
    values = ranking.per_class(ranking.voc_all_points, targets, scores)
    recorded = np.where(wanted["AP"] == -1, np.nan, wanted["AP"])
    tied = [len(np.unique(column)) < len(column) for column in scores.T]
    np.testing.assert_array_equal(np.isnan(values), np.isnan(recorded))
    for value, reference, ties in zip(values, recorded, tied, strict=True):
        if ties:
            # The reference takes tied samples in an arbitrary order; ours is the lowest value of any order.
            assert value <= reference + 1e-6
        else:
            assert value == pytest.approx(float(reference), abs=1e-6, nan_ok=True)
    mean = ranking.mean_average_precision(targets, scores)
    assert mean == pytest.approx(float(np.nanmean(values)) if not np.isnan(values).all() else np.nan, nan_ok=True)
    if not any(tied):
        assert mean == pytest.approx(float(wanted["mAP"]), abs=1e-6, nan_ok=True)


def linear_svm(case: Case) -> None:
    given, wanted, args = case.inputs(), case.expected(), case.meta["args"]
    costs = tuple(args["costs"]["costs_list"])
    settings = svm.Settings(costs=costs, normalise=args["normalize"], folds=args["cross_val_folds"])
    train, test = (_features(given[f"{part}_x"], given[f"{part}_y"]) for part in ("train", "test"))
    outcome = svm.run(train, test, settings, seed=0)
    assert outcome.converged
    chosen = list(outcome.selected["cost"].values())
    np.testing.assert_array_equal(chosen, wanted["chosen_cost"])
    assert outcome.selected["score"] == pytest.approx(wanted["crossval_ap"].max(axis=1).mean(), abs=5e-3)
    np.testing.assert_allclose(list(outcome.per_class.values()), wanted["test_ap"][:, 0], atol=5e-3)
    assert outcome.metrics["mAP"][0] == pytest.approx(wanted["test_ap"].mean(), abs=5e-3)
    columns = [wanted["decision"][c, costs.index(cost)] for c, cost in enumerate(chosen)]
    np.testing.assert_allclose(outcome.scores, np.stack(columns, axis=1), atol=2e-2)
    _coefficients(given, wanted, settings)


def _coefficients(given: dict[str, np.ndarray], wanted: dict[str, np.ndarray], settings: svm.Settings) -> None:
    x = given["train_x"]
    if settings.normalise:
        x = x / (np.linalg.norm(x, axis=1, keepdims=True) + 1e-5)
    for c in range(given["train_y"].shape[1]):
        target = np.where(given["train_y"][:, c] > 0, 1, -1).astype(np.int8)
        for i, cost in enumerate(settings.costs):
            one = dataclasses.replace(settings, costs=(cost,))
            model = make_solver(np.asarray(x, dtype=np.float64), one, 0)[0].fit(target[:, None], [cost])
            recorded = wanted["coef"][c, i]
            np.testing.assert_allclose(model.weight[0], recorded, atol=1e-2 * np.abs(recorded).max())
            assert model.bias[0] == pytest.approx(float(wanted["intercept"][c, i]), rel=1e-2)


def _features(x: np.ndarray, y: np.ndarray) -> Features:
    classes = tuple(f"class{c}" for c in range(y.shape[1]))
    return Features(x, Labels("multi", classes, y.astype(np.int8)), tuple(f"{i:05d}" for i in range(len(x))))


PATTERNS = {
    "04_svm_ap/ap_*": average_precision,
    "04_svm_ap/meter_*": mean_average_precision,
    "04_svm_ap/svm_*": linear_svm,
}
