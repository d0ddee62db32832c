"""Comparison of a record with a second run of the same command."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sslbench.metrics import catalog
from sslbench.results import MetricValue, Result, plain

TOLERANCE = 0.1
"""Default tolerance, in percentage points: other devices and versions round differently and flip a few predictions."""
_OF_ENDS = 10.0
"""Tolerance of the ends of intervals, as a multiple of that of values: they follow single samples."""

_INPUTS = (
    *("weights.sha256", "weights.backbone", "weights.code", "layer", "preprocessing", "precision", "feature_dtype"),
    *("protocol", "benchmark", "preset", "data.train.fingerprint", "data.test.fingerprint", "data.train.n_used"),
    *("data.test.n_used", "data.further", "data.label_noise", "seed", "seeds"),
)
_SURROUNDINGS = ("versions", "hardware", "working_folder.commit", "working_folder.changed")


@dataclasses.dataclass(frozen=True)
class Change:
    """Value that differs between two records, by its dotted key."""

    key: str
    before: Any
    after: Any


@dataclasses.dataclass(frozen=True)
class MetricAgain:
    """Metric of a record and of the second run, in the unit of records.

    Attributes:
        agrees: True if both are equal within the tolerance, or neither has a value, and the ends of their intervals
            are.
    """

    name: str
    before: float | None
    after: float | None
    tolerance: float
    agrees: bool
    ends_agree: bool


@dataclasses.dataclass(frozen=True)
class Rerun:
    """A record, a second run, and their differences.

    Attributes:
        inputs: differences in what is measured: weights, data, settings, seed.
        surroundings: differences of versions, hardware and git commit, which may change roundings.
    """

    before: Result
    after: Result
    metrics: tuple[MetricAgain, ...]
    inputs: tuple[Change, ...]
    surroundings: tuple[Change, ...]

    @property
    def reproduced(self) -> bool:
        """True if the same was measured and every metric agrees."""
        return not self.inputs and all(metric.agrees for metric in self.metrics)


def compare_rerun(before: Result, after: Result, tolerance: float = TOLERANCE) -> Rerun:
    """Compare a record with a second run."""
    metrics = []
    for name in dict.fromkeys([before.headline, *before.metrics]):
        one, other = before.metrics[name], after.metrics.get(name, MetricValue(value=None))
        metric = catalog.known(name)
        rate = metric is None or metric.unit == "%" or one.value is None
        allowed = tolerance if rate else tolerance / 100 * abs(one.value or 0.0)
        ends = (one.low, other.low), (one.high, other.high)
        ends_agree = all(end is None or _agree(end, again, _OF_ENDS * allowed) for end, again in ends)
        agrees = ends_agree and _agree(one.value, other.value, allowed)
        metrics.append(MetricAgain(name, one.value, other.value, allowed, agrees, ends_agree))
    changes = (_changes(before, after, keys) for keys in (_INPUTS, _SURROUNDINGS))
    return Rerun(before, after, tuple(metrics), *changes)


def _agree(one: float | None, other: float | None, allowed: float) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= allowed


def _changes(before: Result, after: Result, keys: tuple[str, ...]) -> tuple[Change, ...]:
    one, other = _flat(plain(before)), _flat(plain(after))
    shared = [key for key in dict.fromkeys([*one, *other]) if key != "preprocessing.origin"]
    of_keys = [key for key in shared if any(key == named or key.startswith(f"{named}.") for named in keys)]
    return tuple(Change(key, one.get(key), other.get(key)) for key in of_keys if one.get(key) != other.get(key))


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
