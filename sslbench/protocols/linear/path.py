"""Choice of a linear probe's regularisation: a path of fits, each scored on held-out samples."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.protocols._parts.selection import is_better
from sslbench.solvers.logistic import Fit, Problem, extrapolate, fit

TOLERANCE = 1e-4  # relative tolerance of the objective for fits that are only compared
_AHEAD = 2.0  # largest extrapolation of the next starting point, in multiples of the last step


@dataclasses.dataclass(frozen=True)
class Point:
    """One strength, its fit, and its leading metric and mean loss on held-out samples."""

    c: float
    fit: Fit
    score: float
    loss: float


def search(
    problem: Problem,
    variance: FloatArray,
    grid: Sequence[float],
    judge: Callable[[Fit], tuple[float, float]],
    *,
    patience: int,
    refine: int,
    max_iter: int,
    tolerance: float,
) -> tuple[Point, list[Point]]:
    """Return the strength with the best score, of equals the smallest; and all that were tried, by strength.

    The path runs from strong to weak regularisation. Each fit begins where the two before it point to, which saves most
    of the steps.

    Args:
        problem: problem to fit.
        variance: (R,) of its coordinates.
        grid: strengths (scikit-learn's C), ascending.
        judge: score and loss of a fit on other samples.
        patience: values in a row with a worse loss and no better score, after which the path ends; 0: it never does.
        refine: number of times that the spacing is halved afterwards, to try the two neighbours of the best.
        max_iter: of a fit.
        tolerance: of the final fit; those compared here need not be as exact.
    """
    tried: list[Point] = []

    def attempt(c: float, start: Fit | None) -> None:
        found = fit(problem, variance, c, start=start, max_iter=max_iter, tolerance=max(tolerance, TOLERANCE))
        tried.append(Point(c, found, *judge(found)))

    for c in grid:
        attempt(c, _start(tried, c))
        if patience and _getting_worse(tried, patience):
            break
    step = _spacing(grid)
    for _ in range(refine if len(grid) > 1 else 0):
        step /= 2
        best = _best(tried)
        for sign in (-1, 1):
            attempt(best.c * math.exp(sign * step), best.fit)
    tried.sort(key=lambda point: point.c)
    return _best(tried), tried


def _start(tried: Sequence[Point], c: float) -> Fit | None:
    if len(tried) < 2:
        return tried[-1].fit if tried else None
    before, last = tried[-2:]
    steps = math.log(c / last.c) / math.log(last.c / before.c)
    return extrapolate(before.fit, last.fit, min(steps, _AHEAD))


def _spacing(grid: Sequence[float]) -> float:
    """Return the median distance of neighbours, as the logarithm of their ratio."""
    return float(np.median([math.log(b / a) for a, b in itertools.pairwise(grid)])) if len(grid) > 1 else 0.0


def _best(tried: Sequence[Point]) -> Point:
    best = None
    for point in sorted(tried, key=lambda point: point.c):
        if best is None or is_better(point.score, best.score):
            best = point
    if best is None:
        raise ValueError("no value of the regularisation was tried")
    return best


def _getting_worse(tried: Sequence[Point], patience: int) -> bool:
    if len(tried) <= patience:
        return False
    earlier, late = tried[:-patience], tried[-patience:]
    rising = all(b.loss > a.loss for a, b in itertools.pairwise(tried[-patience - 1 :]))
    return rising and max(point.score for point in late) <= max(point.score for point in earlier)
