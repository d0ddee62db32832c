"""Truncated Newton method for a logistic regression: gradients in double precision, steps also in single precision.

Inexact Newton steps converge as long as the gradient is exact (Dembo, Eisenstat & Steihaug 1982), so single precision
suffices for the Newton systems. They are solved by conjugate gradients with a diagonal preconditioner, which need a few
products where L-BFGS in double precision needs tens of twice the cost.

The distance of the objective to its minimum is bounded by duality.

Let p be the probabilities at a point, e the targets (1 for the sample's class) and m the penalty. Probabilities q whose
sums over the samples equal the class counts are feasible in the dual problem (Yu, Huang & Lin 2011, "Dual coordinate
descent methods for logistic regression and maximum entropy models"; the sums are due to the unregularised biases) and
give the lower bound

    mean entropy of q - |mean of (q - e) x'|^2 / (2 m).

The mixture q = (1 - t) p + t r, with r the same for all samples, is feasible from a smallest share t on, which is
proportional to the gradient by the biases. Since the entropy is concave, the duality gap is at most

    |m W + mean of (q - e) x'|^2 / (2 m) + t * mean of KL(r | p).

If the gradient by the biases is 0, this is the squared length of the gradient over twice the penalty. The second term
is linear in the gradient by the biases, so these are first moved to their own optimum, which costs little. A binary
problem is one with two classes and half the penalty on each, with the same result.
"""

import dataclasses

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.solvers.logistic.problem import Fit, HessianOperator, LossAndGradient, Precision, Problem

_BIAS_STEPS = 3
_LARGEST_STEP = 2.0  # change of a bias in one step
_TINY = float(np.finfo(np.float64).tiny)


def relative_gap(
    problem: Problem, loss: LossAndGradient, weight: FloatArray, bias: FloatArray, penalty: float
) -> tuple[float, float]:
    """Return the duality gap, relative to the lower bound of the objective, and its first term alone.

    Args:
        problem: samples.
        loss: mean loss and gradient at the point.
        weight: (R, K).
        bias: (K,).
        penalty: factor of half the squared length of the weights.
    """
    from scipy.special import entr

    sums = problem.class_sums
    predicted = sums.positive + loss.by_bias
    ratio = sums.positive / np.maximum(predicted, _TINY)
    if problem.multinomial:
        share = np.array([max(0.0, 1 - float(ratio.min()))])
    else:
        negative = (sums.known - sums.positive) / np.maximum(sums.known - predicted, _TINY)
        share = np.maximum(0, 1 - np.minimum(ratio, negative))
    with np.errstate(divide="ignore", invalid="ignore"):
        mixture = (sums.positive - (1 - share) * predicted) / (share * sums.known)
    mixture = np.where(np.isfinite(mixture), np.clip(mixture, 0, 1), 0)
    entropy = entr(mixture) * sums.known
    if not problem.multinomial:
        entropy += entr(1 - mixture) * sums.known
    towards = mixture * sums.x_known - sums.x_positive
    own = np.sum(towards * weight, axis=0) + (mixture * sums.known - sums.positive) * bias
    divergence = float(np.sum(share * loss.values) - np.sum(share * (entropy + own)))
    by_weight = (1 - share) * loss.by_weight + share * towards
    squares = float(np.sum((penalty * weight + by_weight) ** 2)) / (2 * penalty)
    value = float(loss.values.sum()) + penalty / 2 * float(np.sum(weight * weight))
    return _relative(squares + max(0.0, divergence), value), _relative(squares, value)


