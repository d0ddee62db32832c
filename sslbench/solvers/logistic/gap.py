"""A proven bound of the distance of a logistic regression's objective to its lowest value.

By duality. Let p be the probabilities at a point, e the targets (1 for the sample's class), m the penalty. Any
probabilities q whose sums over the samples are the class counts give a lower bound of the objective,

    mean entropy of q - |mean of (q - e) x'|^2 / (2 m).

With q = (1 - t) p + t r, the same mixture for all samples, t is the smallest share with which the counts are met; it is
as small as the gradient by the biases. As the entropy is concave, objective minus lower bound is at most

    |m W + mean of (q - e) x'|^2 / (2 m) + t * mean of KL(r | p).

Where the gradient by the biases is 0, this is the squared length of the gradient over twice the penalty. The second
term is linear in the gradient by the biases, so these are first brought to their own optimum, which costs little.
A binary problem is one with two classes and half the penalty's weight on each, with the same result.
"""

import dataclasses

import numpy as np
from scipy.special import entr

from sslbench.solvers.logistic.problem import FloatArray, Problem, Slope

_BIAS_STEPS = 3
_LARGEST_STEP = 2.0  # of a bias
_TINY = float(np.finfo(np.float64).tiny)


def relative_gap(
    problem: Problem, slope: Slope, weight: FloatArray, bias: FloatArray, penalty: float
) -> tuple[float, float]:
    """Return the bound, relative to the lowest value there can be, and what it would be without its second term.

    Args:
        problem: the samples.
        slope: of the mean loss at the point.
        weight: (R, K).
        bias: (K,).
        penalty: of the squared length of the weights.
    """
    sums = problem.class_sums
    predicted = sums.positive + slope.by_bias
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
    divergence = float(np.sum(share * slope.losses) - np.sum(share * (entropy + own)))
    by_weight = (1 - share) * slope.by_weight + share * towards
    squares = float(np.sum((penalty * weight + by_weight) ** 2)) / (2 * penalty)
    value = float(slope.losses.sum()) + penalty / 2 * float(np.sum(weight * weight))
    return _relative(squares + max(0.0, divergence), value), _relative(squares, value)


def _relative(gap: float, value: float) -> float:
    lowest = value - gap
    return gap / lowest if np.isfinite(gap) and lowest > 0 else np.inf


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A point in double precision and what is proven about it.

    Attributes:
        weight: (R, K).
        bias: (K,), moved to their own optimum where that decides.
        slope: of the mean loss.
        gap: bound of the relative distance to the lowest objective.
    """

    weight: FloatArray
    bias: FloatArray
    slope: Slope
    gap: float


def certify(problem: Problem, weight: FloatArray, bias: FloatArray, penalty: float, tolerance: float) -> Certificate:
    """Return the bound at a point, from a gradient in double precision; better biases where they alone are at fault."""
    slope = problem.slope(np.float64, weight, bias)
    gap, of_weights = relative_gap(problem, slope, weight, bias, penalty)
    best = Certificate(weight, bias, slope, gap)
    for _ in range(_BIAS_STEPS):
        if best.gap <= tolerance or of_weights > tolerance:
            break
        bias = best.bias - _bias_step(problem, best)
        slope = problem.slope(np.float64, weight, bias)
        gap, of_weights = relative_gap(problem, slope, weight, bias, penalty)
        if not gap < best.gap:
            break
        best = Certificate(weight, bias, slope, gap)
    return best


def _bias_step(problem: Problem, at: Certificate) -> FloatArray:
    """Return the Newton step of the biases alone; single precision is enough for its Hessian."""
    hessian = np.zeros((problem.outputs, problem.outputs))
    weight, bias = at.weight.astype(np.float32), at.bias.astype(np.float32)
    diagonal = np.diag_indices_from(hessian)
    for rows, x in problem.blocks(np.float32):
        logits = x @ weight
        logits += bias
        problem.loss_and_residuals(logits, rows)
        parts = problem.hessian_parts(logits, rows)
        if problem.multinomial:
            hessian -= parts.T @ parts
        else:
            hessian[diagonal] += parts.sum(axis=0, dtype=np.float64)
    if problem.multinomial:
        # The rows of this matrix add up to 0; its diagonal is computed from that, without cancellation.
        hessian[diagonal] = 0
        hessian[diagonal] = -hessian.sum(axis=1)
        hessian += np.trace(hessian) / problem.outputs**2
    hessian[diagonal] += 1e-12 * np.trace(hessian) / problem.outputs + _TINY
    step = np.linalg.solve(hessian, len(problem.x) * at.slope.by_bias)
    return np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
