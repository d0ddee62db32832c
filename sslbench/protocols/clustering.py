"""k-means on frozen features: agreement of clusters found without labels with the classes.

Clusters are found on train (faiss, Lloyd's algorithm, all samples) from several random starts; the one with the lowest
within-cluster sum of squares counts, which needs no label. Test samples go to the nearest centre. Reported on test:
NMI, ARI, the accuracy under a one-to-one matching of clusters with classes, and the silhouette of the clusters.

The matching is the best one on train, so nothing is chosen on test; `match=test` matches on the test labels themselves,
as publications do, and the row is marked. With more clusters than classes some have no class and count as wrong.

Version 2: the intervals are those of half-samples, and groups of samples are kept together.

Scores per sample: the share of each class among the training samples of the sample's cluster.
"""

import dataclasses
import itertools
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.config import setting
from sslbench.data.source import Labels
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.labels import LABELS
from sslbench.metrics.clustering import NAMES, ContingencyTable, agreement, agreement_with_intervals, silhouette
from sslbench.protocols._parts.costs import DOUBLE, FLOAT
from sslbench.protocols._parts.selection import check_features
from sslbench.protocols.protocol import OnFeatures, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.runtime.cost import Cost
from sslbench.steps import counted

_HEADLINE = "ari"
_MOVED = 8  # bytes per number and iteration: means of the clusters
_AGREED = 500  # bytes per weight of a half-sample
_SETTLED = 1e-4  # relative change of the sum of squares in the last iteration


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of clustering."""

    k: tuple[int, ...] = setting(
        (), "numbers of clusters; the first gives the leading metric; []: the number of classes"
    )
    restarts: int = setting(10, "random starts; start i has the seed (seed of the run) x restarts + i")
    iterations: int = setting(100, "largest number of iterations of Lloyd's algorithm per start")
    normalise: bool = setting(True, "scale every feature vector to length 1, so that clusters follow cosine similarity")
    match: Literal["train", "test"] = setting(
        "train", "split on whose labels clusters are matched with classes; test: as published, and the row is marked"
    )
    silhouette_samples: int = setting(
        5000, "largest number of test samples of the silhouette; of more, a random subset is used"
    )


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings that cannot work on these training labels, before any feature is computed.

    Raises:
        UsageError: settings that are not possible, for instance more clusters than training samples.
        DataError: labels that are not one per sample.
    """
    if train.kind != "single":
        raise DataError(
            f"clustering needs one class per sample, and these samples have {LABELS[train.kind].text}",
            "Use the protocol geometry, which needs no labels.",
        )
    if len(set(settings.k)) < len(settings.k) or any(k < 1 for k in settings.k):
        raise UsageError(
            f"clustering: k should be one or several different numbers of at least 1, not {list(settings.k)}"
        )
    if settings.restarts < 1 or settings.iterations < 1 or settings.silhouette_samples < 2:
        raise UsageError("clustering: restarts and iterations should be at least 1, silhouette_samples at least 2")
    if max(settings.k, default=0) > len(train):
        raise UsageError(f"clustering: k={max(settings.k)} is more than the {len(train)} training samples")


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Cluster train, compare the clusters of test with its classes.

    Args:
        train: features that are clustered; their labels only match clusters with classes.
        test: features and labels that are scored.
        settings: see `Settings`.
        seed: of the starts, of the silhouette's samples and of the intervals.
        device: ignored; the computation runs on the processor.

    Raises:
        DataError: features that are not finite, or labels that are not one per sample.
        UsageError: settings that are not possible.
    """
    check_features(train, test)
    check(settings, train.labels)
    fit, scored = (_prepared(part, settings) for part in (train, test))
    ks = settings.k or (min(len(train.labels.classes), len(train)),)
    seeds = [seed * settings.restarts + i for i in range(settings.restarts)]
    runs: dict[int, list[_Clusters]] = {k: [] for k in ks}
    with counted("clustering", "runs of k-means", len(ks) * len(seeds)) as advance:
        for k, each in itertools.product(ks, seeds):
            runs[k].append(_cluster(fit, scored, k, settings.iterations, each))
            advance(1)
    best = {k: min(found, key=lambda run: run.objective) for k, found in runs.items()}
    outcome = _outcome(best[ks[0]], train, test, scored, settings, seed)
    variants = _spread(runs[ks[0]], train, test, settings) | {
        f"k={k}": agreement(test.labels.values, best[k].test, _matching(best[k], train, test, settings)) for k in ks[1:]
    }
    return dataclasses.replace(outcome, variants=variants)


@dataclasses.dataclass(frozen=True)
class _Clusters:
    """One run of k-means: cluster numbers of train and test, sum of squares on train, whether it converged."""

    train: IntArray
    test: IntArray
    objective: float
    settled: bool


def _prepared(part: Features, settings: Settings) -> npt.NDArray[np.float32]:
    x = np.ascontiguousarray(part.x, dtype=np.float32)
    if not settings.normalise:
        return x
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.where(length > 0, length, 1))


def _cluster(
    fit: npt.NDArray[np.float32], scored: npt.NDArray[np.float32], k: int, iterations: int, seed: int
) -> _Clusters:
    import faiss

    kmeans = faiss.Kmeans(
        fit.shape[1],
        k,
        niter=iterations,
        seed=seed % 2**31,
        # By default faiss subsamples to 256 samples per cluster, and warns about fewer than 39.
        max_points_per_centroid=len(fit),
        min_points_per_centroid=1,
    )
    kmeans.train(fit)
    sums = np.asarray(kmeans.obj)
    settled = len(sums) > 1 and bool(sums[-2] - sums[-1] <= _SETTLED * sums[-1])
    distance, own = kmeans.assign(fit)
    _, nearest = kmeans.assign(scored)
    return _Clusters(np.asarray(own, np.int64), np.asarray(nearest, np.int64), float(np.sum(distance)), settled)


def _matching(clusters: _Clusters, train: Features, test: Features, settings: Settings) -> dict[int, int]:
    labels, own = (train.labels, clusters.train) if settings.match == "train" else (test.labels, clusters.test)
    table = ContingencyTable(labels.values, own)
    return table.matching(table.counts())


def _outcome(
    best: _Clusters, train: Features, test: Features, scored: npt.NDArray[np.float32], settings: Settings, seed: int
) -> Outcome:
    classes, matching = test.labels.classes, _matching(best, train, test, settings)
    metrics = agreement_with_intervals(test.labels.values, best.test, matching, seed=seed, groups=test.groups)
    metrics["silhouette"] = silhouette(
        scored, best.test, most=settings.silhouette_samples, seed=seed, groups=test.groups
    )
    notes = []
    if len(test) > settings.silhouette_samples:
        notes.append(f"The silhouette is computed on {settings.silhouette_samples} of {len(test)} test samples.")
    selected: dict[str, Any] = {}
    if settings.match == "test":
        notes.append("Clusters were matched with classes on the test labels, as publications do.")
        selected = {"on": "test", "matching": "of clusters with classes"}
    shares = _class_shares(best.train, train.labels)
    return Outcome(
        metrics=metrics,
        headline=_HEADLINE,
        scores=shares[best.test].astype(np.float32),
        per_class=_per_class(test.labels, best.test, matching, classes),
        train=agreement(train.labels.values, best.train)[_HEADLINE],
        selected=selected,
        converged=best.settled,
        notes=tuple(notes),
    )


def _class_shares(clusters: IntArray, labels: Labels) -> FloatArray:
    """Return (k, C) shares of the classes among the training samples of each cluster."""
    counts = np.zeros((int(clusters.max()) + 1, len(labels.classes)))
    np.add.at(counts, (clusters, labels.values), 1)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def _per_class(
    labels: Labels, clusters: IntArray, matching: dict[int, int], classes: tuple[str, ...]
) -> dict[str, float]:
    """Return the share of each class's samples that lie in its cluster."""
    named = np.array([matching.get(cluster, -1) for cluster in clusters.tolist()])
    own = [named[labels.values == i] == i for i in range(len(classes))]
    return {name: float(right.mean()) if len(right) else float("nan") for name, right in zip(classes, own, strict=True)}


