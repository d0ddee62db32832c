"""Overlaps between train and test: suspected duplicates, and the score without them."""

import dataclasses
import logging
import time
from pathlib import Path

import numpy as np

from sslbench.data.checks.duplicates import Suspect, as_csv, named, near_pairs, suspects
from sslbench.data.clips import noun_of
from sslbench.data.splits import TrainTest
from sslbench.errors import ResultError
from sslbench.evaluation.preparation import Prepared
from sslbench.evaluation.record import Encoded
from sslbench.evaluation.request import Task
from sslbench.evaluation.settings import RunSettings
from sslbench.features.array import Features
from sslbench.metrics.catalog import find as find_metric
from sslbench.metrics.intervals import Units, mean_of_rows, over_trainings
from sslbench.metrics.summary import one_measure, with_intervals
from sslbench.paths import not_written
from sslbench.results import MetricValue, Overlaps, Result, metric_value, records
from sslbench.runtime.device import choose_device
from sslbench.targets import kinds
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import OfClasses

log = logging.getLogger("sslbench")

_RESAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class SuspectedOverlaps:
    """Suspected overlaps of two parts, for all protocols.

    Attributes:
        suspects: one per image of test.
        by: measure by which the images were compared.
        problem: reason that near duplicates were not searched.
    """

    suspects: tuple[Suspect, ...]
    by: str
    problem: str
    seconds: float


def find(prepared: Prepared, encoded: Encoded, pixels: Encoded | None) -> SuspectedOverlaps | None:
    """Compare both parts by the content of their files and by vectors that describe the images.

    Returns None if it is not wanted, or every protocol scores a part by itself.
    """
    if not prepared.run.overlaps or all(task.part for task in prepared.request.tasks):
        return None
    by = "pixels" if pixels is not None else f"features of {prepared.backbone.name}"
    vectors = encoded if pixels is None else pixels
    layer = next(iter(vectors.train))
    return _compare(vectors.train[layer], vectors.test[layer], f"content and {by}", prepared.run, prepared.data)


def find_among_features(train: Features, test: Features, run: RunSettings) -> SuspectedOverlaps | None:
    """Compare both parts where there are features only."""
    return None if not run.overlaps or train is test else _compare(train, test, "features", run)


def _compare(
    train: Features, test: Features, by: str, run: RunSettings, data: TrainTest | None = None
) -> SuspectedOverlaps:
    """Compare features, and with `data` the content of the files."""
    start = time.perf_counter()
    near = near_pairs(test.averaged.x, train.averaged.x, device=str(choose_device(run.device)))
    alike, n = named(near.pairs, test.ids, train.ids), len(test if data is None else data.test)
    if data is None:
        found = tuple(Suspect(i, j, "near", round(cosine, 4)) for i, j, cosine in alike)
    else:
        found = tuple(suspects(data.train, data.test, alike))
    if near.problem:
        log.info(f"near duplicates of train and test cannot be found by {by}: {near.problem}")
    if found:
        noun = "image" if data is None else noun_of(data.test)
        log.warning(f"{len(found):,} of {n:,} test {noun}s are suspected to occur in train too, by {by}")
    return SuspectedOverlaps(found, by, near.problem, time.perf_counter() - start)


def with_overlaps(
    result: Result, scores: records.Scores, found: SuspectedOverlaps | None, task: Task, out: Path
) -> Result:
    """Return the record with the suspects and the headline metric without them; write the list of pairs beside it.

    `found`: None: nothing was looked for.
    """
    file = records.path_of(result, out).with_suffix(records.OVERLAPS)
    try:
        # Two groups do not overlap because an image of one resembles an image of the other.
        if found is None or task.part or task.kind.of_groups:
            file.unlink(missing_ok=True)
            return result
        # Files that cannot be decoded are compared by their bytes as well, but have no score.
        scored = set(scores.ids)
        pairs = [one for one in found.suspects if one.test in scored]
        if pairs:
            records.replace_file(file, as_csv(pairs).encode())
        else:
            # The list of an earlier run would stand beside a record that has no pairs.
            file.unlink(missing_ok=True)
    except OSError as error:
        raise ResultError(not_written(file, error)) from error
    exact = sum(one.how == "exact" for one in pairs)
    without, notes = _without(result, scores, {one.test for one in pairs}) if pairs else (None, ())
    overlaps = Overlaps(
        n=len(pairs),
        exact=exact,
        by=found.by,
        without=without,
        problem=found.problem,
        pairs_file=file.name if pairs else None,
    )
    timings = {**result.timings, "overlaps": round(found.seconds, 3)}
    return dataclasses.replace(result, overlaps=overlaps, timings=timings, notes=(*result.notes, *notes))


def _without(result: Result, scores: records.Scores, out: set[str]) -> tuple[MetricValue | None, tuple[str, ...]]:
    """Return the headline metric, with its interval, of the samples that are not suspected."""
    kind = kinds()[result.data.labels]
    if not issubclass(kind, OfClasses | Numbers) or not scores.classes or scores.scores.shape[1] != len(scores.classes):
        return None, ()
    remaining = np.array([name not in out for name in scores.ids])
    labels = scores.labels[remaining]
    if not len(labels):
        return None, ()
    name = result.headline
    if scores.means is not None and name in scores.means.metrics:
        interval = mean_of_rows(find_metric(name), scores.means.values(name), np.flatnonzero(remaining), scores.groups)
        return metric_value(name, interval, len(labels)), ()
    draws = scores.draws_of(result)
    if not draws:
        return None, ("The score without suspected overlaps is unknown: the scores of the first draw alone are kept.",)
    units = Units.of(len(labels), None if scores.groups is None else scores.groups[remaining])
    try:
        measures = [one_measure(name, kind, labels, one[remaining], units, result.probabilities) for one in draws]
    except KeyError:
        return None, ()
    each = [with_intervals(measure, units, result.seed, _RESAMPLES)[name] for measure in measures]
    interval = over_trainings(each, find_metric(name).bounds) if len(each) > 1 else each[0]
    return metric_value(name, interval, len(labels)), ()
