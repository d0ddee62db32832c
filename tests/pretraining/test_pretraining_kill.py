"""Runs that end in the middle, some killed without warning, and are continued: the weights are the same bit for bit.

Once per kind of state; test_contract_methods.py shows for every method that its checkpoint holds all of its state.
"""

import os
import signal

import pytest
import torch
from helpers import kills, runs, two_processes
from helpers.small_methods import one_per_kind_of_state

from sslbench.runtime.signals import StoppedError
from sslbench.train.observers import Observer
from sslbench.weights.reading.folders import checkpoint_files

SMALL = {"limit": 48, "epochs": 2}  # 6 updates; every second one is saved
STOP = 5
"""Update after which runs end: neither the end of an epoch nor one that is saved."""
EPOCH = 3
"""Update after which two processes end that are told to before it: the end of an epoch, not one that is saved."""


@pytest.fixture(autouse=True)
def on_one_thread():
    """Sums depend on the number of threads; processes of their own have one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class _FailedError(Exception):
    """End of a run by its observer."""


def fail():
    raise _FailedError


class _StopAfter(Observer):
    """Observer that ends a run after so many updates."""

    def __init__(self, updates, act=fail):
        self.updates, self.act = updates, act

    def line(self, record):
        if record.step == self.updates:
            self.act()


def run(method, out, *observers, **changes):
    """Run on; return the update that it continued from."""
    return runs.run(method, out, observers=observers, **changes, **SMALL).resumed_from


def together(method, out, stop=None, **changes):
    """Run on by two processes, with `stop` until the end of the epoch in which the first one is told to stop."""
    first, second = two_processes.run(run_together, method, out, stop, changes)
    assert first == second
    return first


def run_together(rank, method, out, stop, changes):
    observers = [_StopAfter(stop, lambda: os.kill(os.getpid(), signal.SIGTERM))] if stop else []
    try:
        return run(method, out, *observers, **changes)
    except StoppedError as stopped:
        return str(stopped)


def killed(method, out, **how):
    """A run that was killed after its first checkpoints."""
    started = kills.start(method, out, pause_after=STOP, **SMALL, **how)
    kills.wait_for_pause(started)
    kills.kill(started)
    assert checkpoint_files(out / "checkpoints") and not (out / "weights.torch").exists()


def test_one_method_per_kind_of_state_is_stopped_and_continued(tmp_path):
    differing, methods = [], one_per_kind_of_state()
    for method in methods:
        undisturbed, out = tmp_path / method / "undisturbed", tmp_path / method / "stopped"
        run(method, undisturbed)
        kills.leave_off(undisturbed, STOP - 1, out)
        assert run(method, out) == STOP - 1
        differing += [method] if kills.digest(out) != kills.digest(undisturbed) else []
    assert differing == [] and len(methods) >= 6


@pytest.mark.long  # in short: test_two_runs_in_one_folder_exclude_each_other kills one, too
@pytest.mark.parametrize("method", ["deepclusterv2", "dino", "moco", "swav"])
def test_killed_and_continued(method, tmp_path):
    """A memory, a centre, a queue of all processes, and one of each process."""
    out = tmp_path / "killed"
    run(method, tmp_path / "undisturbed")
    killed(method, out)
    assert run(method, out) == STOP - 1
    assert kills.digest(out) == kills.digest(tmp_path / "undisturbed")
    assert not [path for path in out.rglob("*") if ".part" in path.name]


SHARDED = {"plain": {}, "fsdp": {"strategy": "fsdp"}, "zero": {"zero": True, "optimizer": {"name": "lars", "lr": 0.5}}}


@pytest.mark.parametrize("name", SHARDED)
def test_two_processes_are_stopped_and_continued(name, tmp_path):
    """Also with parameters, gradients and optimizer state divided over the processes."""
    together("moco", tmp_path / "undisturbed", **SHARDED[name])
    told = together("moco", tmp_path / "stopped", EPOCH - 1, **SHARDED[name])
    assert told.startswith(f"stopped by signal 15 after update {EPOCH} of 6")
    assert together("moco", tmp_path / "stopped", **SHARDED[name]) == EPOCH
    assert kills.digest(tmp_path / "stopped") == kills.digest(tmp_path / "undisturbed")


@pytest.mark.parametrize(
    "name", ["fsdp", pytest.param("plain", marks=pytest.mark.long), pytest.param("zero", marks=pytest.mark.long)]
)
def test_two_processes_are_killed_and_continued(name, tmp_path):
    """With fsdp while shards may still be written in the background."""
    workers = int(name == "plain")  # each imports torch, too
    together("moco", tmp_path / "undisturbed", workers=workers, **SHARDED[name])
    killed("moco", tmp_path / "killed", processes=2, workers=workers, **SHARDED[name])
    assert together("moco", tmp_path / "killed", workers=workers, **SHARDED[name]) in (2, STOP - 1)
    assert kills.digest(tmp_path / "killed") == kills.digest(tmp_path / "undisturbed")


@pytest.fixture(scope="module")
def undisturbed_mae(tmp_path_factory):
    out = tmp_path_factory.mktemp("mae") / "undisturbed"
    run("mae", out)
    return torch.load(out / "weights.torch", weights_only=True)["state_dict"]


@pytest.mark.parametrize(
    ("before", "after", "changes"), [(1, 2, {"strategy": "fsdp"}), (2, 1, {"strategy": "fsdp"}), (2, 1, {})]
)
def test_continued_by_another_number_of_processes(before, after, changes, undisturbed_mae, tmp_path):
    """Same images in every update: without BatchNorm the weights differ by rounding only."""
    out = tmp_path / "stopped"
    if before == 1:
        with pytest.raises(_FailedError):
            run("mae", out, _StopAfter(STOP), **changes)
        assert together("mae", out, **changes) == STOP - 1
    else:
        together("mae", out, EPOCH - 1, **changes)
        assert run("mae", out, **changes) == EPOCH
    found = torch.load(out / "weights.torch", weights_only=True)["state_dict"]
    assert found.keys() == undisturbed_mae.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, undisturbed_mae[name], rtol=1e-4, atol=1e-5)
