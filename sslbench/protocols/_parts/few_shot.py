"""Few-shot protocols: draws of training samples, statistics over the draws, and the outcome.

The 95 % interval over R draws is Student's: mean -+ t(0.975, R - 1) std / sqrt(R). It says how much other draws from
the same train would move the mean. The interval of the headline also holds what another test set would do
(`intervals.over_trainings`).
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, rows_of_each
from sslbench.data.groups import choose_groups, groups_by_first_sample
from sslbench.data.stratify import choose
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.catalog import find
from sslbench.metrics.intervals import Units, Values, known_mean, over_trainings
from sslbench.metrics.measure import Probabilities
from sslbench.metrics.metric import RATE, Bounds
from sslbench.metrics.summary import one_measure, summarise
from sslbench.protocols._parts.selection import class_sizes, folds_of
from sslbench.results import Outcome
from sslbench.targets.classes import Classes
from sslbench.targets.target import OfClasses, Target


class ByName:
    """Random orders of images by their file names, without folders, and a seed.

    Neither names nor numbers of classes nor the order of the images change what is drawn of a class; images of one
    class with one file name are taken in their order. Each set of images has an order of its own.
    """

    def __init__(self, ids: Sequence[str], seed: int) -> None:
        """Hash the names of all of train."""
        self._keys, self._seed = _hashes(tuple(ids)), seed

    def permutation(self, rows: IntArray, /) -> IntArray:
        """Return the same rows in another order."""
        keys = self._keys[rows]
        # A sum does not depend on the order of the rows; it wraps around at 2^64.
        generator = np.random.default_rng([self._seed, int(keys.sum(dtype=np.uint64))])
        return generator.permutation(rows[np.argsort(keys, kind="stable")])


@functools.lru_cache(maxsize=1)
def _hashes(ids: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    # Without folders, which may be the names of the classes or the place of the data.
    digests = b"".join(hashlib.blake2b(name.rpartition("/")[2].encode(), digest_size=8).digest() for name in ids)
    return np.frombuffer(digests, np.uint64)


def pool(train: Features, seed: int) -> tuple[IntArray, Target, IntArray | None, ByName]:
    """Return what is drawn from, in the order of the ranks: rows of train, their labels and groups, and a shuffler."""
    order, groups = train.order, train.groups
    shuffler = ByName([train.ids[row] for row in order.tolist()], seed)
    return order, train.target.select(order), None if groups is None else groups[order], shuffler


@dataclasses.dataclass(frozen=True)
class Draw:
    """One draw.

    Attributes:
        rows: of train, in the order of the samples that were drawn from.
        labels: of these rows. Multi-label: -1 for a class that the row was not drawn for.
        groups: of these rows; None if no two of them share one.
    """

    rows: IntArray
    labels: Target
    groups: IntArray | None = None

    def of(self, order: IntArray) -> "Draw":
        """Return the same draw by rows of train, of which the samples that were drawn from are these rows."""
        return dataclasses.replace(self, rows=order[self.rows])

    def digest(self, ids: Sequence[str]) -> str:
        """16 hex digits of the ids of the samples and what they were drawn for; `ids` are those of all of train."""
        digest = hashlib.sha256("\n".join(ids[row] for row in self.rows).encode())
        digest.update(np.ascontiguousarray(self.labels.values).tobytes())
        return digest.hexdigest()[:16]


def seeds(seed: int, draws: int) -> list[int]:
    """Return the seeds of the draws; two runs with different seeds share none."""
    # numpy's RandomState takes seeds of 32 bits.
    return [(seed * draws + i) % 2**32 for i in range(draws)]


def largest_k(labels: Target) -> tuple[int, str]:
    """Return the largest k with enough samples in every class present, and its reason: "12 of class 'dog'"."""
    counts = OfClasses.of(labels).counts()
    classes = np.flatnonzero(counts)
    counts = counts[classes]
    if isinstance(labels, Classes):
        least = int(np.argmin(counts))
        return int(counts[least]), f"{counts[least]} of class '{labels.classes[classes[least]]}'"
    others = max(1, len(classes) - 1)
    negative = (labels.values == 0).sum(axis=0)[classes]
    possible = np.minimum(counts, negative // others)
    least = int(np.argmin(possible))
    name = labels.classes[classes[least]]
    text = f"{counts[least]} with and {negative[least]} without '{name}'; k need k with and {others} k without"
    return int(possible[least]), text


def k_per_class(labels: Target, k: int, shuffler: ByName, *, groups: IntArray | None = None) -> Draw:
    """Draw the same number of images of every class in train (single label).

    `labels`: of train; every class it has at all has at least k samples; `groups`: (N,) the group of each sample of
    train, or None.
    """
    rows = np.concatenate([_spread(order, groups)[:k] for order in orders(labels, shuffler)])
    return _draw(labels, rows, groups)


def orders(labels: Target, shuffler: ByName) -> list[IntArray]:
    """Return the rows of each class in train, shuffled, class by class (single label)."""
    return [shuffler.permutation(rows) for rows in rows_of_each(labels.values) if len(rows)]


def _spread(order: IntArray, groups: IntArray | None) -> IntArray:
    """Return the rows in the same order, but the first ones of all groups before the second ones, and so on."""
    if groups is None:
        return order
    own = groups[order]
    by_group = np.argsort(own, kind="stable")
    first = np.flatnonzero(np.r_[True, np.diff(own[by_group]) != 0])
    turn = np.empty(len(own), np.int64)
    turn[by_group] = np.arange(len(own)) - np.repeat(first, np.diff(np.r_[first, len(own)]))
    return order[np.argsort(turn, kind="stable")]


def k_with_and_without(labels: Target, k: int, shuffler: ByName, *, groups: IntArray | None = None) -> Draw:
    """Draw for every class k samples that have it and (C - 1) k that do not (multi-label); never one marked -1.

    `labels`: of train, with enough samples; C counts the classes that have positives; `groups`: (N,) the group of each
    sample of train, or None.
    """
    classes = np.flatnonzero(OfClasses.of(labels).present())
    values = np.full(labels.values.shape, -1, np.int8)
    for c in classes:
        order = shuffler.permutation(np.flatnonzero(labels.values[:, c] > 0))
        values[_spread(order, groups)[:k], c] = 1
    for c in classes:
        order = shuffler.permutation(np.flatnonzero(labels.values[:, c] == 0))
        values[_spread(order, groups)[: max(1, len(classes) - 1) * k], c] = 0
    rows = np.flatnonzero((values >= 0).any(axis=1))
    return Draw(rows, labels.changed(values=values[rows]), _shared(groups, rows))


def share(
    labels: Target, fraction: float, seed: int, shuffler: ByName, *, stratified: bool, groups: IntArray | None = None
) -> Draw:
    """Draw a share of train with all its labels.

    `stratified`: every class keeps its share, and has a sample where there are enough; else all samples are drawn
    alike, as in VISSL's unbalanced data limit; `groups`: (N,) the group of each sample of train, or None; whole groups
    are drawn, about as many samples.
    """
    n = max(1, round(fraction * len(labels)))
    if groups is not None and n < len(labels):
        if stratified and (mask := choose_groups(labels, groups, n, np.random.default_rng(seed))).any():
            return _draw(labels, np.flatnonzero(mask), groups)
        group_of = groups_by_first_sample(groups)
        sizes = np.bincount(group_of)
        order = np.random.RandomState(seed).permutation(len(sizes))
        # At least one group.
        selected = order[: max(1, int(np.searchsorted(np.cumsum(sizes[order]), n, side="right")))]
        return _draw(labels, np.flatnonzero(np.isin(group_of, selected)), groups)
    order = shuffler.permutation(np.arange(len(labels)))
    if stratified:
        order = order[choose(labels.select(order), n, np.random.default_rng(seed), both_sides=False)]
    return _draw(labels, order[:n])


def _draw(labels: Target, rows: IntArray, groups: IntArray | None = None) -> Draw:
    rows = np.sort(rows).astype(np.int64)
    return Draw(rows, labels.select(rows), _shared(groups, rows))


def _shared(groups: IntArray | None, rows: IntArray) -> IntArray | None:
    if groups is None or len(np.unique(groups[rows])) == len(rows):
        return None
    return groups[rows]


def stratified_folds(
    values: npt.NDArray[np.integer], wanted: int, groups: IntArray | None
) -> npt.NDArray[np.int16] | None:
    """Return (N,) stratified folds, as many as half of the classes have samples for; None below two.

    `values`: (N,) class numbers; `groups`: (N,) the group of each sample: those of one group are in one fold, and
    groups are counted; or None.
    """
    number = min(wanted, int(np.median(class_sizes(values, groups))))
    return None if number < 2 else folds_of(values, number, groups)


_RESAMPLES = 1000
_FEWEST_RESAMPLES = 100


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A classifier that was trained on one draw.

    Attributes:
        scores: (N_test, C), higher means more likely; a class that was not learned has NaN (multi-label) or a value
            below all others.
        train: the leading metric on the samples of the draw.
        strength: of the regularisation that was used; class name -> strength where each has its own.
        converged: None without an iterative solver.
        notes: notes for a reader.
    """

    scores: FloatArray
    train: float
    strength: float | dict[str, float]
    converged: bool | None = None
    notes: tuple[str, ...] = ()


