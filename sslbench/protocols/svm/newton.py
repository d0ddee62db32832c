"""SVMs by the solver of `solvers.svm`: blocks of problems, along the costs, in bounded memory."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from sslbench.solvers.svm import HeldOut, Models, no_model
from sslbench.solvers.svm.newton_systems import Systems
from sslbench.solvers.svm.squared_hinge import Solutions, principal_axes, solve

if TYPE_CHECKING:
    from sslbench.protocols.svm.settings import Settings

FloatArray = npt.NDArray[np.float64]
Targets = npt.NDArray[np.int8]
Folds = npt.NDArray[np.int16]

_BLOCK_BYTES = 2**30
_SEARCH = 10  # times the tolerance while costs are compared: still 1e-6 of the objective
_PASSING = 100  # times the tolerance at costs that are only passed on the way to another
_ARRAYS = 24  # of float64 that are held per problem, each as long as the samples or the axes


class Newton:
    """All models of one data set."""

    def __init__(self, x: FloatArray, settings: "Settings", block_bytes: int = _BLOCK_BYTES) -> None:
        """Prepare the features (N, D), once for all models."""
        self._settings = settings
        self._axes = principal_axes(x, settings.intercept_scaling)
        self._systems = Systems(self._axes.x, self._axes.energy)
        self._block = max(1, block_bytes // (8 * _ARRAYS * sum(self._axes.x.shape)))

    def held_out(self, targets: Targets, folds: Folds) -> Iterator[HeldOut]:
        """Yield decision values on the held-out folds; see `Solver`."""
        number = int(folds.max()) + 1
        classes = max(1, self._block // number)
        for first in range(0, targets.shape[1], classes):
            block = range(first, min(first + classes, targets.shape[1]))
            yield from self._held_out_block(targets[:, block], folds[:, block], first, number)

    def _held_out_block(self, targets: Targets, folds: Folds, first: int, number: int) -> Iterator[HeldOut]:
        """Yield the decision values of a block of classes; its problems are the folds of each class."""
        held = (folds.T[:, None] == np.arange(number)[:, None]) & (targets.T[:, None] != 0)
        signs = np.where(held, 0, targets.T[:, None]).reshape(-1, len(targets))
        constant = no_model(signs)
        learn = np.isnan(constant) & held.any(axis=2).ravel()
        costs = self._settings.costs
        decision = np.repeat(constant[:, None], len(targets), axis=1)
        start: Solutions | None = None
        for place in np.argsort(costs, kind="stable"):
            unconverged = np.zeros(len(signs), bool)
            if learn.any():
                start = self._solve(signs[learn], np.full(int(learn.sum()), costs[place]), start, _SEARCH)
                decision[learn] = start.decision.numpy()
                unconverged[learn] = ~start.converged.numpy()
            for i, (where, values) in enumerate(zip(held, decision.reshape(held.shape), strict=True)):
                failed = int(unconverged.reshape(-1, number)[i].sum())
                yield HeldOut(first + i, int(place), np.where(where, values, 0).sum(axis=0), failed)

    def fit(self, targets: Targets, costs: Sequence[float]) -> Models:
        """Return the final models; see `Solver`."""
        parts = []
        for first in range(0, targets.shape[1], self._block):
            block = slice(first, first + self._block)
            found = self._along_costs(np.ascontiguousarray(targets[:, block].T), np.asarray(costs[block]))
            weight, bias = self._axes.coefficients(found.v)
            parts.append(Models(weight, bias, found.converged.numpy()))
        return Models(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("weight", "bias", "converged")))

    def _along_costs(self, signs: Targets, costs: FloatArray) -> Solutions:
        """Solve each problem at its own cost, by way of the smaller ones: a tenth of the steps of a start from 0."""
        known = {cost for cost in self._settings.costs if cost < costs.max()}
        found: Solutions | None = None
        for cost in [*sorted(known), costs.max()]:
            found = self._solve(signs, np.minimum(costs, cost), found, 1 if cost == costs.max() else _PASSING)
        if found is None:
            raise ValueError("no problems")
        return found

    def _solve(self, signs: Targets, costs: FloatArray, start: Solutions | None, loose: int) -> Solutions:
        return solve(
            self._axes,
            self._systems,
            torch.from_numpy(signs),
            torch.from_numpy(costs),
            self._settings.positive_weight,
            start=start,
            tolerance=loose * self._settings.tolerance,
            max_iter=self._settings.max_iter,
        )
