"""Logistic regression whose products run on a GPU.

The objective, its solver and the proof of its distance to the optimum are those of `problem`, `newton` and `gap`; only
passes over the samples are torch's. 1.28 M samples x 2,048 features x 1,000 classes take 5 TFLOP for a gradient, in
float64 for those that prove the gap, which GPUs of data centres compute in a fraction of a second. The samples stay on
the GPU if they fill at most half of its free memory; else every pass copies them block by block.
"""

import contextlib
import functools
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from sslbench.arrays import FloatArray, Matrix, Rows
from sslbench.solvers import transfer
from sslbench.solvers.logistic.problem import (
    REMEMBERED,
    STALLED,
    ClassSums,
    Fit,
    LossAndGradient,
    Precision,
    Problem,
    Unrotated,
    preconditioner,
)

_VALUES = 2**26  # feature values and logits per block: half a gigabyte in float64
_STORED = 0.25  # largest share of the free memory for the probabilities of a Newton step
_ROWS = 65_536
_DTYPES = {np.float32: torch.float32, np.float64: torch.float64}


class DeviceProblem(Problem):
    """Mean loss over samples as a function of weights on the principal axes, computed on a GPU.

    >>> from sslbench.solvers.logistic import fit
    >>> problem = DeviceProblem(np.array([[-1.0], [1.0]]), np.array([[0], [1]], dtype=np.int8), 1, "cpu")
    >>> fit(problem, np.ones(1), 1.0, start=None, max_iter=100, tolerance=1e-10).weight.round(4).tolist()
    [[0.6748]]
    """

    def __init__(
        self, x: Matrix | Unrotated, targets: npt.NDArray[np.int64] | npt.NDArray[np.int8], outputs: int, device: str
    ) -> None:
        """Store the samples; they are copied to the device when they are used.

        `device`: 'cuda', 'cuda:1'; 'cpu' in tests.
        """
        super().__init__(x, targets, outputs)
        self.device = torch.device(device)

    def loss_and_gradient(self, precision: Precision, weight: FloatArray, bias: FloatArray) -> LossAndGradient:
        """Return the mean loss and its gradient; products in the given precision, sums over the samples in double."""
        return LossAndGradient(*map(_host, self._loss(precision, weight, bias)))

    def _loss(
        self, precision: Precision, weight: FloatArray | Tensor, bias: FloatArray | Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean losses and their gradients by weights (R, K) and biases (K,), on the device in double."""
        narrow, offset = self.weights(weight, precision), self.send(bias, precision)
        losses = self._zeros(1 if self.multinomial else self.outputs)
        by_weight, by_bias = self._zeros(self.width, self.outputs), self._zeros(len(bias))
        for rows, x in self.device_blocks(precision):
            logits = x @ narrow
            logits += offset
            losses += self.residuals(logits, rows)
            by_weight += x.T @ logits
            by_bias += logits.sum(dim=0, dtype=torch.float64)
        n = len(self.x)
        return losses / n, self.axes(by_weight) / n, by_bias / n

    def descend(
        self, precision: Precision, variance: FloatArray, penalty: float, start: Fit, *, max_iter: int, tolerance: float
    ) -> Fit:
        """Run torch's L-BFGS on the device as `Problem.descend` runs scipy's."""
        scaling = preconditioner(self, precision, variance, penalty, start.weight, start.bias)
        scale = self.send(scaling, np.float64)
        point = self.send(np.vstack([start.weight, start.bias]), np.float64) / scale
        reference, latest = 1.0, math.inf

        def objective() -> float:
            nonlocal latest
            values = point.detach() * scale
            losses, by_weight, by_bias = self._loss(precision, values[:-1], values[-1])
            gradient = torch.cat([by_weight + penalty * values[:-1], by_bias[None]])
            value = float(losses.sum() + penalty / 2 * values[:-1].square().sum())
            distance = gradient[:-1].square().sum() / penalty + (gradient[-1] * scale[-1]).square().sum()
            latest = float(distance) / 2 / value
            point.grad = gradient * scale / reference
            if latest <= tolerance:
                raise _NearOptimum
            return value / reference

        most = max(1, max_iter)
        optimizer = torch.optim.LBFGS(
            [point],
            max_iter=most,
            max_eval=2 * most + 20,
            tolerance_grad=0.0,
            tolerance_change=STALLED * tolerance,
            history_size=REMEMBERED,
            line_search_fn="strong_wolfe",
        )
        with contextlib.suppress(_NearOptimum):  # at the point that was evaluated last
            reference = objective()
            optimizer.step(objective)  # type: ignore[no-untyped-call]
        values = _host(point * scale)
        taken = int(optimizer.state[point].get("n_iter", 0))
        return Fit(values[:-1], values[-1], latest <= tolerance, taken, latest)

    def curvature(self, precision: Precision, weight: FloatArray, bias: FloatArray) -> float:
        """Return the mean of p (1 - p) over outputs and a subset of samples, enough for a preconditioner."""
        columns = self.send(self._columns(self.every(), precision), precision)
        logits = columns @ self.weights(weight, precision) + self.send(bias, precision)
        (_multinomial if self.multinomial else _binary)(logits, self.labels[self.every()])
        return float((logits.abs() * (1 - logits.abs())).mean())

    def hessian(self, precision: Precision, weight: FloatArray, bias: FloatArray) -> "DeviceHessian":
        """Return the Hessian of the mean loss at a point."""
        return DeviceHessian(self, precision, weight, bias)

    def bias_hessian(self, weight: FloatArray, bias: FloatArray) -> FloatArray:
        """Return the (K, K) Hessian of the summed loss by the biases; of a multinomial loss without its diagonal."""
        narrow, offset = self.weights(weight, np.float32), self.send(bias, np.float32)
        hessian = self._zeros(self.outputs, self.outputs)
        for rows, x in self.device_blocks(np.float32):
            parts = self.parts_of(x @ narrow + offset, rows)
            hessian += -(parts.T @ parts) if self.multinomial else parts.sum(dim=0, dtype=torch.float64).diag()
        return _host(hessian)

    def solve(self, matrix: FloatArray, right: FloatArray) -> FloatArray:
        """Return the solution of K equations."""
        return _host(torch.linalg.solve(self.send(matrix, np.float64), self.send(right, np.float64)))

    def decide(self, model: Fit) -> Iterator[tuple[slice, FloatArray]]:
        """Yield the decision values (n, K) of a model, block by block."""
        weight, bias = self.weights(model.weight, self.stored_precision), self.send(model.bias, np.float64)
        for rows, x in self.device_blocks(self.stored_precision):
            yield rows, _host((x @ weight).double() + bias)

    def loss(self, model: Fit) -> float:
        """Return the mean loss per sample of a model; K binary losses are summed."""
        weight, bias = self.weights(model.weight, self.stored_precision), self.send(model.bias, np.float64)
        total = self._zeros(1 if self.multinomial else self.outputs)
        for rows, x in self.device_blocks(self.stored_precision):
            total += self.residuals((x @ weight).double() + bias, rows)
        return float(total.sum()) / len(self.x)

    @functools.cached_property
    def class_sums(self) -> ClassSums:
        """Means over all samples per class."""
        n, outputs = len(self.x), self.outputs
        positive, known = self._zeros(outputs), self._zeros(outputs)
        x_positive, x_known = self._zeros(self.width, outputs), self._zeros(self.width, outputs)
        for rows, x in self.device_blocks(np.float64):
            targets = self.labels[rows]
            if self.multinomial:
                positive += torch.bincount(targets, minlength=outputs)
                known += len(x)
                # A product in place of index_add_, whose order of additions differs from run to run on a GPU.
                x_positive += x.T @ functional.one_hot(targets, outputs).to(x.dtype)
                x_known += x.sum(dim=0)[:, None]
            else:
                is_positive, is_known = (targets > 0).double(), (targets >= 0).double()
                positive += is_positive.sum(dim=0)
                known += is_known.sum(dim=0)
                x_positive += x.T @ is_positive
                x_known += x.T @ is_known
        sums = positive, known, self.axes(x_positive), self.axes(x_known)
        return ClassSums(*(_host(each) / n for each in sums))

    def device_blocks(self, precision: Precision) -> Iterator[tuple[slice, Tensor]]:
        """Yield the samples in blocks with their columns (n, width) on the device in the given precision."""
        rows, dtype = max(256, _VALUES // max(1, self.width, self.outputs)), _DTYPES[precision]
        parts = transfer.blocks_of(len(self.x), rows)
        held = self._samples
        blocks = (
            transfer.sent(self._stored, parts, self.device) if held is None else ((part, held[part]) for part in parts)
        )
        for part, x in blocks:
            # Centred in double: a feature's mean may be large beside its deviation.
            yield part, (x if self._centre is None else x.double() - self._centre).to(dtype)

    def weights(self, weight: FloatArray | Tensor, precision: Precision) -> Tensor:
        """Return weights (R, K) of the coordinates as those (width, K) of the columns, on the device."""
        sent = self.send(weight, np.float64)
        return (sent if self._turn is None else self._turn @ sent).to(_DTYPES[precision])

    def axes(self, by_columns: Tensor) -> Tensor:
        """Return the derivatives (R, K) by weights of the coordinates from those (width, K) by weights of columns."""
        return by_columns if self._turn is None else self._turn.T @ by_columns

    def turned(self, columns: Tensor) -> Tensor:
        """Return the coordinates (n, R) of a block of columns (n, width)."""
        return columns if self._turn is None else columns @ self._turn.to(columns.dtype)

    def send(self, values: Matrix | Tensor, precision: Precision) -> Tensor:
        """Return an array, or what is there already, on the device in the given precision."""
        given = values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
        return given.to(self.device, _DTYPES[precision])

    def residuals(self, logits: Tensor, rows: slice) -> Tensor:
        """Return the summed losses in double, and overwrite the logits (n, K) by the gradient of the losses by them."""
        return (_multinomial if self.multinomial else _binary)(logits, self.labels[rows])

    def parts_of(self, logits: Tensor, rows: slice) -> Tensor:
        """Return (n, K) probabilities (multinomial), or p (1 - p) of each label (binary); overwrites the logits."""
        self.residuals(logits, rows)
        if not self.multinomial:
            wrong = logits.abs()
            return wrong * (1 - wrong)
        own = self.labels[rows][:, None]
        return logits.scatter_add_(1, own, torch.ones_like(own, dtype=logits.dtype))

    @functools.cached_property
    def labels(self) -> Tensor:
        """Targets on the device."""
        return torch.from_numpy(self.targets.astype(np.int64 if self.multinomial else np.int8)).to(self.device)

    @functools.cached_property
    def _samples(self) -> Tensor | None:
        """All samples on the device; None if they are sent block by block."""
        return transfer.resident(self._stored, self.device)

    @property
    def _stored(self) -> Rows:
        return self.x.x if isinstance(self.x, Unrotated) else self.x

    @functools.cached_property
    def _centre(self) -> Tensor | None:
        return self.send(self.x.centre, np.float64) if isinstance(self.x, Unrotated) else None

    @functools.cached_property
    def _turn(self) -> Tensor | None:
        return self.send(self.x.turn, np.float64) if isinstance(self.x, Unrotated) else None

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=self.device)


class _NearOptimum(Exception):  # noqa: N818 - no error
    """End of L-BFGS, which torch's has no other way to ask for."""


class DeviceHessian:
    """Hessian of the mean loss at one point, as a linear operator, computed on a GPU."""

    def __init__(self, problem: DeviceProblem, precision: Precision, weight: FloatArray, bias: FloatArray) -> None:
        """Compute the probabilities (N, K) at the point, or leave them to be recomputed if they are too many."""
        self._problem, self._precision = problem, precision
        self._weight, self._bias = problem.weights(weight, precision), problem.send(bias, precision)
        self._parts: list[Tensor] = []
        size = len(problem.x) * problem.outputs * np.dtype(precision).itemsize
        if size <= _STORED * transfer.free_memory(problem.device):
            self._parts = [self._of_block(x, rows) for rows, x in problem.device_blocks(precision)]

    def send(self, values: FloatArray) -> Tensor:
        """Return an array on the device in double."""
        return self._problem.send(values, np.float64)

    def receive(self, values: Tensor) -> FloatArray:
        """Return a tensor as an array."""
        return _host(values)

    def product(self, direction: Tensor) -> Tensor:
        """Return the (R + 1, K) product with a direction (R + 1, K), whose last row belongs to the biases."""
        problem = self._problem
        narrow, offset = problem.weights(direction[:-1], self._precision), problem.send(direction[-1], self._precision)
        out = torch.zeros((problem.width, problem.outputs), dtype=torch.float64, device=problem.device)
        by_bias = torch.zeros(problem.outputs, dtype=torch.float64, device=problem.device)
        for i, (rows, x) in enumerate(problem.device_blocks(self._precision)):
            parts = self._parts[i] if self._parts else self._of_block(x, rows)
            change = x @ narrow
            change += offset
            if problem.multinomial:
                # Relative to the sample's own class, to avoid cancellation if its probability is nearly 1.
                change -= change.gather(1, problem.labels[rows][:, None])
                change -= (parts * change).sum(dim=1, keepdim=True)
            change *= parts
            out += x.T @ change
            by_bias += change.sum(dim=0, dtype=torch.float64)
        return torch.cat([problem.axes(out), by_bias[None]]) / len(problem.x)

    def diagonal(self) -> FloatArray:
        """Return the (R + 1, K) diagonal."""
        problem = self._problem
        out = torch.zeros((problem.outputs, problem.x.shape[1] + 1), dtype=torch.float64, device=problem.device)
        for i, (rows, x) in enumerate(problem.device_blocks(self._precision)):
            parts = self._parts[i] if self._parts else self._of_block(x, rows)
            of_sample = parts
            if problem.multinomial:
                own = problem.labels[rows][:, None]
                without = parts.scatter(1, own, 0.0)
                of_sample = without * (1 - parts)
                of_sample.scatter_(1, own, parts.gather(1, own) * without.sum(dim=1, keepdim=True))
            on_axes = problem.turned(x)
            out[:, :-1] += of_sample.T @ (on_axes * on_axes)
            out[:, -1] += of_sample.sum(dim=0, dtype=torch.float64)
        return _host(out.T) / len(problem.x)

    def _of_block(self, x: Tensor, rows: slice) -> Tensor:
        logits = x @ self._weight
        logits += self._bias
        return self._problem.parts_of(logits, rows)


def eigenvectors(matrix: FloatArray, device: str) -> tuple[FloatArray, FloatArray]:
    """Return the eigenvalues, ascending, and the eigenvectors of a symmetric matrix."""
    values, vectors = torch.linalg.eigh(torch.from_numpy(matrix).to(device))
    return _host(values), _host(vectors)


def covariance(x: Rows, mean: FloatArray, std: FloatArray, axes: FloatArray | None, device: str) -> FloatArray:
    """Return the covariance of the standardised features (N, D), or of their coordinates on `axes` (D, R)."""
    centre, scale = (torch.from_numpy(each).to(device) for each in (mean, std))
    turn = None if axes is None else torch.from_numpy(np.ascontiguousarray(axes)).to(device)
    width = x.shape[1] if axes is None else axes.shape[1]
    total = torch.zeros((width, width), dtype=torch.float64, device=device)
    for _, stored in transfer.sent(x, transfer.blocks_of(len(x), _ROWS // 4), torch.device(device)):
        block = (stored.double() - centre) / scale
        block = block if turn is None else block @ turn
        total += block.T @ block
    return _host(total) / len(x)


def _host(values: Tensor) -> FloatArray:
    return values.detach().cpu().numpy()


def _multinomial(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the summed softmax loss of (n, K) logits, and overwrite them by its gradient; see `problem`."""
    own = classes[:, None]
    logits -= logits.amax(dim=1, keepdim=True)
    mine = logits.gather(1, own)
    logits.exp_()
    right = logits.gather(1, own)
    logits.scatter_(1, own, 0.0)
    others = logits.sum(dim=1, keepdim=True)
    total = others + right
    logits /= total
    logits.scatter_(1, own, -others / total)
    losses = torch.where(mine == 0, others.log1p(), total.log() - mine)
    return losses.sum(dtype=torch.float64)[None]


def _binary(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the (K,) summed logistic losses of (n, K) logits, and overwrite them by their gradient; see `problem`."""
    sign, known = torch.where(targets > 0, 1, -1).to(logits.dtype), (targets >= 0).to(logits.dtype)
    margin = sign * logits
    smaller = margin.abs().neg().exp()
    losses = (((-margin).clamp(min=0) + smaller.log1p()) * known).sum(dim=0, dtype=torch.float64)
    torch.mul(-sign * known, torch.where(margin > 0, smaller, 1.0) / (1 + smaller), out=logits)
    return losses
