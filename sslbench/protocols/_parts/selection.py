"""Checks of features, hold-outs, folds and score arrays of protocols on features."""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.data.groups import group_folds, source_groups
from sslbench.data.source import Source
from sslbench.data.stratify import holdout
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.answers import top_k_correct
from sslbench.metrics.catalog import find
from sslbench.metrics.intervals import Units, Values, half_samples
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.target import OfClasses, Target

_ROWS = 4096  # rows per block, so that memory-mapped features are never copied whole


def edge_notes(name: str, value: float, tried: Sequence[float], *, least: int = 2) -> list[str]:
    """Return a note on a selected value at an end of the tried ones; with fewer than `least` there is none."""
    low, high = min(tried, default=value), max(tried, default=value)
    if len(tried) < least or low < value < high:
        return []
    end = "smallest" if value <= low else "largest"
    return [f"The selected {name}={value:g} is the {end} value tried; the best may lie beyond."]


def check_features(train: Features, test: Features) -> None:
    """Refuse features and labels that no protocol can score."""
    for name, part in (("train", train), ("test", test)):
        if not part.target.labelled:
            raise DataError(
                f"the {name} samples have no labels, which this protocol needs",
                "Give labelled data: a folder per class, a table with a label column, or a manifest with categories.",
            )
        if not len(part):
            raise DataError(f"there are no {name} samples")
        check_finite(part, name)
    if train.x.shape[1] != test.x.shape[1]:
        raise DataError(f"train features are {train.x.shape[1]} wide, test features {test.x.shape[1]}")


def check_finite(part: Features, name: str) -> None:
    """Refuse features that are NaN or infinite."""
    bad: list[str] = []
    count = 0
    for start in range(0, len(part), _ROWS):
        rows = np.flatnonzero(~np.isfinite(part.x[start : start + _ROWS]).all(axis=1))
        count += len(rows)
        bad += [part.ids[start + row] for row in rows[: 3 - len(bad)]]
    if count:
        more = f" and {count - len(bad)} more" if count > len(bad) else ""
        raise DataError(
            f"the features of {count} of {len(part)} {name} samples are not finite numbers: {', '.join(bad)}{more}",
            "The backbone overflowed (try --precision fp32) or its weights are damaged (see sslbench inspect). Of "
            "embeddings made elsewhere, these rows are damaged.",
        )


def holdout_rows(
    labels: Target, fraction: float, seed: int, groups: IntArray | None, rank: IntArray | None = None
) -> tuple[IntArray, IntArray] | None:
    """Return rows to fit on and rows held out for a choice, stratified and seeded; None when either would be empty."""
    if not 0 < fraction < 1 or len(labels) < 2:
        return None
    fit, held_out = holdout(labels, fraction, seed, groups=groups, rank=rank)
    return (fit, held_out) if len(fit) and len(held_out) else None


def held_out_rows(
    source: Source, fraction: float, seed: int, *, selected: str, remedy: str
) -> tuple[IntArray, IntArray]:
    """Return the rows of `holdout_rows`; refuse a train part of which none can be held out."""
    groups = source_groups(source)
    rows = holdout_rows(source.target, fraction, seed, groups)
    if rows is None:
        reason = no_holdout(groups)
        raise UsageError(f"{source.name}: {reason[0].lower()}{reason[1:]} for the selection of {selected}", remedy)
    return rows


def no_holdout(groups: IntArray | None) -> str:
    """Return the reason why `holdout_rows` gave None, as the beginning of a sentence."""
    if groups is None:
        return "Train is too small for a hold-out"
    number = len(np.unique(groups))
    if number < 2:
        return "All training samples belong to one group, so no group can be held out"
    return f"The training samples belong to {number} groups, and holding out any of them would remove a class"


def class_sizes(classes: npt.NDArray[np.integer], groups: IntArray | None) -> IntArray:
    """Return the number of samples of each class present; with groups, the number of groups.

    `classes`: (N,) class numbers; `groups`: (N,) group numbers, or None.
    """
    if groups is not None:
        classes = np.unique(np.column_stack([classes, groups]), axis=0)[:, 0]
    return np.asarray(np.unique(classes, return_counts=True)[1], np.int64)


def folds_of(
    classes: npt.NDArray[np.integer], number: int, groups: IntArray | None, rank: IntArray | None = None
) -> npt.NDArray[np.int16]:
    """Return (N,) stratified folds, not shuffled, as in scikit-learn's `cross_val_score`.

    `classes`: (N,) class numbers, not negative; `groups`: (N,) group numbers: the samples of one group are in one fold;
    or None; `rank`: (N,) order of the samples (`Features.rank`); None: as they lie.
    """
    from sklearn.model_selection import StratifiedKFold

    folds = np.empty(len(classes), np.int16)
    order = np.arange(len(classes)) if rank is None else np.argsort(rank)
    if groups is not None:
        names = tuple(map(str, range(int(classes.max()) + 1)))
        folds[order] = group_folds(Classes(names, classes[order].astype(np.int64)), groups[order], number)
        return folds
    with warnings.catch_warnings():
        # Classes with fewer samples than folds are absent from some folds; the solvers handle that.
        warnings.simplefilter("ignore", UserWarning)
        for fold, (_, held_out) in enumerate(StratifiedKFold(number).split(order, classes[order])):
            folds[order[held_out]] = fold
    return folds


