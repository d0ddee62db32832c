"""Exact nearest neighbours of every test row in train, in bounded memory and with one tie rule.

Three passes, each for the rows that the one before could not settle:

1. float32 matrix products, block by block, rank all train rows; a few more than k are kept. Those among them that
   rounding could put among the k best are compared in float64, pair by pair.
2. The same with float64 products, where rounding of the first pass could have lost a neighbour.
3. All train rows of one test row in float64, where more rows are equally near than were kept (duplicates, collapsed
   features).

So neither the block size, the number of threads, the library that multiplies nor the device changes a neighbour.

Ties: similarities that agree to about 12 digits count as equal, and of equals the lower train row comes first.
"""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch
import contextlib
import functools
import math
import warnings
from typing import TYPE_CHECKING, Literal

Metric = Literal["cosine", "dot", "l2"]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.floating]

_SMALLEST, _LARGEST = 1e-12, 1e12  # norms between which float32 products neither vanish nor overflow


@dataclasses.dataclass(frozen=True)
class Scope:
    """Which rows take part.

    Attributes:
        test_rows: (m,) the rows of test that are searched for; None: all.
        left_out: (N,) train rows that are no neighbours; None: all may be.
        without_self: row i of test is row i of train, and no neighbour of itself.
        apart: (N,) numbers: row i of test is row i of train, and rows with the same number are no neighbours.
    """

    test_rows: IntArray | None = None
    left_out: npt.NDArray[np.bool_] | None = None
    without_self: bool = False
    apart: IntArray | None = None

    @property
    def refused(self) -> int:
        """How many train rows at most are no neighbours of a test row, beside those that are left out for all."""
        if self.apart is not None:
            return int(np.unique(self.apart, return_counts=True)[1].max())
        return int(self.without_self)


