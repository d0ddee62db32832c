"""Logistic regression whose products run on a GPU.

The objective, its solver and the proof of its distance to the optimum are those of `problem`, `newton` and `gap`; only
passes over the samples are torch's. 1.28 M samples x 2,048 features x 1,000 classes take 5 TFLOP for a gradient, in
float64 for those that prove the gap, which GPUs of data centres compute in a fraction of a second. The samples stay on
the GPU if they fill at most `RESIDENT` of its free memory; else every pass copies them block by block.
"""

import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from sslbench.arrays import FloatArray, Matrix, Rows
from sslbench.solvers.logistic.problem import ClassSums, Fit, LossAndGradient, Precision, Problem, Unrotated

# Largest share of the GPU's free memory that samples may fill.
RESIDENT = 0.5
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
        return LossAndGradient(_host(losses) / n, self.axes(by_weight) / n, _host(by_bias) / n)

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
        return ClassSums(_host(positive) / n, _host(known) / n, self.axes(x_positive) / n, self.axes(x_known) / n)

    def device_blocks(self, precision: Precision) -> Iterator[tuple[slice, Tensor]]:
        """Yield the samples in blocks with their columns (n, width) on the device in the given precision."""
        rows = max(256, _VALUES // max(1, self.width, self.outputs))
        dtype = _DTYPES[precision]
        for start in range(0, len(self.x), rows):
            block = slice(start, start + rows)
            if self._samples is not None:
                x = self._samples[block]
            else:
                x = torch.from_numpy(np.ascontiguousarray(self._stored[block])).to(self.device)
            # Centred in double: a feature's mean may be large beside its deviation.
            yield block, (x if self._centre is None else x.double() - self._centre).to(dtype)

    def weights(self, weight: FloatArray, precision: Precision) -> Tensor:
        """Return weights (R, K) of the coordinates as those (width, K) of the columns, on the device."""
        sent = self.send(weight, np.float64)
        return (sent if self._turn is None else self._turn @ sent).to(_DTYPES[precision])

    def axes(self, by_columns: Tensor) -> FloatArray:
        """Return the derivatives (R, K) by weights of the coordinates from those (width, K) by weights of columns."""
        return _host(by_columns if self._turn is None else self._turn.T @ by_columns)

    def turned(self, columns: Tensor) -> Tensor:
        """Return the coordinates (n, R) of a block of columns (n, width)."""
        return columns if self._turn is None else columns @ self._turn.to(columns.dtype)

    def send(self, values: FloatArray, precision: Precision) -> Tensor:
        """Return an array on the device."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device, _DTYPES[precision])

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

    def free_memory(self) -> float:
        """Return the free memory of the device in bytes, after torch has released what it keeps for later use."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return float(torch.cuda.mem_get_info(self.device)[0]) if self.device.type == "cuda" else float("inf")

    @functools.cached_property
    def labels(self) -> Tensor:
        """Targets on the device."""
        return torch.from_numpy(self.targets.astype(np.int64 if self.multinomial else np.int8)).to(self.device)

    @functools.cached_property
    def _samples(self) -> Tensor | None:
        """All samples on the device; None if they are sent block by block."""
        row = self._stored[:1]
        if len(self.x) * row.shape[1] * row.dtype.itemsize > RESIDENT * self.free_memory():
            return None
        samples = torch.empty((len(self.x), row.shape[1]), dtype=torch.from_numpy(row).dtype, device=self.device)
        for start in range(0, len(self.x), _ROWS):
            block = np.ascontiguousarray(self._stored[start : start + _ROWS])
            samples[start : start + len(block)] = torch.from_numpy(block).to(self.device)
        return samples

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


class DeviceHessian:
    """Hessian of the mean loss at one point, as a linear operator, computed on a GPU."""

    def __init__(self, problem: DeviceProblem, precision: Precision, weight: FloatArray, bias: FloatArray) -> None:
        """Compute the probabilities (N, K) at the point, or leave them to be recomputed if they are too many."""
        self._problem, self._precision = problem, precision
        self._weight, self._bias = problem.weights(weight, precision), problem.send(bias, precision)
        self._parts: list[Tensor] = []
        size = len(problem.x) * problem.outputs * np.dtype(precision).itemsize
        if size <= _STORED * problem.free_memory():
            self._parts = [self._of_block(x, rows) for rows, x in problem.device_blocks(precision)]

    def product(self, direction: FloatArray) -> FloatArray:
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
        return np.vstack([problem.axes(out), _host(by_bias)]) / len(problem.x)

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
    for start in range(0, len(x), _ROWS // 4):
        block = torch.from_numpy(np.ascontiguousarray(x[start : start + _ROWS // 4])).to(device).double()
        block = (block - centre) / scale
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
