"""A squared-hinge SVM where costs and features are so large that rounding stops the solver of many at once.

The same Newton method, but each step is the minimum for the samples inside the margin itself, found as a least squares
problem by an orthogonal decomposition. Its error grows with the root of cost times squared length of the features,
where that of a Newton system, which is formed from squares, grows with the whole. The minimum for a set of samples that
are exactly those inside its margin is the optimum, so nothing is left to be proven by a small gradient.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_WORK_UP_TO = 2**36  # operations of one step


def affordable(samples: int, width: int) -> bool:
    """Whether a step takes seconds at most."""
    return (samples + width) * width**2 <= _WORK_UP_TO


def rescue(
    x: FloatArray, signs: FloatArray, weights: FloatArray, start: FloatArray, *, gap: float, max_iter: int
) -> tuple[FloatArray, bool, int]:
    """The minimum over v of |v|^2 / 2 + sum_i weights_i max(0, 1 - signs_i v x_i)^2.

    Args:
        x: (N, R).
        signs: (N,), 1 or -1; 0 for a sample that is not in the problem.
        weights: (N,) cost of each sample, 0 for one that is not in the problem.
        start: (R,).
        gap: relative duality gap that counts as the optimum where no set of samples is that inside its minimum's
            margin, because rounding decides about a sample on the margin.
        max_iter: largest number of steps.

    Returns:
        (R,) the solution, whether it is the optimum, and the number of steps.
    """
    rows = np.flatnonzero(signs)
    signed, root = x[rows] * signs[rows, None], np.sqrt(2 * weights[rows])
    v, steps = start, 0
    while steps < max_iter:
        steps += 1
        inside = signed @ v < 1
        target = _least_squares(signed[inside], root[inside])
        if not np.any((signed @ target < 1) != inside) or _relative_gap(signed, root, target) <= gap:
            return target, True, steps
        reach = _lowest(signed, root, v, target - v)
        if reach == 0:
            break
        v = v + reach * (target - v)
    return v, _relative_gap(signed, root, v) <= gap, steps


def _relative_gap(signed: FloatArray, root: FloatArray, v: FloatArray) -> float:
    """Half the squared length of the gradient, of the objective."""
    pull = root**2 * np.maximum(1 - signed @ v, 0)
    gradient = v - pull @ signed
    value = float(v @ v + np.sum((pull / root) ** 2))
    return float(gradient @ gradient) / max(value, float(np.finfo(np.float64).tiny))


def _least_squares(signed: FloatArray, root: FloatArray) -> FloatArray:
    """The minimum of |v|^2 + |root (1 - signed v)|^2."""
    width = signed.shape[1]
    left = np.vstack([signed * root[:, None], np.eye(width)])
    right = np.append(root, np.zeros(width))
    orthogonal, triangle = np.linalg.qr(left)
    return np.asarray(np.linalg.solve(triangle, orthogonal.T @ right))


def _lowest(signed: FloatArray, root: FloatArray, v: FloatArray, direction: FloatArray) -> float:
    """Where along the direction the objective is lowest: its slope is piecewise linear, so the bends are looked at."""
    margin, change = 1 - signed @ v, signed @ direction
    with np.errstate(divide="ignore", invalid="ignore"):
        bends = margin / change
    bends = np.unique(np.append(bends[np.isfinite(bends) & (bends > 0)], 1.0))

    def slope(t: float) -> float:
        slack = np.maximum(margin - t * change, 0)
        return float(v @ direction + t * (direction @ direction) - (root**2 * change) @ slack)

    if slope(0.0) >= 0:
        return 0.0
    low, high = 0, len(bends)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if slope(bends[middle]) >= 0 else (middle + 1, high)
    start = bends[low - 1] if low else 0.0
    end = bends[low] if low < len(bends) else 2 * start + 1
    at_start, at_end = slope(start), slope(end)
    return float(start - at_start * (end - start) / (at_end - at_start))
