"""Blocks of SVM problems by `squared_hinge`, along the costs, in bounded memory."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from sslbench.arrays import FloatArray, Int8Array, Int16Array
from sslbench.solvers.svm import HeldOut, Models, PreparedRows, no_model
from sslbench.solvers.svm.features import rotate
from sslbench.solvers.svm.squared_hinge import Solutions, solve

_SEARCH = 10  # looser tolerance while costs are compared: still 1e-6 of the objective
_INTERMEDIATE = 100  # factor of the tolerance at the smaller costs on the path to the final one
_ARRAYS = 24  # float64 arrays per problem, each of the length of the samples or the axes


class Newton:
    """All models of one data set."""

    def __init__(
        self,
        x: FloatArray | PreparedRows,
        *,
        costs: Sequence[float],
        positive_weight: float,
        intercept_scaling: float,
        tolerance: float,
        max_iter: int,
        max_memory: float,
    ) -> None:
        """Rotate the features (N, D), once for all models; see the settings of the protocol svm."""
        self._costs, self._positive_weight = costs, positive_weight
        self._tolerance, self._max_iter = tolerance, max_iter
        self._features = rotate(x, intercept_scaling)
        self._block = max(1, int(max_memory * 1e9 / (8 * _ARRAYS * sum(self._features.x.shape))))

    def held_out(self, targets: Int8Array, folds: Int16Array) -> Iterator[HeldOut]:
        """Yield decision values on the held-out folds; see `Solver`."""
        number = int(folds.max()) + 1
        classes = max(1, self._block // number)
        for first in range(0, targets.shape[1], classes):
            block = range(first, min(first + classes, targets.shape[1]))
            yield from self._held_out_block(targets[:, block], folds[:, block], first, number)

    def _held_out_block(self, targets: Int8Array, folds: Int16Array, first: int, number: int) -> Iterator[HeldOut]:
        """Yield the decision values of a block of classes; its problems are the folds of each class."""
        held_out = (folds.T[:, None] == np.arange(number)[:, None]) & (targets.T[:, None] != 0)
        signs = np.where(held_out, 0, targets.T[:, None]).reshape(-1, len(targets))
        # A fold without positives (or negatives) has a constant decision, and nothing to solve.
        constant = no_model(signs)
        learn = np.isnan(constant) & held_out.any(axis=2).ravel()
        costs = self._costs
        decision = np.repeat(constant[:, None], len(targets), axis=1)
        start: Solutions | None = None
        # From small costs to large ones: each solution is a start near the next, which saves most of the steps.
        for place in np.argsort(costs, kind="stable"):
            unconverged = np.zeros(len(signs), bool)
            if learn.any():
                start = self._solve(signs[learn], np.full(int(learn.sum()), costs[place]), start, _SEARCH)
                decision[learn] = start.decision.numpy()
                unconverged[learn] = ~start.converged.numpy()
            for i, (mask, values) in enumerate(zip(held_out, decision.reshape(held_out.shape), strict=True)):
                failed = int(unconverged.reshape(-1, number)[i].sum())
                yield HeldOut(first + i, int(place), np.where(mask, values, 0).sum(axis=0), failed)

    def fit(self, targets: Int8Array, costs: Sequence[float]) -> Models:
        """Return the final models; see `Solver`."""
        parts = []
        for first in range(0, targets.shape[1], self._block):
            block = slice(first, first + self._block)
            signs, own = np.ascontiguousarray(targets[:, block].T), np.asarray(costs[block])
            smaller = sorted({cost for cost in self._costs if cost < own.max()})
            start: Solutions | None = None
            # By way of the smaller costs: a tenth of the steps of a start from 0.
            for cost in smaller:
                start = self._solve(signs, np.minimum(own, cost), start, _INTERMEDIATE)
            solutions = self._solve(signs, own, start, 1)
            weight, bias = self._features.coefficients(solutions.v)
            parts.append(Models(weight, bias, solutions.converged.numpy()))
        return Models(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("weight", "bias", "converged")))

    def _solve(self, signs: Int8Array, costs: FloatArray, start: Solutions | None, factor: int) -> Solutions:
        return solve(
            self._features,
            torch.from_numpy(signs),
            torch.from_numpy(costs),
            self._positive_weight,
            start=start,
            tolerance=factor * self._tolerance,
            max_iter=self._max_iter,
        )
