"""Selective accuracy and conformal sets of a classifier, from the scores beside its record."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.data.wording import counted
from sslbench.errors import ResultError, UsageError
from sslbench.identity import comparability_key, row_key
from sslbench.metrics.answers import BestScores, ClassScores, Confidences, highest, places, softmax
from sslbench.metrics.catalog import find
from sslbench.metrics.intervals import Interval, Units, Values, means, over_trainings
from sslbench.metrics.measure import Measure
from sslbench.metrics.selective import SELECTIVE, SETS, ConformalSets, likely_coverage, selective_statistic
from sslbench.metrics.summary import with_intervals
from sslbench.results import Result
from sslbench.results.records import Scores, best_alone, read_scores, scores_path
from sslbench.targets import kinds

RESAMPLES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibratedSets:
    """Sets of one rule, rates in percent.

    Attributes:
        calibrated: number of calibration samples.
        metrics: metrics of `metrics.selective.SETS` -> value, low and high end of the 95 % interval.
        likely: 2.5 and 97.5 % points of the coverage on this many test samples, were they exchangeable with the
            calibration samples; None where samples come in groups, or of means over several trainings.
    """

    rule: ConformalSets
    calibrated: int
    metrics: dict[str, Interval]
    likely: tuple[float, float] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selective:
    """Selective classification of the samples of a record, rates in percent.

    Attributes:
        confidence: measure of confidence, in words.
        trainings: number of trainings whose mean is given.
        metrics: metrics of `metrics.selective.SELECTIVE` -> value, low and high end of the 95 % interval.
        half: True if the scores are stored in half precision, see `records.Scores`.
    """

    result: Result
    n: int
    trainings: int
    confidence: str
    metrics: dict[str, Interval]
    sets: tuple[CalibratedSets, ...] = ()
    half: bool = False


def selective(
    result: Result,
    calibration: Result | None = None,
    *,
    rules: Sequence[ConformalSets] = (),
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Selective:
    """Return the selective classification of a record, and sets by the rules, calibrated on another record's samples.

    The calibration is a record of the same classifier (weights, train, settings, seed) on other samples.
    """
    scores = _class_scores(result)
    units = Units.of(len(scores.ids), scores.groups)
    trainings = _trainings(result, scores)
    labels = scores.labels.astype(np.int64)
    parts = [
        with_intervals(Measure(SELECTIVE, selective_statistic(*_answers(result, each, labels))), units, seed, resamples)
        for each in trainings
    ]
    found = Selective(
        result=result,
        n=len(scores.ids),
        trainings=len(trainings),
        confidence="largest probability" if result.probabilities else "largest score less the second",
        metrics=_recorded(parts),
        half=scores.half,
    )
    if calibration is None:
        return found
    theirs = _class_scores(calibration)
    known = [_as_probabilities(calibration, each) for each in _trainings(calibration, theirs)]
    given = [_as_probabilities(result, each) for each in trainings]
    _check_calibration(result, scores, calibration, theirs)
    sets = tuple(_sets(rule, (theirs, known), (scores, given)) for rule in rules)
    return dataclasses.replace(found, sets=sets)


def _sets(
    rule: ConformalSets,
    calibration: tuple[Scores, list[npt.NDArray[np.floating]]],
    test: tuple[Scores, list[npt.NDArray[np.floating]]],
) -> CalibratedSets:
    scores, given = test
    units = Units.of(len(scores.ids), scores.groups)
    labels, own = (each.labels.astype(np.int64) for each in (calibration[0], scores))
    parts = []
    for known, probabilities in zip(calibration[1], given, strict=True):
        has, size = rule.sets(rule.threshold(known, labels), probabilities, own)
        columns = (has.astype(np.float64), size.astype(np.float64), (size == 0).astype(np.float64))
        parts.append(means(dict(zip(SETS, columns, strict=True)), units))
    alone = len(given) == 1 and scores.groups is None and calibration[0].groups is None
    low, high = likely_coverage(len(labels), len(own), rule.alpha)
    return CalibratedSets(
        rule=rule, calibrated=len(labels), metrics=_recorded(parts), likely=(100 * low, 100 * high) if alone else None
    )


def _recorded(parts: Sequence[Values]) -> dict[str, Interval]:
    """Return the means over trainings in the units of records."""
    found = {}
    for name in parts[0]:
        metric = find(name)
        value, low, high = over_trainings([part[name] for part in parts], metric.bounds)
        found[name] = (metric.scale * value, metric.scale * low, metric.scale * high)
    return found


def _class_scores(result: Result) -> Scores:
    """Return the stored scores of a classifier; refuse other records."""
    path = scores_path(result)
    if not kinds()[result.data.labels].of_one_class or path is None:
        reason = "has no scores beside it" if path is None else f"has labels of kind '{result.data.labels}'"
        raise ResultError(
            f"{result.file}: the record {reason}, and selective classification is of one class per sample",
            "Take a record of knn, linear, linear-online, svm, lsr, finetune or zero-shot, with its .scores.npz.",
        )
    scores = read_scores(path)
    if scores.scores.shape[1] < 2:
        raise ResultError(
            f"{result.file}: its scores have {scores.scores.shape[1]} classes, and a choice needs two",
            "Take a record of a classifier.",
        )
    return scores


def _trainings(result: Result, scores: Scores) -> tuple[ClassScores, ...]:
    """Return the scores of every training whose mean a record is."""
    found = scores.draws or (scores.scores,)
    number = max(result.protocol.settings.get("draws", 1), result.seeds or 1)
    if len(found) < number:
        raise ResultError(
            f"{result.file}: it is a mean over {number} trainings, whose scores were too large to store",
            "Take the record of one training, or evaluate with draws=1.",
        )
    return found


def _as_probabilities(result: Result, scores: ClassScores) -> npt.NDArray[np.floating]:
    """Return probabilities; the scores themselves where they are none."""
    if isinstance(scores, BestScores):
        raise best_alone(scores, str(result.file), "sets need the probabilities of all")
    return softmax(scores) if result.probabilities == "softmax" else scores


def _answers(result: Result, scores: ClassScores, labels: IntArray) -> tuple[FloatArray, BoolArray]:
    """Return how sure each sample's answer is, and whether it is right, (N,) each."""
    if result.probabilities:
        sure = Confidences.of(labels, scores, result.probabilities)
        return sure.highest, sure.right
    best = highest(scores, 2).astype(np.float64)
    return best[:, 0] - best[:, 1], places(labels, scores) == 0