def statistics(values: Sequence[float], bounds: Bounds = RATE) -> dict[str, float]:
    """Return mean, min, max, std (R - 1) and the 95 % interval of the mean, within bounds; NaN with one draw."""
    known = np.array([value for value in values if not math.isnan(value)])
    if len(known) < 2:
        value = float(known[0]) if len(known) else math.nan
        return dict.fromkeys(("mean", "min", "max"), value) | dict.fromkeys(("std", "low", "high"), math.nan)
    mean, low, high = over_trainings([(value, value, value) for value in known.tolist()], bounds)
    ends = {"min": float(known.min()), "max": float(known.max()), "std": float(known.std(ddof=1))}
    return {"mean": mean, **ends, "low": low, "high": high}


def leading_metric(metric: str, labels: Target) -> str:
    """Return the metric that leads; 'auto' is top-1 of single labels and mAP of several."""
    usual = labels.metric
    if metric == "top1" and not isinstance(labels, Classes):
        raise UsageError("metric=top1 needs one label per sample, and these samples have several", "Leave out metric=.")
    return usual if metric == "auto" else metric


def leading(asked: str, labels: Target, scores: npt.NDArray[np.floating]) -> float:
    """Return the metric that leads, as a fraction; `asked` as for `leading_metric`."""
    metric = leading_metric(asked, labels)
    if metric == leading_metric("auto", labels):
        return labels.headline(labels.values, scores)
    measure = one_measure(metric, type(labels), labels.values, scores, Units.of(len(labels), None))
    values = measure.statistic(np.ones((1, len(labels))))[0]
    return float(values[measure.names.index(metric)])


