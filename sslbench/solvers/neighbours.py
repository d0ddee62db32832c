"""Exact nearest neighbours of every test row in train, in bounded memory and with a defined order of ties.

Three passes, each for the test rows for which the previous one could not prove its result:

1. float32 matrix products, block by block, rank all train rows, and a few more than k are kept. Candidates that are
   among the k nearest within the bound on rounding errors are compared in float64, pair by pair.
2. The same with float64 products, if rounding errors of the first pass could have lost a neighbour.
3. All train rows in float64, if more rows are equally near than were kept (duplicates, collapsed features).

The result therefore does not depend on block size, number of threads, BLAS library or device. A GPU keeps train
where its memory allows, searches for all test rows in one pass, and compares the candidates itself.

Ties: similarities that agree to 40 bits (about 12 digits) count as equal; among equals the lower train row comes first.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sslbench.arithmetic import arithmetic
from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.solvers.neighbour_blocks import CACHED, Blocks, Engine, Metric, Scope, rounded
from sslbench.steps import counted

__all__ = ["Engine", "Metric", "Scope", "fastest_engine", "nearest", "search_work"]

_MOST_QUERIES, _MOST_ROWS = 4096, 8192
_LONG = 3e11  # operations, some seconds, from which on the choice of the library is worth a measurement


def fastest_engine(device: str, operations: float) -> Engine:
    """Return the library for a search of so many operations: torch on a GPU, else faiss unless it is slow here."""
    if device != "cpu":
        return Engine("torch", device)
    return Engine("torch" if operations > _LONG and faiss_is_slow() else "faiss")


def search_work(train: float, queries: float, width: int, k: int) -> tuple[float, float]:
    """Return the operations of the products of a search, and the bytes of its passes.

    >>> search_work(1000, 10, 4, 5)
    (80000.0, 136640.0)
    """
    # A similarity is written and read. A float32 number of a candidate is gathered (8 bytes) and read and written as a
    # float64 one (12), which is multiplied, and squared for its length (16). A block of queries normalises train (12).
    blocks = math.ceil(queries / _MOST_QUERIES)
    compared = 36.0 * queries * min(k + 1, train) * width
    return 2.0 * train * queries * width, 8.0 * train * queries + compared + 12.0 * blocks * train * width


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
    blocks = _kind_of_blocks(engine)(train, test, metric, scope, engine, max_memory)
    similarity, neighbours = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    unsettled = np.arange(len(queries))
    with arithmetic(engine.device), counted("nearest neighbours", "rows", len(queries)) as advance:
        for precise in (False, True):
            kept = min(len(train), (k + max(16, k // 4)) * (4 if precise else 1))
            places, unsettled = unsettled, np.empty(0, dtype=np.int64)
            # with their candidates they take a third of the memory
            most = len(queries) if blocks.all_queries else _MOST_QUERIES
            at_once = int(max(1, min(most, blocks.budget / 3 / (12 * blocks.width + 64 * kept))))
            for part in _parts(places, at_once):
                ranked = _rank(blocks, queries[part], kept, precise=precise)
                sure, candidates = _settle(ranked, k, everything=kept == len(train))
                # Of double precision: of all 2^-53, of a pass in single precision 2^-24; four of them are its margin.
                error = ranked.error[sure] / 4 * (1 if precise else 2.0**-29)
                found = blocks.refine(queries[part[sure]], candidates, k, error)
                similarity[part[sure]], neighbours[part[sure]] = found
                unsettled = np.concatenate([unsettled, part[~sure]])
                advance(int(sure.sum()))
        for part in _parts(unsettled, max(1, int(max_memory * 1e9 / 4 / (8 * len(train))))):
            similarity[part], neighbours[part] = _search_ties(blocks, queries[part], k)
            advance(len(part))
    return similarity, neighbours


def _kind_of_blocks(engine: Engine) -> type[Blocks]:
    if not engine.device.startswith("cuda"):
        return Blocks
    from sslbench.solvers.neighbours_on_device import DeviceBlocks

    return DeviceBlocks


def _parts(places: IntArray, size: int) -> Iterator[IntArray]:
    for start in range(0, len(places), size):
        yield places[start : start + size]


def _block_size(blocks: Blocks, n_queries: int, bytes_each: int) -> int:
    """Return the number of train rows per block, whose copies and products take two thirds of the memory."""
    if blocks.engine.library == "faiss" and bytes_each == 4:
        return blocks.faiss_rows
    budget = blocks.budget / 3 / bytes_each
    most = min(_MOST_ROWS, len(blocks.train), budget / (1.2 * n_queries))
    return int(max(64, min(most, budget / (2.5 * blocks.width)) if blocks.copies or bytes_each > 4 else most))


def _rank(blocks: Blocks, own: IntArray, kept: int, *, precise: bool) -> _Candidates:
    """Return the `kept` nearest train rows of each test row by products of one precision."""
    import torch

    step = _block_size(blocks, len(own), 8 if precise else 4)
    batch = blocks.prepare(own, step, precise=precise)
    best, rows, largest = torch.empty(len(own), 0), torch.empty(len(own), 0, dtype=torch.int64), 0.0
    for part, block in blocks.blocks(step, precise=precise):
        worst = best.amin(dim=1) if best.shape[1] == kept else None
        values, places, size = blocks.best(batch, part, min(kept, part.stop - part.start), worst, block)
        largest = max(largest, size)
        best = torch.cat([best.to(values), values], dim=1)
        rows = torch.cat([rows.to(places), places + part.start], dim=1)
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


def _search_ties(blocks: Blocks, own: IntArray, k: int) -> tuple[FloatArray, IntArray]:
    """Return the k nearest of all train rows, for test rows with many equally near ones.

    Products in float64 determine the rounded similarity of most pairs; the others are computed pair by pair.
    """
    step = _block_size(blocks, len(own), 8)
    batch = blocks.prepare(own, step, precise=True)
    values, largest = np.empty((len(own), len(blocks.train))), 0.0
    for part, block in blocks.blocks(step, precise=True):
        products, size = blocks.products(batch, part, block)
        values[:, part], largest = products.cpu().numpy(), max(largest, size)
    error = 2 * blocks.error(batch, largest)
    similarity, neighbours = np.empty((len(own), k)), np.empty((len(own), k), dtype=np.int64)
    for i, row in enumerate(own):
        enough = np.partition(values[i], -k)[-k] - error[i]
        candidates = np.flatnonzero(values[i] >= enough)
        near = values[i, candidates]
        near_rounded = rounded(near - error[i])
        unclear = np.flatnonzero(near_rounded != rounded(near + error[i]))
        for some in _parts(unclear, max(1, 16 * CACHED // blocks.width)):
            near_rounded[some] = rounded(blocks.exact(np.array([row]), candidates[None, some])[0])
        order = np.argsort(-near_rounded, kind="stable")[:k]
        similarity[i], neighbours[i] = near_rounded[order], candidates[order]
    return similarity, neighbours
