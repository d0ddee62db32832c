"""Evaluation protocols: one module or package each; `protocol.py` holds their interface."""

import logging
from collections.abc import Mapping
from typing import Any

from sslbench import names
from sslbench.backbones.views import WHOLE_IMAGES, WholeImages
from sslbench.config import shortened
from sslbench.errors import UsageError
from sslbench.library.benchmarks import Benchmark
from sslbench.library.presets import Preset
from sslbench.protocols.protocol import (
    Cost,
    FeatureInputs,
    FileClassifier,
    FileClassifierChoice,
    ImageInputs,
    ImageSet,
    Kind,
    NeededBenchmark,
    OnFeatures,
    OnImages,
    OnObjects,
    OnSets,
    Part,
    Protocol,
    Shapes,
)

__all__ = [
    "WHOLE_IMAGES",
    "Cost",
    "FeatureInputs",
    "FileClassifier",
    "FileClassifierChoice",
    "ImageInputs",
    "ImageSet",
    "Kind",
    "NeededBenchmark",
    "OnFeatures",
    "OnImages",
    "OnObjects",
    "OnSets",
    "Part",
    "Protocol",
    "Shapes",
    "WholeImages",
    "find",
    "settings_layers",
    "state_shortened",
]

log = logging.getLogger("sslbench")

_SHORTENED = "in proportion to the shorter training"

# Origin of settings, for messages, and their values.
SettingsLayer = tuple[str, Mapping[str, Any]]


def settings_layers(
    protocol: str, benchmark: Benchmark | None, preset: Preset | None, overrides: Mapping[str, Any]
) -> tuple[SettingsLayer, SettingsLayer, SettingsLayer, SettingsLayer]:
    """Return the settings of a benchmark, a preset, a shorter training and the user, weakest first, for `resolve`.

    The settings of a benchmark for another protocol than the preset's (linear, where the preset trains on images) do
    not fit it and are left out. The third are `config.shortened`: a warm-up in proportion, for instance.
    """
    fits = benchmark is not None and benchmark.protocol == protocol
    of_benchmark = (f"benchmark {benchmark.name}", benchmark.settings) if benchmark and fits else ("benchmark", {})
    of_preset = (f"preset {preset.name}", preset.settings) if preset is not None else ("preset", {})
    of_user = ("command line", overrides)
    parts = shortened(find(protocol).settings, [of_benchmark, of_preset, of_user])
    return of_benchmark, of_preset, (_SHORTENED, parts), of_user


def state_shortened(protocol: str, settings: Any, origins: Mapping[str, str]) -> None:
    """Log the settings that `settings_layers` fitted into a shorter training."""
    parts = [f"{name}={getattr(settings, name)}" for name, origin in origins.items() if origin == _SHORTENED]
    if parts:
        log.info(f"{protocol}: {', '.join(parts)}, {_SHORTENED}")


def find(name: str) -> Protocol[Any]:
    """Return the protocol in the module of that name: a built-in one, or a dotted path of the user's own.

    >>> find("knn").settings().temperature
    0.07
    """
    module = names.find_module("protocol", name)
    protocol = vars(module).get("PROTOCOL")
    if not isinstance(protocol, Protocol):
        raise UsageError(
            f"'{name}' ({module.__file__}) is not a protocol",
            "Add a line PROTOCOL = Protocol(...); see docs/extend/protocols.md.",
        )
    return protocol