class LearningCurve:
    """Learning curve over the number of training samples."""

    def __init__(
        self,
        test: Features,
        train_ids: Sequence[str],
        metric: str = "auto",
        *,
        seed: int,
        probabilities: Probabilities | None = None,
    ) -> None:
        """Start without points."""
        self._test, self._groups, self._ids = test.target, test.groups, train_ids
        self._metric = leading_metric(metric, test.target)
        self._seed, self._probabilities, self._train = seed, probabilities, math.nan
        self.variants: dict[str, dict[str, float]] = {}
        self.drawn: dict[str, list[str]] = {}
        self.strengths: dict[str, list[Any]] = {}
        self._converged: list[bool] = []
        self._notes: dict[str, None] = {}
        self._each: list[tuple[Values, str, dict[str, float]]] = []
        self._scores: list[npt.NDArray[np.float32]] = []

    def add(self, name: str, draws: Sequence[Draw], fitted: Iterable[Fitted], *, headline: bool) -> None:
        """Add one point of the curve."""
        values: list[float] = []
        train: list[float] = []
        self.strengths[name] = []
        for one in fitted:
            values.append(leading(self._metric, self._test, one.scores))
            train.append(one.train)
            self.strengths[name].append(one.strength)
            self._converged += [] if one.converged is None else [one.converged]
            self._notes |= {f"{name}: {note}": None for note in one.notes}
            if headline:
                self._each.append(
                    summarise(
                        type(self._test),
                        self._test.classes,
                        self._test.values,
                        one.scores,
                        seed=self._seed,
                        # All draws share the resamples of one result: the interval uses the mean of their half widths.
                        resamples=max(_FEWEST_RESAMPLES, math.ceil(_RESAMPLES / len(draws))),
                        probabilities=self._probabilities,
                        groups=self._groups,
                    )
                )
                self._scores.append(one.scores.astype(np.float32))
        found = statistics(values, find(self._metric).bounds)
        mean = found.pop("mean")
        rest = {f"{self._metric}_{key}": value for key, value in found.items()}
        self.variants[name] = {self._metric: mean, **rest, "train": known_mean(train)}
        self.drawn[name] = [draw.digest(self._ids) for draw in draws]
        self._train = known_mean(train)

    def outcome(self, *, selected: dict[str, Any], seeds: Sequence[int], notes: Sequence[str]) -> Outcome:
        """Return the outcome, with the point that leads; every metric is the mean over the draws."""
        each, scores = self._each, self._scores
        metrics = {name: over_trainings([found[0][name] for found in each], find(name).bounds) for name in each[0][0]}
        per_class = {name: known_mean([found[2][name] for found in each]) for name in self._test.classes}
        draws = {"seeds": list(seeds), "samples_sha256": self.drawn}
        return Outcome(
            metrics=metrics,
            headline=self._metric,
            # Scores of the first draw: their average over draws would be a different, better classifier.
            scores=scores[0],
            draws=tuple(scores) if len(scores) > 1 else (),
            per_class=per_class,
            train=self._train,
            selected={**selected, "draws": draws},
            variants=self.variants,
            converged=all(self._converged) if self._converged else None,
            notes=(*notes, *self._notes),
            probabilities=self._probabilities,
        )


