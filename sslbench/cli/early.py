"""Settings of a run, and the refusal of mistyped paths, names and values before torch is imported.

Names of other kinds, addresses, patterns and entries of the catalog are left to their readers.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from sslbench import paths
from sslbench.backbones.architectures import refuse_unknown_backbone
from sslbench.backbones.layer_spec import parse_stem
from sslbench.backbones.named import download_hint, is_pixels, pixels_backbone, random_backbone, refuse_unknown
from sslbench.cli.options import DataFlags, EncodingFlags, PreprocessingFlags, WeightsFlags, default_data
from sslbench.config import read_yaml, resolve
from sslbench.data import catalog
from sslbench.data.regular import refuse_empty_folder, refuse_missing, refuse_missing_file
from sslbench.errors import UsageError, WeightsError
from sslbench.evaluation.request import Request
from sslbench.evaluation.settings import RunSettings
from sslbench.library.recipes import compose
from sslbench.names import did_you_mean, from_file, list_names
from sslbench.protocols import find as find_protocol
from sslbench.runtime.resources import refuse_unknown_device
from sslbench.weights.format_name import EXPORTS, find_format
from sslbench.weights.reading.sniff import refuse_other_kind, refuse_path


def refuse_mistyped(
    weights: Sequence[str | None] = (),
    data: Sequence[str | None] = (),
    *,
    backbone: str | None = None,
    device: str | None = None,
) -> None:
    """Refuse weights, data, a --backbone and a --device that do not exist; None is skipped."""
    for word in weights:
        if word is None:
            continue
        if _is_plain(word) and word not in ("random", "pixels") and not Path(word).exists():
            if hint := download_hint(word):
                raise WeightsError(f"there is no weights file {word}", hint)
            refuse_path(Path(word))
        refuse_unknown(word)
    refuse_unknown_backbone(backbone)
    if device is not None:
        refuse_unknown_device(device)
    for spec in data:
        # A name of the catalog stands for a place that its reader checks.
        if spec and _is_plain(spec) and spec not in catalog.entries():
            refuse_missing(spec)
            refuse_empty_folder(spec)


def refuse_wrong_network(format: str | None, stem: str | None) -> None:
    """Refuse a --format and a --stem that do not exist."""
    if format is not None:
        find_format(format)
    if stem is not None:
        parse_stem(stem)


def check_network(
    weights: WeightsFlags,
    preprocessing: PreprocessingFlags,
    data: DataFlags | None = None,
    *,
    device: str | None = None,
) -> None:
    """Refuse flags on network, preprocessing and data that do not exist, are not possible or do not go together.

    Files that are no weights come last, since mistakes in the command are told before those in a file.
    """
    places = () if data is None else (data.data, data.test_data)
    refuse_mistyped([weights.weights], places, backbone=weights.backbone, device=device)
    refuse_wrong_network(weights.format, weights.stem)
    weights.layer_names()
    if weights.weights == "random":
        random_backbone(weights.backbone)
    elif is_pixels(weights.weights or ""):
        pixels_backbone(str(weights.weights), weights.backbone)
    preprocessing.check()
    refuse_other_files([weights.weights])


def checked_run(flags: EncodingFlags) -> RunSettings:
    """Return the settings of a run by its flags, after `check_network` and a check of them."""
    check_network(flags.weights, flags.preprocessing, flags.data, device=flags.run.device)
    return resolve_run({}, flags.run.settings)[0]


def request_of(flags: EncodingFlags, **changed: Any) -> Request:
    """Return the request of the flags for a network's features of images, without protocols."""
    values = {
        **flags.weights.loading(),
        **vars(flags.data),
        "tasks": (),
        "layers": flags.weights.layer_names(),
        "preprocessing": flags.preprocessing.values(),
        **changed,
    }
    return Request(**{**values, "data": values["data"] or default_data()})


def refuse_other_files(weights: Sequence[str | None]) -> None:
    """Refuse files that are no weights, by their first bytes, and folders; what does not exist is left out."""
    for word in weights:
        # Exported networks are refused by the commands, which say what to give instead.
        if word is not None and _is_plain(word) and Path(word).exists() and not word.endswith(EXPORTS):
            refuse_other_kind(Path(word))


