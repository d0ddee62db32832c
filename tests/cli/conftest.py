"""A small world to evaluate in: a folder of pictures, a network of the user's own and its weights."""

import pytest
import torch
from helpers.coloured_pictures import write_pictures

from sslbench.cli.main import main

NET = """
import torch
from torch import nn


class Net(nn.Module):
    preprocessing = {"resize": [16, 16], "crop": None}

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 12, 3, 2, 1)

    def forward(self, x):
        return self.conv2(torch.relu(self.bn1(self.conv1(x)))).mean((2, 3))


def net():
    return Net()
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    """The current folder: photos/train, photos/test, my_net.py, w.pth."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    write_pictures(tmp_path / "photos" / "train", 12)
    write_pictures(tmp_path / "photos" / "test", 5, seed=1)
    (tmp_path / "tiny_net_of_the_tests.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    import sys

    sys.modules.pop("tiny_net_of_the_tests", None)
    from tiny_net_of_the_tests import net

    torch.manual_seed(3)
    torch.save({"state_dict": {f"module.{k}": v for k, v in net().state_dict().items()}}, tmp_path / "w.pth")
    return tmp_path


@pytest.fixture
def sslbench(capsys):
    """Runs the command line in this process: (exit code, stdout, stderr)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run
