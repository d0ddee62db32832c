"""Binary linear SVMs for all classes, costs and folds, in threads (liblinear releases the interpreter lock)."""

import dataclasses
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sslbench.metrics import ranking

if TYPE_CHECKING:
    from sslbench.protocols.svm import Settings

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Targets = npt.NDArray[np.int8]


@dataclasses.dataclass(frozen=True)
class _Model:
    weight: FloatArray
    bias: float
    converged: bool

    def decide(self, x: FloatArray) -> FloatArray:
        return np.asarray(x @ self.weight + self.bias)


class Solver:
    """Chooses costs and fits; remembers how many of the final models did not converge."""

    def __init__(self, settings: "Settings", seed: int) -> None:
        self._settings, self._seed = settings, seed
        self._threads = os.cpu_count() or 1
        self.unconverged = 0

    @property
    def converged(self) -> bool:
        """Whether all final models converged."""
        return self.unconverged == 0

    def fit(self, x: FloatArray, target: Targets, cost: float) -> _Model:
        """One binary SVM.

        Args:
            x: (N, D).
            target: (N,), 1 or -1, both present.
            cost: scikit-learn's C.
        """
        from sklearn.svm import LinearSVC

        settings = self._settings
        # Primal and dual have the same optimum; the primal solver wins where there are more samples than features.
        model = LinearSVC(
            C=cost,
            dual=len(x) <= x.shape[1],
            class_weight={1: settings.positive_weight, -1: 1.0},
            tol=settings.tolerance,
            max_iter=settings.max_iter,
            random_state=self._seed,
        ).fit(x, target)
        return _Model(model.coef_[0].copy(), float(model.intercept_[0]), int(model.n_iter_) < settings.max_iter)

    def choose_each(
        self, x: FloatArray, targets: Targets, usable: IntArray, classes: Sequence[str]
    ) -> tuple[list[float], dict[str, Any], list[str]]:
        """A cost per usable class: the first with the highest mean average precision over the folds."""
        costs = self._settings.costs
        if len(costs) == 1:
            return [costs[0]] * len(usable), {}, []
        rows = [np.flatnonzero(targets[:, c]) for c in usable]
        positives = [int(np.sum(targets[:, c] > 0)) for c in usable]
        folds = [min(self._settings.folds, n, len(r) - n) for n, r in zip(positives, rows, strict=True)]
        jobs = [(i, cost) for i in range(len(usable)) if folds[i] > 1 for cost in costs]

        def score(job: tuple[int, float]) -> float:
            i, cost = job
            target = targets[rows[i], usable[i]]
            return self._average_precision(x[rows[i]], target, cost, folds[i])

        means = dict(zip(jobs, self._map(score, jobs), strict=True))
        chosen = [_first_best(costs, [means.get((i, cost), np.nan) for cost in costs]) for i in range(len(usable))]
        few = [classes[usable[i]] for i, n in enumerate(folds) if n < self._settings.folds]
        notes = []
        if few:
            notes.append(
                f"Classes with fewer than {self._settings.folds} positive (or negative) training samples were "
                f"cross-validated in fewer folds, with a single one not at all: {', '.join(few)}."
            )
        best = [max((means.get((i, cost), np.nan) for cost in costs), default=np.nan) for i in range(len(usable))]
        selected = {
            "cost": {classes[c]: cost for c, cost in zip(usable, chosen, strict=True)},
            "on": f"{self._settings.folds}-fold cross-validation on train, per class",
            "score": ranking.mean_over_classes(np.asarray(best)),
        }
        return chosen, selected, notes

    def _average_precision(self, x: FloatArray, target: Targets, cost: float, folds: int) -> float:
        from sklearn.model_selection import StratifiedKFold

        values = []
        for fit, held in StratifiedKFold(folds).split(x, target):
            decision = self.fit(x[fit], target[fit], cost).decide(x[held])
            values.append(ranking.single_class(ranking.non_interpolated, target[held], decision))
        return float(np.mean(values))

    def choose_one(
        self, x: FloatArray, targets: Targets, usable: IntArray
    ) -> tuple[list[float], dict[str, Any], list[str]]:
        """One cost for all classes: the first with the highest accuracy over the folds."""
        from sklearn.model_selection import StratifiedKFold

        costs, wanted = self._settings.costs, self._settings.folds
        if len(costs) == 1:
            return [costs[0]] * len(usable), {}, []
        own = np.argmax(targets[:, usable], axis=1)
        largest = int(np.bincount(own).max())
        folds = min(wanted, largest)
        if folds < 2:
            note = f"Every class has one training sample, so no cost could be chosen; {_middle(costs):g} was used."
            return [_middle(costs)] * len(usable), {}, [note]
        with warnings.catch_warnings():
            # Classes with fewer samples than folds are absent from some folds, which `fit_all` deals with.
            warnings.simplefilter("ignore", UserWarning)
            parts = list(StratifiedKFold(folds).split(x, own))
        right = np.zeros(len(costs))
        for fit, held in parts:
            seen = np.unique(own[fit])
            jobs = [(i, cost) for cost in costs for i in seen]
            x_fit, x_held = x[fit], x[held]

            def decide(
                job: tuple[int, float], x_fit: FloatArray = x_fit, x_held: FloatArray = x_held, fit: IntArray = fit
            ) -> FloatArray:
                return self.fit(x_fit, targets[fit, usable[job[0]]], job[1]).decide(x_held)

            decisions = np.asarray(self._map(decide, jobs)).reshape(len(costs), len(seen), len(held))
            right += (seen[np.argmax(decisions, axis=1)] == own[held]).sum(axis=1)
        accuracy = right / len(own)
        cost = _first_best(costs, accuracy)
        notes = [f"The cost was chosen in {folds} folds, for lack of samples."] if folds < wanted else []
        on = f"{folds}-fold cross-validation on train"
        return [cost] * len(usable), {"cost": cost, "on": on, "score": float(accuracy.max())}, notes

    def fit_all(
        self, x: FloatArray, targets: Targets, usable: IntArray, costs: Sequence[float], parts: Sequence[FloatArray]
    ) -> list[FloatArray]:
        """The final models, one per usable class, fitted on all of train.

        Returns:
            For each of `parts` (N, D) the decision values (N, len(usable)).
        """

        def job(i: int) -> _Model:
            rows = np.flatnonzero(targets[:, usable[i]])
            everything = len(rows) == len(x)
            return self.fit(x if everything else x[rows], targets[rows, usable[i]], costs[i])

        models = self._map(job, range(len(usable)))
        self.unconverged = sum(not model.converged for model in models)
        return [np.stack([model.decide(part) for model in models], axis=1) for part in parts]

    def _map(self, function: Any, jobs: Sequence[Any]) -> list[Any]:
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings(), ThreadPoolExecutor(self._threads) as pool:
            # Said once, in the result's notes, in place of once per model.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return list(pool.map(function, jobs))


def _middle(costs: Sequence[float]) -> float:
    return sorted(costs)[len(costs) // 2]


def _first_best(costs: Sequence[float], scores: Sequence[float] | FloatArray) -> float:
    """The cost with the highest score, the first of equals; the middle one when there are no scores."""
    values = np.asarray(scores, dtype=np.float64)
    return _middle(costs) if np.isnan(values).all() else costs[int(np.nanargmax(values))]
