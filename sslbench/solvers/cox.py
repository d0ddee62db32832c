"""Cox regression with an L2 penalty, by Newton's method to convergence.

The objective is that of scikit-survival's `CoxPHSurvivalAnalysis`: the negative partial log likelihood (Cox 1972; ties
as Breslow 1974) plus half the penalty times the squared length of the weights.
"""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray

_STEPS = 100
_CONVERGED = 1e-12  # Newton decrement, relative to the objective at 0
_HALVINGS = 40


def fit(
    x: FloatArray, times: FloatArray, penalty: float, *, start: FloatArray | None = None
) -> tuple[FloatArray, bool]:
    """Return the weights (R,) of the log hazard, and whether Newton's method converged.

    `x`: (N, R), centred; `times`: (N, 2), time and 1 for an event, 0 for a censored time; `penalty`: above 0;
    `start`: weights to begin with.

    >>> weights, converged = fit(np.array([[1.0], [-1.0]]), np.array([[1.0, 1.0], [2.0, 1.0]]), 0.5)
    >>> weights.round(4).tolist(), converged  # the optimum solves w (1 + exp(2 w)) = 4
    ([0.7408], True)
    """
    # Latest first: the samples at risk at a time are those up to the last of equal times.
    order = np.argsort(-times[:, 0], kind="stable")
    x, time, event = x[order], times[order, 0], times[order, 1] > 0
    at_risk = (np.searchsorted(-time, -time, side="right") - 1)[event]
    weights = np.zeros(x.shape[1]) if start is None else start
    value = _objective(x, event, at_risk, weights, penalty)
    scale = max(_objective(x, event, at_risk, np.zeros(x.shape[1]), penalty), np.finfo(np.float64).tiny)
    for _ in range(_STEPS):
        gradient, hessian = _derivatives(x, event, at_risk, weights, penalty)
        step = np.linalg.solve(hessian, gradient)
        if float(gradient @ step) <= _CONVERGED * scale:
            return weights, True
        size = 1.0
        for _ in range(_HALVINGS):
            new = _objective(x, event, at_risk, weights - size * step, penalty)
            if new <= value - 1e-4 * size * float(gradient @ step):
                break
            size /= 2
        else:  # rounding: no step along the direction is better
            return weights, False
        weights, value = weights - size * step, new
    return weights, False


def _objective(
    x: FloatArray, event: npt.NDArray[np.bool_], at_risk: npt.NDArray[np.int64], weights: FloatArray, penalty: float
) -> float:
    risks = x @ weights
    log_sums = np.logaddexp.accumulate(risks)[at_risk]
    return float(log_sums.sum() - risks[event].sum() + penalty * (weights @ weights) / 2)


def _derivatives(
    x: FloatArray, event: npt.NDArray[np.bool_], at_risk: npt.NDArray[np.int64], weights: FloatArray, penalty: float
) -> tuple[FloatArray, FloatArray]:
    """Return gradient (R,) and Hessian (R, R); each event has the mean and covariance of the samples at risk."""
    risks = x @ weights
    hazards = np.exp(risks - risks.max())
    totals = np.cumsum(hazards)[at_risk]
    means = np.cumsum(hazards[:, None] * x, axis=0)[at_risk] / totals[:, None]
    # A sample is at risk at all events of its own time or earlier, which follow in this order.
    shares = np.zeros(len(x))
    np.add.at(shares, at_risk, 1 / totals)
    own = hazards * np.cumsum(shares[::-1])[::-1]
    gradient = means.sum(axis=0) - x[event].sum(axis=0) + penalty * weights
    hessian = (own[:, None] * x).T @ x - means.T @ means
    hessian[np.diag_indices_from(hessian)] += penalty
    return gradient, hessian
