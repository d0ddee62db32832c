"""Kills runs at random moments, continues them, and compares the weights with those of runs that nobody disturbed.

`python tests/pretraining/kill_campaign.py --times 20 simclr moco swav dino --processes 1 --workers 2` prints a line per
method. Not part of the suite, which kills each method once (test_pretraining_kill.py).
"""

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

import psutil
import runs
import torch


def start(method, out, *, processes=1, workers=0, limit=96, changes=None):
    """Starts a run of so many processes; forked, so that none of them has to import torch first."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    started = []
    for rank in range(processes):
        environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        environment |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "LOCAL_RANK": str(rank)}
        arguments = {"limit": limit, "workers": workers, **(changes or {})}
        started.append(context.Process(target=_run, args=(method, out, environment, arguments)))
    for process in started:
        process.start()
    return started


def _run(method, out, environment, arguments):
    """One process; on one thread, since sums depend on their number."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    runs.run(method, out, **arguments)


def kill(started):
    """SIGKILL to all processes of a run, and to those that decode for them."""
    everybody = [psutil.Process(process.pid) for process in started]
    everybody += [child for process in everybody for child in process.children(recursive=True)]
    for one in everybody:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    for process in started:
        process.join()


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
    kill([process for process in started if process.is_alive()])
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
