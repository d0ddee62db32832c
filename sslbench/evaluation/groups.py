"""Per-class and per-group numbers of a record."""

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence

from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.evaluation.trainings import mean_tables
from sslbench.features.array import Features
from sslbench.metrics import groups as group_metrics
from sslbench.metrics.groups import per_class
from sslbench.results import GroupValue, Result, metric_value, percent, records
from sslbench.targets import kinds
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import OfClasses

log = logging.getLogger("sslbench")

UNNAMED = "(empty)"
_MOST = 1000


def groups_of(source: Source, ids: Sequence[str], columns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the group of each sample in `ids` by column; an empty cell is a group of its own."""
    if not columns:
        return {}
    position = {name: i for i, name in enumerate(source.ids)}
    rows = [position[name] for name in ids]
    return {name: tuple(source.attributes[name][i] or UNNAMED for i in rows) for name in columns}


def check_groups(source: Source | Features, columns: Sequence[str], name: str = "") -> None:
    """Refuse columns that do not divide the test samples into groups, before any image is decoded."""
    for column in columns:
        values = len(set(source.attributes[column]))
        if values > _MOST or values > max(2, len(source) // 2):
            raise DataError(
                f"{name or getattr(source, 'name', '')}: the column '{column}' has {values:,} different values among "
                f"{len(source):,} samples",
                "Groups need a column with few values, such as site, camera or sex.",
            )


def with_details(result: Result, scores: records.Scores, groups: Mapping[str, tuple[str, ...]]) -> Result:
    """Return the record with the numbers of every class and group, computed from its per-sample scores."""
    kind = kinds()[result.data.labels]
    if not issubclass(kind, OfClasses | Numbers) or scores.scores.shape[1] != len(scores.classes) or not scores.classes:
        return _without_groups(result, groups)
    if not result.per_class_metrics and issubclass(kind, OfClasses) and (draws := scores.draws_of(result)):
        # Logits turn positive where the probability passes a half.
        threshold = 0.5 if result.probabilities == "scores" else 0.0
        tables = [
            {
                metric: {name: value if metric == "n" else percent(value) for name, value in column.items()}
                for metric, column in per_class(scores.classes, scores.labels, one, threshold=threshold).items()
            }
            for one in draws
        ]
        result = dataclasses.replace(result, per_class_metrics=mean_tables(tables))
    missing = {name: column for name, column in groups.items() if name not in result.groups}
    for name, column in missing.items():
        result = _with_groups(result, scores, name, column)
    return result


def _without_groups(result: Result, groups: Collection[str], reason: str = "") -> Result:
    if not groups:
        return result
    reason = reason or f"{result.protocol.name} has no metric that can be computed per group"
    note = f"{reason} ({', '.join(groups)})."
    log.warning(note)
    return dataclasses.replace(result, notes=(*result.notes, note))


def _with_groups(result: Result, scores: records.Scores, name: str, column: Sequence[str]) -> Result:
    metric = result.headline
    if len(column) != len(scores.ids):  # the samples are groups of images, and the column is of images
        return _without_groups(result, [name])
    try:
        if scores.means is not None and metric in scores.means.metrics:
            values = scores.means.values(metric)
            found = group_metrics.means_by_group(metric, values, column, together=scores.groups)
        elif not (draws := scores.draws_of(result)):
            return _without_groups(
                result, [name], "The metrics per group are unknown, as the scores of the first draw alone are kept"
            )
        else:
            found = group_metrics.by_group(
                metric,
                kinds()[result.data.labels],
                scores.labels,
                draws,
                column,
                seed=result.seed,
                probabilities=result.probabilities,
                together=scores.groups,
            )
    except KeyError:
        return _without_groups(result, [name])
    groups = tuple(
        GroupValue(name=group.name, metric=metric_value(metric, (group.value, group.low, group.high), group.n))
        for group in found
    )
    warning = group_metrics.warning(name, found[0])
    if warning:
        log.warning(warning)
    return dataclasses.replace(
        result,
        groups={**result.groups, name: groups},
        metrics={**result.metrics, f"worst_group({name}).{metric}": groups[0].metric},
        notes=(*result.notes, *([warning] if warning else [])),
    )
