"""A small world to evaluate in."""

import sys

import pytest
import torch


@pytest.fixture
def world(shared, tmp_path, monkeypatch):
    """The current folder, to be changed: photos/train, photos/test, tiny_net_of_the_tests.py, w.pth."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("tiny_net_of_the_tests", None)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    return shared.copy("photos", tmp_path)
