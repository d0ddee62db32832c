"""Blockwise similarities of test rows with train rows, for an exact search of neighbours."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, Matrix

if TYPE_CHECKING:
    import torch

Metric = Literal["cosine", "dot", "l2"]

_SMALLEST, _LARGEST = 1e-12, 1e12  # norms between which float32 products neither underflow nor overflow
_BITS = 40  # of the mantissa to which similarities are rounded before they are compared
CACHED = 65536  # values of train rows compared in float64 at a time, which fit into a processor's cache


@dataclasses.dataclass(frozen=True)
class Scope:
    """Subset of the rows in a search.

    Attributes:
        test_rows: (m,) test rows to search for; None for all.
        left_out: (N,) True for train rows that are excluded; None for none.
        without_self: test and train are the same rows, and a row is not its own neighbour.
        apart: (N,) group numbers: test and train are the same rows, and rows of one group are not neighbours.
    """

    test_rows: IntArray | None = None
    left_out: npt.NDArray[np.bool_] | None = None
    without_self: bool = False
    apart: IntArray | None = None

    @property
    def refused(self) -> int:
        """Largest number of train rows excluded for a single test row, besides those excluded for all."""
        if self.apart is not None:
            return int(np.unique(self.apart, return_counts=True)[1].max())
        return int(self.without_self)


@dataclasses.dataclass(frozen=True)
class Engine:
    """Library and device of the first pass; the result does not depend on them.

    Attributes:
        library: 'faiss' (CPU only) or 'torch', whose products on the CPU are numpy's.
        device: device for torch: 'cpu', 'cuda', 'cuda:1', 'mps'.
    """

    library: Literal["faiss", "torch"] = "faiss"
    device: str = "cpu"


def rounded(similarity: FloatArray) -> FloatArray:
    """Return similarities with the digits by which they are compared."""
    mantissa, exponent = np.frexp(similarity)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**_BITS), exponent - _BITS))


@dataclasses.dataclass(frozen=True)
class QueryBlock:
    """Block of test rows, prepared for matrix products.

    Attributes:
        x: (m, D) rows on the device, centred for 'l2' and of length 1 for 'cosine'.
        norms: (m,) Euclidean norms before normalisation.
        own: (m,) row numbers in test.
        products: (m * n,) buffer on the CPU for products with up to n train rows; allocating it for every block costs
            as much as the search in it.
    """

    x: "torch.Tensor"
    norms: "torch.Tensor"
    own: IntArray
    products: "torch.Tensor"


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blockwise similarities of two matrices.

    Attributes:
        train: (N, D).
        test: (M, D).
        metric: 'cosine', 'dot', or 'l2', whose similarity is minus the squared distance.
        scope: rows in the search; excluded pairs have a similarity of -inf.
        engine: library and device of the first pass.
        max_memory: working memory in GB.
    """

    all_queries: ClassVar[bool] = False
    """All test rows are searched for in one pass, if memory allows."""
    train: Matrix
    test: Matrix
    metric: Metric
    scope: Scope
    engine: Engine
    max_memory: float

    @functools.cached_property
    def budget(self) -> float:
        """Working memory in bytes."""
        return self.max_memory * 1e9

    @property
    def width(self) -> int:
        """Number of features, D."""
        return int(self.train.shape[1])

    @property
    def copies(self) -> bool:
        """Need of a copy of the train rows for float32 products."""
        transformed = self.metric == "l2" or (self.engine.library == "faiss" and self.metric == "cosine")
        usable = self.engine.device == "cpu" and self.train.dtype == np.float32 and self.train.flags.c_contiguous
        return transformed or not usable or (self.engine.library == "faiss" and self.scope.left_out is not None)

    @functools.cached_property
    def centre(self) -> FloatArray:
        """(D,) approximate mean of train for 'l2': centring preserves distances and reduces rounding errors."""
        if self.metric != "l2":
            return np.zeros(self.width)
        step = max(1, len(self.train) // 1024)
        return np.asarray(self.train[::step].mean(axis=0, dtype=np.float64))

    @functools.cached_property
    def copy(self) -> "torch.Tensor":
        """(n, D) buffer for the train rows of a block at length 1, for faiss; new memory for each costs more than they.

        numpy requests huge pages from the kernel, torch does not.
        """
        import torch

        return torch.from_numpy(np.empty((self.faiss_rows, self.width), np.float32))

    @property
    def faiss_rows(self) -> int:
        """Number of train rows that faiss searches at once, whose copies take two thirds of the memory.

        faiss has no products in memory, and begins with empty lists of neighbours each time: few large blocks.
        """
        copies = 1.2 if self.scope.left_out is None and self.train.dtype == np.float32 else 2.7
        rows = self.budget * 2 / 3 / (4 * self.width * copies) if self.copies else len(self.train)
        return int(max(64, min(len(self.train), rows)))

    def prepare(self, own: IntArray, most: int, *, precise: bool) -> QueryBlock:
        """Prepare test rows in float32 or, if `precise`, float64, for blocks of at most `most` train rows."""
        import torch

        x = self._on_device(self.test[own], precise=precise)
        norms = torch.linalg.vector_norm(x, dim=1)
        if self.metric == "cosine":
            x = x / torch.where(norms > 0, norms, 1)[:, None]
        by_torch = precise or self.engine.library == "torch"
        buffer_size = len(own) * most if by_torch and x.device.type == "cpu" else 0
        # numpy requests huge pages from the kernel, torch does not.
        products = torch.from_numpy(np.empty(buffer_size, dtype=np.float64 if precise else np.float32))
        return QueryBlock(x, norms, own, products)

    def blocks(self, step: int, *, precise: bool) -> Iterator[tuple[slice, "torch.Tensor | None"]]:
        """Yield parts of train, `step` rows each, with the rows on the device in the precision; None: still to read."""
        yield from ((slice(i, min(i + step, len(self.train))), None) for i in range(0, len(self.train), step))

    def products(self, batch: QueryBlock, part: slice, block: "torch.Tensor | None") -> tuple["torch.Tensor", float]:
        """Return (m, n) similarities with the train rows `part`, and the largest norm of these rows.

        The norm is inf if float32 products would under- or overflow. The next call overwrites the similarities.
        """
        import torch

        if block is None:
            block = self._on_device(self.train[part], precise=batch.x.dtype == torch.float64)
        norms = torch.linalg.vector_norm(block, dim=1)
        similarity = _multiply(batch, block)
        if self.metric == "cosine":
            similarity *= torch.where(norms > 0, 1 / norms, 0)
        elif self.metric == "l2":
            similarity.mul_(2).sub_(norms.square()).sub_(batch.norms.square()[:, None])
        if self.scope.left_out is not None:
            similarity.masked_fill_(torch.from_numpy(self.scope.left_out[part]).to(similarity.device), -torch.inf)
        if self.scope.without_self:
            inside = np.flatnonzero((batch.own >= part.start) & (batch.own < part.stop))
            similarity[inside, batch.own[inside] - part.start] = -torch.inf
        if self.scope.apart is not None:
            same = self.scope.apart[batch.own][:, None] == self.scope.apart[part]
            similarity.masked_fill_(torch.from_numpy(same).to(similarity.device), -torch.inf)
        return similarity, _largest(block, norms)

    def best(
        self,
        batch: QueryBlock,
        part: slice,
        kept: int,
        worst: "torch.Tensor | None" = None,
        block: "torch.Tensor | None" = None,
    ) -> tuple["torch.Tensor", "torch.Tensor", float]:
        """Return the largest similarities (m, <= kept) with the train rows `part`, their columns, and the largest norm.

        Args:
            batch: m test rows.
            part: range of train rows.
            kept: number of neighbours.
            worst: (m,) similarities up to which results are not needed.
            block: the train rows on the device, as `blocks` yields them.
        """
        import torch

        if self.engine.library == "faiss" and batch.x.dtype == torch.float32:
            return self._best_by_faiss(batch, part, kept)
        similarity, largest = self.products(batch, part, block)
        return *_top(similarity, kept, worst), largest

    def _best_by_faiss(self, batch: QueryBlock, part: slice, kept: int) -> tuple["torch.Tensor", "torch.Tensor", float]:
        import faiss
        import torch

        x = self.train[part] if self.scope.left_out is None else self.train[part][~self.scope.left_out[part]]
        places = np.arange(part.stop - part.start)
        if self.scope.left_out is not None:
            places = np.flatnonzero(~self.scope.left_out[part])
        if not len(places):
            return torch.empty(len(batch.own), 0), torch.empty(len(batch.own), 0, dtype=torch.int64), 0.0
        block = self._on_device(x, precise=False)
        norms = torch.linalg.vector_norm(block, dim=1)
        largest = _largest(block, norms)
        if self.metric == "cosine":
            block = torch.div(block, torch.where(norms > 0, norms, 1)[:, None], out=self.copy[: len(block)])
        metric = faiss.METRIC_L2 if self.metric == "l2" else faiss.METRIC_INNER_PRODUCT
        number = min(kept + self.scope.refused, len(places))
        found, columns = faiss.knn(batch.x.numpy(), block.numpy(), number, metric=metric)
        values = torch.from_numpy(-found if self.metric == "l2" else found)
        rows = torch.from_numpy(places[columns])
        if self.scope.without_self:
            values[rows + part.start == torch.from_numpy(batch.own)[:, None]] = -torch.inf
        if self.scope.apart is not None:
            same = self.scope.apart[batch.own][:, None] == self.scope.apart[rows.numpy() + part.start]
            values[torch.from_numpy(same)] = -torch.inf
        return values, rows, largest

    def error(self, batch: QueryBlock, largest: float) -> FloatArray:
        """Return (m,) bounds on the rounding errors of similarities.

        The error of a sum of D products grows like sqrt(D) (Higham 2002, section 2.8); a factor of four is the margin.

        Args:
            batch: the m test rows.
            largest: largest norm of a train row.
        """
        import torch

        digits = 2.0**-53 if batch.x.dtype == torch.float64 else 2.0**-24
        norms = batch.norms.cpu().numpy().astype(np.float64)
        if math.isinf(largest):
            return np.full(len(norms), np.inf)
        scale = {"cosine": np.ones(len(norms)), "dot": norms * largest, "l2": (norms + largest) ** 2}[self.metric]
        if digits > 2.0**-53:
            # A row of zeros and one whose squares underflow in float32 look alike; both are compared in float64.
            scale[(norms < _SMALLEST) | (norms > _LARGEST)] = np.inf
        return np.asarray(4 * math.sqrt(self.width + 16) * digits * scale)

    def exact(self, own: IntArray, rows: IntArray) -> FloatArray:
        """Return (m, c) float64 similarities of test rows (m,) with train rows (m, c), all summed in the same order."""
        chosen, queries = self.train[rows].astype(np.float64), self.test[own].astype(np.float64)
        if self.metric == "l2":
            chosen -= queries[:, None]
            return -np.asarray(np.einsum("mcd,mcd->mc", chosen, chosen))
        similarity = np.einsum("mcd,md->mc", chosen, queries)
        if self.metric == "cosine":
            lengths = np.sqrt(np.einsum("mcd,mcd->mc", chosen, chosen))
            lengths *= np.sqrt(np.einsum("md,md->m", queries, queries))[:, None]
            similarity = np.divide(similarity, lengths, out=np.zeros_like(similarity), where=lengths > 0)
        return np.asarray(similarity)

    def refine(self, own: IntArray, rows: IntArray, k: int, error: FloatArray) -> tuple[FloatArray, IntArray]:
        """Return the k nearest of the candidates by float64 similarities.

        Args:
            own: (m,) test rows.
            rows: (m, c) their candidates.
            k: number of neighbours.
            error: (m,) rounding errors of float64 sums in another order.
        """
        exact = np.empty(rows.shape)
        step = max(1, CACHED // (rows.shape[1] * self.width))
        for start in range(0, len(own), step):
            part = slice(start, start + step)
            exact[part] = self.exact(own[part], rows[part])
        similarity = rounded(exact)
        order = np.lexsort((rows, -similarity), axis=1)[:, :k]
        return np.take_along_axis(similarity, order, axis=1), np.take_along_axis(rows, order, axis=1)

    def _on_device(self, rows: Matrix, *, precise: bool) -> "torch.Tensor":
        """Return rows of train or test as a tensor, centred for 'l2'; float32 on the CPU is not copied."""
        import torch

        dtype = torch.float64 if precise else torch.float32
        with warnings.catch_warnings():
            # Memory-mapped features are read-only, and nothing here writes to them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            # Apple's GPUs have no float64.
            device = "cpu" if precise and self.engine.device == "mps" else self.engine.device
            x = torch.from_numpy(np.ascontiguousarray(rows)).to(device, dtype)
        return self.centred(x)

    def centred(self, x: "torch.Tensor") -> "torch.Tensor":
        """Return rows (n, D) less the centre, for 'l2'."""
        import torch

        return x - torch.from_numpy(self.centre).to(x) if self.metric == "l2" else x


def _largest(block: "torch.Tensor", norms: "torch.Tensor") -> float:
    """Return the largest norm; inf if a row's float32 products would under- or overflow."""
    import torch

    largest = float(norms.max())
    if block.dtype == torch.float64:
        return largest
    small = norms < _SMALLEST
    underflow = bool(small.any()) and bool((block[small] != 0).any())
    return math.inf if underflow or not largest < _LARGEST else largest


def _multiply(batch: QueryBlock, block: "torch.Tensor") -> "torch.Tensor":
    """Return the (m, n) products; on the CPU by numpy, whose BLAS was 1.2 times as fast as torch's."""
    if batch.x.device.type != "cpu":
        return batch.x @ block.T
    products = batch.products[: len(batch.x) * len(block)].view(len(batch.x), len(block))
    np.matmul(batch.x.numpy(), block.numpy().T, out=products.numpy())
    return products


def _top(similarity: "torch.Tensor", kept: int, worst: "torch.Tensor | None") -> tuple["torch.Tensor", "torch.Tensor"]:
    """Return the `kept` largest values of each row and their columns, unordered; fewer if fewer exceed `worst`.

    The columns are divided into groups. The largest values lie in the groups with the largest maxima, so only the
    maximum of most groups is needed, which is found at memory bandwidth.
    """
    import torch

    size = math.isqrt(similarity.shape[1] // kept)
    if size < 2:
        values, columns = similarity.topk(kept, dim=1, sorted=False)
        return values, columns
    groups = similarity.shape[1] // size
    grouped = similarity[:, : size * groups].reshape(-1, size, groups)
    maxima = grouped.amax(dim=1)
    useful = kept if worst is None else min(kept, int((maxima > worst[:, None]).sum(dim=1).max()))
    chosen = maxima.topk(useful, dim=1, sorted=False).indices
    members = torch.arange(size, device=similarity.device) * groups
    columns = (chosen[:, None, :] + members[:, None]).flatten(1)
    rest = torch.arange(size * groups, similarity.shape[1], device=similarity.device)
    columns = torch.cat([columns, rest.expand(len(columns), -1)], dim=1)
    values, places = similarity.gather(1, columns).topk(min(kept, columns.shape[1]), dim=1, sorted=False)
    return values, columns.gather(1, places)
