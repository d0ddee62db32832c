"""Kills runs at random moments, continues them, and compares the weights with those of runs that nobody disturbed.

`PYTHONPATH=tests python -m helpers.kill_campaign --times 20 simclr moco swav dino --processes 1 --workers 2` prints a
line per method. Not part of the suite, which kills a run after a certain update (test_pretraining_kill.py).
"""

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

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


def start(method, out, *, processes=1, workers=0, limit=96, changes=None, pause_after=None):
    """Starts a run of so many processes, which pause after so many updates."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # as torchrun serves one to its processes
    options = {"workers": workers, "limit": limit, **(changes or {})}
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


def finish(started):
    """Waits for a run that nobody kills."""
    for process in started:
        process.join()
    if any(process.exitcode for process in started):
        raise SystemExit("the run failed")


def digest(out):
    """Hash of the final weights, bit for bit."""
    tensors = torch.load(out / "weights.torch", weights_only=True)["state_dict"]
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name].numpy().tobytes())
    return total.hexdigest()


def kill_once(method, out, how, seconds):
    """Starts a run and kills it after so many seconds; True if it was still running then."""
    started = start(method, out, **how)
    time.sleep(seconds)
    running = all(process.is_alive() for process in started)
    kill(started)
    return running and not (out / "weights.torch").exists()


def campaign(method, times, how, rng):
    """Runs and kills one method; seconds of a run, kills, runs resumed from a checkpoint, differences, leftovers."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        reference = root / "reference"
        began = time.monotonic()
        finish(start(method, reference, **how))
        seconds = time.monotonic() - began
        expected, kills, resumed, different, leftovers = digest(reference), 0, 0, 0, 0
        for number in range(times):
            out = root / f"killed{number}"
            before = kills
            while kills == before:  # a run that ended before it was killed says nothing, and begins again
                shutil.rmtree(out, ignore_errors=True)
                for _ in range(rng.choice([1, 1, 2])):
                    kills += kill_once(method, out, how, rng.uniform(0.05, 1.0) * seconds)
            resumed += bool(list(out.glob("checkpoints/step_*.ckpt")))
            finish(start(method, out, **how))
            different += digest(out) != expected
            leftovers += len([p for p in out.rglob("*") if ".part" in p.name])
        return seconds, kills, resumed, different, leftovers


def main():
    """The whole campaign; exit code 1 if any run ended differently."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng, wrong = random.Random(arguments.seed), 0
    for method in arguments.methods:
        how = {"processes": arguments.processes, "workers": arguments.workers, "limit": arguments.limit}
        seconds, kills, resumed, different, leftovers = campaign(method, arguments.times, how, rng)
        wrong += different + leftovers
        print(
            f"{method}: {arguments.processes} processes, {arguments.workers} workers, run of {seconds:.1f} s: "
            f"{kills} kills in {arguments.times} runs, {resumed} resumed from a checkpoint, {different} ended "
            f"with other weights, {leftovers} temporary files left",
            flush=True,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
