"""Settings of methods read from their source agree with the modules that import torch."""

import dataclasses
import typing
from contextlib import nullcontext
from pathlib import Path

import pytest

from sslbench.config import build, describe
from sslbench.errors import UsageError
from sslbench.library.recipes import compose_pretraining
from sslbench.names import find_module, list_names
from sslbench.train.method_settings import declared_config

METHODS = Path(find_module("method", "simclr").__file__).parent


@pytest.mark.parametrize("recipe", list_names("method"))
def test_declared_settings_are_those_of_the_method(recipe):
    name = compose_pretraining(recipe, {}, {}).values["method"]["name"]
    config, declared = find_module("method", name).Config, declared_config(name)
    assert describe(declared) == describe(config)
    assert typing.get_type_hints(declared) == typing.get_type_hints(config)
    assert declared() == declared(**dataclasses.asdict(config()))


def test_methods_of_the_user_are_not_read_and_unknown_ones_refused():
    assert declared_config("tests.own_method") is None
    with pytest.raises(UsageError, match="Did you mean 'simclr'"):
        declared_config("simclrr")
    with pytest.raises(UsageError, match="there is no Python module"):
        declared_config("nosuch.method")


def numbers(kind):
    """Whether a type is a number, or a list of numbers."""
    return kind in (int, float) or any(numbers(part) for part in typing.get_args(kind))


@pytest.mark.parametrize("name", sorted(path.stem for path in METHODS.glob("[a-z]*.py")))
def test_every_number_has_an_interval_beyond_which_it_is_refused(name):
    config = declared_config(name)
    hints, given = typing.get_type_hints(config), {}
    for field in dataclasses.fields(config):
        given |= {field.name: "w.torch"} if field.metadata["required"] else {}
    build(config, given, "the defaults")
    for field in dataclasses.fields(config):
        if not numbers(hints[field.name]):
            assert field.metadata["within"] == ""
            continue
        assert field.metadata["within"], f"{field.name} has no interval"
        for number in [-1, 2] if field.metadata["within"].endswith((" 1]", " 1)")) else [-1]:
            several = typing.get_origin(hints[field.name]) is tuple
            value = (number,) * max(len(field.default), 1) if several else number
            with pytest.raises(UsageError, match=f"method: {field.name} should be .*, not {number}"):
                build(config, {**given, field.name: value}, "method")


def test_ends_of_intervals_and_numbers_that_are_none():
    config = declared_config("pirl")
    for value in (0.0, 1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="patches_weight should be above 0 and below 1, not") as refused:
            build(config, {"patches_weight": value}, "method")
        assert "Default: 0.5." in refused.value.remedy
        with pytest.raises(UsageError, match="temperature should be above 0") if value != 1 else nullcontext():
            build(config, {"temperature": value}, "method")
    with pytest.raises(UsageError, match="momentum should be from 0 to below 1, not 1"):
        build(config, {"momentum": 1.0}, "method")
    assert build(config, {"momentum": 0.0}, "method").momentum == 0
    assert build(declared_config("dcl"), {"sigma": None}, "method").sigma is None
    with pytest.raises(UsageError, match="teacher is missing"):
        build(declared_config("distillation"), {}, "method")
