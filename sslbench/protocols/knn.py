"""Weighted k-nearest-neighbour classification of frozen features (Wu et al. 2018, "instance discrimination", sec. 3.4).

Every test sample is classified by a vote of its k nearest training samples. With the default settings (cosine
similarity, weight exp(similarity / 0.07)) this is what VISSL, DINO, DINOv2, solo-learn and lightly compute.

With `leave_one_out` every training sample is scored by all others, and there is no test part. Of samples that belong
to groups (the frames of a video) it is scored by those of all other groups.

Ties: of equally near training samples the one with the lower row is the nearer; of classes with equal votes the one
with the lower number wins. The result does not depend on block sizes, threads, backend or device.

Version 3: of more than 75,000 training samples 7,500 are held out to choose k on, not a tenth, so that the choice costs
at most 15 % of scoring 50,000 test samples, and not 2.6 times as much as in version 2 with ImageNet.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from sslbench.arrays import FloatArray, IntArray
from sslbench.config import setting
from sslbench.data.source import Labels
from sslbench.errors import UsageError
from sslbench.features.array import Features
from sslbench.metrics.summary import summarise
from sslbench.protocols._parts.costs import DOUBLE, search_cost, summary_cost
from sslbench.protocols._parts.engines import fastest_engine
from sslbench.protocols._parts.selection import (
    check_features,
    headline_by_blocks,
    holdout_rows,
    is_better,
    no_holdout,
    percent,
)
from sslbench.protocols.protocol import OnFeatures, Part, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.runtime.cost import Cost
from sslbench.solvers.neighbours import Engine, Scope, nearest

_DEFAULT_K = (10, 20, 100, 200)
_HOLDOUT = 0.1
_CELLS = 4_000_000  # votes in memory at a time
_VOTE = 100  # bytes per neighbour that votes


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the kNN protocol."""

    k: tuple[int, ...] = setting(
        _DEFAULT_K,
        "number of neighbours that vote; of several values, the best on a held-out part of train is reported",
    )
    temperature: float = setting(
        0.07, "divisor of the similarity in the softmax vote; smaller values weigh the nearest more"
    )
    metric: Literal["cosine", "dot", "l2"] = setting("cosine", "similarity of two feature vectors")
    vote: Literal["softmax", "uniform", "inverse"] = setting(
        "softmax",
        "weight of a neighbour: exp(similarity / temperature), with l2 exp(-distance / temperature); "
        "1; or 1 / (distance + 1e-5)",
    )
    leave_one_out: bool = setting(
        False, "score every training sample by the others, without a test split; unsplit data stay whole"
    )
    holdout: int = setting(
        7500, "largest number of training samples held out to choose k on; never more than 10 % of train"
    )
    max_memory: float = setting(1.0, "working memory of the search", unit="GB", changes_result=False)
    backend: Literal["auto", "faiss", "torch"] = setting(
        "auto",
        "search library; results are the same: faiss on the CPU, torch on the run's device; auto: "
        "torch on a GPU, else the faster one",
        changes_result=False,
    )


