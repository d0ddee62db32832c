"""Weighted k-nearest-neighbour classification of frozen features (Wu et al. 2018, "instance discrimination", sec. 3.4).

Every test sample is classified by a vote of its k nearest training samples. With the default settings (cosine
similarity, weight exp(similarity / 0.07)) this is what VISSL, DINO, DINOv2, solo-learn and lightly compute.

With `leave_one_out` every training sample is scored by all others, and there is no test part. Of samples that belong
to groups (the frames of a video) it is scored by those of all other groups.

Ties: training samples that are equally near share the places that are left for them, so that the votes are the
expectation over their orders. Of classes with equal votes that with the nearest sample comes first; if that is equal
too, none is predicted. The result does not depend on names or numbers of classes, on the order of the training samples,
block sizes, threads, backend or device.

Version 3: of more than 75,000 training samples 7,500 are held out to choose k on, not a tenth, so that the choice costs
at most 15 % of scoring 50,000 test samples, and not 2.6 times as much as in version 2 with ImageNet. Version 5: ties as
above (before, lower rows and class numbers came first, and classes without a vote were counted in top-5), and the
samples to choose k on do not depend on the numbers of the classes.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.features.array import Features
from sslbench.metrics.catalog import find
from sslbench.metrics.differences import Predictions, difference
from sslbench.metrics.intervals import Interval
from sslbench.metrics.retrieval import COMPRESSION_LOSS
from sslbench.metrics.summary import summarise
from sslbench.protocols._parts.compression import CompressionSettings, compressions
from sslbench.protocols._parts.selection import (
    best_of,
    check_features,
    headline_by_blocks,
    holdout_rows,
    no_holdout,
    percent,
)
from sslbench.protocols.protocol import Cost, OnFeatures, Part, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.solvers.neighbours import Engine, Scope, fastest_engine, nearest, search_work
from sslbench.targets.classes import Classes
from sslbench.targets.target import Target

_DEFAULT_K = (10, 20, 100, 200)
_HOLDOUT = 0.1
_CELLS = 4_000_000  # votes in memory at a time


@dataclasses.dataclass(frozen=True)
class Settings(CompressionSettings):
    """Settings of the kNN protocol."""

    k: tuple[int, ...] = setting(
        _DEFAULT_K,
        "number of neighbours that vote; of several values, the best on a held-out part of train is reported",
        within="[1, inf)",
        filled=True,
        distinct=True,
    )
    temperature: float = setting(
        0.07, "divisor of the similarity in the softmax vote; smaller values weigh the nearest more", within="(0, inf)"
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
        7500,
        "largest number of training samples held out to choose k on; never more than 10 % of train",
        within="[1, inf)",
    )
    max_memory: float = setting(1.0, "working memory of the search", unit="GB", changes_result=False, within="(0, inf)")
    backend: Literal["auto", "faiss", "torch"] = setting(
        "auto",
        "search library; results are the same: faiss on the CPU, torch on the run's device; auto: "
        "torch on a GPU, else the faster one",
        changes_result=False,
    )

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        if self.vote == "inverse" and self.metric == "dot":
            raise UsageError(
                "knn: vote=inverse weighs by distance, which metric=dot does not have",
                "Use metric=l2 or metric=cosine.",
            )


def part(settings: Settings) -> Part | None:
    """Return 'train' with leave_one_out, else None: both parts are used."""
    return "train" if settings.leave_one_out else None


def check(settings: Settings, train: Target) -> None:
    """Refuse settings that cannot work on these training labels, before any feature is computed."""
    _usable_k(settings, len(train) - settings.leave_one_out)
    if (settings.dims or settings.bits) and find(train.metric).unit != "%":
        raise UsageError(
            f"knn: dims and bits compare shares, and {train.title} lead with {train.metric}", "Leave them out."
        )


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Classify test by its neighbours in train.

    `test`: features and labels that are scored; with `leave_one_out` the same samples as train; `device`: device of
    torch's search; the result does not depend on it.
    """
    check_features(train, test)
    check(settings, train.target)
    ks, _ = _usable_k(settings, _candidates(train, settings))
    if settings.leave_one_out and train.ids != test.ids:
        raise UsageError("knn: leave_one_out scores the training samples, so test must be the same samples")
    chosen, selected, notes = choose_k(train, settings, seed=seed, device=device)
    found = _search(train, test, ks[-1], settings, device, _scope(train, settings))
    kind, values = type(test.target), test.target.values
    scores, halves = _vote(found, chosen, ks, train, settings, seed)
    selected = halves or selected
    name, further = kind.metric, dict[str, Interval]()
    for compression, code in compressions(settings, train.order, train.regions):
        database, queries = code(train.x, test.x)
        coded_train, coded_test = dataclasses.replace(train, x=database), dataclasses.replace(test, x=queries)
        coded = _search(coded_train, coded_test, ks[-1], settings, device, _scope(train, settings))
        other = _vote(coded, chosen, ks, train, settings, seed)[0]
        value = summarise(kind, test.target.classes, values, other, seed=seed, groups=test.groups)[0][name]
        whole, part = (Predictions.of(seed, each) for each in (scores, other))
        change = difference(name, kind, values, whole, part, groups=test.groups, seed=seed)
        further[f"{name}({compression})"] = value
        further[f"{COMPRESSION_LOSS.name}({compression})"] = change.difference, change.low, change.high
    others = [k for k in ks if k != chosen or halves]
    return Outcome.of(
        test.target,
        scores,
        seed=seed,
        groups=test.groups,
        further=further,
        selected=selected,
        variants={f"k={k}": {name: _headline(found, k, train.target, test.target, settings)} for k in others},
        notes=tuple(notes),
        probabilities="scores",
    )


