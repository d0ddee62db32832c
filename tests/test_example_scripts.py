"""The scripts in examples/ run as they are, on data that come with the libraries, and print a score."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_four():
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_a_script_runs(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(script.parent))  # as `python examples/NAME.py` has it
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")
    assert re.search(r"\d\d\.\d", capsys.readouterr().out)
