"""Differences between published ways to run a protocol."""

import dataclasses
from typing import Any

from sslbench import names
from sslbench.config import describe, resolve
from sslbench.errors import UsageError
from sslbench.library.presets import as_file_name, load_preset
from sslbench.protocols import find

DEFAULT = "default"
"""In place of a preset's name: the protocol's own defaults, `knn/default`."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """One value in which two presets differ; None where one of them has no such setting."""

    key: str
    a: Any
    b: Any


def full_settings(name: str) -> tuple[str, dict[str, Any]]:
    """Return the protocol of a preset and all settings, key -> value with the defaults filled in.

    Args:
        name: 'knn/dino'; 'knn' or 'knn/default' for the protocol's own defaults.

    Raises:
        UsageError: no such preset or protocol, or a setting that the protocol does not have.
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
    """Return the differences between two presets (or a preset and a protocol's defaults), settings first.

    Raises:
        UsageError: see `full_settings`.
    """
    (protocol_a, one), (protocol_b, other) = full_settings(a), full_settings(b)
    found = [Difference("protocol", protocol_a, protocol_b)] if protocol_a != protocol_b else []
    keys = list(dict.fromkeys([*one, *other]))
    return found + [Difference(key, one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)]