def _scope(train: Features, settings: Settings) -> Scope:
    """Return the rows that may be neighbours: with leave_one_out neither a sample itself nor its group."""
    if not settings.leave_one_out:
        return Scope()
    return Scope(without_self=True) if train.groups is None else Scope(apart=train.groups)


def _vote(
    found: "_Neighbours", chosen: int, ks: Sequence[int], train: Features, settings: Settings, seed: int
) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
    """Return scores with the chosen k, or of each half with the best of the other half, and the record of that."""
    if len(ks) > 1 and settings.leave_one_out:
        return _choose_by_the_other_half(found, list(ks), train, settings, seed)
    return found.vote(chosen, train.target, settings), {}


def choose_k(
    train: Features, settings: Settings, *, seed: int, device: str = "cpu"
) -> tuple[int, dict[str, Any], list[str]]:
    """Return the number of neighbours, the record of its choice, and notes.

    `settings`: with one or several values of k; with `leave_one_out` the smallest is returned.
    """
    ks, notes = _usable_k(settings, _candidates(train, settings))
    if len(ks) == 1 or settings.leave_one_out:
        return ks[0], {}, notes
    # The k with the best headline metric on a held-out part of train; of equals the smallest.
    share = min(_HOLDOUT, settings.holdout / len(train))
    parts = holdout_rows(train.target, share, seed, train.groups, train.rank)
    if parts is None:
        return ks[0], {}, [*notes, f"{no_holdout(train.groups)} to select k on; the smallest, {ks[0]}, was used."]
    fitting = [k for k in ks if k <= len(parts[0])]
    if len(fitting) < 2:
        note = f"Train is too small to select k on a hold-out; the smallest, {ks[0]}, was used."
        return ks[0], {}, [*notes, note]
    left_out = np.zeros(len(train), dtype=np.bool_)
    left_out[parts[1]] = True
    # Train may be larger than memory, so held-out rows are masked, not copied.
    found = _search(train, train, fitting[-1], settings, device, Scope(parts[1], left_out))
    held_out_labels = train.target.select(parts[1])
    scores = [_headline(found, k, train.target, held_out_labels, settings) for k in fitting]
    best = best_of(scores, held_out_labels.sign())
    on = f"held-out {percent(_HOLDOUT) if share == _HOLDOUT else f'{len(parts[1]):,} samples'} of train"
    return fitting[best], {"k": fitting[best], "on": on, "score": scores[best], "seed": seed}, notes


def scores(train: Features, test: Features, k: int, settings: Settings, device: str = "cpu") -> npt.NDArray[np.float32]:
    """Return scores (M, C) of test by its k nearest neighbours in train, see `vote`; test needs no labels."""
    return _search(train, test, k, settings, device, Scope()).vote(k, train.target, settings)


