"""Values of records: units, and the plain types of JSON."""

import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.metrics import catalog
from sslbench.metrics.intervals import over_trainings
from sslbench.results.outcome import Outcome
from sslbench.results.parts import MetricValue
from sslbench.text import without_secrets


def mean_line(metric: str, values: Sequence[float | None], first_seed: int) -> str:
    """Return 'AP 21.6, the mean of 3 trainings: 18.0, 21.2, 23.6 (seeds 0 to 2)'."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"{metric} of {len(values)} trainings is not computable for each"
    digits = 1 if metric == "AP" else 2
    each = ", ".join(f"{value:.{digits}f}" for value in known)
    mean = sum(known) / len(known)
    last = first_seed + len(known) - 1
    return f"{metric} {mean:.{digits}f}, the mean of {len(known)} trainings: {each} (seeds {first_seed} to {last})"


def mean_metric(name: str, values: Sequence[MetricValue]) -> MetricValue:
    """Return the mean of a metric over trainings or seeds, with its interval over others and other test sets.

    See `metrics.intervals.over_trainings`; not computable where a value is missing.

    >>> mean_metric("top1", [MetricValue(value=50.0, low=45.0, high=55.0)] * 2).high
    55.0
    """
    if len(values) == 1:
        return values[0]
    if any(each.value is None for each in values):
        return MetricValue(value=None, low=None, high=None, n=values[0].n)
    metric = catalog.known(name)
    low, high = (-math.inf, math.inf) if metric is None else metric.bounds
    scale = 1.0 if metric is None else metric.scale
    each = [(_number(v.value), _number(v.low), _number(v.high)) for v in values]
    found = over_trainings(each, (low * scale, high * scale))
    parts = {part: None if math.isnan(value) else value for part, value in zip(_PARTS, found, strict=True)}
    return MetricValue(**parts, n=values[0].n)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def percent(fraction: float) -> float | None:
    """Return a fraction in percent, None when it is NaN.

    >>> percent(0.25)
    25.0
    """
    return None if math.isnan(fraction) else 100.0 * float(fraction)


def percent_metrics(outcome: Outcome, n: int) -> dict[str, MetricValue]:
    """Return the metrics of an outcome in the units of records; `n` is the number of test samples."""
    n = n if outcome.scored is None else outcome.scored
    return {
        name: MetricValue(
            **{part: as_recorded(name, v, outcome.absolute) for part, v in zip(_PARTS, values, strict=True)},
            n=outcome.counts.get(name, n),
        )
        for name, values in outcome.metrics.items()
    }


_PARTS = ("value", "low", "high")


def as_recorded(name: str, value: float, absolute: Collection[str]) -> float | None:
    """Return a metric's value in the unit of records: percent for rates and for unknown metrics not in `absolute`.

    None when it is NaN.
    """
    metric = catalog.known(name)
    if metric is not None:
        return metric.recorded(value)
    if name not in absolute:
        return percent(value)
    return None if math.isnan(value) else float(value)


def plain(value: Any) -> Any:
    """Return a value in JSON's types: dataclasses are mappings, tuples lists, NumPy numbers plain, NaN and inf null.

    Secrets of URLs in texts are hidden.

    >>> plain({"a": (1, np.float32(0.5)), "b": float("nan")})
    {'a': [1, 0.5], 'b': None}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "file"}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return without_secrets(str(value) if isinstance(value, Path) else value)


def canonical(value: Any) -> str:
    """Return the canonical JSON of a value: sorted keys and no spaces.

    >>> canonical({"b": 1, "a": (2,)})
    '{"a":[2],"b":1}'
    """
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