def usable_k(
    protocol: str, asked: tuple[int, ...], default: tuple[int, ...], most: int, why: str
) -> tuple[list[int], list[str]]:
    """Return the values of k that train has enough samples for, ascending, and a note on defaults left out."""
    fitting, dropped = [k for k in sorted(asked) if k <= most], [k for k in sorted(asked) if k > most]
    if not dropped:
        return fitting, []
    if asked != default:
        raise UsageError(
            f"{protocol}: train has too few samples for k={dropped[0]}: {why}",
            f"The largest possible k is {most}." if most else None,
        )
    if not fitting:
        raise DataError(f"{protocol}: train is too small to draw {dropped[0]} samples per class: {why}")
    names = ", ".join(map(str, dropped))
    return fitting, [f"Default values of k were left out because train is too small ({why}): {names}."]


def check_labels(protocol: str, labels: Target) -> None:
    """Refuse training labels that cannot be learned from."""
    if not labels.labelled:
        raise DataError(
            f"{protocol}: the train samples have no labels, so none can be drawn per class",
            "Give labelled data: a folder per class, a table with a label column, or a manifest with categories.",
        )
    if not isinstance(labels, OfClasses):
        raise DataError(f"{protocol} draws samples of classes, and the train samples have {labels.title}")
    if labels.present().sum() < (2 if isinstance(labels, Classes) else 1):
        raise DataError(f"{protocol} needs at least two classes in train")
