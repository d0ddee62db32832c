"""The examples in docstrings (`>>>`) of all modules print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import sslbench

ROOT = Path(sslbench.__file__).parent
MODULES = sorted(
    ".".join(("sslbench", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for file in ROOT.rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
)


def test_there_are_examples():
    assert len(MODULES) > 15


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "sslbench":
            raise
        pytest.skip(f"{error.name} is not installed")
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.attempted and not found.failed
