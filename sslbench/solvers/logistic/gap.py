"""Upper bound of the distance of a logistic regression's objective to its minimum, by duality.

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
from scipy.special import entr

from sslbench.arrays import FloatArray
from sslbench.solvers.logistic.problem import LossAndGradient, Problem

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
        gap: relative duality gap.
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
