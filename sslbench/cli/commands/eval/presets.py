"""`sslbench eval --preset`: which protocol runs how, and what a preset asks of the request."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sslbench.library.presets import Preset, find_presets
from sslbench.preprocessing import Preprocessing

if TYPE_CHECKING:
    from sslbench.evaluation import Request, Task
    from sslbench.library.benchmarks import Benchmark


@dataclasses.dataclass(frozen=True)
class ProtocolRun:
    """Protocol to run: the module's name, and its preset.

    Attributes:
        named: the protocol as the user or a benchmark names it; a preset of its folder may be run by another module.
        protocol: the module that runs it.
        preset: None for the protocol's own defaults.
    """

    named: str
    protocol: str
    preset: Preset | None = None


def runs(protocols: Sequence[str], presets: Sequence[str], benchmarks: Sequence["Benchmark"]) -> list[ProtocolRun]:
    """Return the protocols to run, in order: each with every preset asked for it, else with its defaults.

    Raises:
        UsageError: see `presets.find_presets`.
    """
    named = list(dict.fromkeys(protocols or [benchmark.protocol for benchmark in benchmarks]))
    found = find_presets(presets, named)
    chosen = []
    for name in named or list(dict.fromkeys(preset.family for preset in found)):
        own = [preset for preset in found if name in (preset.family, preset.protocol)]
        # A typed protocol name that equals the preset's: only a typed name may select a module.
        chosen += [
            ProtocolRun(name, name if name == preset.protocol else preset.protocol, preset) for preset in own
        ] or [ProtocolRun(name, name)]
    return list({(run.protocol, run.preset.name if run.preset else ""): run for run in chosen}.values())


def layers_and_preprocessing(
    run: ProtocolRun,
    layers: tuple[str, ...],
    preprocessing: Mapping[str, Any],
    benchmark: "Benchmark | None" = None,
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the layers and the preprocessing of a run: the user's, else the preset's, else the benchmark's."""
    parts = [part for part in (run.preset, benchmark) if part is not None]
    chosen = layers or next((part.layers for part in parts if part.layers), ())
    merged: dict[str, Any] = {}
    for part in reversed(parts):
        merged |= part.preprocessing
    if "resize" in preprocessing:
        merged.pop("resized_side", None)
    merged |= preprocessing
    if "resize" in preprocessing and "crop" not in preprocessing:
        origin = next((part.name for part in parts if "crop" in part.preprocessing), "")
        size: dict[str, Any] = {key: merged.get(key) for key in ("resize", "squash", "crop")}
        size["resized_side"] = merged.get("resized_side", "shorter")
        Preprocessing(**size, origin=origin).refuse_unfilled_crop()
    return chosen, merged


def mark_changes(task: "Task", layers: tuple[str, ...], preprocessing: Mapping[str, Any]) -> "Task":
    """Return the task with preset and benchmark marked modified where layers or preprocessing differ from theirs."""
    preset, benchmark = task.preset, task.benchmark
    if preset is not None and _differs(preset, layers, preprocessing):
        preset = dataclasses.replace(preset, modified=True)
    if benchmark is not None and _differs(benchmark, layers, preprocessing):
        benchmark = dataclasses.replace(benchmark, modified=True)
    return dataclasses.replace(task, preset=preset, benchmark=benchmark)


def _differs(published: "Preset | Benchmark", layers: tuple[str, ...], preprocessing: Mapping[str, Any]) -> bool:
    """Return True for other layers or preprocessing than the published ones; what is not fixed may be any."""
    other_layers = bool(published.layers) and layers != published.layers
    fixed = published.preprocessing
    if isinstance(published, Preset):
        return other_layers or any(preprocessing.get(key) != value for key, value in fixed.items())
    return other_layers or dict(preprocessing) != fixed


def grouped(common: Mapping[str, Any], data: str, made: Sequence[tuple["Task", Any]]) -> list["Request"]:
    """Return requests for tasks with their (layers, preprocessing): tasks on the same images share one.

    Args:
        common: fields of all requests.
        data: place of the images.
        made: a task, and the (layers, preprocessing) it wants.
    """
    from sslbench.evaluation import Request

    together: list[tuple[Any, list[Task]]] = []
    for task, wanted in made:
        tasks = next((tasks for other, tasks in together if other == wanted), None)
        if tasks is None:
            together.append((wanted, [task]))
        else:
            tasks.append(task)
    return [
        Request(**common, data=data, tasks=tuple(tasks), layers=layers, preprocessing=preprocessing)
        for (layers, preprocessing), tasks in together
    ]
