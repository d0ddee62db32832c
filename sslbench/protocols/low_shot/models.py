"""Classifiers of the low-shot protocol: fitted on one draw, their regularisation chosen inside it."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.metrics import ranking
from sslbench.metrics.classification import top_k_correct
from sslbench.protocols._parts.few_shot import Fitted, leading, stratified_folds
from sslbench.protocols._parts.selection import (
    class_sizes,
    decide_by_blocks,
    folds_of_class,
    for_all_classes,
    signed_targets,
)
from sslbench.protocols.low_shot.settings import Settings
from sslbench.protocols.svm.choice import choose_each, choose_one, make_solver
from sslbench.protocols.svm.settings import Settings as SvmSettings
from sslbench.solvers.svm import SvmSolver
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.target import Target

if TYPE_CHECKING:
    from sslbench.solvers.logistic import Fit, Problem


class Classifier(Protocol):
    """Fitting of one draw; it has the test features, but not their labels."""

    def fit(self, x: Matrix, labels: Target, strengths: Sequence[float], groups: IntArray | None = None) -> Fitted:
        """Learn from one draw.

        Args:
            x: (N, D), of the draw.
            labels: of the draw.
            strengths: of the regularisation (scikit-learn's C) to choose from; one is used as it is.
            groups: (N,) the group of each sample, kept together by the folds; None if no two share one.
        """
        ...


class Svm:
    """One linear SVM per class, as in the SVM protocol; labels -1 are left out."""

    def __init__(self, test: Matrix, settings: Settings, seed: int) -> None:
        self._settings, self._seed, self._test = settings, seed, test

    def fit(self, x: Matrix, labels: Target, strengths: Sequence[float], groups: IntArray | None = None) -> Fitted:
        """Fit one draw, see `Classifier`. With several labels per sample the cost is chosen per class."""
        x = _unit(x)
        targets, learned = _targets(labels)
        names = [labels.classes[c] for c in learned]
        if not len(learned):
            return _nothing(len(self._test), labels)
        solver, notes = make_solver(x, self._as_svm(strengths), self._seed)
        strength, costs, searched = self._choose(solver, targets, names, type(labels), strengths, groups)
        models = solver.fit(targets, costs)
        decided = decide_by_blocks(self._test, lambda block: models.decide(_unit(block)), len(learned))
        scores = for_all_classes(decided, learned, labels)
        train = leading(self._settings.metric, labels, for_all_classes(models.decide(x), learned, labels))
        return Fitted(scores, train, strength, bool(models.converged.all()), (*notes, *searched))

    def _as_svm(self, strengths: Sequence[float]) -> SvmSettings:
        s = self._settings
        return SvmSettings(
            costs=tuple(strengths),
            folds=s.folds,
            positive_weight=s.positive_weight,
            solver=s.solver,
            max_iter=s.max_iter,
        )

    def _choose(
        self,
        solver: SvmSolver,
        targets: npt.NDArray[np.int8],
        names: list[str],
        kind: type[Target],
        strengths: Sequence[float],
        groups: IntArray | None,
    ) -> tuple[float | dict[str, float], list[float], tuple[str, ...]]:
        """Return the cost for the record, the cost of every class, and notes; without folds the fixed cost."""
        fixed = self._settings.fixed_cost if len(strengths) > 1 else strengths[0]
        fewest = np.array([_fewest(column, groups) for column in targets.T])
        # A class with one sample is never predicted when that is held out, and would bias the shared cost.
        folds = min(self._settings.folds, int(np.median(fewest) if kind is Classes else fewest.max()))
        if len(strengths) == 1 or folds < 2:
            return fixed, [fixed] * len(names), ()
        settings = dataclasses.replace(self._as_svm(strengths), folds=folds)
        if kind is Classes:
            choice = choose_one(solver, targets, settings, groups)
            return choice.costs[0], choice.costs, choice.notes
        choice = choose_each(solver, targets, names, settings, groups)
        costs = [cost if few > 1 else fixed for cost, few in zip(choice.costs, fewest, strict=True)]
        return dict(zip(names, costs, strict=True)), costs, choice.notes


class Logistic:
    """Logistic regression on features standardised by the draw: multinomial, or one per class (multi-label)."""

    def __init__(self, test: Matrix, settings: Settings) -> None:
        self._settings, self._test = settings, test

    def fit(self, x: Matrix, labels: Target, strengths: Sequence[float], groups: IntArray | None = None) -> Fitted:
        """Fit one draw, see `Classifier`. One strength for all classes, by accuracy or mean average precision."""
        from sslbench.solvers.logistic import principal_axes

        learned = signed_targets(labels)[1]
        if not len(learned):
            return _nothing(len(self._test), labels)
        axes = principal_axes(x)
        x = axes.project(x)
        strength = self._choose(x, labels, axes.variance, strengths, groups)
        model, learned = self._fit(x, labels, axes.variance, strength, None, self._settings.tolerance)
        decided = decide_by_blocks(self._test, lambda block: model.decide(axes.project(block)), model.weight.shape[1])
        scores = _for_all_classes(decided, learned, labels)
        train = leading(self._settings.metric, labels, _for_all_classes(model.decide(x), learned, labels))
        return Fitted(scores, train, strength, model.converged)

    def _fit(
        self, x: Matrix, labels: Target, variance: FloatArray, c: float, start: "Fit | None", tolerance: float
    ) -> tuple["Fit", IntArray]:
        from sslbench.solvers.logistic import fit

        targets, learned = _targets(labels)
        problem = _problem(x, labels, targets, learned)
        max_iter = self._settings.max_iter
        return fit(problem, variance, c, start=start, max_iter=max_iter, tolerance=tolerance), learned

    def _choose(
        self, x: Matrix, labels: Target, variance: FloatArray, strengths: Sequence[float], groups: IntArray | None
    ) -> float:
        """Return the smallest strength with the best score over the folds; without folds C = N / fixed_lambda."""
        if len(strengths) == 1:
            return strengths[0]
        from sslbench.protocols.linear.path import TOLERANCE

        folds = _folds(labels, self._settings.folds, groups)
        if folds is None:
            return len(x) / self._settings.fixed_lambda
        grid = sorted(strengths)
        single = isinstance(labels, Classes)
        right = np.zeros(len(grid))
        held_out_scores = np.full((len(grid), 0 if single else len(x), len(labels.classes)), np.nan)
        for fold in range(int(folds.max()) + 1):
            rows = folds == fold
            inside, rest = _without(x, labels, rows)
            if not len(signed_targets(rest)[1]):
                continue
            model = None
            for i, c in enumerate(grid):
                model, learned = self._fit(inside, rest, variance, c, model, TOLERANCE)
                if single:  # the scores at all strengths of a share of ImageNet are over a gigabyte
                    decided = _for_all_classes(model.decide(x[rows]), learned, labels)
                    right[i] += top_k_correct(labels.values[rows], decided, 1).sum()
                else:
                    decided = _for_all_classes(model.decide(x), learned, labels)
                    held_out_scores[i] = np.where(rows, decided, held_out_scores[i])
        scores = right if single else [_average_precision(labels, folds, part) for part in held_out_scores]
        return grid[int(np.argmax(np.nan_to_num(scores, nan=-1.0)))]


def _unit(x: Matrix) -> FloatArray:
    """Return features divided by their length + 1e-5."""
    prepared = np.array(x, dtype=np.float64)
    prepared /= np.linalg.norm(prepared, axis=1, keepdims=True) + 1e-5
    return prepared


def _targets(labels: Target) -> tuple[npt.NDArray[np.int8], IntArray]:
    targets, learned = signed_targets(labels)
    return np.ascontiguousarray(targets), learned  # memory order determines the rounding of products


def _nothing(n: int, labels: Target) -> Fitted:
    """Return the result of a draw of one class (a small share of train), from which nothing can be learned."""
    scores = np.full((n, len(labels.classes)), np.nan if isinstance(labels, MultiLabel) else 0.0)
    return Fitted(scores, float("nan"), {}, True, ("A draw contained one class only, so nothing was learned.",))


def _problem(x: Matrix, labels: Target, targets: npt.NDArray[np.int8], learned: IntArray) -> "Problem":
    from sslbench.solvers.logistic import Problem

    if isinstance(labels, MultiLabel):
        # In multi-label targets -1 is ignored and 0 is a negative.
        return Problem(x, np.where(targets == 0, -1, targets > 0).astype(np.int8), len(learned))
    if len(learned) == 2:
        return Problem(x, (targets[:, 1:] > 0).astype(np.int8), 1)
    return Problem(x, np.searchsorted(learned, labels.values), len(learned))


def _for_all_classes(decision: FloatArray, learned: IntArray, labels: Target) -> FloatArray:
    if isinstance(labels, Classes) and len(learned) == 2:
        decision = np.concatenate([-decision, decision], axis=1) / 2
    return for_all_classes(decision, learned, labels)


def _fewest(target: npt.NDArray[np.int8], groups: IntArray | None) -> int:
    """Return the number of positives or of negatives, the smaller one; with groups, the number of groups."""
    rows = np.flatnonzero(target)
    sizes = class_sizes((target[rows] > 0).astype(np.int64), None if groups is None else groups[rows])
    return int(sizes.min()) if len(sizes) == 2 else 0


def _folds(labels: Target, number: int, groups: IntArray | None) -> npt.NDArray[np.int16] | None:
    """Return (N,) folds of single labels, (N, C) of several with -1 for samples left out; None where k is 1."""
    if isinstance(labels, Classes):
        return stratified_folds(labels.values, number, groups)
    columns = [folds_of_class(column > 0, column >= 0, number, groups) for column in labels.values.T]
    folds = np.stack(columns, axis=1)
    return folds if folds.max() > 0 else None


def _without(x: Matrix, labels: Target, held_out: npt.NDArray[np.bool_]) -> tuple[Matrix, Target]:
    """Return the training part of a fold: rows are removed, or with several labels per sample marked as unknown."""
    if held_out.ndim == 1:
        rows = np.flatnonzero(~held_out)
        return x[rows], labels.select(rows)
    return x, labels.changed(values=np.where(held_out, -1, labels.values).astype(np.int8))


def _average_precision(labels: Target, folds: npt.NDArray[np.int16], scores: FloatArray) -> float:
    """Return the mean over classes and folds of the non-interpolated average precision."""
    values = [
        ranking.single_class(ranking.non_interpolated, labels.values[rows, c], scores[rows, c])
        for c in range(folds.shape[1])
        for fold in range(int(folds[:, c].max()) + 1)
        if len(rows := np.flatnonzero(folds[:, c] == fold))
    ]
    return ranking.mean_over_classes(np.array(values))
