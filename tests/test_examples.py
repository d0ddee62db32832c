"""The examples in docstrings (`>>>`) of all modules print what they show."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import sslbench

ROOT = Path(sslbench.__file__).parent
PARTS = [module.name for module in pkgutil.iter_modules([str(ROOT)])]


def with_examples(part):
    """Return the modules of a part of sslbench that have examples."""
    files = [ROOT / f"{part}.py", *(ROOT / part).rglob("*.py")]
    return sorted(
        ".".join(("sslbench", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for file in files
        if file.is_file() and ">>> " in file.read_text(encoding="utf-8")
    )


def test_there_are_examples():
    assert sum(len(with_examples(part)) for part in PARTS) > 180


@pytest.mark.parametrize("part", PARTS)
def test_examples(part):
    wrong, missing = [], set()
    for name in with_examples(part):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == "sslbench":
                raise
            missing.add(error.name)
            continue
        found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
        if found.failed or not found.attempted:
            wrong.append(f"{name}: {found}")
    assert wrong == []
    if missing:
        pytest.skip(f"{', '.join(sorted(missing))} not installed")
