"""A small world to evaluate in, and the command line."""

import copy
import sys

import pytest
import torch

from sslbench import paths
from sslbench.cli import words
from sslbench.cli.main import main
from sslbench.library import recipes

_composed = {}


@pytest.fixture(scope="module", autouse=True)
def composed_once():
    """Shipped settings are composed once: Hydra takes as long as the rest of a small command."""
    compose = recipes.compose

    def remembered(config, choices):
        if len(paths.search_path("configs")) > 1:  # files of a test's own
            return compose(config, choices)
        key = (config, *choices.items())
        if key not in _composed:
            _composed[key] = compose(config, choices)
        return copy.deepcopy(_composed[key])

    with pytest.MonkeyPatch.context() as patch:
        for module in (recipes, words):
            patch.setattr(module, "compose", remembered)
        yield


@pytest.fixture
def world(shared, tmp_path, monkeypatch):
    """The current folder, to be changed: photos/train, photos/test, tiny_net_of_the_tests.py, w.pth."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("tiny_net_of_the_tests", None)
    torch.set_num_threads(1)
    return shared.copy("photos", tmp_path)


@pytest.fixture
def sslbench(capsys):
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run
