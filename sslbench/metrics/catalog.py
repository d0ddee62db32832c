"""All metrics by name. A new family of metrics is added to `FAMILIES`; a new metric of a family is found there."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from types import ModuleType

from sslbench.metrics import calibration, classification, clustering, ranking, regression, retrieval, spectrum
from sslbench.metrics import detection as objects
from sslbench.metrics.metric import ANY, Metric

FAMILIES = (classification, ranking, calibration, regression, clustering, spectrum, retrieval, objects)


def _records(family: ModuleType) -> Iterator[Metric]:
    """Yield the metrics of a module: its top-level records and tuples of records."""
    for value in vars(family).values():
        yield from (item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, Metric))


METRICS: Mapping[str, Metric] = {metric.name: metric for family in FAMILIES for metric in _records(family)}


def find(name: str) -> Metric:
    """Return the metric of that name.

    The score of the worst group, `worst_group(COLUMN).METRIC`, and of one task of a retrieval set, `TASK.METRIC`, have
    the facts of their metric. A metric of a user's
    protocol that is not known here has a unit of its own and no direction.

    >>> find("worst_group(site).top1").text
    '%, more is better'
    >>> find("medium.mAP_trapezoid").text
    '%, more is better'
    >>> find("nll").direction
    -1
    >>> find("my_metric").text
    'unit of my_metric, direction not known'
    """
    if name in METRICS:
        return METRICS[name]
    worst = re.fullmatch(r"worst_group\(.*\)\.(\w+)", name)
    if worst:
        return dataclasses.replace(find(worst[1]), name=name)
    task = re.fullmatch(r"[\w-]+\.([\w@]+)", name)
    if task and task[1] in METRICS:
        return dataclasses.replace(METRICS[task[1]], name=name)
    return Metric(name=name, title=name, unit=f"unit of {name}", direction=0, bounds=ANY, needs="scores")