def _check_calibration(result: Result, scores: Scores, calibration: Result, theirs: Scores) -> None:
    """Refuse a calibration by another classifier, or on samples that are reported or trained on."""
    if result.probabilities is None:
        raise UsageError(
            f"{result.file}: {result.protocol.name} gives no probabilities, which sets of classes need",
            "Take a record of linear, linear-online, knn, finetune or zero-shot; leave out --calibration.",
        )
    one, other = _classifier(result, scores), _classifier(calibration, theirs)
    if different := [name for name in one if one[name] != other[name]]:
        raise UsageError(
            f"{calibration.file} is of another classifier than {result.file}; what differs: {', '.join(different)}",
            "Run the same evaluation with --test-data of the calibration samples.",
        )
    # Images of two folders may have the same relative names: the same samples also have the same scores.
    common, rows, their_rows = np.intersect1d(scores.ids, theirs.ids, return_indices=True)
    alike = np.array_equal(scores.labels[rows], theirs.labels[their_rows])
    if len(common) and alike and np.allclose(scores.whole[rows], theirs.whole[their_rows], rtol=1e-3, atol=1e-5):
        raise UsageError(
            f"{calibration.file} and {result.file} share {counted(len(common), 'sample')}, such as '{common[0]}'",
            "Calibrate on samples that are not reported.",
        )
    trained = calibration.data.train.fingerprint == calibration.data.test.fingerprint
    if trained and not _trains_nothing(calibration):
        raise UsageError(
            f"{calibration.file}: its samples are those of train, on which the classifier is surer than on new ones",
            "Hold out a part of train before training: --data REST --test-data PART.",
        )


def _trains_nothing(result: Result) -> bool:
    """Return whether a record is of test samples alone, as those of zero-shot are."""
    alone = result.data.train == result.data.test and result.train is None
    return alone and not result.protocol.settings.get("leave_one_out", False)


def _classifier(result: Result, scores: Scores) -> dict[str, Any]:
    """Return all that decides a classifier, apart from the samples that it is applied to."""
    # The digest of features made elsewhere is that of train and test together: fitted values stand for those of train.
    outside = result.data.known_by is not None
    key = comparability_key(result)
    fitted = [result.train, result.selected]
    found = {
        "weights, layer or preprocessing": [result.weights.name, result.layer, fitted] if outside else row_key(result),
        "classes": scores.classes,
        "seed": (result.seed, result.seeds),
    }
    rest: dict[str, Any] = {"test": "", "n_test": 0, "unreadable": (), "groups": ""}
    rest |= {"train": "", "n_train": 0} if _trains_nothing(result) else {}
    return found | dataclasses.asdict(dataclasses.replace(key, **rest))
