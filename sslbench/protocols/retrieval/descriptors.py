"""Descriptors: unit length, whitening, aggregation of regions and scales, query expansion, score normalisation.

Shapes: N images, R regions of an image, D dimensions of a descriptor, all arrays float32 or float64.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from sslbench.arrays import IntArray, Matrix
from sslbench.errors import DataError
from sslbench.metrics.retrieval import GroundTruth, ranks_of_positives
from sslbench.solvers.neighbours import Engine, Scope, nearest
from sslbench.solvers.whitening import Whitening

if TYPE_CHECKING:
    import torch


def unit_length(x: Matrix, axis: int = -1) -> Matrix:
    """Return x divided by its L2 norm along an axis; vectors of zeros stay zeros.

    >>> unit_length(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    norm = np.linalg.norm(x, axis=axis, keepdims=True)
    return x / np.where(norm > 0, norm, 1)


def aggregate_regions(regions: Matrix, whitening: Whitening | None = None) -> Matrix:
    """Return one R-MAC descriptor of unit length per image, (N, D), from the maxima of its regions, (N, R, C).

    Each region is brought to unit length, whitened and brought to unit length again, then the regions are summed
    (Tolias et al., ICLR 2016, section 3.2). Regions of zeros, such as padding, are left out.

    >>> aggregate_regions(np.array([[[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]])).round(3).tolist()
    [[0.707, 0.707]]
    """
    x = unit_length(regions)
    if whitening is not None:
        n, r, _ = x.shape
        known = x.any(axis=2, keepdims=True)
        # Whitening subtracts a mean, which would make a direction of padding.
        x = unit_length(whitening.apply(x.reshape(n * r, -1)).reshape(n, r, -1)) * known
    return unit_length(x.sum(axis=1))


def expand_queries(
    queries: Matrix,
    database: Matrix,
    *,
    n_neighbours: int,
    alpha: float,
    max_memory: float = 1.0,
    scope: Scope | None = None,
    engine: Engine | None = None,
) -> Matrix:
    """Return alpha-weighted query expansion of unit length, (Q, D).

    Each query becomes itself plus its first neighbours, weighted by similarity to the power alpha (Radenovic, Tolias
    and Chum, TPAMI 2018, section 4.4); alpha = 0 is average query expansion (Chum et al., ICCV 2007). Applied to the
    database with itself it is database augmentation.

    `queries`: (Q, D) of unit length; with `scope.test_rows`, only these rows are expanded and returned; `database`: (N,
    D) of unit length; `alpha`: exponent of the similarity; negative similarities count as 0; `max_memory`: working
    memory of the search, in GB (10^9 bytes); `scope`: images that are never added to a query, such as itself; None: all
    may be.

    >>> expand_queries(np.array([[1.0, 0.0]]), np.array([[0.6, 0.8], [-1.0, 0.0]]), n_neighbours=1, alpha=0.0).round(3)
    array([[0.894, 0.447]])
    """
    scope = scope or Scope()
    chosen = queries if scope.test_rows is None else queries[scope.test_rows]
    searched = len(database) if scope.left_out is None else int((~scope.left_out).sum())
    k = min(n_neighbours, searched - scope.refused)
    if k < 1:
        return unit_length(chosen)
    similarity, places = nearest(database, queries, k, metric="dot", max_memory=max_memory, scope=scope, engine=engine)
    # numpy computes both branches: a broken power of a negative number is NaN, with a warning.
    weights = np.where(similarity > 0, np.abs(similarity) ** alpha, 0)
    expanded = chosen.astype(np.float64)
    for i in range(k):  # one neighbour at a time: no array of all neighbours' descriptors
        expanded += weights[:, i : i + 1] * database[places[:, i]]
    return unit_length(expanded)


def subtract_background(
    queries: Matrix, database: Matrix, background: Matrix, *, weight: float = 1.0, first: int = 0, last: int = 2
) -> tuple[Matrix, Matrix]:
    """Return queries and database with one more dimension, so that their inner product is the normalised score.

    The score of a pair falls by `weight` times the mean similarity of the query to its `first` to `last` nearest
    images of a background set (0-based, both included): SSCD's `1.0[0,2]` (Pizzi et al., CVPR 2022, section 5.2).

    `queries`: (Q, D) of unit length; the subtraction harms others; `database`: (N, D) of unit length; `background`: (B,
    D) images that are in neither, such as a training set.

    >>> background = np.array([[0.8, 0.6], [0.8, -0.6], [0.8, 0.6]])
    >>> queries, database = subtract_background(np.array([[1.0, 0.0]]), np.eye(2), background)
    >>> (queries @ database.T).round(3).tolist()
    [[0.2, -0.8]]
    """
    if len(background) <= last:
        raise DataError(
            f"score normalisation needs the {last + 1} nearest images of train, which has {len(background)}",
            "Give more images as --data.",
        )
    similarity, _ = nearest(background, queries, last + 1, metric="dot", max_memory=1.0)
    offset = -weight * similarity[:, first : last + 1].mean(axis=1, keepdims=True)
    ones = np.ones((len(database), 1), database.dtype)
    return np.hstack([queries, offset.astype(queries.dtype)]), np.hstack([database, ones])


_MAGIC = 1.5 * 2.0**12  # its neighbours in float64 are 2^-40 apart, so that adding it rounds numbers below 2^11
_MOST_ROWS = 4096


def positive_ranks(
    queries: Matrix, database: Matrix, truth: Callable[[int], GroundTruth], *, max_memory: float, device: str = "cpu"
) -> Iterator[IntArray]:
    """Yield the 0-based ranks of each query's positives, ascending; query by query.

    Similarities are float64 products of unit-length float32 descriptors, rounded to 2^-40: the ranks do not depend on
    the size of the blocks, the number of threads or the device, and copies of an image are exact ties.

    Q queries and N images of D dimensions take 2 Q N D floating-point operations. Memory beside the descriptors is
    `max_memory`, never Q x N. Indexes of faiss are of no use here: they return the first k images of a query, not the
    ranks of all its positives. 60,502 x 60,502 descriptors of 2,048 dimensions (Stanford Online Products) are 15 TFLOP.

    `queries`: (Q, D) of unit length; `database`: (N, D) of unit length; `max_memory`: working memory in GB (10^9
    bytes); `device`: device of the products; one without float64 is replaced by the processor.

    >>> database = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> truth = lambda query: GroundTruth(np.array([2]), np.array([query]))
    >>> [ranks.tolist() for ranks in positive_ranks(database[:1], database, truth, max_memory=0.1)]
    [[1]]
    """
    import torch

    device = "cpu" if device == "mps" else device  # Apple's GPUs have no float64
    # One block of queries is compared with all images: the more queries, the less often these are converted.
    memory = max_memory * 1e9 / 8  # numbers in float64
    columns = max(1, min(_MOST_ROWS, int(memory / 8 / database.shape[1]), len(database)))
    rows = max(1, min(_MOST_ROWS, int(memory * 3 / 4 / (len(database) + columns + queries.shape[1]))))
    buffer = np.empty((min(rows, len(queries)), len(database)))
    for start in range(0, len(queries), rows):
        block = _as_tensor(queries[start : start + rows], device)
        similarity = buffer[: len(block)]
        for first in range(0, len(database), columns):
            part = slice(first, first + columns)
            similarity[:, part] = torch.matmul(block, _as_tensor(database[part], device).T).cpu().numpy()
        similarity += _MAGIC
        similarity -= _MAGIC
        for i, scores in enumerate(similarity):
            yield ranks_of_positives(scores, truth(start + i))


def _as_tensor(rows: Matrix, device: str) -> "torch.Tensor":
    import torch

    return torch.from_numpy(np.asarray(rows, np.float64)).to(device)