def _relative(gap: float, value: float) -> float:
    lowest = value - gap
    return gap / lowest if np.isfinite(gap) and lowest > 0 else np.inf


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Point in double precision with its duality gap.

    Attributes:
        weight: (R, K).
        bias: (K,), moved towards its own optimum if it dominated the gap.
        loss: mean loss and gradient.
    """

    weight: FloatArray
    bias: FloatArray
    loss: LossAndGradient
    gap: float


def certify(problem: Problem, weight: FloatArray, bias: FloatArray, penalty: float, tolerance: float) -> Certificate:
    """Return the duality gap at a point in double precision; biases are improved if they alone exceed the tolerance."""
    loss = problem.loss_and_gradient(np.float64, weight, bias)
    gap, of_weights = relative_gap(problem, loss, weight, bias, penalty)
    best = Certificate(weight, bias, loss, gap)
    for _ in range(_BIAS_STEPS):
        if best.gap <= tolerance or of_weights > tolerance:
            break
        bias = best.bias - _bias_step(problem, best)
        loss = problem.loss_and_gradient(np.float64, weight, bias)
        gap, of_weights = relative_gap(problem, loss, weight, bias, penalty)
        if not gap < best.gap:
            break
        best = Certificate(weight, bias, loss, gap)
    return best


def _bias_step(problem: Problem, at: Certificate) -> FloatArray:
    """Return the (K,) Newton step of the biases alone; single precision is enough for its Hessian."""
    hessian = problem.bias_hessian(at.weight, at.bias)
    diagonal = np.diag_indices_from(hessian)
    if problem.multinomial:
        # The rows of this matrix sum to 0, which gives its diagonal without cancellation.
        hessian[diagonal] = 0
        hessian[diagonal] = -hessian.sum(axis=1)
        hessian += np.trace(hessian) / problem.outputs**2
    hessian[diagonal] += 1e-12 * np.trace(hessian) / problem.outputs + _TINY
    step = problem.solve(hessian, len(problem.x) * at.loss.by_bias)
    return np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)


_ACCURACY = 0.03  # relative residual of a Newton system: higher accuracy costs more iterations than it saves steps
_MAX_ITERATIONS = 250  # of conjugate gradients in one step: then rounding prevents a higher accuracy
_HALVINGS = 12  # of a step in the line search


def polish(
    problem: Problem, penalty: float, start: Fit, *, precision: Precision, max_iter: int, tolerance: float
) -> Fit:
    """Return the optimum from a fit near it; `iterations` counts those of the conjugate gradients.

    If a step does not decrease the objective, the best point is returned with its duality gap.

    Args:
        problem: samples.
        penalty: factor of half the squared length of the weights.
        start: initial fit.
        precision: precision of the steps; gradients are in double precision.
        max_iter: largest number of iterations.
        tolerance: relative duality gap at convergence.
    """
    at = certify(problem, start.weight, start.bias, penalty, tolerance)
    penalties = np.append(np.full(len(start.weight), penalty), 0.0)[:, None]
    iterations = 0
    while at.gap > tolerance and iterations < max_iter:
        hessian = problem.hessian(precision, at.weight, at.bias)
        gradient = np.vstack([at.loss.by_weight + penalty * at.weight, at.loss.by_bias])
        step, taken = _solve(hessian, penalties, -gradient, min(_MAX_ITERATIONS, max_iter - iterations))
        iterations += taken
        value = _objective(at, penalty)
        for halvings in range(_HALVINGS):
            weight, bias = at.weight + step[:-1] / 2**halvings, at.bias + step[-1] / 2**halvings
            point = certify(problem, weight, bias, penalty, tolerance)
            # The gain of the last steps is lost in the objective's rounding, but the gap falls.
            if _objective(point, penalty) < value * (1 - 1e-13) or point.gap < 0.9 * at.gap:
                at = point
                break
        else:  # no better point along the step
            break
    return Fit(at.weight, at.bias, at.gap <= tolerance, iterations, at.gap)


def _objective(at: Certificate, penalty: float) -> float:
    return float(at.loss.values.sum()) + penalty / 2 * float(np.sum(at.weight * at.weight))


def _solve(hessian: HessianOperator, penalties: FloatArray, right: FloatArray, most: int) -> tuple[FloatArray, int]:
    """Solve (hessian + penalties) s = right by preconditioned conjugate gradients; return s and the iterations."""
    diagonal = hessian.diagonal() + penalties
    roots = 1 / np.sqrt(np.where(diagonal > 0, diagonal, diagonal.max()))
    # The vectors stay on a GPU: to copy them there and back takes longer than the products of few samples.
    scale, penalty, residual = (hessian.send(each) for each in (roots, penalties, right * roots))
    solution, direction = 0 * residual, residual
    square = float((residual * residual).sum())
    target = _ACCURACY**2 * square
    iterations = 0
    while square > target and iterations < most:
        scaled = direction * scale
        image = (hessian.product(scaled) + penalty * scaled) * scale
        curvature = float((direction * image).sum())
        iterations += 1
        if curvature <= 0:
            break
        length = square / curvature
        solution = solution + length * direction
        residual = residual - length * image
        previous, square = square, float((residual * residual).sum())
        direction = residual + square / previous * direction
    return hessian.receive(solution * scale), iterations
