"""Contract of every training, preset and benchmark: one update or epoch is refused because of no default."""

import dataclasses
import importlib
import logging

import pytest
from helpers.offenders import offenders

from sslbench.config import resolve
from sslbench.errors import UsageError
from sslbench.library.benchmarks import load_benchmark
from sslbench.library.presets import load_preset
from sslbench.names import list_names
from sslbench.protocols import find, settings_layers, state_shortened

LENGTHS = ("epochs", "updates", "steps", "iterations", "max_epochs")


def lengths_of(protocol):
    """Return the settings that say how long a protocol trains."""
    fields = dataclasses.fields(find(protocol).settings)
    wholes = {field.metadata["part_of"] for field in fields}
    return [
        f.name
        for f in fields
        if f.name in LENGTHS and not f.metadata["part_of"] and (wholes - {""} or f.name != "iterations")
    ]


def settings_of(protocol, overrides, benchmark=None, preset=None):
    settings, origins = resolve(find(protocol).settings, settings_layers(protocol, benchmark, preset, overrides))
    if (check := find(protocol).check_settings) is not None:
        check(settings)
    return settings, origins


def starts_short(protocol, **named):
    for name in lengths_of(protocol):
        for length in (1, 2, 3):
            settings, _ = settings_of(protocol, {name: length}, **named)
            if name == "updates":
                module = importlib.import_module(f"sslbench.protocols.{protocol.replace('-', '_')}.recipe")
                for passes in (0.001, 1, 50):
                    factor = module.schedule(settings, passes)
                    assert all(0 <= factor(i / 10) <= 1 for i in range(11))


def test_every_protocol_starts_with_one_update_or_epoch():
    assert {p for p in list_names("protocol") if lengths_of(p)} >= {"finetune", "depth", "detection", "relative-pose"}
    assert offenders(list_names("protocol"), starts_short) == []


def test_every_preset_and_benchmark_starts_with_one_update_or_epoch():
    def of_preset(name):
        preset = load_preset(name)
        starts_short(preset.protocol, preset=preset)

    def of_benchmark(name):
        benchmark = load_benchmark(name)
        starts_short(benchmark.protocol, benchmark=benchmark)

    assert offenders(list_names("preset"), of_preset) == []
    assert offenders(list_names("benchmark"), of_benchmark) == []


@pytest.mark.parametrize("protocol", [p for p in list_names("protocol") if lengths_of(p)])
def test_what_was_shortened_is_said_and_what_the_user_typed_stays_or_is_refused(protocol, caplog):
    parts = {f.name: f for f in dataclasses.fields(find(protocol).settings) if f.metadata["part_of"]}
    numbers = {name: field.default for name, field in parts.items() if isinstance(field.default, int | float)}
    for name, default in numbers.items():
        whole = parts[name].metadata["part_of"]
        try:
            assert getattr(settings_of(protocol, {whole: 2, name: 5})[0], name) == 5
        except UsageError as error:
            assert name in error.message
        if not default:
            continue
        settings, origins = settings_of(protocol, {whole: 2})
        with caplog.at_level(logging.INFO, "sslbench"):
            state_shortened(protocol, settings, origins)
        assert f"{name}={getattr(settings, name)}" in caplog.text and "in proportion" in caplog.text


@pytest.mark.parametrize("protocol", ["finetune", "linear_online"])
def test_with_a_number_of_updates_parts_keep_their_share_of_the_epochs(protocol):
    recipe = importlib.import_module(f"sslbench.protocols.{protocol}.recipe")
    published = recipe.Settings(epochs=20, warmup_epochs=5, schedule="constant")
    alone = recipe.schedule(dataclasses.replace(published, updates=8), 0.01)
    assert [alone(i / 8) for i in range(4)] == pytest.approx([0, 0.5, 1, 1])
    drop = {"name": "multistep", "values": [1.0, 0.1], "milestones": [10]}
    later = recipe.schedule(dataclasses.replace(published, updates=8, warmup_epochs=0.0, schedule=drop), 400.0)
    assert [later(i / 8) for i in (3, 4)] == [1.0, 0.1]
