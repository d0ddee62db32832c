"""Clusters of a data set's features as labels (ClusterFit, Yan et al., CVPR 2020, arXiv 1912.03330).

k-means as in VISSL's tools/cluster_features_and_label.py: features of length 1, faiss, 50 iterations; here all images
take part, by default faiss takes 256 per cluster.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.errors import DataError, UsageError
from sslbench.features.extract import Extraction
from sslbench.paths import new_file
from sslbench.steps import counted
from sslbench.text import csv_text

_ROWS = 65536
"""Rows that are normalised and assigned at a time."""


@dataclasses.dataclass(frozen=True)
class Clustering:
    """Result of k-means.

    Attributes:
        clusters: part -> int64 (N,), cluster of each image.
        sizes: int64 (K,), images of the fitted part in each cluster.
        objective: sum of squared distances to the centroids in each iteration.
    """

    clusters: Mapping[str, IntArray]
    sizes: IntArray
    objective: tuple[float, ...]


def cluster(
    parts: Mapping[str, npt.NDArray[np.floating]], k: int, *, iterations: int = 50, seed: int = 0
) -> Clustering:
    """Cluster the features of the part 'train' or 'all', and assign those of every part to the nearest centroid.

    `parts`: name of a part -> features (N, D); rows are scaled to length 1.

    >>> x = np.array([[1, 0.1], [1, 0], [0, 1], [0.1, 1]], dtype=np.float32)
    >>> found = cluster({"all": x}, 2)
    >>> a, b, c, d = found.clusters["all"].tolist()
    >>> a == b, c == d, a == c, found.sizes.tolist()
    (True, True, False, [2, 2])
    """
    import faiss

    fitted = next((name for name in ("train", "all") if name in parts), next(iter(parts)))
    rows = len(parts[fitted])
    if not 2 <= k <= rows:
        raise UsageError(f"--k {k:,}: {rows:,} images cannot form as many clusters", f"Use a number from 2 to {rows}.")
    if iterations < 1:
        raise UsageError(f"--iterations {iterations} should be at least 1")
    kmeans = faiss.Kmeans(
        parts[fitted].shape[1],
        k,
        niter=iterations,
        # faiss takes a C int, and seeds of a run reach 2**32 - 1.
        seed=seed % 2**31,
        gpu=faiss.get_num_gpus() > 0,
        # By default faiss draws 256 images per cluster, and warns of fewer than 39.
        max_points_per_centroid=rows,
        min_points_per_centroid=1,
    )
    with counted("k-means", "runs", 1):
        kmeans.train(_normalised(parts[fitted]))
    clusters = {}
    for name, x in parts.items():
        nearest = [kmeans.index.search(_normalised(x[i : i + _ROWS]), 1)[1][:, 0] for i in range(0, len(x), _ROWS)]
        clusters[name] = np.concatenate(nearest).astype(np.int64)
    sizes = np.bincount(clusters[fitted], minlength=k).astype(np.int64)
    return Clustering(clusters, sizes, tuple(np.asarray(kmeans.obj, dtype=np.float64).tolist()))


def write_assignments(path: Path, extractions: Mapping[str, Extraction], clusters: Mapping[str, IntArray]) -> int:
    """Write a table of the images' paths, clusters and, if there are several, parts; return its number of rows."""
    several = len(extractions) > 1
    header = ("path", "label", "split") if several else ("path", "label")
    rows: list[tuple[str, ...]] = []
    for name, extraction in extractions.items():
        for line, number in zip(extraction.entry.index_rows(), clusters[name].tolist(), strict=True):
            image = Path(line["path"]).absolute()
            if not image.is_file():
                raise DataError(
                    f"{line['path']} is no file of its own, so a table of paths cannot name it",
                    "Give a folder of images, or a table or manifest of image files.",
                )
            rows.append((str(image), f"cluster{number:06d}", *((name,) if several else ())))
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        temporary.write_text(csv_text([header, *rows], escape=False), encoding="utf-8")
    return len(rows)


def _normalised(x: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Return the rows scaled to length 1, with VISSL's 1e-5 in the denominator."""
    rows = np.asarray(x, dtype=np.float32)
    return np.ascontiguousarray(rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-5))
