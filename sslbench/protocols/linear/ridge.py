"""Ridge regression of numbers, in closed form for every strength: the linear probe of labels of kind 'value'.

The objective is scikit-learn's Ridge: the sum of squared errors plus alpha times the squared length of the weights, the
intercept free. On the principal axes of the (centred) features it falls apart into one division per axis.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sslbench.data.source import Labels
from sslbench.features.array import Features
from sslbench.metrics.summary import headline, summarise
from sslbench.protocols._parts.selection import holdout_rows, is_better, no_holdout, percent
from sslbench.results import Outcome
from sslbench.solvers.logistic import Axes, principal_axes

if TYPE_CHECKING:
    from sslbench.protocols.linear.settings import Settings

FloatArray = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.floating]

_ROWS = 8192  # converted to double precision at a time


@dataclasses.dataclass(frozen=True)
class Ridge:
    """Ridge regression of C numbers, for every alpha at once.

    Attributes:
        axes: of the features.
        cross: (R, C) products of the axes with the centred values, summed over the samples.
        mean: (C,) of the values.
        n: samples.
    """

    axes: Axes
    cross: FloatArray
    mean: FloatArray
    n: int

    def weights(self, alpha: float) -> FloatArray:
        """Return (R, C) weights on the axes."""
        return self.cross / (self.n * self.axes.variance + alpha)[:, None]

    def predict(self, coordinates: Matrix, alpha: float) -> FloatArray:
        """Return (N, C) values for coordinates on the axes, as `axes.project` gives them."""
        weights, out = self.weights(alpha), np.empty((len(coordinates), len(self.mean)))
        for start in range(0, len(out), _ROWS):
            out[start : start + _ROWS] = coordinates[start : start + _ROWS].astype(np.float64) @ weights
        return out + self.mean


def fit(x: Matrix, values: FloatArray, *, standardise: bool) -> Ridge:
    """Fit.

    Args:
        x: (N, D).
        values: (N, C).
        standardise: divide every feature by its deviation.
    """
    axes = principal_axes(x, standardise=standardise)
    mean = values.mean(axis=0)
    cross = np.zeros((len(axes.variance), values.shape[1]))
    for start in range(0, len(x), _ROWS):
        block = slice(start, start + _ROWS)
        cross += axes.project(x[block]).astype(np.float64).T @ (values[block] - mean)
    return Ridge(axes, cross, mean, len(x))


def regress(train: Features, test: Features, settings: "Settings", *, seed: int) -> Outcome:
    """Fit on train with the alpha that is best on a held-out part of it, score on test; see `linear.run`."""
    standardise = settings.scale == "standard"
    model = fit(train.x, train.labels.values, standardise=standardise)
    on_train, on_test = model.axes.project(train.x), model.axes.project(test.x)
    alpha, selected, notes = _choose(train, test, model, on_test, settings, seed)
    scores = model.predict(on_test, alpha)
    metrics, name, per_number = summarise(
        "value", test.labels.classes, test.labels.values, scores, seed=seed, groups=test.groups
    )
    return Outcome(
        metrics=metrics,
        headline=name,
        scores=scores.astype(np.float32),
        per_class=per_number,
        train=headline("value", train.labels.values, model.predict(on_train, alpha)),
        selected={"alpha": alpha} | selected,
        notes=notes,
        absolute=frozenset({"mae", "rmse"}),
    )


def _choose(
    train: Features, test: Features, model: Ridge, on_test: Matrix, settings: "Settings", seed: int
) -> tuple[float, dict[str, Any], tuple[str, ...]]:
    """The alpha with the highest R2, of equals the largest; what the result says about it, and notes."""
    grid = sorted(settings.alpha, reverse=True)
    if len(grid) == 1:
        return grid[0], {}, ()
    if settings.select_on == "test":
        on, labels, tried, held = "test", test.labels, model, on_test
    else:
        parts = holdout_rows(train.labels, settings.holdout, seed, train.groups)
        if parts is None:
            middle = grid[len(grid) // 2]
            note = f"{no_holdout(train.groups)} to choose alpha on; {middle:g} was used."
            return middle, {}, (note,)
        on, labels = f"held-out {percent(settings.holdout)} of train", train.labels.select(parts[1])
        tried = fit(train.x[parts[0]], train.labels.values[parts[0]], standardise=settings.scale == "standard")
        held = tried.axes.project(train.x[parts[1]])
    scores = [_score(tried, held, alpha, labels) for alpha in grid]
    best = 0
    for i, score in enumerate(scores):
        best = i if is_better(score, scores[best]) else best
    notes: tuple[str, ...] = ()
    if best in (0, len(grid) - 1):
        end = "largest" if best == 0 else "smallest"
        notes = (f"The chosen alpha={grid[best]:g} is the {end} of those tried; the best may lie beyond.",)
    return grid[best], {"on": on, "score": scores[best], "seed": seed}, notes


def _score(model: Ridge, coordinates: Matrix, alpha: float, labels: Labels) -> float:
    return headline("value", labels.values, model.predict(coordinates, alpha))
