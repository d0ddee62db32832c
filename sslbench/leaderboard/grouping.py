"""Groups of comparable results, and repeated measurements among results."""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sslbench.identity import Comparability, comparability_key, digest, row_key
from sslbench.results import Result

UNSET = "unset"
"""Text for a setting that the other record has and this one lacks."""


@dataclasses.dataclass(frozen=True)
class Property:
    """Property that comparable results share, as text.

    Attributes:
        value: for comparisons, in full.
        text: for lists of differences.
    """

    value: str
    text: str
    heading: str


@dataclasses.dataclass(frozen=True)
class ColumnKey:
    """Key of the results of one column; `benchmark` is its name and version, empty without one."""

    key: Comparability
    benchmark: str = ""

    def properties(self) -> dict[str, Property]:
        """Return every field of the key by its title; each setting and each further set has a title of its own."""
        key = self.key
        version = self.benchmark.rpartition(" v")[2]
        found = {
            f"setting {name}": Property(json.dumps(value), _plain(value), f"{name}={short_text(value)}")
            for name, value in json.loads(key.settings).items()
        }
        plain = {
            "metric": (key.metric, key.metric),
            "benchmark": (self.benchmark or UNSET, f"v{version}" if version else "no benchmark"),
            "protocol": (key.protocol, key.protocol),
            "protocol version": (str(key.version), f"{'protocol ' if version else ''}v{key.version}"),
            "part of train": (key.train_part or "all", key.train_part or "all of train"),
            "train samples used": (str(key.n_train), f"n_train={key.n_train}"),
            "test samples used": (str(key.n_test), f"n={key.n_test}"),
            "code of the protocol": (key.code, f"code {key.code[:4]}"),
            "groups": (key.groups, f"groups {key.groups[:4]}"),
        }
        found |= {title: Property(value, value, heading) for title, (value, heading) in plain.items()}
        for title, fingerprint, start in (("train data", key.train, "train"), ("test data", key.test, "data")):
            found[title] = Property(fingerprint, fingerprint[:8], f"{start} {fingerprint[:4]}")
        names = key.unreadable
        found["unreadable images"] = Property(json.dumps(names), _listed(names), f"{len(names)} skipped")
        for name, fingerprint, n in key.further:
            text = f"{fingerprint[:8]}, {n:,} images"
            found[f"further set {name}"] = Property(f"{fingerprint} {n}", text, self.sets_heading)
        return found

    @property
    def sets_heading(self) -> str:
        """All further sets in the heading of a column; ImageNet-C has 75."""
        return f"sets {digest(self.key.further)[:4]}" if self.key.further else "no sets"

    def lacking(self, title: str) -> Property:
        """Return the property in place of a setting or further set that only another key has."""
        setting = f"{title.removeprefix('setting ')}={UNSET}"
        return Property("", UNSET, setting if title.startswith("setting ") else self.sets_heading)


def differences(keys: Sequence[ColumnKey]) -> dict[str, list[Property]]:
    """Return title -> property of each key, for the titles in which at least two of them differ."""
    every = [key.properties() for key in keys]
    found = {}
    for title in dict.fromkeys(title for properties in every for title in properties):
        values = [each.get(title) or key.lacking(title) for key, each in zip(keys, every, strict=True)]
        if len({value.value for value in values}) > 1:
            found[title] = values
    return found


def short_text(value: Any) -> str:
    """Return at most 24 characters of a value of a setting; items of a list without brackets."""
    text = ",".join(map(_plain, value if isinstance(value, list) else [value]))
    return text if len(text) <= 24 else text[:23] + "…"


def _plain(value: Any) -> str:
    """Return a value of a setting as text: JSON, but text as it is."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3}" if len(names) > 3 else ""
    return f"{len(names)} ({', '.join(names[:3])}{more})" if names else "0"


def column_keys(results: Sequence[Result], metric: str | None) -> list[ColumnKey]:
    """Return the key of each result; those of one key may be compared, all others may not."""
    # A result without the name of a benchmark joins the benchmark that measures the same, if there is one only; two
    # benchmarks, or two versions of one, are never in one group, whatever they have in common.
    named: dict[Comparability, set[str]] = defaultdict(set)
    keys = [comparability_key(result, metric) for result in results]
    for key, result in zip(keys, results, strict=True):
        if result.benchmark is not None:
            named[key].add(_benchmark(result))
    joined = {key: next(iter(names)) if len(names) == 1 else "" for key, names in named.items()}
    return [
        ColumnKey(key, _benchmark(result) or joined.get(key, "")) for key, result in zip(keys, results, strict=True)
    ]


def groups_of(results: Sequence[Result], metric: str | None) -> dict[str, ColumnKey]:
    """Return the key of each result, see `column_keys`, by its id."""
    return {result.id: key for result, key in zip(results, column_keys(results, metric), strict=True)}


def newest_of_each(results: Sequence[Result], groups: Mapping[str, ColumnKey]) -> list[Result]:
    """Return the newest record of each cell and seed, in the order of the results."""
    # One measurement may have several records: with and without the name of a benchmark, or of a benchmark whose file
    # was edited. They do not count as seeds.
    newest: dict[tuple[object, ...], Result] = {}
    for result in results:
        key = (row_key(result), result.weights.sha256, groups[result.id], result.seed)
        if key not in newest or newest[key].created <= result.created:
            newest[key] = result
    ids = {result.id for result in newest.values()}
    return [result for result in results if result.id in ids]


def without_parts(results: Sequence[Result]) -> list[Result]:
    """Return the results without single trainings whose mean over several is among them."""
    parts = {training.record for result in results for training in result.trainings}
    return [result for result in results if result.id not in parts]


def seeds_of(result: Result) -> list[int]:
    """Return the seed of each training of a record."""
    return [training.seed for training in result.trainings] or [result.seed]


def _benchmark(result: Result) -> str:
    return "" if result.benchmark is None else f"{result.benchmark.name} v{result.benchmark.version}"
