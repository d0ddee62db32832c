"""Linear probe of labels of kind 'value': ridge regression, its strength chosen on a held-out part of train."""

from typing import Any

import numpy as np

from sslbench.arrays import RowSubset
from sslbench.features.array import Features
from sslbench.metrics.summary import summarise
from sslbench.protocols._parts.selection import holdout_rows, is_better, no_holdout, percent
from sslbench.protocols.linear.settings import Settings
from sslbench.results import Outcome
from sslbench.solvers.ridge import RidgeRegression, fit_regression
from sslbench.targets.numbers import Numbers


def regress(train: Features, test: Features, settings: Settings, *, seed: int) -> Outcome:
    """Fit on train with the alpha that is best on a held-out part of it, score on test; see `linear.run`."""
    standardise = settings.scale == "standard"
    model = fit_regression(train.x, train.target.values, standardise=standardise)
    alpha, selected, notes = _choose(train, test, model, settings, seed)
    scores = model.predict(test.x, alpha)
    metrics, name, per_number = summarise(
        Numbers, test.target.classes, test.target.values, scores, seed=seed, groups=test.groups
    )
    return Outcome(
        metrics=metrics,
        headline=name,
        scores=scores.astype(np.float32),
        per_class=per_number,
        train=Numbers.headline(train.target.values, model.predict(train.x, alpha)),
        selected={"alpha": alpha} | selected,
        notes=notes,
    )


def _choose(
    train: Features, test: Features, model: RidgeRegression, settings: Settings, seed: int
) -> tuple[float, dict[str, Any], tuple[str, ...]]:
    """Return the alpha with the highest R2, of equals the largest; the record of the choice, and notes."""
    grid = sorted(settings.alpha, reverse=True)
    if len(grid) == 1:
        return grid[0], {}, ()
    if settings.select_on == "test":
        on, labels = "test", test.target
        predicted = model.predict_each(test.x, grid)
    else:
        parts = holdout_rows(train.target, settings.holdout, seed, train.groups, train.rank)
        if parts is None:
            middle = grid[len(grid) // 2]
            note = f"{no_holdout(train.groups)} to select alpha on; {middle:g} was used."
            return middle, {}, (note,)
        on, labels = f"held-out {percent(settings.holdout)} of train", train.target.select(parts[1])
        fitted, held_out = (RowSubset(train.x, rows) for rows in parts)
        tried = fit_regression(fitted, train.target.values[parts[0]], standardise=settings.scale == "standard")
        predicted = tried.predict_each(held_out, grid)
    scores = [Numbers.headline(labels.values, values) for values in predicted]
    best = 0
    for i, score in enumerate(scores):
        best = i if is_better(score, scores[best]) else best
    notes: tuple[str, ...] = ()
    if best in (0, len(grid) - 1):
        end = "largest" if best == 0 else "smallest"
        notes = (f"The selected alpha={grid[best]:g} is the {end} value tried; the best may lie beyond.",)
    return grid[best], {"on": on, "score": scores[best], "seed": seed}, notes