def refuse_missing_files(*files: str | None) -> None:
    """Refuse files of embeddings or labels that do not exist; '?group=COLUMN' may follow their name."""
    for text in files:
        if text is not None and not Path(text).is_file():
            refuse_missing_file(Path(text.partition("?")[0]))


def _is_plain(text: str) -> bool:
    # Schemes, patterns and options behind '?' are resolved by the readers, which tell better what is wrong.
    return not set(text) & set(":*?[]{}~")


def route(values: Mapping[str, Any], run_keys: Sequence[str], protocols: Sequence[str]) -> "Routed":
    """Sort key=value into settings of the run and of each protocol; `knn.k=20` is for one protocol only.

    A setting that protocols share with the run, such as batch_size, is theirs; a flag, --batch-size, sets the run's.
    """
    run: dict[str, Any] = {}
    per_protocol: dict[str, dict[str, Any]] = {name: {} for name in protocols}
    fields = {name: {f.name for f in dataclasses.fields(find_protocol(name).settings)} for name in protocols}
    for key, value in values.items():
        prefix, _, rest = key.partition(".")
        if rest and (takers := [name for name in protocols if prefix in fields[name]]):  # d2.SOLVER.BASE_LR: a mapping
            for name in takers:
                per_protocol[name].setdefault(prefix, {})[rest] = value
            continue
        if prefix in fields and rest:
            if rest not in fields[prefix]:
                raise UsageError(f"{prefix} has no setting '{rest}'", nearest_setting(rest, fields[prefix]))
            per_protocol[prefix][rest] = value
            continue
        takers = [name for name in protocols if key in fields[name]]
        for name in takers:
            # Not set: knn.k=5 is stronger than k=10, in whichever order they are typed.
            per_protocol[name].setdefault(key, value)
        if key in run_keys and not takers:
            run[key] = value
        elif not takers:
            known = set(run_keys).union(*fields.values())
            raise UsageError(f"there is no setting '{key}' of {', '.join(protocols)}", nearest_setting(key, known))
    return Routed(run, per_protocol)


def nearest_setting(key: str, known: Collection[str]) -> str:
    """Return the remedy for a setting that does not exist: the other protocols that have it, or the nearest name."""
    having = [
        name
        for name in list_names("protocol")
        if any(field.name == key for field in dataclasses.fields(find_protocol(name).settings))
    ]
    return f"It is a setting of {', '.join(having)}." if having else did_you_mean(key, known)


@dataclasses.dataclass(frozen=True)
class Routed:
    """Settings of the run, and of each protocol."""

    run: dict[str, Any]
    protocols: dict[str, dict[str, Any]]


def resolve_run(values: Mapping[str, Any], flags: Mapping[str, Any]) -> tuple[RunSettings, dict[str, str]]:
    """Return the settings of a run, checked, with their origins; arguments as for `compose_run`."""
    settings, origins = resolve(RunSettings, compose_run(values, flags))
    settings.check()
    return settings, origins


def compose_run(values: Mapping[str, Any], flags: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the layers of run settings: configs/eval.yaml with its machine group, key=value, then flags."""
    values = dict(values)
    machine = str(values.pop("machine", "auto"))
    machines: dict[str, Path] = {}
    for folder in paths.search_path("configs"):
        for file in (folder / "machine").glob("*.yaml"):
            machines.setdefault(file.stem, file)
    if machine not in machines:
        raise UsageError(f"there is no machine called '{machine}'", did_you_mean(machine, machines))
    # Hydra merges the group into the values; --dry-run tells which of them are the machine's.
    in_machine = set(read_yaml(machines[machine], may_be_empty=True))
    base, _ = compose("eval", {"machine": machine})
    # A configuration file may not choose Python code: only what the user types is imported.
    if "decoder" in base:
        base["decoder"] = from_file(base["decoder"], f"configs/eval.yaml or machine/{machine}.yaml", "--decoder {}")
    return [
        ("configs/eval.yaml", {k: v for k, v in base.items() if k not in in_machine}),
        (f"machine={machine}", {k: v for k, v in base.items() if k in in_machine}),
        ("key=value", values),
        ("flag", dict(flags)),
    ]
