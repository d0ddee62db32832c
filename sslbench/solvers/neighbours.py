"""Exact nearest neighbours of every test row in train, in bounded memory and with a defined order of ties.

Three passes, each for the test rows for which the previous one could not prove its result:

1. float32 matrix products, block by block, rank all train rows, and a few more than k are kept. Candidates that are
   among the k nearest within the bound on rounding errors are compared in float64, pair by pair.
2. The same with float64 products, if rounding errors of the first pass could have lost a neighbour.
3. All train rows in float64, if more rows are equally near than were kept (duplicates, collapsed features).

The result therefore does not depend on block size, number of threads, BLAS library or device.

Ties: similarities that agree to 40 bits (about 12 digits) count as equal; among equals the lower train row comes first.
"""

import dataclasses
import functools
import math
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arithmetic import arithmetic
from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.steps import counted

if TYPE_CHECKING:
    import torch

__all__ = ["Engine", "Metric", "Scope", "fastest_engine", "nearest"]

Metric = Literal["cosine", "dot", "l2"]

_SMALLEST, _LARGEST = 1e-12, 1e12  # norms between which float32 products neither underflow nor overflow
_BITS = 40  # of the mantissa to which similarities are rounded before they are compared
_CACHED = 65536  # values of train rows compared in float64 at a time, which fit into a processor's cache
_MOST_QUERIES, _MOST_ROWS = 4096, 8192
_LONG = 3e11  # operations, some seconds, from which on the choice of the library is worth a measurement


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


def fastest_engine(device: str, operations: float) -> Engine:
    """Return the library for a search of so many operations: torch on a GPU, else faiss unless it is slow here."""
    if device != "cpu":
        return Engine("torch", device)
    return Engine("torch" if operations > _LONG and faiss_is_slow() else "faiss")


@functools.cache
def faiss_is_slow() -> bool:
    """Time a small search by faiss, and its products by numpy.

    faiss brings a BLAS of its own. On a Xeon with AVX-512 its products ran at a fifth of numpy's speed.
    """
    import faiss

    rows = np.random.default_rng(0).standard_normal((4096, 512), dtype=np.float32)
    queries, seconds = rows[:1024], []
    for search in (lambda: faiss.knn(queries, rows, 1), lambda: queries @ rows.T):
        search()  # starts threads
        started = time.perf_counter()
        search()
        seconds.append(time.perf_counter() - started)
    # The products are not all of a search: the choice of the nearest takes about as long.
    return seconds[0] > 2 * seconds[1]


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

    train: Matrix
    test: Matrix
    metric: Metric
    scope: Scope
    engine: Engine
    max_memory: float

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
        rows = self.max_memory * 1e9 * 2 / 3 / (4 * self.width * copies) if self.copies else len(self.train)
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

    def products(self, batch: QueryBlock, part: slice) -> tuple["torch.Tensor", float]:
        """Return (m, n) similarities with the train rows `part`, and the largest norm of these rows.

        The norm is inf if float32 products would under- or overflow. The next call overwrites the similarities.
        """
        import torch

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
        self, batch: QueryBlock, part: slice, kept: int, worst: "torch.Tensor | None" = None
    ) -> tuple["torch.Tensor", "torch.Tensor", float]:
        """Return the largest similarities (m, <= kept) with the train rows `part`, their columns, and the largest norm.

        Args:
            batch: m test rows.
            part: range of train rows.
            kept: number of neighbours.
            worst: (m,) similarities up to which results are not needed.
        """
        import torch

        if self.engine.library == "faiss" and batch.x.dtype == torch.float32:
            return self._best_by_faiss(batch, part, kept)
        similarity, largest = self.products(batch, part)
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


@dataclasses.dataclass(frozen=True)
class _Candidates:
    """Candidates found by one pass for m test rows.

    Attributes:
        values: (m, c) similarities in the precision of the pass, in descending order; -inf for excluded train rows.
        rows: (m, c) train rows.
        error: (m,) bounds on the rounding errors of the values.
    """

    values: FloatArray
    rows: IntArray
    error: FloatArray


