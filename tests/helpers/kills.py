"""Runs of pretraining in processes of their own that pause after an update, so that they can be killed there."""

import contextlib
import hashlib
import os
import shutil

import psutil
import torch
from torch.distributed import TCPStore  # noqa: TID251

from helpers import runs
from helpers.two_processes import FORKS
from sslbench.train.observers import Observer


class _PauseAfter(Observer):
    """Observer that says so after a number of updates, and waits until the process is killed or nobody listens."""

    def __init__(self, updates, listener):
        self.updates, self.listener = updates, listener

    def line(self, record):
        if record.step == self.updates:
            self.listener.send("paused")
            self.listener.recv()


def _run(environment, listener, pause_after, method, out, options):
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)  # sums depend on their number
    observers = [_PauseAfter(pause_after, listener)] if pause_after else []
    runs.run(method, out, observers=observers, **options)


def start(method, out, *, processes=1, pause_after=None, **options):
    """Starts a run of so many processes, which pause after so many updates."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # as torchrun serves one to its processes
    started = []
    for rank in range(processes):
        environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "LOCAL_RANK": str(rank)}
        environment |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        listener, there = FORKS.Pipe()
        given = ({**os.environ, **environment}, there, pause_after, method, str(out), options)
        process = FORKS.Process(target=_run, args=given)
        process.start()
        there.close()
        process.store, process.listener = store, listener  # served as long as the process is known
        started.append(process)
    return started


def wait_for_pause(started):
    """Wait until the first process of a run has paused as `start` was told."""
    try:
        assert started[0].listener.poll(600), "the run has not paused within 600 s"
        assert started[0].listener.recv() == "paused"
    except (AssertionError, EOFError):  # the end of the run
        kill(started)
        raise


def kill(started):
    """SIGKILL to all processes of a run, and to those that decode for them."""
    everybody = [psutil.Process(process.pid) for process in started if process.is_alive()]
    everybody += [child for process in everybody for child in process.children(recursive=True)]
    for one in everybody:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    for process in started:
        process.join()
        process.listener.close()


def leave_off(whole, step, out):
    """Make a folder as a run leaves it that ended without a word after a checkpoint; another run went on to the end."""
    (out / "checkpoints").mkdir(parents=True)
    shutil.copy(whole / "checkpoints" / f"step_{step:09d}.ckpt", out / "checkpoints")


def digest(out):
    """Hash of the final weights, bit for bit."""
    tensors = torch.load(out / "weights.torch", weights_only=True)["state_dict"]
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name].numpy().tobytes())
    return total.hexdigest()
