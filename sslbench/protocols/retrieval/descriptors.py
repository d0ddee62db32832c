"""Descriptors: unit length, whitening, aggregation of regions and scales, query expansion, score normalisation.

Shapes: N images, R regions of an image, D dimensions of a descriptor, all arrays float32 or float64.
"""

import numpy as np

from sslbench.arrays import Matrix
from sslbench.errors import DataError
from sslbench.solvers.neighbours import Engine, Scope, nearest
from sslbench.solvers.whitening import Whitening


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

    Args:
        queries: (Q, D) of unit length; with `scope.test_rows`, only these rows are expanded and returned.
        database: (N, D) of unit length.
        n_neighbours: number of first neighbours that are added.
        alpha: exponent of the similarity; negative similarities count as 0.
        max_memory: working memory of the search, in GB (10^9 bytes).
        scope: images that are never added to a query, such as itself; None: all may be.
        engine: library and device of the search.

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

    Args:
        queries: (Q, D) of unit length; the subtraction harms others.
        database: (N, D) of unit length.
        background: (B, D) images that are in neither, such as a training set.
        weight: of the mean that is subtracted.
        first: place of the first neighbour in the mean.
        last: place of the last.

    Raises:
        DataError: the background set has no image at the last place.

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
