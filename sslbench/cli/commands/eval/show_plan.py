"""Output of `--dry-run`: every effective setting with its origin."""

import dataclasses
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sslbench.cli.tables import section, show_value, together
from sslbench.data.wording import counted
from sslbench.evaluation import Prepared, check_features_for, estimate
from sslbench.evaluation.preparation import extract_settings, one_part, shared_part
from sslbench.features.extract import store_key
from sslbench.features.store import open_entry, what_changed
from sslbench.preprocessing import Preprocessing

if TYPE_CHECKING:
    from sslbench.evaluation import Request
    from sslbench.evaluation.estimate import Estimate
    from sslbench.evaluation.request import Task
    from sslbench.evaluation.settings import RunSettings
    from sslbench.features.external import FeaturePair
    from sslbench.library.benchmarks import Benchmark
    from sslbench.library.presets import Preset

_SELDOM = ("squash", "decoder", "max_pixels", "space", "resized_side", "scales")
"""Parts of the preprocessing that are shown where they are not the usual ones."""
_USUAL = Preprocessing()
_UNCHANGED = ("default", "configs/eval.yaml")
"""Origins of settings that nobody chose; they share a line."""


def print_plan(prepared: Prepared, run_origins: dict[str, str], store: Path, out: Path) -> None:
    """Print the plan of one evaluation; nothing has been decoded."""
    request, backbone, data = prepared.request, prepared.backbone, prepared.data
    loaded = backbone.report.line() if backbone.report else "nothing loaded"
    others = [(name, f"{other.name}, for comparison", "baseline") for name, other in prepared.baselines]
    section("weights", [(request.weights, f"{backbone.name}: {loaded}", ""), *others])
    read = request.as_read(backbone.preprocessing)
    rows = [
        (name, str(getattr(read, name)), _origin_of(request, name, origin))
        for name, origin in prepared.preprocessing_origins.items()
        if name not in _SELDOM or getattr(read, name) != getattr(_USUAL, name)
    ]
    libraries = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torchvision", "pillow"))
    antialiased = "" if read.interpolation == "nearest" else "resized with antialiasing; "
    how = f"decoded by {libraries}; {antialiased}0 to 1 before mean and std"
    section("preprocessing", [*rows, ("pixels", how, "")])
    fixed = [p for p in _published(request) if p.layers and p.layers == request.layers]
    given = _published_name(fixed[0]) if fixed else "flag --layers" if request.layers else "the backbone's default"
    given = given if prepared.classifier is None else "the classifier's"
    if prepared.layers:
        section("layers", [(layer.text, layer.path or "output", given) for layer in prepared.layers])
    sizes = [(part.name, f"{len(part)} images, {part.target.size_text()}", "") for part in (data.train, data.test)]
    noise = [("label noise", ", ".join(f"{100 * share:g} %" for share in request.noise), "flag --noise")]
    section("data", [*sizes, ("split", data.how, ""), *(noise if request.noise else [])])
    _print_tasks(request.tasks)
    trained = [task for task in request.tasks if task.kind.trains]
    if trained:
        section("trainings", [(task.protocol, _trainings(prepared), _of_floors(prepared)) for task in trained])
    _print_run(prepared.run, run_origins)
    if all(task.kind.needs_images for task in request.tasks):
        section(
            "features",
            [(part.name, "none: the protocol reads the images itself", "") for part in (data.train, data.test)],
        )
        _print_estimate_of(prepared, store, out)
        return
    rows = []
    data = one_part(data, shared_part(request.tasks))
    encoded = [data.test] if data.train is data.test else [data.train, data.test]
    sources = [(backbone, part) for part in (encoded if data.whole is None else [data.whole])]
    for sets in prepared.sets:
        sources += [
            (dataclasses.replace(backbone, preprocessing=each.preprocessing), each.source) for each in sets.values()
        ]
    for encoder, part in sources:
        key = store_key(encoder, part, extract_settings(prepared.run))
        entry = open_entry(store, key, part, backbone.name)
        missing = [layer.text for layer in prepared.layers if not entry.has(layer.text)]
        state = f"to be extracted: {', '.join(missing)}" if missing else "stored, no image will be decoded"
        changed = what_changed(store, key, part) if missing and not entry.layers() else {}
        rows.append((part.name, state, "; ".join(changed.values())))
    section("features", rows)
    _print_estimate_of(prepared, store, out)


def _print_estimate_of(prepared: Prepared, store: Path, out: Path) -> None:

    if prepared.run.estimate:
        _print_estimate(estimate.estimate(prepared, store, out))