@dataclasses.dataclass(frozen=True)
class _Neighbours:
    """Neighbours of m samples, the nearest first.

    Attributes:
        similarity: (m, k).
        neighbours: (m, k), train rows.
        place: (m,) row of `ties` where further training samples are as near as the last neighbour; else -1.
        ties: (t, 2, C) of all samples that are as near as the last neighbour, the share that has each class, and the
            share of which that is known.
    """

    similarity: FloatArray
    neighbours: IntArray
    place: IntArray
    ties: FloatArray

    def vote(self, k: int, labels: Target, settings: Settings) -> npt.NDArray[np.float32]:
        """Return scores by the first k neighbours."""
        return vote(self.similarity, self.neighbours, labels, settings, k=k, place=self.place, ties=self.ties)

    def of(self, rows: IntArray | slice) -> "_Neighbours":
        """Return the neighbours of some of the samples."""
        return _Neighbours(self.similarity[rows], self.neighbours[rows], self.place[rows], self.ties)


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


def _search(train: Features, test: Features, k: int, settings: Settings, device: str, scope: Scope) -> _Neighbours:
    queries = len(test) if scope.test_rows is None else len(scope.test_rows)
    if settings.backend == "auto":
        engine = fastest_engine(device, 2.0 * len(train) * queries * train.x.shape[1])
    else:
        engine = Engine("faiss") if settings.backend == "faiss" else Engine("torch", device)
    search = functools.partial(
        nearest, train.x, test.x, metric=settings.metric, max_memory=settings.max_memory, engine=engine
    )
    # One neighbour more than vote: as near as the last one, it shows that others may be tied with it.
    similarity, neighbours = search(min(k + 1, _searched(train.target, scope)), scope=scope)
    place, ties = np.full(queries, -1), np.zeros((0, 2, len(train.target.classes)))
    open_rows = np.flatnonzero(similarity[:, k - 1] == similarity[:, k]) if similarity.shape[1] > k else place[:0]
    if len(open_rows):
        place[open_rows] = np.arange(len(open_rows))
        rows = open_rows if scope.test_rows is None else scope.test_rows[open_rows]
        ties = _labels_of_ties(search, scope, rows, similarity[open_rows, k], train.target, settings)
    return _Neighbours(similarity[:, :k], neighbours[:, :k], place, ties)


def _searched(labels: Target, scope: Scope) -> int:
    """Return the number of training samples in a search; a sample itself and its group have a similarity of -inf."""
    return len(labels) - (0 if scope.left_out is None else int(scope.left_out.sum()))


def _labels_of_ties(
    search: Callable[..., tuple[FloatArray, IntArray]],
    scope: Scope,
    rows: IntArray,
    level: FloatArray,
    labels: Target,
    settings: Settings,
) -> FloatArray:
    """Return the labels (n, 2, C) of all training samples of a similarity to test rows (n,), see `_Neighbours.ties`."""
    found = np.zeros((len(rows), 2, len(labels.classes)))
    number, most, left = 64, _searched(labels, scope), np.arange(len(rows))
    while len(left):
        # Few samples have many ties, so the searches grow from a small one; collapsed features end with all of train.
        number, unsettled = min(8 * number, most), []
        step = max(1, int(settings.max_memory * 1e9 / (16 * number)))
        for start in range(0, len(left), step):
            part = left[start : start + step]
            similarity, neighbours = search(number, scope=dataclasses.replace(scope, test_rows=rows[part]))
            whole = (similarity[:, -1] < level[part]) | (number == most)
            unsettled.append(part[~whole])
            for i in np.flatnonzero(whole):
                own = labels.values[neighbours[i, similarity[i] == level[part[i]]]]
                if isinstance(labels, Classes):
                    found[part[i], 0] = np.bincount(own, minlength=len(labels.classes)) / len(own)
                    found[part[i], 1] = 1
                else:
                    found[part[i]] = (own > 0).mean(axis=0), (own >= 0).mean(axis=0)
        left = np.concatenate(unsettled)
    return found


def _headline(found: _Neighbours, k: int, train: Target, test: Target, settings: Settings) -> float:
    """Return the headline metric of the first k neighbours."""
    return headline_by_blocks(test, lambda rows: found.of(rows).vote(k, train, settings))


