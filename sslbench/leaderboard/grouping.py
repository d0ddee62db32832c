"""Groups of comparable results, and repeated measurements among results."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence

from sslbench.identity import Comparability, comparability_key, row_key
from sslbench.results import Result

UNSET = "unset"
"""Text for a setting that the other record has and this one lacks."""


@dataclasses.dataclass(frozen=True)
class ColumnKey:
    """Key of the results of one column; `benchmark` is its name and version, empty without one."""

    key: Comparability
    benchmark: str = ""


def groups_of(results: Sequence[Result], metric: str | None) -> dict[str, ColumnKey]:
    """Return the group of comparable results of each result, by its id.

    A result without the name of a benchmark joins the benchmark that measures the same, if there is one only;
    two benchmarks, or two versions of one, are never in one group, whatever they have in common.
    """
    named: dict[Comparability, set[str]] = defaultdict(set)
    keys = {result.id: comparability_key(result, metric) for result in results}
    for result in results:
        if result.benchmark is not None:
            named[keys[result.id]].add(_benchmark(result))
    groups = {}
    for result in results:
        key = keys[result.id]
        joined = next(iter(named[key])) if len(named[key]) == 1 else ""
        groups[result.id] = ColumnKey(key, _benchmark(result) or joined)
    return groups


def newest_of_each(results: Sequence[Result], groups: Mapping[str, ColumnKey]) -> list[Result]:
    """Return the newest record of each cell and seed, in the order of the results.

    One measurement may have several records: with and without the name of a benchmark, or of a benchmark whose file
    was edited. They do not count as seeds.
    """
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
