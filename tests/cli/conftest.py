"""A small world to evaluate in, and the command line."""

import sys

import pytest
import torch

from sslbench.cli.main import main


@pytest.fixture
def world(shared, tmp_path, monkeypatch):
    """The current folder, to be changed: photos/train, photos/test, tiny_net_of_the_tests.py, w.pth."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("tiny_net_of_the_tests", None)
    torch.set_num_threads(1)
    torch.manual_seed(3)
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