def _spread(runs: list[_Clusters], train: Features, test: Features, settings: Settings) -> dict[str, dict[str, float]]:
    """Return mean, standard deviation, minimum and maximum of each metric over the starts."""
    found = [agreement(test.labels.values, run.test, _matching(run, train, test, settings)) for run in runs]
    table = np.array([[values[name] for name in NAMES] for values in found])
    kinds = {"mean": table.mean(axis=0), "std": table.std(axis=0), "min": table.min(axis=0), "max": table.max(axis=0)}
    return {
        f"{kind} of {len(runs)} starts": dict(zip(NAMES, map(float, values), strict=True))
        for kind, values in kinds.items()
    }


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return the work of all starts of k-means, of the silhouette, and of the agreement on half-samples."""
    ks = settings.k or (min(shapes.classes, shapes.train),)
    size = float(shapes.train) * shapes.width
    drawn = min(shapes.test, settings.silhouette_samples)
    passes = settings.restarts * (settings.iterations + 1)
    searched = sum(ks) * (size + float(shapes.test) * shapes.width / settings.iterations)
    agreed = 1000.0 * shapes.test
    copies = FLOAT * (size + float(shapes.test) * shapes.width)
    silhouette = DOUBLE * (1.2 * float(drawn) ** 2 + 2.0 * drawn * shapes.width)
    return Cost(
        search=2 * searched * passes,
        double=2.0 * drawn**2 * shapes.width,
        traffic=passes * len(ks) * size * _MOVED + agreed * _AGREED + drawn**2 * 10 * DOUBLE,
        calls=passes * len(ks) * 20 + 1000 * 30,
        # Rows of length 1 are made from a quotient that is there at the same time.
        memory=(2 if settings.normalise else 1) * copies + silhouette,
        scores=float(FLOAT * shapes.test * shapes.classes),
    )


PROTOCOL = Protocol(
    version=2,
    summary="k-means on frozen features: agreement of the clusters with the classes.",
    settings=Settings,
    kind=OnFeatures(check, run, cost, label_kinds=frozenset({"single"})),
)
