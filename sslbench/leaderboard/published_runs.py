"""Published numbers that can be measured again: each with the benchmark, the preset and the tolerance."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from sslbench import names, paths
from sslbench.config import build, read_yaml
from sslbench.errors import UsageError
from sslbench.leaderboard.model import Published
from sslbench.leaderboard.published import read_published
from sslbench.library.benchmarks import load_benchmark
from sslbench.library.presets import family_of
from sslbench.metrics.catalog import find
from sslbench.results import Result

_PROTOCOLS = "published/_protocols.yaml"


@dataclasses.dataclass(frozen=True)
class PublishedValue:
    """Value of one metric in a publication, and the largest difference of a correct run, both in records' units."""

    metric: str
    value: float
    tolerance: float


@dataclasses.dataclass(frozen=True)
class PublishedRun:
    """Published numbers of one network on one benchmark.

    Attributes:
        name: BENCHMARK/PRESET/WEIGHTS, as `--published` takes it.
        benchmark: that measures the same.
        preset: that runs the source's protocol; '': the benchmark itself does.
        weights: name of the weights in the source.
        backbone: name of the network in the source; '' where the benchmark fixes it.
        values: published values.
        source: paper or file.
        best_of_layers: True if the source reports the best of several layers.
    """

    name: str
    benchmark: str
    preset: str
    weights: str
    backbone: str
    values: tuple[PublishedValue, ...]
    source: str
    best_of_layers: bool = False


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Measured value beside the published one; `measured` is None where nothing was measured."""

    published: PublishedValue
    measured: float | None

    @property
    def agrees(self) -> bool:
        """True if the difference is within the tolerance."""
        return self.measured is not None and abs(self.measured - self.published.value) <= self.published.tolerance


@dataclasses.dataclass(frozen=True)
class _Protocol:
    protocol: str
    preset: str
    tolerance: float
    best_of_layers: bool = False


def published_runs() -> dict[str, PublishedRun]:
    """Return name -> published run, of all rows whose protocol has a preset, and of all references of benchmarks.

    Raises:
        UsageError: a file is wrong; the message names it.
    """
    found: dict[str, PublishedRun] = {}
    protocols = {(one.protocol, family_of(one.preset)): one for one in _protocols()}
    for row in read_published():
        protocol = protocols.get((row.protocol, family_of(row.benchmark)))
        if protocol is not None:
            _add(found, _of_row(row, protocol))
    for benchmark in names.list_names("benchmark"):
        for reference in load_benchmark(benchmark).reference:
            value = PublishedValue(reference.metric, reference.value, reference.tolerance)
            name = f"{benchmark}/{_slug(reference.weights)}"
            _add(found, PublishedRun(name, benchmark, "", reference.weights, "", (value,), reference.source))
    return found


def find_published(name: str) -> PublishedRun:
    """Return the published run of a name.

    Raises:
        UsageError: there is none, with the nearest names.
    """
    runs = published_runs()
    if name not in runs:
        near = names.did_you_mean(name, runs)
        raise UsageError(f"there is no published number called '{name}'", f"{near} All: sslbench list published")
    return runs[name]


def closest_layer(run: PublishedRun, results: Iterable[Result]) -> Result:
    """Return the result to compare: of several layers, the best by the first metric.

    Raises:
        UsageError: several layers were measured, and the source does not report the best of them.
    """
    found = list(results)
    if len(found) > 1 and not run.best_of_layers:
        raise UsageError(f"{run.name}: several layers were measured ({', '.join(r.layer for r in found)})")
    metric = run.values[0].metric
    sign = find(metric).sign
    return max(
        found, key=lambda result: sign * ((result.metrics[metric].value or 0.0) if metric in result.metrics else 0)
    )


def verdicts(run: PublishedRun, result: Result) -> list[Verdict]:
    """Return the published values beside those of a result."""
    return [
        Verdict(each, result.metrics[each.metric].value if each.metric in result.metrics else None)
        for each in run.values
    ]


def _protocols() -> list[_Protocol]:
    files = [root / _PROTOCOLS for root in paths.search_path("benchmarks")]
    return [one for file in reversed(files) if file.is_file() for one in _read(file)]


def _read(file: Path) -> list[_Protocol]:
    return [build(_Protocol, {**row, "preset": preset}, f"{file}: {preset}") for preset, row in read_yaml(file).items()]


def _of_row(row: Published, protocol: _Protocol) -> PublishedRun:
    value = PublishedValue(row.metric, row.value, protocol.tolerance)
    name = f"{row.benchmark}/{Path(protocol.preset).name}/{_slug(f'{row.weights} {row.backbone}')}"
    return PublishedRun(
        *(name, row.benchmark, protocol.preset, row.weights, row.backbone, (value,), row.source),
        best_of_layers=protocol.best_of_layers,
    )


def _add(found: dict[str, PublishedRun], run: PublishedRun) -> None:
    """Add a run, or its value to the run of the same name."""
    if run.name not in found:
        found[run.name] = run
        return
    before = found[run.name]
    if any(value.metric == run.values[0].metric for value in before.values):
        raise UsageError(f"benchmarks/published: {run.weights}, {run.backbone}: {run.benchmark} has two values")
    found[run.name] = dataclasses.replace(before, values=(*before.values, *run.values))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_+.]+", "-", text.lower()).strip("-")
