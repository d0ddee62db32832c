"""Several trainings that differ in their seed only, and the record of their mean.

Each training has a record of its own; the record of all has the mean of every metric, its range, and an interval over
other trainings and other test sets (`results.mean_metric`).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from sslbench import protocols
from sslbench.config import result_settings
from sslbench.errors import UsageError
from sslbench.evaluation.request import Task
from sslbench.evaluation.settings import RunSettings
from sslbench.identity import record_id
from sslbench.metrics.intervals import known_mean
from sslbench.names import list_names
from sslbench.results import Costs, Range, Result, Stage, Training, mean_line, mean_metric, records

Table = Mapping[str, float | None]
ONE_TRAINING = (
    "One training: the interval covers other test images, not other trainings, whose variance is unknown (seeds=3 "
    "measures it)."
)


def check_seeds(run: RunSettings, tasks: Sequence[Task]) -> None:
    """Refuse several trainings where no protocol trains, or where one repeats its training already."""
    if run.only_seed is not None and not all(task.kind.trains for task in tasks):
        names = " ".join(task.protocol for task in tasks if not task.kind.trains)
        raise UsageError(f"only_seed={run.only_seed} has no effect on {names}, which trains nothing", "Leave it out.")
    if run.seeds == 1:
        return
    names = " ".join(dict.fromkeys(task.protocol for task in tasks))
    if not any(task.kind.trains for task in tasks):
        takers = [name for name in list_names("protocol") if protocols.find(name).kind.trains]
        raise UsageError(
            f"seeds={run.seeds} has no effect on {names}: it repeats trainings by stochastic gradient descent",
            f"Leave it out. Protocols that take it: {', '.join(takers)}.",
        )
    if any(task.kind.trains and draws(task) > 1 for task in tasks):
        raise UsageError(
            f"seeds={run.seeds} and draws exclude each other: every draw is a training with a seed of its own",
            f"Give seeds={run.seeds} and draws=1, or draws={run.seeds} alone.",
        )


def draws(task: Task) -> int:
    """Return the number of draws of train that a protocol makes."""
    return int(result_settings(task.settings).get("draws", 1))


def together(results: Sequence[Result], *, seeds: int) -> Result:
    """Return the record of several trainings, not yet written; its references are those of the first."""
    if len(results) != seeds:
        raise ValueError(f"{len(results)} records of {seeds} trainings")
    first = results[0]
    names = [name for name in first.metrics if all(name in result.metrics for result in results)]
    metrics = {name: mean_metric(name, [result.metrics[name] for result in results]) for name in names}
    values = {name: [result.metrics[name].value for result in results] for name in names}
    converged = [result.converged for result in results if result.converged is not None]
    trainings = [
        Training(
            seed=result.seed,
            record=result.id,
            record_file=f"{records.slug(result.weights.name)}-{result.id}.json"
            if not result.file
            else result.file.name,
            metrics={name: metric.value for name, metric in result.metrics.items()},
        )
        for result in results
    ]
    # A note on one training holds for each, not for their mean.
    notes = [
        note for note in dict.fromkeys(note for result in results for note in result.notes) if note != ONE_TRAINING
    ]
    line = mean_line(first.headline, values[first.headline], first.seed)
    whole = dataclasses.replace(first, seeds=seeds)
    return dataclasses.replace(
        whole,
        id=record_id(whole),
        created=records.now(),
        request=first.request and {**first.request, "run": {**first.request.get("run", {}), "seeds": seeds}},
        metrics=metrics,
        ranges={name: value_range(values[name]) for name in names},
        trainings=tuple(trainings),
        per_class=_mean_table([result.per_class for result in results]),
        per_class_metrics=mean_tables([result.per_class_metrics for result in results]),
        variants=mean_tables([result.variants for result in results]),
        floors=mean_tables([result.floors for result in results]),
        train=_mean([result.train for result in results]),
        selected={f"seed {result.seed}": result.selected for result in results if result.selected},
        converged=all(converged) if converged else None,
        timings={key: round(sum(r.timings.get(key, 0.0) for r in results), 3) for key in first.timings},
        costs=_costs([result.costs for result in results]),
        notes=(*notes, f"{line}. The interval covers other trainings and other test images."),
        # The files of the first training are not those of the mean.
        scores_file=None,
        weights_file=None,
        file=None,
    )


def scores_together(parts: Sequence[records.Scores]) -> records.Scores:
    """Return the scores of several trainings: those of the first, and of each as draws."""
    first = parts[0]
    if any(part.ids != first.ids or part.classes != first.classes for part in parts):
        raise ValueError("the trainings were scored on different samples")
    return dataclasses.replace(first, draws=tuple(part.scores for part in parts))


def value_range(values: Sequence[float | None]) -> Range:
    """Return the lowest and the highest of the values that are known."""
    known = [value for value in values if value is not None]
    return Range(lowest=min(known, default=None), highest=max(known, default=None))


def _mean(values: Sequence[float | None]) -> float | None:
    mean = known_mean([(math.nan if value is None else value) for value in values])
    return None if math.isnan(mean) else mean


def _mean_table(tables: Sequence[Table]) -> dict[str, float | None]:
    return {name: _mean([table.get(name) for table in tables]) for name in tables[0]}


def mean_tables(tables: Sequence[Mapping[str, Table]]) -> dict[str, dict[str, float | None]]:
    """Return the mean of each cell over the tables that have a value there; None without one."""
    return {name: _mean_table([table.get(name, {}) for table in tables]) for name in tables[0]}


def _costs(costs: Sequence[Costs | None]) -> Costs | None:
    """Return the costs of the first, with the time of all and the largest memory of each stage."""
    known = [each for each in costs if each is not None]
    if not known:
        return None
    stages = {}
    for name in known[0].stages:
        parts = [each.stages[name] for each in known if name in each.stages]
        stages[name] = Stage(
            seconds=round(sum(part.seconds for part in parts), 3),
            ram_mib=_most([part.ram_mib for part in parts]),
            gpu_mib=_most([part.gpu_mib for part in parts]),
        )
    return dataclasses.replace(known[0], stages=stages)


def _most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
