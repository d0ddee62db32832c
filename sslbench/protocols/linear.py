"""Linear probe: logistic regression on frozen features, to convergence, its regularisation chosen on a part of train.

The features are standardised, so their scale and offset do not matter, and the problem is convex, so there is no
learning rate, no seed and no number of epochs that decides the result. The regularisation is chosen as DINOv2's
`log_regression.py` and CLIP's linear probe (Radford et al. 2021, app. A.3) do, on a held-out part of train, and the
model is then fitted on all of train.
"""

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sslbench.config import setting
from sslbench.data.source import Labels
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.summary import headline, summarise
from sslbench.protocols._common import check_features, holdout_rows, is_better, percent
from sslbench.results import Outcome

if TYPE_CHECKING:
    from sslbench.protocols._logistic import Fit, Problem

VERSION = 1

_GRID = tuple(float(f"{10 ** (e / 2):.3g}") for e in range(-12, 5))
_PATIENCE = 4
_SEARCH_TOLERANCE = 1000  # times the tolerance of the final fit: the choice needs no more digits
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.floating]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the linear probe."""

    c: tuple[float, ...] = setting(
        _GRID, "inverse regularisation strengths to choose from (scikit-learn's C); one value is used as it is"
    )
    holdout: float = setting(0.2, "share of train that is held out to choose c on")
    max_iter: int = setting(1000, "largest number of L-BFGS steps for one c")
    tolerance: float = setting(1e-8, "largest entry of the gradient, in scaled coordinates, that counts as converged")


def check(settings: Settings, train: Labels) -> None:
    """Refuses settings that cannot work on these training labels, before any feature is computed.

    Raises:
        UsageError: settings that are not possible.
    """
    _check_settings(settings)


def run(train: Features, test: Features, settings: Settings, *, seed: int) -> Outcome:
    """Fit on train, score on test.

    Args:
        train: features and labels to fit on; a part is held out while c is chosen.
        test: features and labels that are scored.
        settings: see `Settings`.
        seed: of the held-out part and of the bootstrap.

    Raises:
        DataError: features that are not finite, no labels, or fewer than two classes in train.
        UsageError: settings that are not possible.
    """
    from sslbench.protocols._logistic import fit, principal_axes

    check_features(train, test)
    check(settings, train.labels)
    usable, notes = _usable_classes(train.labels)
    axes = principal_axes(train.x)
    x = axes.project(train.x)
    choice = _choose(x, train.labels, usable, axes.variance, settings, seed)
    problem = _problem(x, train.labels, usable)
    model = fit(
        problem,
        axes.variance,
        choice.c,
        start=choice.start,
        max_iter=settings.max_iter,
        tolerance=settings.tolerance,
    )
    scores = _scores(model, axes.project(test.x), usable, test.labels)
    train_scores = _scores(model, x, usable, train.labels)
    kind, classes = test.labels.kind, test.labels.classes
    metrics, name, per_class = summarise(kind, classes, test.labels.values, scores, seed=seed)
    notes += choice.notes
    if not model.converged:
        notes.append(f"The solver did not converge in {model.iterations} steps (gradient {model.gradient:.2g}).")
    return Outcome(
        metrics=metrics,
        headline=name,
        scores=scores.astype(np.float32),
        per_class=per_class,
        train=headline(kind, train.labels.values, train_scores),
        selected=choice.selected | {"c": choice.c, "gradient": model.gradient, "iterations": model.iterations},
        converged=model.converged,
        notes=tuple(notes),
    )


def _check_settings(settings: Settings) -> None:
    if not settings.c or not all(np.isfinite(c) and c > 0 for c in settings.c):
        raise UsageError(f"linear: c should be one or several numbers greater than 0, not {list(settings.c)}")
    if not 0 < settings.holdout < 1:
        raise UsageError(f"linear: holdout should lie between 0 and 1, not {settings.holdout}")
    if settings.max_iter < 1 or not settings.tolerance > 0:
        raise UsageError("linear: max_iter should be at least 1 and tolerance greater than 0")


def _usable_classes(labels: Labels) -> tuple[IntArray, list[str]]:
    """The classes that can be learned: present in train (single), or both present and absent in it (multi)."""
    values = labels.values
    if labels.kind == "single":
        usable = np.unique(values).astype(np.int64)
        if len(usable) < 2:
            raise DataError(f"all training samples are of one class, '{labels.classes[int(usable[0])]}'")
    else:
        usable = np.flatnonzero((values > 0).any(axis=0) & (values == 0).any(axis=0))
        if not len(usable):
            raise DataError("no class is both present and absent in train, so there is nothing to learn")
    left_out = [name for c, name in enumerate(labels.classes) if c not in usable]
    notes = [f"Classes that train gives no examples of were left out: {', '.join(left_out)}."] if left_out else []
    return usable, notes


def _problem(x: Matrix, labels: Labels, usable: IntArray) -> "Problem":
    from sslbench.protocols._logistic import Problem

    if labels.kind == "multi":
        return Problem(x, labels.values[:, usable].astype(np.int8), len(usable))
    if len(usable) == 2:
        return Problem(x, np.where(labels.values == usable[1], 1, 0).astype(np.int8)[:, None], 1)
    return Problem(x, np.searchsorted(usable, labels.values), len(usable))


def _scores(model: "Fit", x: Matrix, usable: IntArray, labels: Labels) -> FloatArray:
    """(N, C) decision values; a class that was left out scores below all others (single) or NaN (multi)."""
    decision = model.decide(x)
    if labels.kind == "single" and len(usable) == 2:
        decision = np.concatenate([-decision, decision], axis=1) / 2
    missing = np.nan if labels.kind == "multi" else decision.min() - 1
    scores = np.full((len(decision), len(labels.classes)), missing)
    scores[:, usable] = decision
    return scores


@dataclasses.dataclass(frozen=True)
class _Choice:
    """The chosen c, what the result says about the choice, and the model to begin the final fit from."""

    c: float
    selected: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    start: "Fit | None" = None


def _choose(
    x: Matrix, labels: Labels, usable: IntArray, variance: FloatArray, settings: Settings, seed: int
) -> _Choice:
    """The c with the best headline metric on a held-out part of train; of equals the smallest.

    The path runs from strong to weak regularisation, each fit begun from the one before, which saves most of the steps.
    It ends early when `_PATIENCE` values in a row brought a worse loss and no better metric on the held-out part.
    """
    from sslbench.protocols._logistic import fit

    grid = sorted(settings.c)
    if len(grid) == 1:
        return _Choice(grid[0])
    parts = holdout_rows(labels, settings.holdout, seed)
    learned, _ = _usable_classes(labels.select(parts[0])) if parts else (np.zeros(0, np.int64), [])
    if parts is None:
        middle = grid[len(grid) // 2]
        note = f"Train is too small to choose c on a held-out part of it; {middle:g} was used."
        return _Choice(middle, notes=(note,))
    held_labels, held = labels.select(parts[1]), x[parts[1]]
    problem = _problem(x[parts[0]], labels.select(parts[0]), learned)
    fits: list[Fit] = []
    scores: list[float] = []
    losses: list[float] = []
    for c in grid:
        previous = fits[-1] if fits else None
        tolerance = _SEARCH_TOLERANCE * settings.tolerance
        fits.append(fit(problem, variance, c, start=previous, max_iter=settings.max_iter, tolerance=tolerance))
        scores.append(headline(labels.kind, held_labels.values, _scores(fits[-1], held, learned, labels)))
        losses.append(_held_out_loss(fits[-1], held, held_labels, learned))
        if _getting_worse(scores, losses):
            break
    best = 0
    for i, score in enumerate(scores):
        best = i if is_better(score, scores[best]) else best
    notes = []
    if best in (0, len(grid) - 1):
        end = "smallest" if best == 0 else "largest"
        notes.append(f"The chosen c={grid[best]:g} is the {end} of those tried; the best may lie beyond.")
    on = f"held-out {percent(settings.holdout)} of train"
    selected = {"c": grid[best], "on": on, "score": scores[best], "seed": seed}
    start = fits[best] if len(learned) == len(usable) else None
    return _Choice(grid[best], selected, tuple(notes), start)


def _held_out_loss(model: "Fit", held: Matrix, labels: Labels, learned: IntArray) -> float:
    """The mean loss of the held-out samples whose class was learned."""
    rows = np.arange(len(held)) if labels.kind == "multi" else np.flatnonzero(np.isin(labels.values, learned))
    problem = _problem(held[rows], labels.select(rows), learned)
    return problem.loss_and_gradient(model.decide(problem.x))[0] if len(rows) else float("nan")


def _getting_worse(scores: list[float], losses: list[float]) -> bool:
    if len(scores) <= _PATIENCE:
        return False
    earlier, late = scores[:-_PATIENCE], scores[-_PATIENCE:]
    rising = all(b > a for a, b in itertools.pairwise(losses[-_PATIENCE - 1 :]))
    return rising and max(late) <= max(earlier)
