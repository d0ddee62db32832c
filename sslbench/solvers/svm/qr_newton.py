"""Newton's method for one squared-hinge SVM with QR decompositions, for costs and features of extreme size.

It continues where rounding ends `squared_hinge`. A step goes to the minimum for the current set of samples inside the
margin, found as a least squares problem by a QR decomposition. Its rounding error grows with the root of the largest
cost times squared norm of a sample, that of a Newton system, which contains squares, with the product itself (Golub &
Van Loan 2013, section 5.3). The minimum for a set of samples that equals the set inside its own margin is the optimum
(Keerthi & DeCoste 2005), so convergence does not depend on the size of a gradient.
"""

import numpy as np

from sslbench.arrays import FloatArray

_OPERATIONS_UP_TO = 2**36  # of one step: some seconds


def affordable(samples: int, width: int) -> bool:
    """Return True if a step takes some seconds at most."""
    return (samples + width) * width**2 <= _OPERATIONS_UP_TO


def solve(
    x: FloatArray, signs: FloatArray, costs: FloatArray, start: FloatArray, *, gap: float, max_iter: int
) -> tuple[FloatArray, bool, int]:
    """Minimise |v|^2 / 2 + sum_i costs_i max(0, 1 - signs_i v x_i)^2 over v.

    >>> x, signs = np.array([[-1.0], [1.0]]), np.array([-1.0, 1.0])
    >>> v, optimum, _ = solve(x, signs, np.ones(2), np.zeros(1), gap=1e-6, max_iter=10)
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
        target = _least_squares(signed[inside], root[inside])
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


def _least_squares(signed: FloatArray, root: FloatArray) -> FloatArray:
    """Return the minimum of |v|^2 + |root (1 - signed v)|^2."""
    width = signed.shape[1]
    left = np.vstack([signed * root[:, None], np.eye(width)])
    right = np.append(root, np.zeros(width))
    orthogonal, triangle = np.linalg.qr(left)
    return np.asarray(np.linalg.solve(triangle, orthogonal.T @ right))


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