def nearest(
    train: Matrix,
    test: Matrix,
    k: int,
    *,
    metric: Metric,
    max_memory: float,
    scope: Scope | None = None,
    engine: Engine | None = None,
) -> tuple[FloatArray, IntArray]:
    """Return the k nearest train rows of every test row.

    >>> train = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], dtype=np.float32)
    >>> test = np.array([[2.0, 0.0]], dtype=np.float32)
    >>> similarity, rows = nearest(train, test, 2, metric="cosine", max_memory=0.1)
    >>> similarity.round(4).tolist(), rows.tolist()
    ([[1.0, 0.7071]], [[1, 2]])

    Args:
        train: (N, D) features; memory-mapped ones are read block by block.
        test: (M, D) features, likewise.
        k: number of neighbours; at most the number of train rows in the search.
        metric: 'cosine' or 'dot' (higher is nearer), or 'l2'; a row of zeros has cosine 0 with every row.
        max_memory: working memory besides the result, in GB (10^9 bytes).
        scope: rows in the search; default: all.
        engine: library and device of the first pass; default: faiss on the CPU.

    Returns:
        Similarities (m, k) in descending order, and train rows (m, k). The similarity for 'l2' is minus the squared
        distance.
    """
    scope, engine = scope or Scope(), engine or Engine()
    queries = np.arange(len(test)) if scope.test_rows is None else scope.test_rows
    blocks = Blocks(train, test, metric, scope, engine, max_memory)
    similarity, neighbours = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    unsettled = np.arange(len(queries))
    with arithmetic(engine.device), counted("nearest neighbours", "rows", len(queries)) as advance:
        for precise in (False, True):
            kept = min(len(train), (k + max(16, k // 4)) * (4 if precise else 1))
            places, unsettled = unsettled, np.empty(0, dtype=np.int64)
            # with their candidates they take a third of the memory
            at_once = int(max(1, min(_MOST_QUERIES, max_memory * 1e9 / 3 / (12 * blocks.width + 64 * kept))))
            for part in _parts(places, at_once):
                ranked = _rank(blocks, queries[part], kept, precise=precise)
                sure, candidates = _settle(ranked, k, everything=kept == len(train))
                found = _refine(blocks, queries[part[sure]], candidates, k)
                similarity[part[sure]], neighbours[part[sure]] = found
                unsettled = np.concatenate([unsettled, part[~sure]])
                advance(int(sure.sum()))
        for part in _parts(unsettled, max(1, int(max_memory * 1e9 / 4 / (8 * len(train))))):
            similarity[part], neighbours[part] = _search_ties(blocks, queries[part], k)
            advance(len(part))
    return similarity, neighbours


def _parts(places: IntArray, size: int) -> Iterator[IntArray]:
    for start in range(0, len(places), size):
        yield places[start : start + size]


def _block_size(blocks: Blocks, n_queries: int, bytes_each: int) -> int:
    """Return the number of train rows per block, whose copies and products take two thirds of the memory."""
    if blocks.engine.library == "faiss" and bytes_each == 4:
        return blocks.faiss_rows
    budget = blocks.max_memory * 1e9 / 3 / bytes_each
    most = min(_MOST_ROWS, len(blocks.train), budget / (1.2 * n_queries))
    return int(max(64, min(most, budget / (2.5 * blocks.width)) if blocks.copies or bytes_each > 4 else most))


def _rank(blocks: Blocks, own: IntArray, kept: int, *, precise: bool) -> _Candidates:
    """Return the `kept` nearest train rows of each test row by products of one precision."""
    import torch

    step = _block_size(blocks, len(own), 8 if precise else 4)
    batch = blocks.prepare(own, step, precise=precise)
    best, rows, largest = torch.empty(len(own), 0), torch.empty(len(own), 0, dtype=torch.int64), 0.0
    for start in range(0, len(blocks.train), step):
        part = slice(start, min(start + step, len(blocks.train)))
        worst = best.amin(dim=1) if best.shape[1] == kept else None
        values, places, size = blocks.best(batch, part, min(kept, part.stop - start), worst)
        largest = max(largest, size)
        best = torch.cat([best.to(values), values], dim=1)
        rows = torch.cat([rows.to(places), places + start], dim=1)
        if best.shape[1] > kept:
            best, among = best.topk(kept, dim=1, sorted=False)
            rows = rows.gather(1, among)
    best, order = best.sort(dim=1, descending=True)
    found = rows.gather(1, order).cpu().numpy()
    return _Candidates(best.cpu().numpy().astype(np.float64), found, blocks.error(batch, largest))


def _settle(ranked: _Candidates, k: int, *, everything: bool) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """Return (M,) True for test rows that cannot have lost a neighbour, and their candidate neighbours (m, c)."""
    enough = (ranked.values[:, k - 1] - 2 * ranked.error)[:, None]
    # NaN, from overflow of the precision, compares as not settled.
    sure = (ranked.values[:, -1:] < enough)[:, 0] | everything & np.isfinite(enough[:, 0])
    possible = (ranked.values[sure] >= enough[sure]).sum(axis=1)
    width = int(possible.max(initial=k))
    return sure, ranked.rows[sure, :width]


def _refine(blocks: Blocks, own: IntArray, rows: IntArray, k: int) -> tuple[FloatArray, IntArray]:
    """Return the k nearest of the candidates by float64 similarities."""
    exact = np.empty(rows.shape)
    step = max(1, _CACHED // (rows.shape[1] * blocks.width))
    for start in range(0, len(own), step):
        part = slice(start, start + step)
        exact[part] = blocks.exact(own[part], rows[part])
    rounded = _round(exact)
    order = np.lexsort((rows, -rounded), axis=1)[:, :k]
    return np.take_along_axis(rounded, order, axis=1), np.take_along_axis(rows, order, axis=1)


def _round(similarity: FloatArray) -> FloatArray:
    mantissa, exponent = np.frexp(similarity)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**_BITS), exponent - _BITS))


def _search_ties(blocks: Blocks, own: IntArray, k: int) -> tuple[FloatArray, IntArray]:
    """Return the k nearest of all train rows, for test rows with many equally near ones.

    Products in float64 determine the rounded similarity of most pairs; the others are computed pair by pair.
    """
    step = _block_size(blocks, len(own), 8)
    batch = blocks.prepare(own, step, precise=True)
    values, largest = np.empty((len(own), len(blocks.train))), 0.0
    for start in range(0, len(blocks.train), step):
        part = slice(start, min(start + step, len(blocks.train)))
        products, size = blocks.products(batch, part)
        values[:, part], largest = products.cpu().numpy(), max(largest, size)
    error = 2 * blocks.error(batch, largest)
    similarity, neighbours = np.empty((len(own), k)), np.empty((len(own), k), dtype=np.int64)
    for i, row in enumerate(own):
        enough = np.partition(values[i], -k)[-k] - error[i]
        candidates = np.flatnonzero(values[i] >= enough)
        near = values[i, candidates]
        rounded = _round(near - error[i])
        unclear = np.flatnonzero(rounded != _round(near + error[i]))
        for some in _parts(unclear, max(1, 16 * _CACHED // blocks.width)):
            rounded[some] = _round(blocks.exact(np.array([row]), candidates[None, some])[0])
        order = np.argsort(-rounded, kind="stable")[:k]
        similarity[i], neighbours[i] = rounded[order], candidates[order]
    return similarity, neighbours
