"""The objective of a logistic regression: its value, its gradient, and how curved it is."""

import dataclasses

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.floating]

_LOGITS = 2**21  # held at a time, so that they stay in the cache


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted model.

    Attributes:
        weight: (R, K) on the axes.
        bias: (K,).
        converged: whether the gradient became as small as asked.
        iterations: of L-BFGS.
        gradient: largest entry of the gradient of the mean objective, in the scaled coordinates it was solved in.
    """

    weight: FloatArray
    bias: FloatArray
    converged: bool
    iterations: int
    gradient: float

    def decide(self, x: Matrix) -> FloatArray:
        """(N, K) decision values of coordinates (N, R)."""
        return np.asarray(x @ self.weight.astype(x.dtype) + self.bias, dtype=np.float64)


class Problem:
    """The loss over some samples, as a function of weights on the axes."""

    def __init__(self, x: Matrix, targets: npt.NDArray[np.int64] | npt.NDArray[np.int8], outputs: int) -> None:
        """Prepare.

        Args:
            x: (N, R) coordinates.
            targets: (N,) classes 0..K-1 for a multinomial problem; (N, K) of 1, 0 or -1 (ignored) for K binary ones.
            outputs: K.
        """
        self.x, self.outputs, self._targets = x, outputs, targets
        self.multinomial = targets.ndim == 1
        self._single: Matrix | None = None

    def single(self) -> Matrix:
        """The coordinates in single precision."""
        if self._single is None:
            self._single = self.x.astype(np.float32, copy=False)
        return self._single

    def loss_and_gradient(self, x: Matrix, weight: Matrix, bias: Matrix) -> tuple[float, FloatArray, FloatArray]:
        """The mean loss per sample (summed over outputs), and its gradient by the weights (R, K) and biases (K,).

        Products are in the precision of `x`, the coordinates in one or the other; sums over the samples in double.
        """
        weight, bias = weight.astype(x.dtype, copy=False), bias.astype(x.dtype, copy=False)
        loss, by_weight, by_bias = 0.0, np.zeros(weight.shape[::-1]), np.zeros(len(bias))
        for block in self.blocks():
            logits = x[block] @ weight
            logits += bias
            loss += (_multinomial if self.multinomial else _binary)(logits, self._targets[block])
            by_weight += logits.T @ x[block]
            by_bias += logits.sum(axis=0, dtype=np.float64)
        return loss / len(x), by_weight.T / len(x), by_bias / len(x)

    def blocks(self) -> list[slice]:
        """The samples in parts, so that what is computed of each stays in the cache and memory stays bounded."""
        rows = max(256, _LOGITS // self.outputs)
        return [slice(start, start + rows) for start in range(0, len(self.x), rows)]

    def bend(self, x: Matrix, rows: slice, weight: Matrix, bias: Matrix) -> Matrix:
        """What the second derivative is made of: probabilities (multinomial), or p (1 - p) of each label (binary)."""
        logits = x @ weight + bias
        if not self.multinomial:
            _binary(logits, self._targets[rows])
            return np.asarray(np.abs(logits) * (1 - np.abs(logits)))
        _multinomial(logits, self._targets[rows])
        logits[np.arange(len(logits)), self._targets[rows]] += 1
        return logits

    def loss(self, logits: Matrix) -> float:
        """The mean loss per sample of decision values (N, K)."""
        return (_multinomial if self.multinomial else _binary)(logits.copy(), self._targets) / len(logits)

    def curvature(self, x: Matrix, weight: Matrix, bias: Matrix) -> float:
        """The mean of p (1 - p) over samples and outputs: how curved the loss is in a decision value."""
        # What scales the axes need not be exact.
        some = x[:: max(1, len(x) * self.outputs // _LOGITS)]
        logits = some @ weight.astype(x.dtype, copy=False) + bias.astype(x.dtype, copy=False)
        if self.multinomial:
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
        else:
            p = 1 / (1 + np.exp(np.minimum(np.abs(logits), 80)))
        return float(np.mean(p * (1 - p)))


def _multinomial(logits: Matrix, classes: npt.NDArray[np.integer]) -> float:
    """The summed loss of (n, K) logits, which become its gradient by them."""
    rows = np.arange(len(logits))
    logits -= logits.max(axis=1, keepdims=True)
    own = logits[rows, classes]
    np.exp(logits, out=logits)
    total = logits.sum(axis=1)
    logits /= total[:, None]
    logits[rows, classes] -= 1
    return float(np.sum(np.log(total) - own, dtype=np.float64))


def _binary(logits: Matrix, targets: npt.NDArray[np.integer]) -> float:
    """The same for K separate labels: 1, 0, or -1 where the label is unknown and counts for nothing."""
    sign, known = np.where(targets > 0, 1, -1).astype(logits.dtype), targets >= 0
    margin = sign * logits
    smaller = np.exp(-np.abs(margin))
    loss = float(np.sum((np.maximum(-margin, 0) + np.log1p(smaller)) * known, dtype=np.float64))
    # The chance of the wrong answer, computed without overflow on either side.
    logits[:] = -sign * known * np.where(margin > 0, smaller, 1) / (1 + smaller)
    return loss


def scales(problem: Problem, x: Matrix, variance: FloatArray, c: float, at: Fit) -> FloatArray:
    """(R + 1, 1) what the coordinates of weights and biases are multiplied by to make the problem nearly round."""
    curvature = max(problem.curvature(x, at.weight, at.bias), 1e-4)
    return np.append(1 / np.sqrt(variance * curvature + 1 / (c * len(x))), 1 / np.sqrt(curvature))[:, None]
