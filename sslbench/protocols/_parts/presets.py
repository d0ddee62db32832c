"""Differences between published ways to run a protocol, or between one and a record."""

import dataclasses
from pathlib import Path
from typing import Any

from sslbench import names
from sslbench.config import describe, resolve
from sslbench.errors import UsageError
from sslbench.library.presets import as_file_name, load_preset
from sslbench.protocols import find
from sslbench.results import plain
from sslbench.results.records import read

# In place of a preset's name: the protocol's own defaults, `knn/default`.
DEFAULT = "default"


@dataclasses.dataclass(frozen=True)
class Difference:
    """One value in which two presets differ; None where one of them has no such setting."""

    key: str
    a: Any
    b: Any


def full_settings(name: str) -> tuple[str, dict[str, Any]]:
    """Return the protocol of a preset and all settings, key -> value with the defaults filled in.

    `name`: 'knn/dino'; 'knn' or 'knn/default' for the protocol's own defaults.
    """
    protocols = names.list_names("protocol")
    protocol = name.removesuffix(f"/{DEFAULT}").replace("_", "-")
    presets = names.list_names("preset")
    if protocol in protocols:
        preset = None
    elif as_file_name(name) in presets or name.endswith(".yaml"):
        preset = load_preset(name)
        protocol = preset.protocol
    else:
        raise UsageError(f"there is no preset called '{name}'", names.did_you_mean(name, [*presets, *protocols]))
    settings = find(protocol).settings
    layers = [] if preset is None else [(f"preset {preset.name}", preset.settings)]
    values, _ = resolve(settings, layers)
    content: dict[str, Any] = {info.name: getattr(values, info.name) for info in describe(settings)}
    content["layers"] = list(preset.layers) if preset is not None and preset.layers else "the backbone's default"
    fixed = preset.preprocessing if preset is not None else {}
    content |= {f"preprocessing.{key}": value for key, value in fixed.items()}
    content["selects_on_test"] = preset is not None and preset.selects_on_test
    return protocol, content


def differences(a: str, b: str) -> list[Difference]:
    """Return the differences between two presets, protocols' defaults or records, settings first.

    A record has one layer and all values of its preprocessing: it differs from a preset in those that the preset fixes.
    Settings without effect on results, such as limits of memory, do not stand in records and are not compared.
    """
    (protocol_a, one), (protocol_b, other) = _settings(a, b), _settings(b, a)
    found = [Difference("protocol", protocol_a, protocol_b)] if protocol_a != protocol_b else []
    keys = list(dict.fromkeys([*one, *other]))
    if _is_record(a) or _is_record(b):
        keys = [key for key in keys if key in one and key in other]
    differing = [key for key in keys if plain(one.get(key)) != plain(other.get(key))]
    return found + [Difference(key, one.get(key), other.get(key)) for key in differing]


def _is_record(name: str) -> bool:
    return name.endswith(".json")


def _settings(name: str, other: str) -> tuple[str, dict[str, Any]]:
    """Return the protocol and settings of a preset or record, as they are compared with another one."""
    if _is_record(name):
        record = read(Path(name))
        content = {**record.protocol.settings, "layers": record.layer}
        content |= {f"preprocessing.{key}": value for key, value in record.preprocessing.items() if key != "origin"}
        return record.protocol.name, content
    protocol, content = full_settings(name)
    if _is_record(other):
        # The layer that the record has, if the preset evaluates it or fixes none; else the preset's layers.
        layers, evaluated = content["layers"], read(Path(other)).layer
        content["layers"] = evaluated if isinstance(layers, str) or evaluated in layers else layers
    return protocol, content
