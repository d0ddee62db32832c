"""k-means on frozen features: agreement of clusters found without labels with the classes.

Clusters are found on train (faiss, Lloyd's algorithm) from several random starts; the one with the lowest
within-cluster sum of squares counts, which needs no label. Test samples go to the nearest centre. Reported on test:
NMI, ARI, the accuracy under a one-to-one matching of clusters with classes, and the silhouette of the clusters.

The matching is the best one on train, so nothing is chosen on test; `match=test` matches on the test labels themselves,
as publications do, and the row is marked. With more clusters than classes some have no class and count as wrong.

Version 2: the intervals are those of half-samples, and groups of samples are kept together. Version 3: of more than
100,000 training samples (`samples`) centres are fitted to a random subset, which fits into memory and takes hours less;
all of them are assigned to the centres. Version 4: of several best matchings one is taken that does not depend on the
numbers of the classes.

Scores per sample: the share of each class among the training samples of the sample's cluster.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray, Matrix
from sslbench.config import setting
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.clustering import NAMES, ContingencyTable, agreement, agreement_with_intervals, silhouette
from sslbench.metrics.spectrum import drawn_rows
from sslbench.protocols._parts.selection import check_features
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, ProtocolSettings, Shapes
from sslbench.results import Outcome
from sslbench.steps import counted
from sslbench.targets.classes import Classes
from sslbench.targets.target import Target

_HEADLINE = "ari"
_ROWS = 8192  # samples assigned to centres at a time
_SETTLED = 1e-4  # relative change of the sum of squares in the last iteration


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of clustering."""

    k: tuple[int, ...] = setting(
        (),
        "numbers of clusters; the first gives the leading metric; []: the number of classes",
        within="[1, inf)",
        distinct=True,
    )
    restarts: int = setting(
        10, "random starts; start i has the seed (seed of the run) x restarts + i", within="[1, inf)"
    )
    iterations: int = setting(100, "largest number of iterations of Lloyd's algorithm per start", within="[1, inf)")
    samples: int = setting(
        100_000,
        "largest number of training samples that centres are fitted to; of more, a random subset is used",
        within="[1, inf)",
    )
    normalise: bool = setting(True, "scale every feature vector to length 1, so that clusters follow cosine similarity")
    match: Literal["train", "test"] = setting(
        "train", "split on whose labels clusters are matched with classes; test: as published, and the row is marked"
    )
    silhouette_samples: int = setting(
        5000, "largest number of test samples of the silhouette; of more, a random subset is used", within="[2, inf)"
    )


