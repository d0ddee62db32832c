"""Runs that end in the middle, some killed without warning, and are continued: the weights are the same bit for bit."""

import time

import pytest
import torch
from helpers import kill_campaign, runs

from sslbench.train import checkpoints
from sslbench.train.observers import Observer


def killed(method, out, **how):
    """A run that was killed after its first checkpoint."""
    started = kill_campaign.start(method, out, **how)
    while all(process.poll() is None for process in started) and not checkpoints.files(out / "checkpoints"):
        time.sleep(0.005)
    kill_campaign.kill(started)
    assert checkpoints.files(out / "checkpoints") and not (out / "weights.torch").exists()


class _StoppedError(Exception):
    """End of a run by its observer."""


class _StopAfter(Observer):
    """Observer that ends a run after so many updates."""

    def __init__(self, updates):
        self.updates = updates

    def line(self, record):
        if record.step == self.updates:
            raise _StoppedError


@pytest.mark.parametrize("method", sorted(runs.METHODS))
def test_stopped_and_continued(method, tmp_path):
    undisturbed, out = runs.run(method, tmp_path / "undisturbed"), tmp_path / "stopped"
    with pytest.raises(_StoppedError):
        runs.run(method, out, observers=[_StopAfter(5)])
    assert checkpoints.files(out / "checkpoints") and not (out / "weights.torch").exists()
    outcome = runs.run(method, out)
    assert outcome.resumed_from is not None
    assert kill_campaign.digest(out) == kill_campaign.digest(undisturbed.weights.parent)


@pytest.mark.parametrize("method", ["deepclusterv2", "dino", "moco", "swav"])  # a memory, a centre, queues
def test_killed_and_continued(method, tmp_path):
    undisturbed = runs.run(method, tmp_path / "undisturbed")
    out = tmp_path / "killed"
    killed(method, out)
    outcome = runs.run(method, out)
    assert outcome.resumed_from is not None
    assert kill_campaign.digest(out) == kill_campaign.digest(undisturbed.weights.parent)
    assert not [path for path in out.rglob("*") if ".part" in path.name]


SHARDED = {"plain": {}, "fsdp": {"strategy": "fsdp"}, "zero": {"zero": True, "optimizer": {"name": "lars", "lr": 0.5}}}


@pytest.mark.parametrize("name", SHARDED)
def test_two_processes_are_killed_and_continued(name, tmp_path):
    """Also with parameters, gradients and optimizer state divided over the processes."""
    how = {"processes": 2, "workers": int(name == "plain"), "changes": SHARDED[name]}  # a worker imports torch, too
    kill_campaign.finish(kill_campaign.start("moco", tmp_path / "undisturbed", **how))
    killed("moco", tmp_path / "killed", **how)
    kill_campaign.finish(kill_campaign.start("moco", tmp_path / "killed", **how))
    assert kill_campaign.digest(tmp_path / "killed") == kill_campaign.digest(tmp_path / "undisturbed")


@pytest.fixture(scope="module")
def undisturbed_mae(tmp_path_factory):
    out = tmp_path_factory.mktemp("mae") / "undisturbed"
    kill_campaign.finish(kill_campaign.start("mae", out))
    return torch.load(out / "weights.torch", weights_only=True)["state_dict"]


@pytest.mark.parametrize(
    ("before", "after", "changes"), [(1, 2, {"strategy": "fsdp"}), (2, 1, {"strategy": "fsdp"}), (2, 1, {})]
)
def test_continued_by_another_number_of_processes(before, after, changes, undisturbed_mae, tmp_path):
    """Same images in every update: without BatchNorm the weights differ by rounding only."""
    out = tmp_path / "killed"
    killed("mae", out, processes=before, changes=changes)
    kill_campaign.finish(kill_campaign.start("mae", out, processes=after, changes=changes))
    found = torch.load(out / "weights.torch", weights_only=True)["state_dict"]
    assert found.keys() == undisturbed_mae.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, undisturbed_mae[name], rtol=1e-4, atol=1e-5)
