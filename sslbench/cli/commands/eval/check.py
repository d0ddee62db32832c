"""Check of a command of `sslbench eval`: names, spelling, settings and paths, before torch is imported."""

import dataclasses
import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sslbench.cli import early
from sslbench.cli.commands.eval.flags import EvalOptions, refuse_unused
from sslbench.cli.options import WeightsFlags
from sslbench.cli.remote_folder import local_folder
from sslbench.data.noise import check_values
from sslbench.errors import UsageError
from sslbench.evaluation.request import make_task, refuse_different_labels
from sslbench.evaluation.settings import RunSettings
from sslbench.evaluation.trainings import check_seeds
from sslbench.library.benchmarks import Benchmark, load_benchmark, load_suite
from sslbench.library.presets import Preset, find_presets
from sslbench.names import did_you_mean, list_names, plugin_remedy
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import find as find_protocol
from sslbench.runtime.folders import is_address, refuse_unwritable
from sslbench.runtime.resources import float_precision


@dataclasses.dataclass(frozen=True)
class ProtocolRun:
    """Protocol to run, and its preset.

    Attributes:
        named: the protocol as the user or a benchmark names it; a preset of its folder may be run by another module.
        protocol: the module that runs it.
        preset: None for the protocol's own defaults.
    """

    named: str
    protocol: str
    preset: Preset | None = None


@dataclasses.dataclass(frozen=True)
class CheckedCommand:
    """Names and settings of a command, all of which exist and are possible.

    Attributes:
        benchmarks: those named, and of a suite.
        runs: protocols to run.
        routed: settings that were typed.
        run: settings of the run.
        origins: setting of the run -> its origin, for the user.
    """

    benchmarks: Sequence[Benchmark]
    runs: Sequence[ProtocolRun]
    routed: early.Routed
    run: RunSettings
    origins: dict[str, str]


def check(ctx: click.Context, chosen: EvalOptions, names: Sequence[str], values: Mapping[str, Any]) -> CheckedCommand:
    """Refuse names, paths, options and settings that do not exist, are not possible or have no effect."""
    benchmarks = _benchmarks(chosen, names)
    runs = protocol_runs(names, chosen.presets, benchmarks)
    refuse_unused(ctx, chosen, [run.protocol for run in runs])
    run_keys = [field.name for field in dataclasses.fields(RunSettings)] + ["machine"]
    of_flags = chosen.protocol_settings()
    # Otherwise the flag would win silently, whatever the words say.
    if twice := next((key for key in of_flags if key in values), None):
        raise UsageError(f"{twice} is given twice, as a flag and as {twice}=", "Give one of them.")
    routed = early.route({**values, **of_flags}, run_keys, list(dict.fromkeys(run.protocol for run in runs)))
    run, origins = early.resolve_run(routed.run, chosen.run_settings())
    _refuse_wrong_settings(benchmarks, runs, routed, run)
    if chosen.features is not None:
        if not chosen.labels and any(find_protocol(run.protocol).kind.needs_labels for run in runs):
            form = "an array, or a table with a column 'label', one line per row of the features"
            own = f" A file that sslbench extract wrote has both: --labels {chosen.features}."
            with_labels = chosen.features.endswith((".npz", ".parquet", ".h5"))
            raise UsageError(
                f"--features needs --labels: {form}", f"Protocols that need none: geometry.{own if with_labels else ''}"
            )
        early.refuse_missing_files(chosen.features, chosen.labels, chosen.test_features, chosen.test_labels)
    else:
        _check_weights_and_images(chosen, benchmarks, runs, run)
    return CheckedCommand(benchmarks, runs, routed, run, origins)


def _check_weights_and_images(
    chosen: EvalOptions, benchmarks: Sequence[Benchmark], runs: Sequence[ProtocolRun], run: RunSettings
) -> None:
    if not is_address(chosen.out):
        refuse_unwritable(local_folder(chosen.out))
    # A benchmark may mix protocols with and without int8, which are told one by one later.
    if not benchmarks and not all(find_protocol(run.protocol).kind.on_features for run in runs):
        float_precision(run.precision)
    check_values(chosen.noise_shares())
    if not chosen.weights:
        raise UsageError(
            "--weights is missing",
            "Give a weights file; 'random' with --backbone for an untrained network; 'pixels' for raw pixels.",
        )
    # One bad file of several is a hole among the results, and of a folder only its readers know the files.
    weights = expand(chosen.weights)
    alone = weights[0] if len(weights) == 1 and not Path(weights[0]).is_dir() and not chosen.suite else None
    network = WeightsFlags(**vars(chosen.network), weights=alone)
    early.check_network(network, chosen.preprocessing, chosen.data, device=chosen.run.device)


def _refuse_wrong_settings(
    benchmarks: Sequence[Benchmark], runs: Sequence[ProtocolRun], routed: early.Routed, run_settings: RunSettings
) -> None:
    """Refuse impossible settings, protocols without common data, several trainings of protocols that train nothing."""
    tasks = []
    for run in runs:
        protocol = find_protocol(run.protocol)
        own: list[Benchmark | None] = [each for each in benchmarks if each.protocol == run.named]
        for benchmark in own or [None]:
            tasks.append(make_task(run.protocol, routed.protocols[run.protocol], benchmark, run.preset))
            protocol.check_settings(tasks[-1].settings)
    if not benchmarks:
        refuse_different_labels(task.protocol for task in tasks)
    if not any(task.kind.trains for task in tasks):  # with others, those that train may be several requests
        check_seeds(run_settings, tasks)


