"""Paired comparison of results on the same test samples."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray
from sslbench.errors import ResultError
from sslbench.leaderboard.model import column_keys, differences, groups_of, newest_of_each, without_parts
from sslbench.metrics.answers import BestScores
from sslbench.metrics.catalog import find, known
from sslbench.metrics.detection import Detections
from sslbench.metrics.detection.average_precision import DEFINITIONS, detector_difference
from sslbench.metrics.detection.files import read_objects, read_results
from sslbench.metrics.differences import TOP_K, PairedDifference, Predictions, difference, difference_of_means, holm
from sslbench.names import did_you_mean
from sslbench.results import Result, tables
from sslbench.results.records import Scores, best_alone, predictions_paths, read_scores, scores_path
from sslbench.targets import kinds

RESAMPLES = 1000
_LISTED = 20
"""Largest number of differences in a message; those of 75 corrupted sets say no more."""
_NAMED = 3  # results, or differences, in a line
_ROUNDING = 1e-4
"""Largest difference, as a share, between a recorded rate and the same from scores in single precision."""
_REGIONS = ("", "mask_", "boundary_", "keypoint_", "uniform_keypoint_")
"""Beginnings of the metrics of detections."""
Scored = tuple[Result, Scores]


def differing(a: Result, b: Result, metric: str | None = None) -> list[tuple[str, str, str]]:
    """Return (key, value of a, value of b) for each difference that forbids a comparison."""
    found = differences(column_keys([a, b], metric))
    # Settings of two protocols always differ, and one measurement may be made with and without a benchmark's name.
    own = ["setting ", "protocol version", "code of"] if "protocol" in found else []
    own += ["benchmark"] if None in (a.benchmark, b.benchmark) else []
    trains = [f"{each.data.train.name}{each.data.noise_text}" for each in (a, b)]
    names = {"train data": trains, "test data": [a.data.test.name, b.data.test.name]}
    return [
        (title, f"{first} {one.text}".strip(), f"{second} {other.text}".strip())
        for title, (one, other) in found.items()
        if not title.startswith(tuple(own))
        for first, second in [names.get(title, ["", ""])]
    ]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """Comparison of two results on the same test samples by one metric; rates and differences in percent.

    Attributes:
        metric: metric of the comparison.
        n: number of test samples that the metric is over.
        groups: number of their groups, which are kept together; None if each sample stands for itself.
        value_a: metric on the per-sample scores of a, the mean over all its draws.
        low: low end of its 95 % interval, by resampling the test samples for both at once; over draws too.
        p_mcnemar: p value of McNemar's exact test (with groups: of the exact sign-flip test over groups); top-1 only,
            and not for means over draws.
        p_holm: the same, corrected for all comparisons of the list by Holm's method.
        half: True if the metric is computed from scores stored in half precision, see `records.Scores`.
        trainings: number of trainings of a and of b, where a network or heads are trained by stochastic gradient
            descent; else None. With one of each the interval does not cover the variance between trainings.
        verdict: 'tied' where the interval covers 0, else 'A better' or 'B better'; 'different' for a metric of unknown
            direction.
    """

    a: Result
    b: Result
    metric: str
    n: int
    groups: int | None = None
    value_a: float
    value_b: float
    difference: float
    low: float
    high: float
    p_mcnemar: float | None = None
    p_holm: float | None = None
    half: bool = False
    verdict: str
    trainings: tuple[int, int] | None = None

    def row(self) -> dict[str, Any]:
        """Return one row of a table: both results, their metric, the difference with its interval, the verdict."""
        return {
            "A": self.a.weights.name,
            "B": self.b.weights.name,
            "protocol": self.a.protocol.name,
            "metric": self.metric,
            "n": self.n,
            "value A": self.value_a,
            "value B": self.value_b,
            "A - B": self.difference,
            "low": self.low,
            "high": self.high,
            "verdict": self.verdict,
        }

    def __repr__(self) -> str:
        """Return the row as a table."""
        return tables.as_text([self.row()])

    def _repr_html_(self) -> str:
        """Return the row as a table, for notebooks."""
        return tables.as_html([self.row()])


def compare(
    a: Result, b: Result, *, metric: str | None = None, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """Compare two results that were measured in the same way on the same test samples."""
    name = metric or a.headline
    different = differing(a, b, metric)
    if different:
        listed = "\n".join(f"  {key}: {one} / {other}" for key, one, other in different[:_LISTED])
        listed += f"\n  and {len(different) - _LISTED} more" if len(different) > _LISTED else ""
        raise ResultError(
            f"{_called(a)} and {_called(b)} cannot be compared; what differs (A / B):\n{listed}",
            _remedy(a, b, [key for key, _, _ in different]),
        )
    if "AP" in a.metrics and "AP" in b.metrics:
        return compare_detectors([a], [b], name, seed=seed, resamples=resamples)
    return compare_all([(a, _scores(a))], [(b, _scores(b))], name, seed=seed, resamples=resamples)


def _remedy(a: Result, b: Result, keys: Sequence[str]) -> str:
    """Return advice after a refusal; two detectors on the same test data may still be compared by their detections."""
    usual = "Evaluate both with the same protocol, settings and data."
    on_settings = all(key.startswith(("setting ", "protocol version", "benchmark")) for key in keys)
    if not on_settings or "setting metric" in keys or a.objects_file is None or b.objects_file is None:
        return usual
    files = " ".join(map(str, predictions_paths(a).values()))
    return f"{usual} Detectors that were trained differently: sslbench score {files} --data ... for both, then compare."


def compare_detectors(
    a: Sequence[Result], b: Sequence[Result], metric: str, *, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """Compare one or several records (one per seed) of two detectors by the detections beside them."""
    first = a[0]
    objects = read_objects(_objects_path(first))
    for other in (*a[1:], *b):
        if (other_path := _objects_path(other)).name != _objects_path(first).name:
            theirs = read_objects(other_path)
            if (theirs.ids, theirs.truth.classes) != (objects.ids, objects.truth.classes):
                raise ResultError(f"{_called(first)} and {_called(other)} are of different test images or classes")
    try:
        found = detector_difference(
            objects.truth,
            _detections(a),
            _detections(b),
            metric,
            DEFINITIONS[first.protocol.settings["metric"]],
            seed=seed,
            resamples=resamples,
        )
    except KeyError as error:
        able = [f"{start}{name}" for start in _REGIONS for name in ("AP", "AP50", "AP75")]
        able = [name for name in able if name in first.metrics and name != metric]
        able += [f"AP({name})" for name in objects.truth.classes]
        raise ResultError(
            f"{_called(first)}: '{metric}' cannot be compared for detections", did_you_mean(metric, able)
        ) from error
    groups = objects.truth.groups
    return _comparison(a, b, metric, found, n=objects.truth.n_images, groups=groups)


def _comparison(
    a: Sequence[Result],
    b: Sequence[Result],
    metric: str,
    found: PairedDifference,
    *,
    n: int,
    groups: npt.NDArray[np.int64] | None,
    half: bool = False,
) -> Comparison:
    """Return a difference in the units of records; records that their scores contradict are refused."""
    factor = find(metric).scale
    if not half:  # scores in half precision need not give the recorded value
        _check_recorded(a, metric, factor * found.value_a)
        _check_recorded(b, metric, factor * found.value_b)
    numbers = [[result.seeds for result in results] for results in (a, b)]
    known_a, known_b = ([number for number in seeds if number is not None] for seeds in numbers)
    trainings = (sum(known_a), sum(known_b)) if [known_a, known_b] == numbers else None
    return Comparison(
        a=a[0],
        b=b[0],
        metric=metric,
        n=n,
        groups=None if groups is None else len(np.unique(groups)),
        value_a=factor * found.value_a,
        value_b=factor * found.value_b,
        difference=factor * found.difference,
        low=factor * found.low,
        high=factor * found.high,
        p_mcnemar=found.p,
        half=half,
        verdict=_verdict(metric, found.low, found.high),
        trainings=trainings,
    )


def _objects_path(result: Result) -> Path:
    if result.file is None or result.objects_file is None:
        raise ResultError(
            f"{_called(result)} has no file of the objects of its test part: it was written by an older sslbench",
            "Run that evaluation again: it trains nothing, and writes the file.",
        )
    return result.file.with_name(result.objects_file)


def _detections(results: Sequence[Result]) -> dict[str, Detections]:
    """Return the detections of each training of one detector: 'seed 0' -> detections."""
    found = {}
    for result in results:
        own = read_objects(_objects_path(result))  # the numbers of its images
        for name, path in predictions_paths(result).items():
            found[name] = read_results(path, own.image_numbers, own.class_numbers, own.sizes)
    return found


def compare_all(
    a: Sequence[Scored], b: Sequence[Scored], metric: str, *, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """Compare one or several results (one per seed) of two models, whose scores have been read already."""
    (first, scores), others = a[0], [*a[1:], *b]
    for result, each in others:
        if not same_samples(scores, each):
            raise ResultError(
                f"the stored scores of {_called(first)} and {_called(result)} are of different test samples or groups"
            )
    if find(first.headline).needs == "places" != find(metric).needs:  # degrees are no numbers to average
        raise _not_computable(first, scores, metric)
    try:
        if all(each.means is not None and metric in each.means.metrics for _, each in (*a, *b)):
            found = difference_of_means(_values(a, metric), _values(b, metric), groups=scores.groups)
        else:
            found = _difference_of_scores(a, b, metric, seed, resamples)
    except (KeyError, ValueError, NotImplementedError) as error:  # no measure follows from scores without labels
        raise _not_computable(first, scores, metric) from error
    half = metric not in TOP_K and any(each.half for _, each in (*a, *b))
    n = first.metrics[metric].n if metric in first.metrics else None
    results_a, results_b = [result for result, _ in a], [result for result, _ in b]
    return _comparison(results_a, results_b, metric, found, n=n or len(scores.ids), groups=scores.groups, half=half)


class ChangedRecordError(ResultError):
    """A metric in a record that its stored scores or detections contradict."""


def _check_recorded(results: Sequence[Result], metric: str, found: float) -> None:
    """Check that records hold the value which their scores or detections give."""
    if known(metric) is None:
        return
    recorded = [result.metrics[metric].value for result in results if metric in result.metrics]
    values = [value for value in recorded if value is not None]
    if len(values) < len(results) or math.isnan(found):
        return
    mean = sum(values) / len(values)
    if abs(mean - found) > _ROUNDING * find(metric).scale:
        raise ChangedRecordError(
            f"{_called(results[0])}: the record says {metric} {mean:.2f}, what is stored beside it {found:.2f}",
            "The record or its scores were changed after the evaluation; run it again, or see: sslbench reproduce.",
        )


def _values(records: Sequence[Scored], metric: str) -> list[tuple[str, FloatArray]]:
    """Return the value of each sample, for each record of one model, by a metric that is a mean over samples."""
    return [(f"seed {result.seed}", each.means.values(metric)) for result, each in records if each.means is not None]


def sample_values(records: Sequence[Scored], metric: str) -> list[tuple[str, FloatArray]] | None:
    """Return the value of each sample in each training of one model; None for a metric that is no mean over samples."""
    (first, scores), *_ = records
    if all(each.means is not None and metric in each.means.metrics for _, each in records):
        found = _values(records, metric)
    elif metric in TOP_K and kinds()[first.data.labels].of_one_class:
        answers = Predictions.together([_answers(*one) for one in records])
        found = list(zip(answers.trainings, answers.right(scores.labels, TOP_K[metric]), strict=True))
    else:
        return None
    mean = find(metric).scale * sum(float(values.mean()) for _, values in found) / len(found)
    _check_recorded([result for result, _ in records], metric, mean)
    return found


def _difference_of_scores(
    a: Sequence[Scored], b: Sequence[Scored], metric: str, seed: int, resamples: int
) -> PairedDifference:
    """Return the difference of a metric that is computed from the scores of the classes."""
    (first, scores), *_ = a
    answers = [Predictions.together([_answers(*one) for one in each]) for each in (a, b)]
    return difference(
        metric,
        kinds()[first.data.labels],
        scores.labels,
        answers[0],
        answers[1],
        groups=scores.groups,
        seed=seed,
        resamples=resamples,
    )


def _answers(result: Result, scores: Scores) -> Predictions:
    draws = result.protocol.settings.get("draws", 1)
    if draws > 1 and not scores.draws and scores.places is None:
        raise ResultError(
            f"{_called(result)} is a mean over {draws} draws, but only the scores of the first are stored: "
            "it was written by an older sslbench",
            "Evaluate both again.",
        )
    return Predictions.of(
        result.seed, scores.scores, scores.draws, scores.places, result.probabilities, seeds=result.seeds or 1
    )


def _not_computable(result: Result, scores: Scores, metric: str) -> ResultError:
    if scores.places is not None and not scores.draws and metric in result.metrics:
        return ResultError(
            f"{_called(result)}: '{metric}' over all draws cannot be computed, because "
            "their scores were too large to store",
            "Give --metric top1 or top5.",
        )
    if isinstance(scores.scores, BestScores) and metric in result.metrics:
        return best_alone(scores.scores, _called(result), f"'{metric}' ranks all samples by each class")
    metrics = (name for name in result.metrics if find(name).needs in ("scores", "probabilities", "places"))
    able = [name for name in metrics if name != metric and "(" not in name]
    able += [name for name in (scores.means.metrics if scores.means is not None else ()) if "(" not in name]
    return ResultError(
        f"{_called(result)}: '{metric}' cannot be computed from its per-sample scores", did_you_mean(metric, able)
    )


def same_samples(a: Scores, b: Scores) -> bool:
    """Return whether two results scored the same samples with the same labels and groups."""
    if a.ids != b.ids or a.classes != b.classes or not np.array_equal(a.labels, b.labels):
        return False
    return a.groups is b.groups is None or (
        a.groups is not None and b.groups is not None and np.array_equal(a.groups, b.groups)
    )


def _verdict(metric: str, low: float, high: float) -> str:
    if math.isnan(low) or math.isnan(high):
        return "not computable"
    if low <= 0 <= high:
        return "tied"
    direction = find(metric).direction
    return "different" if direction == 0 else ("A better" if (low > 0) == (direction > 0) else "B better")


def _scores(result: Result) -> Scores:
    path = scores_path(result)
    if path is None:
        raise ResultError(
            f"{_called(result)} has no stored per-sample scores, which a paired comparison needs",
            "`sslbench eval` writes them for every protocol on features.",
        )
    return read_scores(path)


def _called(result: Result) -> str:
    return str(result.file) if result.file is not None else result.weights.name


def with_holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons with p values corrected for their number (Holm 1979); one needs no correction."""
    if len(comparisons) < 2:
        return list(comparisons)
    p_values = [math.nan if one.p_mcnemar is None else one.p_mcnemar for one in comparisons]
    return [
        dataclasses.replace(one, p_holm=None if math.isnan(p) else p)
        for one, p in zip(comparisons, holm(p_values), strict=True)
    ]


