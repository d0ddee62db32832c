"""A tiny world: pictures, weights, a trained SimCLR, records. Each part is made once per test run, for reading only.

    def test_something(shared, tmp_path):
        folder = shared("simclr")  # made by the first test of the run that asks for it
        shared.copy("photos", tmp_path)  # to be changed

A part is a function below, which writes into an empty folder. All processes of pytest-xdist share them. What changes a
part in place makes the run fail at its end. Shipped settings are composed once per process, for the same reason.
"""

import contextlib
import copy
import io
import shutil
import sys

import pytest
from helpers.coloured_pictures import write_pictures

from sslbench import paths
from sslbench.cli import early
from sslbench.library import recipes
from sslbench.locks import lock

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
OWN_NET = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net")
EVAL = ("eval", "knn", "lsr", *OWN_NET, "--data", "photos", "knn.k=3", "--no-floors", "--no-overlaps")
SIMCLR = (
    *("pretrain", "simclr", "augment=digits", "augment.size=16", "batch_size=16", "method.projector=[32,16]"),
    *("log_every=1", "schedule.warmup_epochs=0", "--backbone", "resnet18w0.125", "--limit", "48"),
    *("--workers", "0", "--device", "cpu", "--epochs", "2"),
)


def photos(folder):
    """photos/train and photos/test: three classes; tiny_net_of_the_tests.py and its weights w.pth."""
    import torch

    write_pictures(folder / "photos" / "train", 12)
    write_pictures(folder / "photos" / "test", 5, seed=1)
    (folder / "tiny_net_of_the_tests.py").write_text(NET)
    names = {"__name__": "tiny_net_of_the_tests"}
    exec(NET, names)  # noqa: S102 - an import would be found again by tests that have a copy
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        state = names["net"]().state_dict()
    torch.save({"state_dict": {f"module.{key}": tensor for key, tensor in state.items()}}, folder / "w.pth")


def weights(folder):
    """NAME.pth: state dicts of small ResNets in torchvision's names, of seed 0."""
    import torch

    from sslbench.backbones.build import build

    for name in ("resnet18w0.125", "resnet18w0.25", "resnet50w0.125"):
        torch.save(build(name).module.state_dict(), folder / f"{name}.pth")


def simclr(folder):
    """a/: run of SimCLR on digits, six updates, by the command SIMCLR --out a."""
    _command(folder, *SIMCLR, "--out", "a")


def records(folder):
    """photos, and results/ of kNN and least squares on them."""
    photos(folder)
    _command(folder, *EVAL)


PARTS = {part.__name__: part for part in (photos, weights, simclr, records)}


class Shared:
    """Parts that are there, and the state in which they should stay."""

    def __init__(self, root):
        self.root, self.states = root, {}

    def __call__(self, name):
        """The folder of a part."""
        folder, done = self.root / name, self.root / f"{name}.done"
        if name not in self.states:
            self.root.mkdir(exist_ok=True)
            with (self.root / f"{name}.lock").open("w") as file:
                lock(file)
                if not done.exists():
                    shutil.rmtree(folder, ignore_errors=True)  # half of it, by a process that was killed
                    folder.mkdir()
                    PARTS[name](folder)
                    for path in folder.rglob("*"):
                        path.chmod(0o555 if path.is_dir() else 0o444)
                    done.touch()
            self.states[name] = _state(folder)
        return folder

    def copy(self, name, to):
        """Copy a part into a folder that is there, to be changed."""
        source = self(name)
        for path in sorted(source.rglob("*")):
            place = to / path.relative_to(source)
            place.mkdir() if path.is_dir() else shutil.copyfile(path, place)
        return to


def _state(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def _command(folder, *given):
    from sslbench.cli.main import main

    errors = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        sys.modules.pop("tiny_net_of_the_tests", None)  # an earlier test's, whose file is gone
        sys.path.insert(0, str(folder))
        try:
            main(list(given))
        except SystemExit as end:
            assert end.code == 0, errors.getvalue()
        finally:
            sys.path.remove(str(folder))
            sys.modules.pop("tiny_net_of_the_tests", None)


@pytest.fixture(scope="session")
def shared(run_folder):
    """`shared(part)`: its folder."""
    found = Shared(run_folder / "world")
    yield found
    changed = [name for name, state in found.states.items() if _state(found.root / name) != state]
    assert not changed, f"tests have changed what they share: {changed}"


@pytest.fixture
def world(shared, tmp_path, monkeypatch):
    """The current folder, to be changed: photos/train, photos/test, tiny_net_of_the_tests.py, w.pth."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("tiny_net_of_the_tests", None)
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(3)
    return shared.copy("photos", tmp_path)


@pytest.fixture(scope="session", autouse=True)
def composed_once():
    """Shipped settings are composed once: Hydra takes longer than the rest of a small command."""
    compose, found = recipes.compose, {}

    def remembered(config, choices):
        folders = paths.search_path("configs")
        if len(folders) > 1:  # files of a test's own
            return compose(config, choices)
        key = (config, *choices.items(), *folders)
        if key not in found:
            found[key] = compose(config, choices)
        return copy.deepcopy(found[key])

    with pytest.MonkeyPatch.context() as patch:
        for module in (recipes, early):
            patch.setattr(module, "compose", remembered)
        yield
