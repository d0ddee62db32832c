"""The package as sslbench finds it: entry points, examples in docstrings, records, and the message without it."""

import doctest
import importlib
import importlib.metadata
import pkgutil
import tomllib
from pathlib import Path

import pytest

import sslbench
import sslbench_visbench
from sslbench import names, protocols
from sslbench.errors import UsageError
from sslbench.metrics.catalog import find
from sslbench.targets import kinds

PROTOCOLS = {"low-level", "orientation", "relative-pose"}


def test_the_installed_entry_points_are_those_of_the_project_file():
    content = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    for group, entries in content["project"]["entry-points"].items():
        found = {name: entry.value for name, entry in names.installed(group.removeprefix("sslbench.")).items()}
        assert entries.items() <= found.items(), "install the plug-in again: pip install -e plugins/sslbench_visbench"


def test_protocols_targets_and_metrics_are_found_by_their_names():
    assert set(names.list_names("protocol")) >= PROTOCOLS and "camera-pairs" in names.list_names("source")
    assert {"signal", "orientation", "camera_pairs"} <= set(kinds())
    assert find("orientation_error").text == "degrees, less is better"


def test_examples():
    for module in pkgutil.iter_modules(sslbench_visbench.__path__, "sslbench_visbench."):
        assert doctest.testmod(importlib.import_module(module.name)).failed == 0, module.name


def test_a_record_names_the_plugin_and_its_version_in_place_of_a_digest(tmp_path):
    short = {"relative-pose": {"epochs": 1}}
    (result,) = sslbench.evaluate(
        "pixels", "rotations:textures:images", protocols="relative-pose", settings=short, limit=40, out=tmp_path
    )
    assert result.versions["sslbench_visbench"] == importlib.metadata.version("sslbench_visbench")
    assert result.protocol.code == "" and result.protocol.version == protocols.find("relative-pose").version


def test_without_the_plugin_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(names, "installed", lambda kind: {})
    monkeypatch.setattr(names, "modules", names.modules.__wrapped__)
    for name in PROTOCOLS:
        with pytest.raises(UsageError, match=r"no protocol called '.*'\n.*pip install ./plugins/sslbench_visbench"):
            protocols.find(name)
