"""Settings of methods read from their source agree with the modules that import torch."""

import dataclasses
import typing

import pytest

from sslbench.config import describe
from sslbench.errors import UsageError
from sslbench.library.recipes import compose_pretraining
from sslbench.names import find_module, list_names
from sslbench.train.method_settings import declared_config


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