def part(settings: Settings) -> Part | None:
    """Return 'train' with leave_one_out, else None: both parts are used."""
    return "train" if settings.leave_one_out else None


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings that cannot work on these training labels, before any feature is computed.

    Raises:
        UsageError: settings that are not possible, for instance k larger than the number of training samples.
    """
    check_settings(settings)
    _usable_k(settings, len(train) - settings.leave_one_out)


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Classify test by its neighbours in train.

    Args:
        train: features and labels that vote.
        test: features and labels that are scored; with `leave_one_out` the same samples as train.
        settings: see `Settings`.
        seed: of the held-out part and of the intervals.
        device: where torch searches; the result is the same.

    Raises:
        DataError: features that are not finite, or no labels.
        UsageError: settings that are not possible, for instance k larger than the number of training samples.
    """
    check_features(train, test)
    check(settings, train.labels)
    ks, _ = _usable_k(settings, _candidates(train, settings))
    if settings.leave_one_out and train.ids != test.ids:
        raise UsageError("knn: leave_one_out scores the training samples, so test must be the same samples")
    chosen, selected, notes = choose_k(train, settings, seed=seed, device=device)
    found = _search(train, test, ks[-1], settings, device, _scope(train, settings))
    kind, values = test.labels.kind, test.labels.values
    if len(ks) > 1 and settings.leave_one_out:
        scores, selected = _choose_by_the_other_half(found, ks, train, settings, seed)
    else:
        scores = found.vote(chosen, train.labels, settings)
    metrics, name, per_class = summarise(
        kind, test.labels.classes, values, scores, seed=seed, probabilities="scores", groups=test.groups
    )
    others = [k for k in ks if k != chosen or "k of the other half" in selected]
    return Outcome(
        metrics=metrics,
        headline=name,
        scores=scores.astype(np.float32),
        per_class=per_class,
        selected=selected,
        variants={f"k={k}": {name: _headline(found, k, train.labels, test.labels, settings)} for k in others},
        notes=tuple(notes),
        probabilities="scores",
    )


def choose_k(
    train: Features, settings: Settings, *, seed: int, device: str = "cpu"
) -> tuple[int, dict[str, Any], list[str]]:
    """Return the number of neighbours, the record of its choice, and notes.

    Args:
        train: features and labels that vote.
        settings: with one or several values of k; with `leave_one_out` the smallest is returned.
        seed: of the held-out part.
        device: where torch searches.
    """
    ks, notes = _usable_k(settings, _candidates(train, settings))
    if len(ks) == 1 or settings.leave_one_out:
        return ks[0], {}, notes
    chosen, selected, further = _select(train, ks, settings, seed, device)
    return chosen, selected, notes + further


def scores(train: Features, test: Features, k: int, settings: Settings, device: str = "cpu") -> FloatArray:
    """Return scores (M, C) of test by its k nearest neighbours in train, see `vote`; test needs no labels."""
    return _search(train, test, k, settings, device, Scope()).vote(k, train.labels, settings)


@dataclasses.dataclass(frozen=True)
class _Neighbours:
    """Neighbours of m samples, the nearest first: similarities (m, k) and train rows (m, k)."""

    similarity: FloatArray
    neighbours: IntArray

    def vote(self, k: int, labels: Labels, settings: Settings) -> FloatArray:
        """Return scores by the first k neighbours."""
        return vote(self.similarity[:, :k], self.neighbours[:, :k], labels, settings)

    def of(self, rows: IntArray | slice) -> "_Neighbours":
        """Return the neighbours of some of the samples."""
        return _Neighbours(self.similarity[rows], self.neighbours[rows])


def _candidates(train: Features, settings: Settings) -> int:
    """Return the number of training samples that every sample may choose its neighbours from."""
    if not settings.leave_one_out:
        return len(train)
    if train.groups is None:
        return len(train) - 1
    others = len(train) - int(np.unique(train.groups, return_counts=True)[1].max())
    if not others:
        raise UsageError(
            "knn: leave_one_out scores a sample by other groups, but all samples belong to one group",
            "Give data with several groups, or leave out group=.",
        )
    return others


def _scope(train: Features, settings: Settings) -> Scope:
    if not settings.leave_one_out:
        return Scope()
    return Scope(without_self=True) if train.groups is None else Scope(apart=train.groups)


def _search(train: Features, test: Features, k: int, settings: Settings, device: str, scope: Scope) -> _Neighbours:
    queries = len(test) if scope.test_rows is None else len(scope.test_rows)
    if settings.backend == "auto":
        engine = fastest_engine(device, 2.0 * len(train) * queries * train.x.shape[1])
    else:
        engine = Engine("faiss") if settings.backend == "faiss" else Engine("torch", device)
    memory = settings.max_memory
    return _Neighbours(
        *nearest(train.x, test.x, k, metric=settings.metric, max_memory=memory, scope=scope, engine=engine)
    )


