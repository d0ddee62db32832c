"""Newton systems of many squared-hinge SVMs on the same features.

The Newton direction d of a problem solves

    (I + X' H X) d = -gradient                                       (Keerthi & DeCoste 2005, JMLR 6)

with X (N, R) the features and H the diagonal of the losses' second derivatives by the decision values: 2 c_i for the A
samples inside the margin, 0 for the others. Two methods:

- Conjugate gradients, for all problems together in single precision: two matrix products per iteration are shared by
  all problems. They need few iterations where most samples are inside the margin, because the system is then nearly
  diagonal on principal axes.
- Cholesky decomposition, problem by problem: of the R x R system, or, by the Woodbury identity, of the A x A system

      d = -gradient + X_A' r s,    (I + r K_A r) s = r X_A gradient,    r = sqrt(H_A),  K_A = X_A X_A',

  whichever is smaller. A falls as the cost grows.

Conjugate gradients are tried first, for at most as many iterations as take the operations of the decomposition.

For costs and features of extreme size there is Newton's method for one SVM with QR decompositions, `solve_by_qr`. It
continues where rounding ends `squared_hinge`. A step goes to the minimum for the current set of samples inside the
margin, found as a least squares problem by a QR decomposition. Its rounding error grows with the root of the largest
cost times squared norm of a sample, that of a Newton system, which contains squares, with the product itself (Golub &
Van Loan 2013, section 5.3). The minimum for a set of samples that equals the set inside its own margin is the optimum
(Keerthi & DeCoste 2005), so convergence does not depend on the size of a gradient.
"""

import math

import numpy as np
import torch

from sslbench.arrays import FloatArray
from sslbench.solvers.svm.features import RotatedFeatures

_MAX_ITERATIONS = 300  # of conjugate gradients; without the bound VOC07 takes 1.2 times as long