def check(settings: Settings, train: Target) -> None:
    """Refuse settings that cannot work on these training labels, before any feature is computed."""
    if not isinstance(train, Classes):
        raise DataError(
            f"clustering needs one class per sample, and these samples have {train.title}",
            "Use the protocol geometry, which needs no labels.",
        )
    if max(settings.k, default=0) > len(train):
        raise UsageError(f"clustering: k={max(settings.k)} is more than the {len(train)} training samples")
    most = max(settings.k or (min(len(train.classes), len(train)),))
    if settings.samples < most:
        raise UsageError(
            f"clustering: samples should be at least the number of clusters, {most}, not {settings.samples}"
        )


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Cluster train, compare the clusters of test with its classes.

    `train`: features that are clustered; their labels only match clusters with classes.
    """
    check_features(train, test)
    check(settings, train.target)
    ks = settings.k or (min(len(train.target.classes), len(train)),)
    # Runs with different seeds share no start.
    seeds = [seed * settings.restarts + i for i in range(settings.restarts)]
    # By rank: what is drawn does not depend on how the rows lie.
    rows = train.order[drawn_rows(len(train), settings.samples, seed)]
    clusters = _cluster(train.x, test.x, list(itertools.product(ks, seeds)), rows, settings)
    runs = {k: clusters[i * len(seeds) : (i + 1) * len(seeds)] for i, k in enumerate(ks)}
    best = {k: min(of_k, key=lambda run: run.objective) for k, of_k in runs.items()}
    outcome = _outcome(best[ks[0]], train, test, settings, seed)
    if len(rows) < len(train):
        note = f"Centres were fitted to a random subset of {len(rows):,} of {len(train):,} training samples."
        outcome = dataclasses.replace(outcome, notes=(note, *outcome.notes))
    # Over the starts of the first k, and of the best start of the others.
    starts = [agreement(test.target.values, run.test, _matching(run, train, test, settings)) for run in runs[ks[0]]]
    table = np.array([[values[name] for name in NAMES] for values in starts])
    kinds = {"mean": table.mean(axis=0), "std": table.std(axis=0), "min": table.min(axis=0), "max": table.max(axis=0)}
    variants = {
        f"{kind} of {len(seeds)} starts": dict(zip(NAMES, map(float, values), strict=True))
        for kind, values in kinds.items()
    }
    for k in ks[1:]:
        variants[f"k={k}"] = agreement(test.target.values, best[k].test, _matching(best[k], train, test, settings))
    return dataclasses.replace(outcome, variants=variants)


@dataclasses.dataclass(frozen=True)
class _Centres:
    """Centres (k, D) of one run of k-means, and whether it converged."""

    centres: npt.NDArray[np.float32]
    settled: bool


@dataclasses.dataclass(frozen=True)
class _Clusters:
    """One run of k-means: cluster numbers of train and test, sum of squares on train, whether it converged."""

    train: IntArray
    test: IntArray
    objective: float
    settled: bool


def _cluster(
    train: Matrix, test: Matrix, runs: Sequence[tuple[int, int]], rows: IntArray, settings: Settings
) -> list[_Clusters]:
    """Return the clusters of several runs of k-means.

    `train`: (N, D); `test`: (M, D).
    """
    x = np.empty((len(rows), train.shape[1]), np.float32)
    for start in range(0, len(rows), _ROWS):
        x[start : start + _ROWS] = _prepared(train[rows[start : start + _ROWS]], settings)
    centres: list[_Centres] = []
    with counted("clustering", "runs of k-means", len(runs)) as advance:
        for k, seed in runs:
            centres.append(_fit(x, k, settings.iterations, seed))
            advance(1)
    # The largest array of the protocol; assigning reads the features again, in blocks.
    del x
    found = zip(centres, _assign(train, centres, settings), _assign(test, centres, settings), strict=True)
    return [_Clusters(own, nearest, total, one.settled) for one, (own, total), (nearest, _) in found]


def _prepared(x: Matrix, settings: Settings) -> npt.NDArray[np.float32]:
    """Return a copy of features (n, D) in single precision, of length 1 if asked for."""
    # Copied even where the type is right: the division is in place, and other protocols read the same features.
    prepared = np.array(x, dtype=np.float32, order="C")
    if settings.normalise:
        length = np.linalg.norm(prepared, axis=1, keepdims=True)
        prepared /= np.where(length > 0, length, 1)
    return prepared


def _fit(x: npt.NDArray[np.float32], k: int, iterations: int, seed: int) -> _Centres:
    import faiss

    kmeans = faiss.Kmeans(
        x.shape[1],
        k,
        niter=iterations,
        # faiss holds the seed in a C int.
        seed=seed % 2**31,
        # By default faiss subsamples to 256 samples per cluster, and warns about fewer than 39.
        max_points_per_centroid=len(x),
        min_points_per_centroid=1,
    )
    kmeans.train(x)
    sums = np.asarray(kmeans.obj)
    return _Centres(
        np.asarray(kmeans.centroids, np.float32), len(sums) > 1 and bool(sums[-2] - sums[-1] <= _SETTLED * sums[-1])
    )


def _assign(x: Matrix, centres: Sequence[_Centres], settings: Settings) -> list[tuple[IntArray, float]]:
    """Return the nearest centre of every sample (N,) and the sum of the squared distances, for each run of k-means.

    The features are read once, in blocks.
    """
    import faiss

    nearest = [np.empty(len(x), np.int64) for _ in centres]
    totals = np.zeros(len(centres))
    for start in range(0, len(x), _ROWS):
        rows = slice(start, start + _ROWS)
        block = _prepared(x[rows], settings)
        for i, one in enumerate(centres):
            distances, found = faiss.knn(block, one.centres, 1)
            nearest[i][rows] = found[:, 0]
            totals[i] += float(distances.sum(dtype=np.float64))
    return list(zip(nearest, totals.tolist(), strict=True))


def _matching(clusters: _Clusters, train: Features, test: Features, settings: Settings) -> dict[int, int]:
    labels, own = (train.target, clusters.train) if settings.match == "train" else (test.target, clusters.test)
    table = ContingencyTable(labels.values, own)
    return table.matching(table.counts())


def _outcome(best: _Clusters, train: Features, test: Features, settings: Settings, seed: int) -> Outcome:
    classes, matching = test.target.classes, _matching(best, train, test, settings)
    metrics = agreement_with_intervals(test.target.values, best.test, matching, seed=seed, groups=test.groups)
    # The silhouette uses the same rows whether it draws them or is given them.
    rows = test.order[drawn_rows(len(test), settings.silhouette_samples, seed)]
    metrics["silhouette"] = silhouette(
        _prepared(test.x[rows], settings),
        best.test[rows],
        most=len(rows),
        seed=seed,
        groups=None if test.groups is None else test.groups[rows],
    )
    notes = []
    if len(test) > settings.silhouette_samples:
        notes.append(f"The silhouette is computed on {settings.silhouette_samples} of {len(test)} test samples.")
    selected: dict[str, Any] = {}
    if settings.match == "test":
        notes.append("Clusters were matched with classes on the test labels, as publications do.")
        selected = {"on": "test", "matching": "of clusters with classes"}
    # (k, C) shares of the classes among the training samples of each cluster.
    counts = np.zeros((int(best.train.max()) + 1, len(classes)))
    np.add.at(counts, (best.train, train.target.values), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # With more clusters than classes some have no class; -1 equals none.
    named = np.array([matching.get(cluster, -1) for cluster in best.test.tolist()])
    right = [named[test.target.values == i] == i for i in range(len(classes))]
    return Outcome(
        metrics=metrics,
        headline=_HEADLINE,
        scores=shares[best.test].astype(np.float32),
        per_class={
            name: float(own.mean()) if len(own) else float("nan") for name, own in zip(classes, right, strict=True)
        },
        train=agreement(train.target.values, best.train)[_HEADLINE],
        selected=selected,
        converged=best.settled,
        chance={"ari": 0.0},  # its expectation for clusters that have nothing to do with the classes
        notes=tuple(notes),
    )


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count all starts of k-means, and the silhouette."""
    ks = settings.k or (min(shapes.classes, shapes.train),)
    fitted = float(min(shapes.train, settings.samples)) * shapes.width
    assigned = float(shapes.train + shapes.test) * shapes.width
    drawn = float(min(shapes.test, settings.silhouette_samples))
    return Cost(
        products=2 * sum(ks) * settings.restarts * (settings.iterations * fitted + assigned)
        + 4 * drawn**2 * shapes.width,
        passes=8 * len(ks) * settings.restarts * settings.iterations * fitted,
        memory=4 * fitted + 8.0 * _ROWS * shapes.width + 8 * drawn * (drawn + shapes.width),
        scores=4.0 * shapes.test * shapes.classes,
    )


PROTOCOL = Protocol(
    version=5,
    summary="k-means on frozen features: agreement of the clusters with the classes.",
    settings=Settings,
    kind=OnFeatures(check, run, cost=cost, takes=(Classes,), own_metric=True),
)
