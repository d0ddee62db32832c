"""SVMs by scikit-learn's LinearSVC, one by one, in threads."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from sslbench.arrays import FloatArray, Int8Array, Int16Array
from sslbench.protocols.svm.settings import Settings
from sslbench.solvers.svm import HeldOut, Models, no_model


class Liblinear:
    """All models of one data set."""

    def __init__(self, x: FloatArray, settings: Settings, seed: int) -> None:
        self._x, self._settings, self._seed = x, settings, seed

    def held_out(self, targets: Int8Array, folds: Int16Array) -> Iterator[HeldOut]:
        """Yield decision values on the held-out folds; see `Solver`."""
        jobs = [(k, place) for k in range(targets.shape[1]) for place in range(len(self._settings.costs))]

        def cross_validate(job: tuple[int, int]) -> HeldOut:
            k, place = job
            decision, unconverged = np.zeros(len(targets)), 0
            for fold in range(int(folds[:, k].max()) + 1):
                held_out = (folds[:, k] == fold) & (targets[:, k] != 0)
                sign = np.where(held_out, 0, targets[:, k])
                constant = no_model(sign)
                if np.isnan(constant):
                    model = self._fit(sign, self._settings.costs[place])
                    decision[held_out] = model.decide(self._x[held_out])[:, 0]
                    unconverged += int(not model.converged[0])
                else:
                    decision[held_out] = constant
            return HeldOut(k, place, decision, unconverged)

        yield from self._map(cross_validate, jobs)

    def fit(self, targets: Int8Array, costs: Sequence[float]) -> Models:
        """Return the final models; see `Solver`."""
        models = list(self._map(lambda k: self._fit(targets[:, k], costs[k]), range(targets.shape[1])))
        return Models(*(np.concatenate([getattr(m, name) for m in models]) for name in ("weight", "bias", "converged")))

    def _fit(self, sign: Int8Array, cost: float) -> Models:
        from sklearn.svm import LinearSVC

        settings, rows = self._settings, np.flatnonzero(sign)
        x = self._x if len(rows) == len(self._x) else self._x[rows]
        # Primal and dual have the same optimum; the primal solver wins where there are more samples than features.
        model = LinearSVC(
            C=cost,
            dual=len(x) <= x.shape[1],
            class_weight={1: settings.positive_weight, -1: 1.0},
            intercept_scaling=settings.intercept_scaling,
            tol=settings.tolerance,
            max_iter=settings.max_iter,
            random_state=self._seed,
        ).fit(x, sign[rows])
        return Models(model.coef_.copy(), model.intercept_.copy(), np.array([model.n_iter_ < settings.max_iter]))

    def _map(self, function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
        from sklearn.exceptions import ConvergenceWarning

        # Threads help because liblinear releases the interpreter lock.
        with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            # Reported once, in the result's notes, instead of once per model.
            warnings.simplefilter("ignore", ConvergenceWarning)
            yield from pool.map(function, jobs)
