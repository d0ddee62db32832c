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

from sslbench.protocols._neighbour_blocks import (
    Blocks,
    Engine,
    FloatArray,
    IntArray,
    Matrix,
    Metric,
    Scope,
    full_precision,
)

if TYPE_CHECKING:
    import torch

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