def _headline(found: _Neighbours, k: int, train: Labels, test: Labels, settings: Settings) -> float:
    """Return the headline metric of the first k neighbours."""
    return headline_by_blocks(test, lambda rows: found.of(rows).vote(k, train, settings))


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data.

    Raises:
        UsageError: the message names the setting.
    """
    if not settings.k or min(settings.k) < 1 or len(set(settings.k)) < len(settings.k):
        raise UsageError(f"knn: k should be one or several different numbers of at least 1, not {list(settings.k)}")
    if not settings.temperature > 0:
        raise UsageError(f"knn: temperature should be greater than 0, not {settings.temperature}")
    if settings.holdout < 1:
        raise UsageError(f"knn: holdout should be at least 1, not {settings.holdout}")
    if not settings.max_memory > 0:
        raise UsageError(f"knn: max_memory should be greater than 0, not {settings.max_memory}")
    if settings.vote == "inverse" and settings.metric == "dot":
        raise UsageError(
            "knn: vote=inverse weighs by distance, which metric=dot does not have", "Use metric=l2 or metric=cosine."
        )


def _usable_k(settings: Settings, n_train: int) -> tuple[list[int], list[str]]:
    """Return the values of k that are at most the number of training samples, and notes on those left out."""
    fitting = [k for k in sorted(settings.k) if k <= n_train]
    dropped = [k for k in sorted(settings.k) if k > n_train]
    if not dropped:
        return fitting, []
    if settings.k != _DEFAULT_K:
        raise UsageError(
            f"knn: k={dropped[0]} is larger than the number of training samples, {n_train}",
            f"The largest possible k is {n_train}.",
        )
    names = ", ".join(map(str, dropped))
    note = f"Default values of k above the {n_train} training samples were left out: {names}."
    return (fitting or [n_train]), [note if fitting else f"{note} k={n_train} was used."]


def _select(
    train: Features, ks: list[int], settings: Settings, seed: int, device: str
) -> tuple[int, dict[str, Any], list[str]]:
    """Return the k with the best headline metric on a held-out part of train; of equals the smallest."""
    share = min(_HOLDOUT, settings.holdout / len(train))
    parts = holdout_rows(train.labels, share, seed, train.groups)
    fitting = [k for k in ks if parts is not None and k <= len(parts[0])]
    if parts is None:
        return ks[0], {}, [f"{no_holdout(train.groups)} to select k on; the smallest, {ks[0]}, was used."]
    if len(fitting) < 2:
        return ks[0], {}, [f"Train is too small to select k on a hold-out; the smallest, {ks[0]}, was used."]
    left_out = np.zeros(len(train), dtype=np.bool_)
    left_out[parts[1]] = True
    # Train may be larger than memory, so held-out rows are masked, not copied.
    found = _search(train, train, fitting[-1], settings, device, Scope(parts[1], left_out))
    held_out_labels = train.labels.select(parts[1])
    best, best_score = _best_k(
        fitting, functools.partial(_headline, found, train=train.labels, test=held_out_labels, settings=settings)
    )
    on = f"held-out {percent(_HOLDOUT) if share == _HOLDOUT else f'{len(parts[1]):,} samples'} of train"
    selected = {"k": best, "on": on, "score": best_score, "seed": seed}
    return best, selected, []


def _best_k(ks: list[int], score: Callable[[int], float]) -> tuple[int, float]:
    best, best_score = ks[0], float("nan")
    for k in ks:
        if is_better(value := score(k), best_score):
            best, best_score = k, value
    return best, best_score


def _choose_by_the_other_half(
    found: _Neighbours, ks: list[int], train: Features, settings: Settings, seed: int
) -> tuple[FloatArray, dict[str, Any]]:
    """Return scores of each half of the samples with the k that is best for the other half."""
    labels = train.labels
    halves = holdout_rows(labels, 0.5, seed, train.groups)
    if halves is None:
        return found.vote(ks[0], labels, settings), {}
    scores, best_ks = np.empty((len(labels), len(labels.classes))), []
    for scored, other in (halves, halves[::-1]):
        other_scores, own = found.of(other), labels.select(other)
        k, _ = _best_k(ks, functools.partial(_headline, other_scores, train=labels, test=own, settings=settings))
        scores[scored] = found.of(scored).vote(k, labels, settings)
        best_ks.append(k)
    return scores, {"k": best_ks[0], "k of the other half": best_ks[1], "on": "the other half of train", "seed": seed}


def weights(similarity: FloatArray, settings: Settings) -> FloatArray:
    """Return (M, k) weights of the neighbours from their similarities; they sum to 1 for each test sample.

    The largest similarity is subtracted before the exponential, so nothing overflows whatever the features' size.
    """
    if settings.vote == "uniform":
        return np.full(similarity.shape, 1 / similarity.shape[1])
    distance = np.sqrt(np.maximum(0, -similarity if settings.metric == "l2" else 2 - 2 * similarity))
    if settings.vote == "inverse":
        weight = 1 / (distance + 1e-5)
    else:
        exponent = (-distance if settings.metric == "l2" else similarity) / settings.temperature
        weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def vote(similarity: FloatArray, neighbours: IntArray, labels: Labels, settings: Settings) -> FloatArray:
    """Return (M, C) scores: the share of each class in the neighbours' weight, in 0..1, rounded to single precision.

    Sums of weights differ from 1 by rounding. Rounded, unanimous neighbours give 1 whatever their order, so these
    samples are tied in rankings, as they are among the scores on disk.

    Multi-label: for each class the weighted share of the neighbours that have it, among those not marked -1.

    Args:
        similarity: (M, k).
        neighbours: (M, k), train rows.
        labels: of train.
        settings: which weights.
    """
    weight = weights(similarity, settings)
    rows, n_classes = len(weight), len(labels.classes)
    scores = np.zeros((rows, n_classes))
    single = labels.kind == "single"
    step = max(1, _CELLS // (neighbours.shape[1] + n_classes if single else neighbours.shape[1] * max(1, n_classes)))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        if single:
            out = scores[part]
            cell = np.arange(len(out))[:, None] * n_classes + labels.values[neighbours[part]]
            out[:] = np.bincount(cell.ravel(), weight[part].ravel(), out.size).reshape(out.shape).astype(np.float32)
            continue
        neighbour_labels = labels.values[neighbours[part]]
        present = np.einsum("mk,mkc->mc", weight[part], (neighbour_labels > 0).astype(np.float64))
        labelled_weight = np.einsum("mk,mkc->mc", weight[part], (neighbour_labels >= 0).astype(np.float64))
        np.divide(present, labelled_weight, out=scores[part], where=labelled_weight > 0)
        scores[part] = scores[part].astype(np.float32)
    return scores


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return the work of the search, of the choice of k on held-out rows, and of the metrics."""
    usable = [k for k in settings.k if k <= shapes.train] or [shapes.train]
    rows, memory = shapes.train, settings.max_memory
    queries = shapes.train if settings.leave_one_out else shapes.test
    chosen = min(_HOLDOUT * shapes.train, settings.holdout) if len(usable) > 1 and not settings.leave_one_out else 0
    search = search_cost(rows, queries, shapes.width, max(usable), memory, masked=settings.leave_one_out)
    choice = search_cost(rows, chosen, shapes.width, max(usable), memory, masked=True) if chosen else Cost()
    # Scores of one k at a time: weights of the neighbours, then votes.
    votes = Cost(
        traffic=len(usable) * (queries + chosen) * (max(usable) * _VOTE + 4 * DOUBLE * shapes.classes),
        memory=max(queries, chosen) * (2 * DOUBLE * shapes.classes + 4 * DOUBLE * max(usable)),
    )
    return search + choice + votes + summary_cost(shapes.labels, queries, shapes.classes, votes=True)


PROTOCOL = Protocol(
    version=4,
    summary="Weighted k-nearest-neighbour classification of frozen features.",
    settings=Settings,
    check_settings=check_settings,
    kind=OnFeatures(check, run, cost, part=part, class_subsets=True),
)