def pairs(first: Sequence[Result], second: Sequence[Result], metric: str | None = None) -> list[tuple[Result, Result]]:
    """Return all comparable pairs of two lists, each once: equal but for the backbone, with equal seeds and layers."""
    # Where both have one result only for a seed, their layers may differ.
    found = dict[frozenset[str], tuple[Result, Result]]()
    results_a, results_b = _candidates(first, second, metric)
    for a in results_a:
        alike = [b for b in results_b if b.seed == a.seed and a.id != b.id and not differing(a, b, metric)]
        same_layer = [b for b in alike if b.layer == a.layer]
        only_one = sum(not differing(a, other, metric) and other.seed == a.seed for other in results_a) == 1
        for b in same_layer or (alike if len(alike) == 1 and only_one else []):
            found.setdefault(frozenset((a.id, b.id)), (a, b))
    return [*found.values()]


def left_out(
    first: Sequence[Result],
    second: Sequence[Result],
    matched: Sequence[tuple[Result, Result]],
    metric: str | None = None,
) -> str:
    """Return a line about the results of two lists that none of their `pairs` has; '' if there are none."""
    paired = {result.id for pair in matched for result in pair}
    sides = _candidates(first, second, metric)
    alone = {result.id: result for side in sides for result in side if result.id not in paired}
    if not alone:
        return ""
    names = [*dict.fromkeys(f"{result.weights.name} ({result.protocol.name})" for result in alone.values())]
    listed = ", ".join(names[:_NAMED]) + ", ..." * (len(names) > _NAMED)
    line = f"{len(alone)} result{'s' * (len(alone) > 1)} without a comparable counterpart left out: {listed}"
    few = {*itertools.islice(alone, _NAMED)}  # all pairs of two large folders would take minutes
    others = [(a, b) for a, b in itertools.product(*sides) if a.id != b.id and not few.isdisjoint((a.id, b.id))]
    apart = min((_apart(a, b, metric) for a, b in others), key=len, default=[])
    reason = ", ".join(f"{key}: {one} / {other}" for key, one, other in apart[:_NAMED])
    return f"{line}; the nearest two differ in (A / B) {reason}" if reason else line


def _apart(a: Result, b: Result, metric: str | None) -> list[tuple[str, str, str]]:
    """Return the differences that keep two results of folders from being a pair."""
    own = [("seed", str(a.seed), str(b.seed)), ("layer", a.layer, b.layer)]
    return [*differing(a, b, metric), *(row for row in own if row[1] != row[2])]


def _candidates(first: Sequence[Result], second: Sequence[Result], metric: str | None) -> list[list[Result]]:
    """Return the results that may be compared: of each the newest, without floors where a list has anything else."""
    sides = (without_parts(first), without_parts(second))
    newest = [newest_of_each(side, groups_of(side, metric)) for side in sides]
    return [[result for result in side if not result.is_floor] or side for side in newest]