def _usable_k(settings: Settings, n_train: int) -> tuple[list[int], list[str]]:
    """Return the values of k, each at most the number of training samples, and a note on those that were larger."""
    if n_train < 1:
        raise UsageError("knn: leave_one_out needs at least 2 samples")
    fitting = [k for k in sorted(settings.k) if k <= n_train]
    larger = [k for k in sorted(settings.k) if k > n_train]
    if not larger:
        return fitting, []
    names = ", ".join(map(str, larger))
    if settings.k == _DEFAULT_K and fitting:
        return fitting, [f"Default values of k above the {n_train} training samples were left out: {names}."]
    used = sorted({*fitting, n_train})
    return used, [f"k={names} is more than the {n_train} training samples; k={n_train}, all of them, was used."]


def _choose_by_the_other_half(
    found: _Neighbours, ks: list[int], train: Features, settings: Settings, seed: int
) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
    """Return scores of each half of the samples with the k that is best for the other half."""
    labels = train.target
    halves = holdout_rows(labels, 0.5, seed, train.groups, train.rank)
    if halves is None:
        return found.vote(ks[0], labels, settings), {}
    scores, best_ks = np.empty((len(labels), len(labels.classes)), np.float32), []
    for scored, other in (halves, halves[::-1]):
        neighbours, own = found.of(other), labels.select(other)
        k = ks[best_of([_headline(neighbours, k, labels, own, settings) for k in ks], labels.sign())]
        scores[scored] = found.of(scored).vote(k, labels, settings)
        best_ks.append(k)
    return scores, {"k": best_ks[0], "k of the other half": best_ks[1], "on": "the other half of train", "seed": seed}


def weights(similarity: FloatArray, settings: Settings, k: int) -> FloatArray:
    """Return (M, K) weights of K >= k neighbours from their similarities; they sum to 1 for each test sample.

    Those nearer than the k-th have their weight, those as near as it share what the places left for them have, and the
    others have 0. The largest similarity is subtracted before the exponential, so nothing overflows whatever the
    features' size.
    """
    # With l2 a similarity is minus the squared distance; of unit vectors that is 2 - 2 cosine. Rounding may pass 0.
    distance = np.sqrt(np.maximum(0, -similarity if settings.metric == "l2" else 2 - 2 * similarity))
    if settings.vote == "uniform":
        weight = np.ones(similarity.shape)
    elif settings.vote == "inverse":
        weight = 1 / (distance + 1e-5)
    else:
        exponent = (-distance if settings.metric == "l2" else similarity) / settings.temperature
        weight = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    if similarity.shape[1] > k:
        last = similarity[:, k - 1 : k]
        nearer, equal = similarity > last, similarity == last
        places = k - nearer.sum(axis=1, keepdims=True)
        weight *= np.where(nearer, 1.0, equal * (places / equal.sum(axis=1, keepdims=True)))
    return np.asarray(weight / weight.sum(axis=1, keepdims=True))