def _benchmarks(chosen: EvalOptions, names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks of --benchmark and --suite; without any, protocols or presets are run on --data."""
    known = list_names("protocol")
    for name in names:
        if name not in known and "." not in name:
            remedy = plugin_remedy(name) or did_you_mean(name, known)
            raise UsageError(f"there is no protocol called '{name}'", remedy)
    suite = load_suite(chosen.suite) if chosen.suite else ()
    benchmarks = [load_benchmark(name) for name in [*chosen.benchmarks, *suite]]
    named = [each.protocol for each in benchmarks if each.protocol in known]  # others are code, which a user types
    alone = [protocol for protocol in named if find_protocol(protocol).kind.on_objects]
    if alone and not chosen.suite and (others := [name for name in names if name not in alone]):
        raise UsageError(
            f"{alone[0]} trains a network and cannot go together with {', '.join(others)}", "Run sslbench eval twice."
        )
    for name in names if not benchmarks else ():
        if (needed := find_protocol(name).benchmark) is not None:
            # A protocol that is not run without a benchmark gets its own where no data are given.
            if others := [other for other in names if other != name]:
                raise UsageError(
                    f"{name} trains a network and cannot go together with {', '.join(others)}",
                    "Run sslbench eval twice.",
                )
            if chosen.data.data:
                there = ", ".join(each for each in list_names("benchmark") if each.startswith(f"{name}/"))
                raise UsageError(f"--benchmark, {needed.content}, is missing", f"{needed.advice} Benchmarks: {there}.")
            return [load_benchmark(needed.default)]
    if not benchmarks and not names and not chosen.presets:
        raise UsageError("no protocol is named: give a protocol, a --preset or a --benchmark", did_you_mean("", known))
    if benchmarks and names:
        benchmarks = [b for b in benchmarks if b.protocol in names]
        if not benchmarks:
            raise UsageError(f"none of the requested benchmarks uses the protocol {' or '.join(names)}")
    return benchmarks


def protocol_runs(
    protocols: Sequence[str], presets: Sequence[str], benchmarks: Sequence[Benchmark]
) -> list[ProtocolRun]:
    """Return the protocols to run, in order: each with every preset asked for it, else with its defaults."""
    named = list(dict.fromkeys(protocols or [benchmark.protocol for benchmark in benchmarks]))
    found = find_presets(presets, named)
    chosen = []
    for name in named or list(dict.fromkeys(preset.family for preset in found)):
        own = [preset for preset in found if name in (preset.family, preset.protocol)]
        # A typed protocol name that equals the preset's: only a typed name may select a module.
        chosen += [
            ProtocolRun(name, name if name == preset.protocol else preset.protocol, preset) for preset in own
        ] or [ProtocolRun(name, name)]
    # A preset asked for by two of its protocols' names would otherwise run twice.
    return list({(run.protocol, run.preset.name if run.preset else ""): run for run in chosen}.values())


def layers_and_preprocessing(
    run: ProtocolRun, layers: tuple[str, ...], preprocessing: Mapping[str, Any], benchmark: Benchmark | None = None
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the layers and the preprocessing of a run: the user's, else the preset's, else the benchmark's."""
    parts = [part for part in (run.preset, benchmark) if part is not None]
    chosen = layers or next((part.layers for part in parts if part.layers), ())
    merged: dict[str, Any] = {}
    # The preset is the stronger, so its values come last.
    for part in reversed(parts):
        merged |= part.preprocessing
    if "resize" in preprocessing:
        # It says which side the preset's size is of, and means nothing for another size.
        merged.pop("resized_side", None)
    merged |= preprocessing
    if "resize" in preprocessing and "crop" not in preprocessing:
        origin = next((part.name for part in parts if "crop" in part.preprocessing), "")
        size: dict[str, Any] = {key: merged.get(key) for key in ("resize", "squash", "crop")}
        size["resized_side"] = merged.get("resized_side", "shorter")
        # A crop of a preset that is larger than the user's resize would be padded with black.
        Preprocessing(**size, origin=origin).refuse_unfilled_crop()
    return chosen, merged


_URL = re.compile(r"[A-Za-z][\w+.-]*://")
"""Beginning of an address, in which '?' and '=' belong to a query."""


def expand(weights: Sequence[str]) -> list[str]:
    """Return the weights with patterns such as 'runs/*/weights.torch' expanded, each once."""
    found: list[str] = []
    for word in weights:
        # A file may have brackets in its own name.
        if not any(character in word for character in "*?[") or _URL.match(word) or Path(word).exists():
            found.append(word)
            continue
        matches = sorted(glob.glob(word, recursive=True))  # noqa: PTH207 - the pattern may be absolute
        if not matches:
            raise UsageError(f"--weights {word}: no file matches this pattern")
        found += matches
    return list(dict.fromkeys(found))