@dataclasses.dataclass(frozen=True)
class Engine:
    """What ranks the rows first; neighbours do not depend on it.

    Attributes:
        library: 'faiss' works on the processor only, where it is the faster one.
        device: where torch works: 'cpu', 'cuda', 'cuda:1', 'mps'.
    """

    library: Literal["faiss", "torch"] = "faiss"
    device: str = "cpu"


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Some test rows, ready to be multiplied.

    Attributes:
        x: (m, D) rows, centred for 'l2' and of length 1 for 'cosine', on the device.
        norms: (m,) their Euclidean norms.
        own: (m,) their places in test.
        products: (m * n,) where torch's products with up to n train rows are put, on the processor: memory that is
            taken anew for every block costs as much as the search in it.
    """

    x: "torch.Tensor"
    norms: "torch.Tensor"
    own: IntArray
    products: "torch.Tensor"


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The two matrices, and how a block of products is made of them.

    Attributes:
        train: (N, D).
        test: (M, D).
        metric: 'cosine', 'dot', or 'l2', whose similarity is minus the squared distance.
        scope: rows that are no neighbours have a similarity of -inf.
        engine: what finds the best of a block; products that are needed whole are always torch's.
    """

    train: Matrix
    test: Matrix
    metric: Metric
    scope: Scope
    engine: Engine

    @property
    def width(self) -> int:
        """D."""
        return int(self.train.shape[1])

    @property
    def copies(self) -> bool:
        """Whether float32 products need a copy of the train rows; else they are multiplied where they lie."""
        changed = self.metric == "l2" or (self.engine.library == "faiss" and self.metric == "cosine")
        there = self.engine.device == "cpu" and self.train.dtype == np.float32 and self.train.flags.c_contiguous
        return changed or not there or (self.engine.library == "faiss" and self.scope.left_out is not None)

    @property
    def at_once(self) -> bool:
        """Whether float32 products with all train rows need no memory: faiss itself goes through them in parts."""
        return self.engine.library == "faiss" and not self.copies

    @functools.cached_property
    def centre(self) -> FloatArray:
        """(D,) a point amid train; with it as the origin distances stay as they are and rounding errors shrink."""
        if self.metric != "l2":
            return np.zeros(self.width)
        step = max(1, len(self.train) // 1024)
        return np.asarray(self.train[::step].mean(axis=0, dtype=np.float64))

    def prepare(self, own: IntArray, most: int, *, precise: bool) -> Prepared:
        """Some test rows in float32 or, `precise`, in float64; for blocks of at most `most` train rows."""
        import torch

        x = self._on_device(self.test[own], precise=precise)
        norms = torch.linalg.vector_norm(x, dim=1)
        if self.metric == "cosine":
            x = x / torch.where(norms > 0, norms, 1)[:, None]
        by_torch = precise or self.engine.library == "torch"
        room = len(own) * most if by_torch and x.device.type == "cpu" else 0
        # numpy asks the kernel for huge pages, torch does not.
        products = torch.from_numpy(np.empty(room, dtype=np.float64 if precise else np.float32))
        return Prepared(x, norms, own, products)

    def products(self, prepared: Prepared, part: slice) -> tuple["torch.Tensor", float]:
        """(m, n) similarities with the train rows `part`, and the largest norm of these; inf where float32 fails.

        The next call writes over them.
        """
        import torch

        block = self._on_device(self.train[part], precise=prepared.x.dtype == torch.float64)
        norms = torch.linalg.vector_norm(block, dim=1)
        similarity = _multiply(prepared, block)
        if self.metric == "cosine":
            similarity *= torch.where(norms > 0, 1 / norms, 0)
        elif self.metric == "l2":
            similarity.mul_(2).sub_(norms.square()).sub_(prepared.norms.square()[:, None])
        if self.scope.left_out is not None:
            similarity.masked_fill_(torch.from_numpy(self.scope.left_out[part]).to(similarity.device), -torch.inf)
        if self.scope.without_self:
            here = np.flatnonzero((prepared.own >= part.start) & (prepared.own < part.stop))
            similarity[here, prepared.own[here] - part.start] = -torch.inf
        if self.scope.apart is not None:
            same = self.scope.apart[prepared.own][:, None] == self.scope.apart[part]
            similarity.masked_fill_(torch.from_numpy(same).to(similarity.device), -torch.inf)
        return similarity, _largest(block, norms)

    def best(
        self, prepared: Prepared, part: slice, kept: int, worst: "torch.Tensor | None" = None
    ) -> tuple["torch.Tensor", "torch.Tensor", float]:
        """The best of the train rows `part`: similarities (m, at most kept), places in the block, and as `products`.

        Args:
            prepared: m test rows.
            part: of train.
            kept: how many.
            worst: (m,) similarities that are of no use, and all below them.
        """
        import torch

        if self.engine.library == "faiss" and prepared.x.dtype == torch.float32:
            return self._best_by_faiss(prepared, part, kept)
        similarity, largest = self.products(prepared, part)
        return *_top(similarity, kept, worst), largest

    def _best_by_faiss(
        self, prepared: Prepared, part: slice, kept: int
    ) -> tuple["torch.Tensor", "torch.Tensor", float]:
        import faiss
        import torch

        x = self.train[part] if self.scope.left_out is None else self.train[part][~self.scope.left_out[part]]
        places = np.arange(part.stop - part.start)
        if self.scope.left_out is not None:
            places = np.flatnonzero(~self.scope.left_out[part])
        if not len(places):
            return torch.empty(len(prepared.own), 0), torch.empty(len(prepared.own), 0, dtype=torch.int64), 0.0
        block = self._on_device(x, precise=False)
        norms = torch.linalg.vector_norm(block, dim=1)
        largest = _largest(block, norms)
        if self.metric == "cosine":
            block = block / torch.where(norms > 0, norms, 1)[:, None]
        how = faiss.METRIC_L2 if self.metric == "l2" else faiss.METRIC_INNER_PRODUCT
        wanted = min(kept + self.scope.refused, len(places))
        found, columns = faiss.knn(prepared.x.numpy(), block.numpy(), wanted, metric=how)
        values = torch.from_numpy(-found if self.metric == "l2" else found)
        rows = torch.from_numpy(places[columns])
        if self.scope.without_self:
            values[rows + part.start == torch.from_numpy(prepared.own)[:, None]] = -torch.inf
        if self.scope.apart is not None:
            same = self.scope.apart[prepared.own][:, None] == self.scope.apart[rows.numpy() + part.start]
            values[torch.from_numpy(same)] = -torch.inf
        return values, rows, largest

    def error(self, prepared: Prepared, largest: float) -> FloatArray:
        """(m,) how far a similarity may be from the truth.

        The error of a product of D terms grows like sqrt(D); four times that leaves room.

        Args:
            prepared: the test rows.
            largest: norm of a train row.
        """
        import torch

        digits = 2.0**-53 if prepared.x.dtype == torch.float64 else 2.0**-24
        norms = prepared.norms.cpu().numpy().astype(np.float64)
        if math.isinf(largest):
            return np.full(len(norms), np.inf)
        scale = {"cosine": np.ones(len(norms)), "dot": norms * largest, "l2": (norms + largest) ** 2}[self.metric]
        if digits > 2.0**-53:
            # A row of zeros and one whose squares vanish in float32 look alike; both are settled in float64.
            scale[(norms < _SMALLEST) | (norms > _LARGEST)] = np.inf
        return np.asarray(4 * math.sqrt(self.width + 16) * digits * scale)

    def exact(self, own: IntArray, rows: IntArray) -> FloatArray:
        """(m, c) float64 similarities of test rows (m,) with train rows (m, c), each pair summed in the same way."""
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
        """Rows of train or test as a tensor, centred for 'l2'; float32 on the processor is not copied."""
        import torch

        dtype = torch.float64 if precise else torch.float32
        with warnings.catch_warnings():
            # Memory-mapped features are read-only, and nothing here writes into them.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            # Apple's GPUs have no float64.
            device = "cpu" if precise and self.engine.device == "mps" else self.engine.device
            x = torch.from_numpy(np.ascontiguousarray(rows)).to(device, dtype)
        return x - torch.from_numpy(self.centre).to(x) if self.metric == "l2" else x


def _largest(block: "torch.Tensor", norms: "torch.Tensor") -> float:
    """The largest norm; inf when a row is so large or so small that its products in float32 mean nothing."""
    import torch

    largest = float(norms.max())
    if block.dtype == torch.float64:
        return largest
    small = norms < _SMALLEST
    vanishing = bool(small.any()) and bool((block[small] != 0).any())
    return math.inf if vanishing or not largest < _LARGEST else largest


def _multiply(prepared: Prepared, block: "torch.Tensor") -> "torch.Tensor":
    """(m, n) products. On the processor numpy's library is used: it was 1.2 times as fast as torch's."""
    if prepared.x.device.type != "cpu":
        return prepared.x @ block.T
    products = prepared.products[: len(prepared.x) * len(block)].view(len(prepared.x), len(block))
    np.matmul(prepared.x.numpy(), block.numpy().T, out=products.numpy())
    return products


def _top(similarity: "torch.Tensor", kept: int, worst: "torch.Tensor | None") -> tuple["torch.Tensor", "torch.Tensor"]:
    """The `kept` largest of each row and their columns, in no order; fewer if fewer are above `worst`.

    The columns are dealt into groups. The largest numbers lie in the groups with the largest maxima, so that all but a
    few groups need no more than their maximum, which is found at the speed of memory.
    """
    import torch

    size = math.isqrt(similarity.shape[1] // kept)
    if size < 2:
        values, columns = similarity.topk(kept, dim=1, sorted=False)
        return values, columns
    groups = similarity.shape[1] // size
    dealt = similarity[:, : size * groups].reshape(-1, size, groups)
    maxima = dealt.amax(dim=1)
    useful = kept if worst is None else min(kept, int((maxima > worst[:, None]).sum(dim=1).max()))
    chosen = maxima.topk(useful, dim=1, sorted=False).indices
    members = torch.arange(size, device=similarity.device) * groups
    columns = (chosen[:, None, :] + members[:, None]).flatten(1)
    rest = torch.arange(size * groups, similarity.shape[1], device=similarity.device)
    columns = torch.cat([columns, rest.expand(len(columns), -1)], dim=1)
    values, places = similarity.gather(1, columns).topk(min(kept, columns.shape[1]), dim=1, sorted=False)
    return values, columns.gather(1, places)


@contextlib.contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Products of float32 in float32 on a GPU, whatever the program around has allowed; as it was afterwards."""
    import torch

    before = torch.get_float32_matmul_precision()
    if device != "cpu":
        torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if device != "cpu":
            torch.set_float32_matmul_precision(before)


__all__ = ["Engine", "Metric", "Scope", "nearest"]

_DIGITS = 40  # binary ones, that similarities are rounded to before they are compared
_CACHED = 65536  # numbers of train rows that are compared in float64 together: what fits into a processor's cache
_MOST_QUERIES, _MOST_ROWS = 4096, 8192


@dataclasses.dataclass(frozen=True)
class _Ranked:
    """What one pass found for m test rows.

    Attributes:
        values: (m, c) similarities in the precision of the pass, falling; -inf for a train row that is left out.
        rows: (m, c) train rows.
        error: (m,) how far a value may be from the truth.
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
    """The k nearest train rows of every test row.

    Args:
        train: (N, D) features, not written to; memory-mapped ones are read block by block.
        test: (M, D) features, likewise.
        k: how many neighbours; at most as many as there are train rows to choose from.
        metric: 'cosine' or 'dot' (higher is nearer), or 'l2'; a row of zeros has cosine 0 with everything.
        max_memory: how much working memory may be used beside the result, in GB (10^9 bytes).
        scope: which rows are searched for, and which among; all when None.
        engine: what multiplies, and where; the result is the same.

    Returns:
        Similarities (m, k), falling, and train rows (m, k). The similarity of 'l2' is minus the squared distance.
    """
    scope, engine = scope or Scope(), engine or Engine()
    queries = np.arange(len(test)) if scope.test_rows is None else scope.test_rows
    blocks = Blocks(train, test, metric, scope, engine)
    similarity, neighbours = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    unsettled = np.arange(len(queries))
    with full_precision(engine.device):
        for precise in (False, True):
            kept = min(len(train), (k + max(16, k // 4)) * (4 if precise else 1))
            places, unsettled = unsettled, np.empty(0, dtype=np.int64)
            for part in _parts(places, _queries_at_once(blocks, kept, max_memory)):
                ranked = _rank(blocks, queries[part], kept, max_memory, precise=precise)
                sure, candidates = _settled(ranked, k, everything=kept == len(train))
                found = _refine(blocks, queries[part[sure]], candidates, k)
                similarity[part[sure]], neighbours[part[sure]] = found
                unsettled = np.concatenate([unsettled, part[~sure]])
        for part in _parts(unsettled, max(1, int(max_memory * 1e9 / 4 / (8 * len(train))))):
            similarity[part], neighbours[part] = _search_ties(blocks, queries[part], k, max_memory)
    return similarity, neighbours


def _parts(places: IntArray, size: int) -> Iterator[IntArray]:
    for start in range(0, len(places), size):
        yield places[start : start + size]


def _queries_at_once(blocks: Blocks, kept: int, max_memory: float) -> int:
    """How many test rows are searched for together: themselves and their candidates take a third of the memory."""
    return int(max(1, min(_MOST_QUERIES, max_memory * 1e9 / 3 / (12 * blocks.width + 64 * kept))))


def _block_size(blocks: Blocks, n_queries: int, max_memory: float, bytes_each: int) -> int:
    """How many train rows are compared together: copies of them and the products take two thirds of the memory."""
    if blocks.at_once and bytes_each == 4:
        return len(blocks.train)
    budget = max_memory * 1e9 / 3 / bytes_each
    most = min(_MOST_ROWS, len(blocks.train), budget / (1.2 * n_queries))
    return int(max(64, min(most, budget / (2.5 * blocks.width)) if blocks.copies or bytes_each > 4 else most))


def _rank(blocks: Blocks, own: IntArray, kept: int, max_memory: float, *, precise: bool) -> _Ranked:
    """The `kept` best train rows of each test row by products of one precision."""
    import torch

    step = _block_size(blocks, len(own), max_memory, 8 if precise else 4)
    prepared = blocks.prepare(own, step, precise=precise)
    best, rows, largest = torch.empty(len(own), 0), torch.empty(len(own), 0, dtype=torch.int64), 0.0
    for start in range(0, len(blocks.train), step):
        part = slice(start, min(start + step, len(blocks.train)))
        worst = best.amin(dim=1) if best.shape[1] == kept else None
        values, places, size = blocks.best(prepared, part, min(kept, part.stop - start), worst)
        largest = max(largest, size)
        best, rows = _merged(best.to(values), rows.to(places), values, places + start, kept)
    best, order = best.sort(dim=1, descending=True)
    found = rows.gather(1, order).cpu().numpy()
    return _Ranked(best.cpu().numpy().astype(np.float64), found, blocks.error(prepared, largest))


def _merged(
    best: "torch.Tensor", rows: "torch.Tensor", values: "torch.Tensor", places: "torch.Tensor", kept: int
) -> tuple["torch.Tensor", "torch.Tensor"]:
    import torch

    best, rows = torch.cat([best, values], dim=1), torch.cat([rows, places], dim=1)
    if best.shape[1] <= kept:
        return best, rows
    best, chosen = best.topk(kept, dim=1, sorted=False)
    return best, rows.gather(1, chosen)


def _settled(ranked: _Ranked, k: int, *, everything: bool) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """Which test rows cannot have lost a neighbour, and of those the candidates that could be one, (m, c)."""
    enough = (ranked.values[:, k - 1] - 2 * ranked.error)[:, None]
    # Written so that NaN, from numbers too large for the precision, is not settled.
    sure = (ranked.values[:, -1:] < enough)[:, 0] | everything & np.isfinite(enough[:, 0])
    possible = (ranked.values[sure] >= enough[sure]).sum(axis=1)
    width = int(possible.max(initial=k))
    return sure, ranked.rows[sure, :width]


def _refine(blocks: Blocks, own: IntArray, rows: IntArray, k: int) -> tuple[FloatArray, IntArray]:
    """The k best of the candidates by float64."""
    exact = np.empty(rows.shape)
    step = max(1, _CACHED // (rows.shape[1] * blocks.width))
    for start in range(0, len(own), step):
        part = slice(start, start + step)
        exact[part] = blocks.exact(own[part], rows[part])
    rounded = _rounded(exact)
    order = np.lexsort((rows, -rounded), axis=1)[:, :k]
    return np.take_along_axis(rounded, order, axis=1), np.take_along_axis(rows, order, axis=1)


def _rounded(similarity: FloatArray) -> FloatArray:
    mantissa, exponent = np.frexp(similarity)
    return np.asarray(np.ldexp(np.round(mantissa * 2.0**_DIGITS), exponent - _DIGITS))


def _search_ties(blocks: Blocks, own: IntArray, k: int, max_memory: float) -> tuple[FloatArray, IntArray]:
    """The k best of all train rows, for test rows that have many equally near ones.

    Products in float64 are exact enough to know the rounded similarity of most pairs; the others are compared one by
    one.
    """
    step = _block_size(blocks, len(own), max_memory, 8)
    prepared = blocks.prepare(own, step, precise=True)
    values, largest = np.empty((len(own), len(blocks.train))), 0.0
    for start in range(0, len(blocks.train), step):
        part = slice(start, min(start + step, len(blocks.train)))
        products, size = blocks.products(prepared, part)
        values[:, part], largest = products.cpu().numpy(), max(largest, size)
    error = 2 * blocks.error(prepared, largest)
    similarity, neighbours = np.empty((len(own), k)), np.empty((len(own), k), dtype=np.int64)
    for i, row in enumerate(own):
        enough = np.partition(values[i], -k)[-k] - error[i]
        candidates = np.flatnonzero(values[i] >= enough)
        near = values[i, candidates]
        rounded = _rounded(near - error[i])
        unclear = np.flatnonzero(rounded != _rounded(near + error[i]))
        for some in _parts(unclear, max(1, 16 * _CACHED // blocks.width)):
            rounded[some] = _rounded(blocks.exact(np.array([row]), candidates[None, some])[0])
        order = np.argsort(-rounded, kind="stable")[:k]
        similarity[i], neighbours[i] = rounded[order], candidates[order]
    return similarity, neighbours
