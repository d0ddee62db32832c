"""Evaluation protocols: one module or package each; `protocol.py` holds their interface."""

from collections.abc import Mapping
from typing import Any

from sslbench import names
from sslbench.errors import UsageError
from sslbench.library.benchmarks import Benchmark
from sslbench.library.presets import Preset
from sslbench.protocols.protocol import (
    MAPS,
    FileClassifier,
    FileClassifierChoice,
    ImageSet,
    ImageWork,
    NotEstimated,
    OnFeatures,
    OnImages,
    OnObjects,
    OnSets,
    Protocol,
    Shapes,
    any_targets,
)

__all__ = [
    "MAPS",
    "FileClassifier",
    "FileClassifierChoice",
    "ImageSet",
    "ImageWork",
    "NotEstimated",
    "OnFeatures",
    "OnImages",
    "OnObjects",
    "OnSets",
    "Protocol",
    "Shapes",
    "any_targets",
    "find",
    "settings_layers",
]


SettingsLayer = tuple[str, Mapping[str, Any]]
"""Origin of settings, for messages, and their values."""


def settings_layers(
    protocol: str, benchmark: Benchmark | None, preset: Preset | None, overrides: Mapping[str, Any]
) -> tuple[SettingsLayer, SettingsLayer, SettingsLayer]:
    """Return the settings of a benchmark, a preset and the user, weakest first, for `config.resolve`.

    The settings of a benchmark for another protocol than the preset's (linear, where the preset trains on images) do
    not fit it and are left out.
    """
    fits = benchmark is not None and benchmark.protocol == protocol
    return (
        (f"benchmark {benchmark.name}", benchmark.settings) if benchmark is not None and fits else ("benchmark", {}),
        (f"preset {preset.name}", preset.settings) if preset is not None else ("preset", {}),
        ("command line", overrides),
    )


def find(name: str) -> Protocol[Any]:
    """Return the protocol in the module of that name: a built-in one, or a dotted path of the user's own.

    >>> find("knn").settings().temperature
    0.07

    Raises:
        UsageError: no such module, or it has no protocol.
    """
    module = names.find_module("protocol", name)
    protocol = vars(module).get("PROTOCOL")
    if not isinstance(protocol, Protocol):
        raise UsageError(
            f"'{name}' ({module.__file__}) is not a protocol",
            "Add a line PROTOCOL = Protocol(...); see CONTRIBUTING.md.",
        )
    return protocol