def print_plan_of_features(
    pair: "FeaturePair", tasks: "Sequence[Task]", run: "RunSettings", run_origins: dict[str, str], out: Path
) -> None:
    """Print the plan of an evaluation of features that were made elsewhere."""
    check_features_for(pair, tasks, run)
    sizes = [
        (name, f"{len(part):,} x {part.x.shape[1]:,} {part.x.dtype}{labels}", "")
        for name, part in (("train", pair.train), ("test", pair.test))
        for of in [part.target]
        for labels in [f", {len(of.classes):,} classes, {of.name} label" if of.labelled else ""]
    ]
    section("features", [*sizes, ("split", pair.how, "")])
    _print_tasks(tasks)
    _print_run(run, run_origins)
    if run.estimate:
        _print_estimate(estimate.estimate_features(pair, tasks, run, out))


def _print_tasks(tasks: "Sequence[Task]") -> None:
    for task in tasks:
        settings = dataclasses.asdict(task.settings)
        parts = [f"{p.name} v{p.version}" for p in (task.benchmark, task.preset) if p is not None]
        name = f"{task.protocol} ({', '.join(parts)})" if parts else task.protocol
        rows = [(key, show_value(value), task.origins[key]) for key, value in settings.items()]
        section(name, together(rows, _UNCHANGED))


def _print_run(run: "RunSettings", origins: dict[str, str]) -> None:
    rows = [(key, show_value(value), origins[key]) for key, value in dataclasses.asdict(run).items()]
    section("run", together(rows, _UNCHANGED))


def _print_estimate(found: "Estimate") -> None:
    """Print time, memory and disk space of every stage, and refuse what does not fit."""
    rows = []
    for part in found.stages:
        words = ["not estimated" if part.seconds is None else estimate.time_text(part.seconds)]
        words += [f"{estimate.size_text(part.memory)} of memory"] if part.memory else []
        words += [f"{estimate.size_text(part.stored)} in the feature store"] if part.stored else []
        words += [f"{estimate.size_text(part.written)} of scores"] if part.written else []
        words += [f"at most {estimate.size_text(part.kept)} of decoded images in the cache folder"] if part.kept else []
        rows.append((part.name, ", ".join(words), part.remark))
    free = [] if found.free_memory is None else [f"{estimate.size_text(found.free_memory)} of memory"]
    free += [
        f"{estimate.size_text(found.free_store)} for features",
        f"{estimate.size_text(found.free_out)} for results",
    ]
    if any(part.seconds is not None for part in found.stages):
        # A sum that leaves parts out says so; the time of none at all would be 0 s.
        unknown = ", ".join(part.name for part in found.stages if part.seconds is None)
        rows.append(("in all", estimate.time_text(found.seconds), f"without {unknown}" if unknown else ""))
    rows.append(("free", ", ".join(free), ""))
    section("estimate, measured on this machine", rows)
    # Last: a refusal follows the numbers that explain it.
    found.check()


def _trainings(prepared: Prepared) -> str:
    """Return '3, with seeds 0 to 2'; each is repeated for every share of label noise."""
    run, noise = prepared.run, len(prepared.request.noise)
    text = "1" if run.seeds == 1 else f"{run.seeds}, with seeds {run.seed} to {run.seed + run.seeds - 1}"
    if run.only_seed is not None:
        text = f"1 of {run.seeds}, with seed {run.only_seed}"
    return f"{text}, for {noise + 1} shares of label noise each" if noise else text


def _of_floors(prepared: Prepared) -> str:
    if prepared.baselines:
        return f"as many again of {counted(len(prepared.baselines), 'baseline')}"
    return "as many again of the untrained backbone" if prepared.run.baseline and prepared.run.floors else ""


def _published(request: "Request") -> list["Preset | Benchmark"]:
    """Return the presets and benchmarks of a request, the stronger first."""
    presets = [task.preset for task in request.tasks if task.preset is not None]
    return [*presets, *(task.benchmark for task in request.tasks if task.benchmark is not None)]


def _published_name(published: "Preset | Benchmark") -> str:
    return f"{type(published).__name__.lower()} {published.name}"


def _origin_of(request: "Request", name: str, origin: str) -> str:
    """Return the origin of a value of the preprocessing: a preset or benchmark with that value, else the known one."""
    if name not in request.preprocessing:
        return origin
    value = request.preprocessing[name]
    # Not None for a missing value: a preset may fix None.
    return next((_published_name(p) for p in _published(request) if p.preprocessing.get(name, ...) == value), origin)
