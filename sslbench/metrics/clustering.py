"""Agreement of clusters with classes: NMI, ARI, accuracy under the best one-to-one matching; and the silhouette.

The first three are functions of the contingency table, so that intervals resample its counts. They are fractions; NMI
and accuracy lie in 0..1, ARI is 0 on average for clusters unrelated to the classes and may be negative.
"""

import math

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.intervals import Interval, Units, Values, ends
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import CORRELATION, RATE, Metric
from sslbench.metrics.summary import with_intervals

AGREEMENT = (
    Metric("nmi", "Normalised mutual information", "%", 1, RATE, needs="clusters", labels=("single",)),
    Metric("ari", "Adjusted Rand index", "%", 1, CORRELATION, needs="clusters", labels=("single",), chance=0.0),
    Metric(
        "accuracy",
        "Accuracy under the best matching of clusters with classes",
        "%",
        1,
        RATE,
        needs="clusters",
        labels=("single",),
    ),
)
NAMES = tuple(metric.name for metric in AGREEMENT)
SILHOUETTE = Metric("silhouette", "Silhouette", "silhouette, -1 to 1", 1, CORRELATION, needs="clusters")


_PARTS = 20  # of the samples, each of which is left out once for the interval of the silhouette


class ContingencyTable:
    """Contingency table of classes and clusters: its non-zero cells, for weighted samples.

    Args:
        classes: (N,) class numbers.
        clusters: (N,) cluster numbers.
    """

    def __init__(self, classes: IntArray, clusters: IntArray) -> None:
        keys, cells = np.unique(np.column_stack([classes, clusters]), axis=0, return_inverse=True)
        self.cells = cells.ravel()
        self.class_of_cell, self.cluster_of_cell = keys[:, 0], keys[:, 1]
        found, first = np.unique(classes, return_index=True)
        self._classes = found[np.argsort(first)]  # by their first samples, so that their numbers decide nothing

    def counts(self, weights: FloatArray | None = None) -> FloatArray:
        """Return the sum of the weights (N,) in each cell (cells,); without weights the number of samples."""
        return np.bincount(self.cells, weights, len(self.class_of_cell)).astype(np.float64)

    def nmi(self, counts: FloatArray) -> float:
        """Return mutual information over the mean entropy (scikit-learn's `normalized_mutual_info_score`)."""
        total = counts.sum()
        rows, columns = self._margins(counts)
        filled = counts > 0
        joint = counts[filled] / total
        expected = rows[self.class_of_cell[filled]] / total * columns[self.cluster_of_cell[filled]] / total
        mutual = float(np.sum(joint * np.log(joint / expected)))
        mean = (_entropy(rows / total) + _entropy(columns / total)) / 2
        # One class and one cluster agree perfectly: scikit-learn's convention.
        return 1.0 if mean == 0 else max(0.0, mutual / mean)

    def ari(self, counts: FloatArray) -> float:
        """Return the adjusted Rand index (Hubert & Arabie 1985, eq. 5; scikit-learn's `adjusted_rand_score`)."""
        rows, columns = self._margins(counts)
        both, same_class, same_cluster = _pairs(counts), _pairs(rows), _pairs(columns)
        expected = same_class * same_cluster / max(float(_pairs(np.array([counts.sum()]))), 1.0)
        most = (same_class + same_cluster) / 2
        return 1.0 if most == expected else float((both - expected) / (most - expected))

    def matching(self, counts: FloatArray) -> dict[int, int]:
        """Return the one-to-one matching cluster -> class that fits most samples (Kuhn 1955)."""
        from scipy.optimize import linear_sum_assignment

        place = np.empty(int(self._classes.max()) + 1, np.int64)
        place[self._classes] = np.arange(len(self._classes))
        table = np.zeros((len(self._classes), int(self.cluster_of_cell.max()) + 1))
        table[place[self.class_of_cell], self.cluster_of_cell] = counts
        rows, columns = linear_sum_assignment(table, maximize=True)
        return dict(zip(columns.tolist(), self._classes[rows].tolist(), strict=True))

    def accuracy(self, counts: FloatArray, matching: dict[int, int]) -> float:
        """Return the share of samples whose class is that of their cluster; a cluster without a class is wrong."""
        return float(counts[self.matched(matching)].sum() / counts.sum())

    def matched(self, matching: dict[int, int]) -> npt.NDArray[np.bool_]:
        """Return for each cell whether its class is matched with its cluster (cells,)."""
        classes = [matching.get(cluster, -1) for cluster in self.cluster_of_cell.tolist()]
        return np.asarray(self.class_of_cell == np.array(classes))

    def _margins(self, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
        rows = np.bincount(self.class_of_cell, counts).astype(np.float64)
        return rows, np.bincount(self.cluster_of_cell, counts).astype(np.float64)


def agreement(classes: IntArray, clusters: IntArray, matching: dict[int, int] | None = None) -> dict[str, float]:
    """Return NMI (0 to 1), ARI (-1 to 1) and accuracy (0 to 1) by name.

    `classes`: (N,) class numbers; `clusters`: (N,) cluster numbers; `matching`: cluster -> class, for the accuracy; the
    best one for these samples when None.

    >>> found = agreement(np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]))
    >>> {name: round(value, 6) for name, value in found.items()}
    {'nmi': 1.0, 'ari': 1.0, 'accuracy': 1.0}
    """
    table = ContingencyTable(classes, clusters)
    counts = table.counts()
    pairs = table.matching(counts) if matching is None else matching
    values = (table.nmi(counts), table.ari(counts), table.accuracy(counts, pairs))
    return dict(zip(NAMES, values, strict=True))


def agreement_with_intervals(
    classes: IntArray,
    clusters: IntArray,
    matching: dict[int, int],
    *,
    seed: int,
    resamples: int = 1000,
    groups: IntArray | None = None,
) -> Values:
    """Return NMI, ARI and accuracy with their 95 % intervals, see `intervals`.

    `classes`: (N,) class numbers; `clusters`: (N,) cluster numbers; `groups`: (N,) the group of each sample; None: each
    stands for itself.
    """
    table = ContingencyTable(classes, clusters)

    def statistic(weights: FloatArray) -> FloatArray:
        tables = [table.counts(row) for row in weights]
        return np.array([[table.nmi(t), table.ari(t), table.accuracy(t, matching)] for t in tables])

    units = Units.of(len(classes), groups)
    # Of few samples the mutual information is too large by (R - 1) (C - 1) / 2N (Miller 1955); half-samples show less.
    rows, columns = (np.unique(numbers, return_counts=True)[1] for numbers in (classes, clusters))
    entropy = (_entropy(rows / len(classes)) + _entropy(columns / len(classes))) / 2
    excess = (len(rows) - 1) * (len(columns) - 1) / (2 * units.number)
    bias = np.array([excess / entropy if entropy else 0.0, 0.0, 0.0])
    return with_intervals(Measure(AGREEMENT, statistic, bias=bias), units, seed, resamples)


def silhouette(
    x: npt.NDArray[np.floating], clusters: IntArray, *, most: int, seed: int, groups: IntArray | None = None
) -> Interval:
    """Return the mean silhouette of the samples with Euclidean distance, -1 to 1, and its 95 % interval.

    `x`: (N, D); `clusters`: (N,) cluster numbers; `groups`: (N,) the group of each sample; None: each stands for
    itself; returns value, low, high; NaN with a single cluster, or when every sample is a cluster of its own.

    >>> x = np.array([[0.0], [0.1], [9.0], [9.1]])
    >>> round(silhouette(x, np.array([0, 0, 1, 1]), most=100, seed=0)[0], 3)
    0.989
    """
    # Rousseeuw 1987, section 2. Every silhouette depends on all samples, so that the standard error is that of the mean
    # without a twentieth of the units, for each of 20 random parts (delete-a-group jackknife).
    from scipy.sparse import csr_array
    from scipy.spatial.distance import cdist

    rows = np.arange(len(x))
    if len(x) > most:
        rows = np.sort(np.random.default_rng(seed).choice(len(x), most, replace=False))
    drawn = clusters[rows]
    if not 2 <= len(np.unique(drawn)) < len(rows):
        return float("nan"), float("nan"), float("nan")
    units = Units.of(len(rows), None if groups is None else groups[rows])
    given, own = np.asarray(x[rows], dtype=np.float64), np.unique(drawn, return_inverse=True)[1]
    distances = cdist(given, given)
    members = csr_array((np.ones(len(rows)), (own, np.arange(len(rows)))))
    total, sizes = members @ distances, np.bincount(own)
    value = _mean_silhouette(total, sizes, own)
    parts = min(_PARTS, units.number)
    of_unit = np.random.default_rng(seed).permutation(units.number) % parts
    part = of_unit if units.place is None else of_unit[units.place]
    without = []
    for i in range(parts):
        left_out, kept = np.flatnonzero(part == i), np.flatnonzero(part != i)
        rest = total[:, kept] - (members[:, left_out] @ distances[left_out])[:, kept]
        without.append(_mean_silhouette(rest, sizes - np.bincount(own[left_out], minlength=len(sizes)), own[kept]))
    error = math.sqrt((parts - 1) * float(np.var(without))) if parts > 1 else math.nan
    return value, *ends(value, error, size=parts, bounds=SILHOUETTE.bounds)


def _mean_silhouette(total: FloatArray, sizes: IntArray, own: IntArray) -> float:
    """Return the mean silhouette from the sums of the distances (K, N) of each sample to the members of each cluster.

    `total`: (K, N); `sizes`: (K,), members of each cluster; `own`: (N,), cluster of each sample; one that is alone in
    it has 0.
    """
    every = np.arange(len(own))
    inside = total[own, every] / np.maximum(sizes[own] - 1, 1)
    others = np.divide(total, sizes[:, None], out=np.full(total.shape, np.inf), where=sizes[:, None] > 0)
    others[own, every] = np.inf
    nearest = others.min(axis=0)
    largest = np.maximum(inside, nearest)
    known = (sizes[own] > 1) & (largest > 0) & np.isfinite(nearest)
    return float(np.where(known, np.divide(nearest - inside, largest, out=np.zeros(len(own)), where=known), 0.0).mean())


def _entropy(shares: FloatArray) -> float:
    shares = shares[shares > 0]
    return float(-np.sum(shares * np.log(shares)))


def _pairs(counts: FloatArray) -> float:
    return float(np.sum(counts * (counts - 1)) / 2)