def vote(
    similarity: FloatArray,
    neighbours: IntArray,
    labels: Target,
    settings: Settings,
    *,
    k: int | None = None,
    place: IntArray | None = None,
    ties: FloatArray | None = None,
) -> npt.NDArray[np.float32]:
    """Return (M, C) scores: the share of each class in the neighbours' weight, in 0..1, rounded to single precision.

    Sums of weights differ from 1 by rounding. Rounded, unanimous neighbours give 1 whatever their order, so these
    samples are tied in rankings, as they are among the scores on disk. Of classes with equal votes that with
    the nearer nearest sample gets the next larger number.

    Multi-label: for each class the weighted share of the neighbours that have it, among those not marked -1.

    `similarity`: (M, K), falling; `neighbours`: (M, K), train rows; `k`: number of neighbours that vote; all when None;
    `place`: as in `_Neighbours`; None: no further training samples are as near as the last neighbour.
    """
    k = similarity.shape[1] if k is None else k
    level = similarity[:, k - 1 : k]
    width = int((similarity >= level).sum(axis=1).max(initial=k))
    # Neighbours as near as the last one stand for all training samples that are, where there are more.
    standing = np.zeros((len(similarity), width), dtype=np.bool_)
    if place is not None and (place >= 0).any():
        further = (place >= 0)[:, None] & (similarity[:, -1:] == level)
        standing = further & (similarity[:, :width] == level)
    similarity, neighbours = similarity[:, :width], neighbours[:, :width]
    weight = weights(similarity, settings, k)
    rows, n_classes = len(weight), len(labels.classes)
    scores = np.zeros((rows, n_classes), np.float32)
    single = isinstance(labels, Classes)
    step = max(1, _CELLS // (width + n_classes if single else width * max(1, n_classes)))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        own, own_weight = labels.values[neighbours[part]], np.where(standing[part], 0.0, weight[part])
        open_rows = np.flatnonzero(standing[part].any(axis=1))
        of_ties = np.zeros((0, 2, n_classes)) if place is None or ties is None else ties[place[part][open_rows]]
        rest = (weight[part] - own_weight)[open_rows].sum(axis=1)[:, None]
        if single:
            cell = np.arange(len(own))[:, None] * n_classes + own
            present = np.bincount(cell.ravel(), own_weight.ravel(), len(own) * n_classes).reshape(len(own), n_classes)
            present[open_rows] += rest * of_ties[:, 0]
            # Weights are summed in another order for every sample; rounded, equal votes are equal.
            votes = present.astype(np.float32)
            equal = np.flatnonzero((weight[part, 1:] == weight[part, :-1]).any(axis=1))
            _set_apart(votes, equal, own[equal], similarity[part][equal])
            scores[part] = votes
            continue
        present, known = (np.einsum("mk,mkc->mc", own_weight, has.astype(np.float64)) for has in (own > 0, own >= 0))
        present[open_rows] += rest * of_ties[:, 0]
        known[open_rows] += rest * of_ties[:, 1]
        # Where no neighbour's label is known, numpy leaves what `out` has: 0.
        np.divide(present, known, out=scores[part], where=known > 0, casting="same_kind")
    return scores


def _set_apart(votes: npt.NDArray[np.float32], rows: IntArray, own: IntArray, similarity: FloatArray) -> None:
    """Raise equal votes of some rows by the last digits, in the order of the nearest sample of each class.

    `votes`: (M, C), changed in place.
    """
    nearest_of = np.full((len(rows), votes.shape[1]), -np.inf)
    np.maximum.at(nearest_of, (np.arange(len(rows))[:, None], own), similarity)
    each, near = votes[rows[:, None], own], np.take_along_axis(nearest_of, own, axis=1)
    order = np.lexsort((near, each), axis=1)
    each, near, own = (np.take_along_axis(part, order, axis=1) for part in (each, near, own))
    other, nearer = np.ones(each.shape, dtype=np.bool_), np.zeros(each.shape, dtype=np.bool_)
    other[:, 1:], nearer[:, 1:] = each[:, 1:] > each[:, :-1], near[:, 1:] > near[:, :-1]
    steps = np.cumsum(nearer & ~other & (each > 0), axis=1, dtype=np.int32)
    ahead = steps - np.maximum.accumulate(np.where(other, steps, 0), axis=1)
    # The bits of positive float32 numbers, read as integers, ascend with them: one more is the next number.
    votes[rows[:, None], own] = (each.view(np.int32) + ahead).view(np.float32)


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the search, also of the rows held out to choose k on, and the scores of one k at a time."""
    queries = shapes.train if settings.leave_one_out else shapes.test
    held_out = min(_HOLDOUT * shapes.train, settings.holdout) if len(settings.k) > 1 else 0.0
    searched = queries + (0.0 if settings.leave_one_out else held_out)
    products, passes = search_work(shapes.train, searched, shapes.width, max(settings.k))
    return Cost(
        products=products,
        passes=passes,
        memory=min(4.0 * shapes.train * shapes.width, settings.max_memory * 1e9) + 8.0 * queries * shapes.classes,
        scores=4.0 * queries * shapes.classes,
        products_on_device=True,
        passes_on_device=passes,
    )


PROTOCOL = Protocol(
    version=6,
    summary="Weighted k-nearest-neighbour classification of frozen features.",
    settings=Settings,
    kind=OnFeatures(check, run, cost=cost, part=part, class_subsets=True),
)
