"""All metrics by name. A new family of metrics is added to `FAMILIES`; a new metric of a family is found there.

Metrics of an installed plug-in are found in the modules of its entry points `sslbench.metric`.
"""

import dataclasses
import functools
import importlib
import re
from collections.abc import Iterator, Mapping
from types import ModuleType

from sslbench.metrics import (
    classification,
    clustering,
    dense,
    ranking,
    regression,
    retrieval,
    robustness,
    selective,
    spectrum,
    survival,
    transferability,
)
from sslbench.metrics import detection as objects
from sslbench.metrics.metric import ANY, Metric
from sslbench.names import installed

FAMILIES = (
    classification, ranking, regression, clustering, spectrum, survival, transferability, retrieval, robustness,
    objects, dense, selective,
)  # fmt: skip


def _records(family: ModuleType) -> Iterator[Metric]:
    """Yield the metrics of a module: its top-level records and tuples of records."""
    for value in vars(family).values():
        yield from (item for item in (value if isinstance(value, tuple) else (value,)) if isinstance(item, Metric))


METRICS: Mapping[str, Metric] = {metric.name: metric for family in FAMILIES for metric in _records(family)}


@functools.cache
def every_metric() -> Mapping[str, Metric]:
    """Return `METRICS` and those of installed plug-ins, whose modules are imported here."""
    # Not when this module is imported: a plug-in's module may import it.
    modules = [importlib.import_module(entry.value) for entry in installed("metric").values()]
    return {metric.name: metric for module in modules for metric in _records(module)} | dict(METRICS)


def known(name: str) -> Metric | None:
    """Return the metric of that name; None for one that is not known here, of a user's protocol.

    The metric of one part of the data, `METRIC(PART)` or `METRIC(PART,NUMBER)`, and the score of the worst group,
    `worst_group(COLUMN).METRIC`, have the facts of their metric.

    >>> known("corruption_error(fog,3)").text
    '%, less is better'
    >>> known("worst_group(continent).accuracy@25km").text
    '%, more is better'
    """
    metrics = every_metric()
    if name in metrics:
        return metrics[name]
    part = re.fullmatch(r"worst_group\(.*\)\.([\w@.]+)|([\w@.]+)\(.*\)", name)
    whole = metrics.get(part[1] or part[2]) if part else None
    return None if whole is None else dataclasses.replace(whole, name=name)


def find(name: str) -> Metric:
    """Return the metric of that name, see `known`; one that is not known has a unit of its own and no direction.

    >>> find("worst_group(site).top1").text
    '%, more is better'
    >>> find("mAP_trapezoid(medium)").text
    '%, more is better'
    >>> find("pck_per_image@0.1(cat)").text
    '%, more is better'
    >>> find("nll").direction
    -1
    >>> find("my_metric").text
    'unit of my_metric, direction not known'
    """
    metric = known(name)
    if metric is not None:
        return metric
    return Metric(name, name, f"unit of {name}", 0, ANY, needs="scores")
