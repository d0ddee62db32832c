"""How well clusters agree with classes: NMI, ARI, accuracy under the best one-to-one matching; and the silhouette.

All are functions of the table that counts how many samples of each class lie in each cluster, so intervals resample
counts. They are fractions; NMI and accuracy lie in 0..1, ARI is 0 on average for clusters that know nothing of the
classes and may be negative.
"""

import numpy as np
import numpy.typing as npt

from sslbench.metrics.intervals import Units, ends, mean_errors, on_halves, standard_errors

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Values = dict[str, tuple[float, float, float]]

NAMES = ("nmi", "ari", "accuracy")


class Table:
    """The filled cells of the class x cluster table, for samples that may be weighted.

    Args:
        classes: (N,) class numbers.
        clusters: (N,) cluster numbers.
    """

    def __init__(self, classes: IntArray, clusters: IntArray) -> None:
        keys, cells = np.unique(np.column_stack([classes, clusters]), axis=0, return_inverse=True)
        self.cells = cells.ravel()
        self.class_of_cell, self.cluster_of_cell = keys[:, 0], keys[:, 1]

    def counts(self, weights: FloatArray | None = None) -> FloatArray:
        """(cells,) sums of the weights (N,) in each cell; how many samples there are without weights."""
        return np.bincount(self.cells, weights, len(self.class_of_cell)).astype(np.float64)

    def nmi(self, counts: FloatArray) -> float:
        """Mutual information over the mean of the two entropies (scikit-learn's `normalized_mutual_info_score`)."""
        total = counts.sum()
        rows, columns = self._margins(counts)
        filled = counts > 0
        joint = counts[filled] / total
        expected = rows[self.class_of_cell[filled]] / total * columns[self.cluster_of_cell[filled]] / total
        mutual = float(np.sum(joint * np.log(joint / expected)))
        mean = (_entropy(rows / total) + _entropy(columns / total)) / 2
        # One class and one cluster agree perfectly; that is scikit-learn's convention too.
        return 1.0 if mean == 0 else max(0.0, mutual / mean)

    def ari(self, counts: FloatArray) -> float:
        """Adjusted Rand index (Hubert & Arabie 1985; scikit-learn's `adjusted_rand_score`)."""
        rows, columns = self._margins(counts)
        both, same_class, same_cluster = _pairs(counts), _pairs(rows), _pairs(columns)
        expected = same_class * same_cluster / max(float(_pairs(np.array([counts.sum()]))), 1.0)
        most = (same_class + same_cluster) / 2
        return 1.0 if most == expected else float((both - expected) / (most - expected))

    def matching(self, counts: FloatArray) -> dict[int, int]:
        """Cluster -> class, one to one, such that most samples lie in the class of their cluster (Kuhn 1955)."""
        from scipy.optimize import linear_sum_assignment

        table = np.zeros((int(self.class_of_cell.max()) + 1, int(self.cluster_of_cell.max()) + 1))
        table[self.class_of_cell, self.cluster_of_cell] = counts
        rows, columns = linear_sum_assignment(table, maximize=True)
        return dict(zip(columns.tolist(), rows.tolist(), strict=True))

    def accuracy(self, counts: FloatArray, matching: dict[int, int]) -> float:
        """The share of the samples whose class is that of their cluster; a cluster without a class is wrong."""
        return float(counts[self.matched(matching)].sum() / counts.sum())

    def matched(self, matching: dict[int, int]) -> npt.NDArray[np.bool_]:
        """(cells,): whether class and cluster of the cell belong together."""
        classes = [matching.get(cluster, -1) for cluster in self.cluster_of_cell.tolist()]
        return np.asarray(self.class_of_cell == np.array(classes))

    def _margins(self, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
        rows = np.bincount(self.class_of_cell, counts).astype(np.float64)
        return rows, np.bincount(self.cluster_of_cell, counts).astype(np.float64)


def agreement(classes: IntArray, clusters: IntArray, matching: dict[int, int] | None = None) -> dict[str, float]:
    """NMI, ARI and accuracy.

    Args:
        classes: (N,) class numbers.
        clusters: (N,) cluster numbers.
        matching: cluster -> class, for the accuracy; the best one for these samples when None.
    """
    table = Table(classes, clusters)
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
    """The same with 95 % intervals, see `intervals`.

    Args:
        classes: (N,) class numbers.
        clusters: (N,) cluster numbers.
        matching: cluster -> class, the same for every resample.
        seed: of the half-samples.
        resamples: how many.
        groups: (N,) the group of each sample; None: each stands for itself.
    """
    table = Table(classes, clusters)

    def statistic(weights: FloatArray) -> FloatArray:
        tables = [table.counts(row) for row in weights]
        return np.array([[table.nmi(t), table.ari(t), table.accuracy(t, matching)] for t in tables])

    value = statistic(np.ones((1, len(classes))))[0]
    units = Units.of(len(classes), groups)
    errors = standard_errors(on_halves(statistic, units, n=resamples, seed=seed), units)
    found: Values = {}
    for i, name in enumerate(NAMES):
        bounds = (-1.0, 1.0) if name == "ari" else (0.0, 1.0)
        own = float(value[i])
        found[name] = (own, *ends(own, float(errors[i]), size=units.number, bounds=bounds))
    return found


def silhouette(
    x: npt.NDArray[np.floating], clusters: IntArray, *, most: int, seed: int, groups: IntArray | None = None
) -> tuple[float, float, float]:
    """Mean silhouette (Rousseeuw 1987) of the samples with Euclidean distance, and its 95 % interval.

    Args:
        x: (N, D).
        clusters: (N,) cluster numbers.
        most: of more samples, so many are drawn, and only they are looked at.
        seed: of that draw.
        groups: (N,) the group of each sample; None: each stands for itself.

    Returns:
        Value, low, high; NaN with a single cluster, or when every sample is a cluster of its own.
    """
    from sklearn.metrics import silhouette_samples

    rows = np.arange(len(x))
    if len(x) > most:
        rows = np.sort(np.random.default_rng(seed).choice(len(x), most, replace=False))
    drawn = clusters[rows]
    if not 2 <= len(np.unique(drawn)) < len(rows):
        return float("nan"), float("nan"), float("nan")
    each = silhouette_samples(np.asarray(x[rows], dtype=np.float64), drawn)
    units = Units.of(len(rows), None if groups is None else groups[rows])
    value, error = float(each.mean()), float(mean_errors(each[:, None], units)[0])
    return value, *ends(value, error, size=units.number, bounds=(-1.0, 1.0))


def _entropy(shares: FloatArray) -> float:
    shares = shares[shares > 0]
    return float(-np.sum(shares * np.log(shares)))


def _pairs(counts: FloatArray) -> float:
    return float(np.sum(counts * (counts - 1)) / 2)
