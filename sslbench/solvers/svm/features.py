"""Features of the SVM solver: with a constant feature for the bias, rotated onto their principal axes."""

import dataclasses

import numpy as np
import torch

from sslbench.arrays import FloatArray
from sslbench.solvers.svm import PreparedRows

_NULL = 1e-24  # share of the features' squared norm below which an axis holds rounding errors only
_ROWS = 32768  # prepared in double precision at a time
_GRAM_UP_TO = 2**26  # inner products of samples kept in memory (512 MB); without them VOC07 takes 1.7 times as long


@dataclasses.dataclass(frozen=True)
class RotatedFeatures:
    """Features on their principal axes, the constant feature included.

    Attributes:
        x: (N, R) float64 coordinates, R <= min(N, D + 1).
        x_single: (N, R) the same in float32.
        energy: (R,) sum over the samples of the squared coordinates along each axis.
        gram: (N, N) inner products of the samples; None if they are too many to keep.
        basis: (D + 1, R) orthonormal columns, the axes; the last row belongs to the constant feature.
        intercept_scaling: value of the constant feature.
    """

    x: torch.Tensor
    x_single: torch.Tensor
    energy: torch.Tensor
    gram: torch.Tensor | None
    basis: torch.Tensor
    intercept_scaling: float

    def coefficients(self, v: torch.Tensor) -> tuple[FloatArray, FloatArray]:
        """Return the (P, D) weights and (P,) biases of solutions (P, R)."""
        full: FloatArray = (v @ self.basis.T).numpy()
        return full[:, :-1], full[:, -1] * self.intercept_scaling


def rotate(x: FloatArray | PreparedRows, intercept_scaling: float = 1.0) -> RotatedFeatures:
    """Append the constant feature and rotate onto the principal axes, without centring.

    A rotation preserves lengths, so the optimum is that of the original features; on principal axes the Newton systems
    are closer to diagonal.

    >>> rotate(np.array([[3.0, 4.0], [6.0, 8.0]]), intercept_scaling=0.0).x.abs().round(decimals=6).tolist()
    [[5.0], [10.0]]

    Args:
        x: (N, D) finite features.
        intercept_scaling: value of the constant feature whose weight gives the bias, as in LinearSVC.
    """
    samples, columns = len(x), x.shape[1] + 1
    span, triangle = None, None
    if samples < columns:
        # The optimum lies in the span of the samples, so N axes are enough.
        span, triangle = torch.linalg.qr(_with_constant(x, slice(None), intercept_scaling).T)
        triangle = triangle.T.contiguous()

    def block(start: int) -> torch.Tensor:
        rows = slice(start, start + _ROWS)
        return triangle[rows] if triangle is not None else _with_constant(x, rows, intercept_scaling)

    width, starts = min(samples, columns), range(0, samples, _ROWS)
    products = torch.zeros((width, width), dtype=torch.float64)
    for start in starts:
        part = block(start)
        products += part.T @ part
    # numpy's eigendecomposition takes half the time of torch's on a CPU.
    rotation = torch.from_numpy(np.linalg.eigh(products.numpy())[1])
    rotated = torch.empty((samples, width), dtype=torch.float64)
    for start in starts:
        torch.matmul(block(start), rotation, out=rotated[start : start + _ROWS])
    energy = torch.linalg.vector_norm(rotated, dim=0).square()
    kept = energy > _NULL * energy.sum()
    if not kept.all():
        rotated, rotation, energy = rotated[:, kept].contiguous(), rotation[:, kept], energy[kept]
    basis = rotation if span is None else span @ rotation
    n, width = rotated.shape
    gram = rotated @ rotated.T if n * n <= min(_GRAM_UP_TO, 4 * n * width) else None
    return RotatedFeatures(rotated, rotated.float(), energy, gram, basis, intercept_scaling)


def _with_constant(x: FloatArray | PreparedRows, rows: slice, intercept_scaling: float) -> torch.Tensor:
    """Return some rows of the features (n, D + 1) with the constant one."""
    given = x[rows]
    full = torch.empty((len(given), given.shape[1] + 1), dtype=torch.float64)
    full[:, :-1] = torch.from_numpy(given)
    full[:, -1] = intercept_scaling
    return full