def newton_directions(
    features: RotatedFeatures,
    hessian_diagonal: torch.Tensor,
    gradient: torch.Tensor,
    accuracy: torch.Tensor,
    exact: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (P, R) Newton directions of P problems, and (P,) True where a decomposition gave them.

    Args:
        features: features of all problems.
        hessian_diagonal: (P, N) diagonal of H; 0 for samples outside the margin.
        gradient: (P, R).
        accuracy: (P,) relative residual at which conjugate gradients end.
        exact: (P,) True to use a decomposition at any cost.
    """
    n, width = features.x.shape
    inside = (hessian_diagonal > 0).sum(dim=1).tolist()
    affordable = torch.tensor([_direct_operations(features, count) for count in inside]) / (4 * n * width)
    iterations = torch.where(exact, 0.0, affordable.clamp(max=_MAX_ITERATIONS).floor())
    direction = torch.empty_like(gradient)
    direct = iterations < 1
    rows = torch.nonzero(~direct).flatten()
    if len(rows):
        direction[rows], solved = _conjugate_gradients(
            features, hessian_diagonal[rows], gradient[rows], accuracy[rows], iterations[rows]
        )
        # The inexact direction is used if the decomposition costs more than the largest number of iterations.
        direct[rows[~solved & (affordable[rows] <= _MAX_ITERATIONS)]] = True
    for p in torch.nonzero(direct).flatten().tolist():
        direction[p] = _decompose(features, hessian_diagonal[p], gradient[p])
    return direction, direct


def _in_sample_space(inside: int, width: int) -> bool:
    """Return True if the system of the samples inside the margin is smaller than that of the features."""
    return inside < width


def _direct_operations(features: RotatedFeatures, inside: int) -> float:
    """Return the number of floating-point operations to form and decompose a system."""
    width = features.x.shape[1]
    if _in_sample_space(inside, width):
        return inside**3 / 3 + (0 if features.gram is not None else 2 * inside**2 * width)
    return width**3 / 3 + 2 * inside * width**2


def _decompose(features: RotatedFeatures, hessian_diagonal: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the (R,) Newton direction of one problem by Cholesky decomposition."""
    rows = torch.nonzero(hessian_diagonal).flatten()
    if not len(rows):
        return -gradient
    root = hessian_diagonal[rows].sqrt()
    x = features.x[rows]
    if not _in_sample_space(len(rows), features.x.shape[1]):
        scaled = x * root[:, None]
        return -_solve(scaled.T @ scaled, gradient)
    products = x @ x.T if features.gram is None else features.gram[rows[:, None], rows]
    return -gradient + (root * _solve(products * root[:, None] * root, root * (x @ gradient))) @ x


def _solve(matrix: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return s with (I + matrix) s = right; the positive semi-definite matrix is overwritten."""
    matrix.diagonal().add_(1)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        # Rounding can make the smallest eigenvalues negative if costs and features are both very large.
        matrix.diagonal().add_(1e-13 * matrix.diagonal().max())
        factor = torch.linalg.cholesky(matrix)
    return torch.cholesky_solve(right[:, None], factor)[:, 0]


def _conjugate_gradients(
    features: RotatedFeatures,
    hessian_diagonal: torch.Tensor,
    gradient: torch.Tensor,
    accuracy: torch.Tensor,
    iterations: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Solve P systems by conjugate gradients with a diagonal preconditioner (Golub & Van Loan 2013, section 11.5).

    `hessian_diagonal`: (P, N); `gradient`: (P, R); `accuracy`: (P,) relative residual of the preconditioned system at
    which a problem ends; `iterations`: (P,) largest numbers of iterations.

    (P, R) directions, (P,) True where the accuracy was reached.
    """
    x = features.x_single
    # The diagonal of the system if the samples inside the margin were a random part of all.
    scale = (1 + hessian_diagonal.mean(dim=1, keepdim=True) * features.energy).rsqrt()
    right = -gradient * scale
    norm = right.norm(dim=1, keepdim=True)
    out = torch.zeros((len(gradient), x.shape[1]))
    reached = torch.zeros(len(gradient), dtype=torch.bool)
    rows, solution = torch.arange(len(gradient)), torch.zeros_like(out)
    residual = (right / norm).float()
    s, h, within, direction = scale.float(), hessian_diagonal.float(), accuracy.float(), residual
    square = residual.square().sum(dim=1)
    for iteration in range(1, math.ceil(float(iterations.max())) + 1):
        scaled = s * direction
        image = s * scaled + s * (((scaled @ x.T).mul_(h)) @ x)
        step = (square / (direction * image).sum(dim=1))[:, None]
        solution = solution + step * direction
        residual = residual - step * image
        previous, square = square, residual.square().sum(dim=1)
        direction = residual + (square / previous)[:, None] * direction
        accurate = square.sqrt() <= within
        ended = accurate | (iterations <= iteration)
        if ended.any():
            out[rows[ended]], reached[rows[ended]] = solution[ended], accurate[ended]
            keep = ~ended
            if not keep.any():
                break
            rows, solution, residual, direction = rows[keep], solution[keep], residual[keep], direction[keep]
            s, h, within, square, iterations = s[keep], h[keep], within[keep], square[keep], iterations[keep]
    return out.double() * norm * scale, reached


_OPERATIONS_UP_TO = 2**36  # of one step: some seconds


def qr_is_affordable(samples: int, width: int) -> bool:
    """Return True if a step takes some seconds at most."""
    return (samples + width) * width**2 <= _OPERATIONS_UP_TO


def solve_by_qr(
    x: FloatArray, signs: FloatArray, costs: FloatArray, start: FloatArray, *, gap: float, max_iter: int
) -> tuple[FloatArray, bool, int]:
    """Minimise |v|^2 / 2 + sum_i costs_i max(0, 1 - signs_i v x_i)^2 over v.

    >>> x, signs = np.array([[-1.0], [1.0]]), np.array([-1.0, 1.0])
    >>> v, optimum, _ = solve_by_qr(x, signs, np.ones(2), np.zeros(1), gap=1e-6, max_iter=10)
    >>> v.round(6).tolist(), optimum  # 4 (1 - v) = v
    ([0.8], True)

    Args:
        x: (N, R).
        signs: (N,) 1 or -1; 0 for a sample that is not in the problem.
        costs: (N,) cost of each sample, 0 for one that is not in the problem.
        start: (R,) initial v.
        gap: relative duality gap accepted as the optimum if rounding decides about a sample on the margin.
        max_iter: largest number of steps.

    Returns:
        (R,) solution, True if it is the optimum, number of steps.
    """
    rows = np.flatnonzero(signs)
    signed, root = x[rows] * signs[rows, None], np.sqrt(2 * costs[rows])
    v, steps = start, 0
    while steps < max_iter:
        steps += 1
        inside = signed @ v < 1
        # the minimum of |v|^2 + |root (1 - signed v)|^2
        left = np.vstack([signed[inside] * root[inside, None], np.eye(x.shape[1])])
        orthogonal, triangle = np.linalg.qr(left)
        target = np.linalg.solve(triangle, orthogonal.T @ np.append(root[inside], np.zeros(x.shape[1])))
        if not np.any((signed @ target < 1) != inside) or _relative_gap(signed, root, target) <= gap:
            return target, True, steps
        t = _line_search(signed, root, v, target - v)
        if t == 0:
            break
        v = v + t * (target - v)
    return v, _relative_gap(signed, root, v) <= gap, steps


def _relative_gap(signed: FloatArray, root: FloatArray, v: FloatArray) -> float:
    """Return the duality gap, |gradient|^2 / 2, relative to the objective."""
    alpha = root**2 * np.maximum(1 - signed @ v, 0)
    gradient = v - alpha @ signed
    value = float(v @ v + np.sum((alpha / root) ** 2))
    return float(gradient @ gradient) / max(value, float(np.finfo(np.float64).tiny))


def _line_search(signed: FloatArray, root: FloatArray, v: FloatArray, direction: FloatArray) -> float:
    """Return the minimum along the direction, the zero of a piecewise linear slope, found among its breakpoints."""
    margin, change = 1 - signed @ v, signed @ direction
    with np.errstate(divide="ignore", invalid="ignore"):
        breakpoints = margin / change
    breakpoints = np.unique(np.append(breakpoints[np.isfinite(breakpoints) & (breakpoints > 0)], 1.0))

    def slope(t: float) -> float:
        slack = np.maximum(margin - t * change, 0)
        return float(v @ direction + t * (direction @ direction) - (root**2 * change) @ slack)

    if slope(0.0) >= 0:
        return 0.0
    low, high = 0, len(breakpoints)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if slope(breakpoints[middle]) >= 0 else (middle + 1, high)
    start = breakpoints[low - 1] if low else 0.0
    end = breakpoints[low] if low < len(breakpoints) else 2 * start + 1
    at_start, at_end = slope(start), slope(end)
    return float(start - at_start * (end - start) / (at_end - at_start))
