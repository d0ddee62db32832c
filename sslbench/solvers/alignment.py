"""Similarity of two representations of the same samples beside CKA: common neighbours, SVCCA, Procrustes.

Each is 0 to 1, 1 for representations that agree up to rotation and scale, and NaN where one side is constant.
"""

import numpy as np

from sslbench.arrays import FloatArray, Matrix
from sslbench.solvers.neighbours import Scope, nearest

NEIGHBOURS = 10
"""Neighbours per sample, as Huh et al. 2024 use them."""
_ROWS = 4096  # rows per block, so that memory-mapped features are never copied whole
_VARIANCE = 0.99  # share of the variance in the directions that SVCCA keeps


def mutual_knn(x: Matrix, y: Matrix, k: int = NEIGHBOURS) -> float:
    """Return the mean share of common samples among the k nearest by cosine (Huh et al., ICML 2024, appendix A).

    `x`: (N, D1), `y`: (N, D2), N > k. By chance it is k / (N - 1).

    >>> x = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> mutual_knn(x, x[:, ::-1], k=1)
    1.0
    """
    if _is_constant(x) or _is_constant(y):
        return float("nan")
    rows = [
        np.sort(nearest(side, side, k, metric="cosine", max_memory=1.0, scope=Scope(without_self=True))[1], axis=1)
        for side in (x, y)
    ]
    together = np.sort(np.concatenate(rows, axis=1), axis=1)
    return float((together[:, 1:] == together[:, :-1]).sum() / (len(x) * k))


def svcca(x: Matrix, y: Matrix) -> float:
    """Return the mean canonical correlation of the directions with 99 % of the variance (Raghu et al., NeurIPS 2017).

    The mean is over the smaller number of directions of the two.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [2.0, 1.0]])
    >>> round(svcca(x, x @ np.array([[3.0, 1.0], [0.0, 1.0]])), 6)
    1.0
    """
    kept = []
    for side in (x, y):
        basis, lengths = _basis(side)
        share = np.cumsum(lengths**2) / np.sum(lengths**2) if len(lengths) else lengths
        kept.append(basis[:, : int(np.searchsorted(share, _VARIANCE)) + 1])
    if not all(side.shape[1] for side in kept):
        return float("nan")
    correlations = np.linalg.svd(kept[0].T @ kept[1], compute_uv=False)
    return float(np.minimum(correlations, 1).mean())


def procrustes(x: Matrix, y: Matrix) -> float:
    """Return 1 minus half the squared Procrustes distance of centred features of norm 1 (Ding et al., NeurIPS 2021).

    That is the cosine after the best rotation of one onto the other.

    >>> x = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.5]])
    >>> round(procrustes(x, 2 * x[:, ::-1]), 6)
    1.0
    """
    (left, lengths), (right, others) = _basis(x), _basis(y)
    if not len(lengths) or not len(others):
        return float("nan")
    product = lengths[:, None] * (left.T @ right) * others
    nuclear = np.linalg.svd(product, compute_uv=False).sum()
    return float(min(1.0, nuclear / (np.linalg.norm(lengths) * np.linalg.norm(others))))


def _is_constant(x: Matrix) -> bool:
    return not any((x[start : start + _ROWS] != x[0]).any() for start in range(0, len(x), _ROWS))


def _basis(x: Matrix) -> tuple[FloatArray, FloatArray]:
    """Return the left singular vectors (N, R) and values (R,) of centred features (N, D), the largest first."""
    n, width = x.shape
    starts = range(0, n, _ROWS)
    mean = np.sum([x[start : start + _ROWS].sum(axis=0, dtype=np.float64) for start in starts], axis=0) / n
    if n < width:
        gram = np.zeros((n, n))
        for start in range(0, width, _ROWS):
            part = x[:, start : start + _ROWS].astype(np.float64) - mean[start : start + _ROWS]
            gram += part @ part.T
    else:
        gram = np.zeros((width, width))
        for start in starts:
            part = x[start : start + _ROWS].astype(np.float64) - mean
            gram += part.T @ part
    values, vectors = np.linalg.eigh(gram)
    # Rounding leaves a constant column not quite at its mean.
    least = np.finfo(np.float64).eps * max(n, width) * max(float(values.max(initial=0)), n * float(mean @ mean))
    kept = np.flatnonzero(values > least)[::-1]
    values, vectors = values[kept], vectors[:, kept]
    if n < width:
        return vectors, np.sqrt(values)
    basis = np.concatenate([(x[start : start + _ROWS].astype(np.float64) - mean) @ vectors for start in starts])
    return basis / np.sqrt(values), np.sqrt(values)
