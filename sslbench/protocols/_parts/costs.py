"""Costs of what protocols on features share: metrics with intervals, and the search of neighbours with its library.

The constants are counts of bytes and of passes, fitted to measured runs of 1,000 to 40,000 rows (`make bench`).
"""

from sslbench.runtime.cost import Cost
from sslbench.runtime.machine import speed
from sslbench.solvers.neighbours import Engine
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.target import Target

FLOAT, DOUBLE = 4, 8
"""Bytes of a number."""
EIGEN = 11
"""Operations of an eigendecomposition of a symmetric matrix (R, R), over R^3."""

_RESAMPLES = 1000  # half-samples of `metrics.summary`
_WEIGHTS = 20_000_000  # weights in memory at a time, `metrics.summary._BLOCK`
_RANKED, _SUMS = 16_000_000, 32_000_000  # ranked samples and sums in memory at a time, `metrics.one_vs_rest`
_BYTES_OF_HALF = 2600  # per weight: drawing it, and the passes of the metrics of classes
_BYTES_OF_RANK = 8  # per weight and class: sums over the samples that a class ranks
_BYTES_OF_VOTE = 1.2  # the same for the votes of a few neighbours, nearly all of which are 0
_BYTES_OF_PASS = 330  # per weight and class: a sorted pass
_BYTES_OF_VALUE = 1300  # per weight: metrics of numbers
_WEIGHT_HELD = 28  # bytes held per weight

_PAIR = 70  # bytes per pair of rows: choice of the nearest
_REFINED = 65  # bytes per number of a candidate that is compared in double precision
_CANDIDATE = 64  # bytes held per candidate, `solvers.neighbours`
_MOST_QUERIES = 4096  # rows of test per block
_LONG = 3e11  # operations that take several seconds


def summary_cost(
    kind: type[Target], rows: int, classes: int, *, resamples: int = _RESAMPLES, votes: bool = False
) -> Cost:
    """Return the cost of all metrics of scores (rows, classes) with their intervals, and of the file of scores.

    Args:
        kind: of the labels.
        rows: number of samples.
        classes: number of classes.
        resamples: number of half-samples.
        votes: nearly all scores are 0.
    """
    weights = float(resamples) * rows
    held = min(weights, _WEIGHTS) * _WEIGHT_HELD + 3 * DOUBLE * rows * classes
    scores = float(FLOAT * rows * classes)
    if issubclass(kind, Classes):
        of_class = _BYTES_OF_VOTE if votes else _BYTES_OF_RANK
        sums = min(2 * min(weights, _WEIGHTS), _SUMS)
        return Cost(
            traffic=weights * (_BYTES_OF_HALF + of_class * classes),
            memory=held + 3 * FLOAT * min(rows * classes, _RANKED) + FLOAT * sums,
            scores=scores,
        )
    if issubclass(kind, MultiLabel):
        return Cost(traffic=weights * (_BYTES_OF_HALF + _BYTES_OF_PASS * classes), memory=held, scores=scores)
    return Cost(traffic=weights * _BYTES_OF_VALUE, memory=held, scores=scores)


def search_cost(rows: int, queries: float, width: int, k: int, max_memory: float, *, masked: bool = False) -> Cost:
    """Return the cost of the k nearest of (rows, width) for each query.

    Args:
        rows: that are searched.
        queries: number of queries.
        width: numbers per row.
        k: neighbours.
        max_memory: working memory in GB.
        masked: some rows are left out, so that blocks are copied.
    """
    kept = k + max(16, k // 4)
    copies = (2.7 if masked else 1.2) * FLOAT * width * rows
    block = min(queries, _MOST_QUERIES) * (3 * FLOAT * width + _CANDIDATE * kept)
    return Cost(
        search=2.0 * rows * queries * width,
        traffic=rows * queries * _PAIR + queries * kept * width * _REFINED,
        memory=min(copies, max_memory * 1e9 * 2 / 3) + min(block, max_memory * 1e9 / 3) + queries * k * 2 * DOUBLE,
    )


def fastest_engine(device: str, operations: float) -> Engine:
    """Return the library for a search: torch on a GPU; on the CPU faiss, unless its BLAS does not know the processor.

    faiss brings a BLAS of its own. On a Xeon with AVX-512 its products ran at a fifth of numpy's speed.

    Args:
        device: of the run.
        operations: of the products, two per multiply-add; a short search is faiss's, without measuring the machine.
    """
    if device != "cpu":
        return Engine("torch", device)
    return Engine("torch" if operations > _LONG and speed().multiplies_faster_than_faiss else "faiss")