def reaching_halves(metrics: Values, units: Units, seed: int, of_rows: Callable[[IntArray], Values]) -> Values:
    """Return metrics whose intervals reach as far as the bias that two random halves of the units show.

    `of_rows`: function from ascending rows to the metrics of these samples.
    """
    rows = next(half_samples(units, 1, seed))[0] > 0
    halves = [of_rows(np.flatnonzero(half)) for half in (rows, ~rows)]
    wider = {}
    for name, (value, low, high) in metrics.items():
        metric = find(name)
        bias = float(np.nan_to_num(np.mean([half[name][0] for half in halves]) - value))
        bias /= 2**metric.bias_decay - 1
        least, most = metric.bounds
        wider[name] = value, max(least, min(low, low - bias)), min(most, max(high, high - bias))
    return wider


def headline_by_blocks(labels: Target, scores: Callable[[slice], Matrix]) -> float:
    """Return the leading metric of N samples, for single labels without all (N, C) scores at once."""
    if not labels.leads_by_right():  # the average precision of a class needs the scores of all samples
        return labels.headline(labels.values, scores(slice(0, len(labels))))
    slices = (slice(start, start + _ROWS) for start in range(0, len(labels), _ROWS))
    return headline_of_blocks(labels, ((rows, scores(rows)) for rows in slices), labels)


def headline_of_blocks(labels: Target, blocks: Iterable[tuple[slice, Matrix]], of: Target) -> float:
    """Return the leading metric from right predictions (`leads_by_right`); NaN for no samples.

    `blocks`: rows of the samples, and their scores (B, C); `of`: labels of all samples that count, among them some
    without scores, which are not right.
    """
    right = np.zeros(len(labels.classes), np.int64)
    for rows, scores in blocks:
        own = labels.values[rows]
        right += np.bincount(own[top_k_correct(own, scores, 1)], minlength=len(right))
    return float(labels.of_right(right, OfClasses.of(of).counts())) if len(of) else math.nan


def decide_by_blocks(x: Matrix, decide: Callable[[Matrix], FloatArray], outputs: int) -> FloatArray:
    """Return the decision values (N, K) of features (N, D), which are prepared for the products block by block.

    `x`: (N, D), possibly memory-mapped.
    """
    decided = np.empty((len(x), outputs))
    for start in range(0, len(x), _ROWS):
        rows = slice(start, start + _ROWS)
        decided[rows] = decide(x[rows])
    return decided


def percent(fraction: float) -> str:
    """Return a fraction as text for messages: '20 %'."""
    return f"{100 * fraction:g} %"


def best_of(scores: Sequence[float], sign: int = 1) -> int:
    """Return the position of the best score, of equals the first; anything beats NaN.

    `sign`: that of the metric, `Target.sign`: -1 where less is better.

    >>> best_of([math.nan, 0.2, 0.5, 0.5]), best_of([0.5, 0.2], sign=-1)
    (2, 1)
    """
    return max(range(len(scores)), key=lambda i: (False, 0.0) if math.isnan(scores[i]) else (True, sign * scores[i]))


def for_all_classes(decision: npt.NDArray[np.floating], learned: IntArray, labels: Target) -> npt.NDArray[np.float64]:
    """Return (N, C) scores; classes that were not learned have NaN (multi-label) or less than all others.

    `decision`: (N, K) decision values of the classes that were learned, or of two classes (N, 1), that of the second;
    `learned`: (K,) their numbers.
    """
    if isinstance(labels, Classes) and len(learned) == 2 and decision.shape[1] == 1:
        # Halved, so that their softmax is the sigmoid that was fitted.
        decision = np.concatenate([-decision, decision], axis=1) / 2
    # NaN would be the most likely class: numpy's argmax takes it as the largest.
    missing = np.nan if isinstance(labels, MultiLabel) else decision.min() - 1
    scores = np.full((len(decision), len(labels.classes)), missing)
    scores[:, learned] = decision
    return scores


def signed_targets(labels: Target, *, ignore: bool = True) -> tuple[npt.NDArray[np.int8], IntArray]:
    """Return (N, K) of 1, -1 and 0 (ignored) for the K classes with positives and negatives, and their numbers (K,).

    `ignore`: leave samples out that are marked -1; False: they are negatives.
    """
    if isinstance(labels, Classes):
        targets = np.full((len(labels), len(labels.classes)), -1, np.int8)
        targets[np.arange(len(labels)), labels.values] = 1
    else:
        targets = np.where(labels.values > 0, np.int8(1), np.int8(-1))
        if ignore:
            targets[labels.values < 0] = 0
    learned = np.flatnonzero((targets > 0).any(axis=0) & (targets < 0).any(axis=0))
    return (targets if len(learned) == targets.shape[1] else targets[:, learned]), learned


def folds_of_class(
    positive: npt.NDArray[np.bool_],
    labelled: npt.NDArray[np.bool_],
    number: int,
    groups: IntArray | None,
    rank: IntArray | None = None,
) -> npt.NDArray[np.int16]:
    """Return (N,) stratified folds of one class, as many as its positives and negatives allow.

    Samples that are not known have -1; all have where there are too few for two folds.
    """
    rows = np.flatnonzero(labelled)
    classes, own = positive[rows].astype(np.int64), None if groups is None else groups[rows]
    sizes = class_sizes(classes, own)
    number = min(number, *sizes) if len(sizes) == 2 else 0
    folds = np.full(len(positive), -1, np.int16)
    if number > 1:
        folds[rows] = folds_of(classes, number, own, None if rank is None else rank[rows])
    return folds
