"""Kills runs at random moments, continues them, and compares the weights with those of runs that nobody disturbed.

`python tests/pretraining/kill_campaign.py --times 20 simclr moco swav dino --processes 1 --workers 2` prints a line per
method. Not part of the suite, which kills each method once (test_pretraining_kill.py).
"""

import argparse
import contextlib
import hashlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch

HERE = Path(__file__).resolve().parent


def command(method, out, processes, workers, limit):
    """How to start the run."""
    script = [str(HERE / "runs.py"), method, str(out), "--workers", str(workers), "--limit", str(limit)]
    if processes == 1:
        return [sys.executable, *script]
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", str(port)]
    return [sys.executable, *launcher, *script]


def start(words):
    """Starts a run; on one thread, since sums depend on their number."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent.parent)}
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def kill(process):
    """SIGKILL to a run and all it started (torchrun gives its processes sessions of their own)."""
    everybody = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for one in everybody:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(everybody)
    process.communicate()


def finish(process):
    """Waits for a run that nobody kills."""
    _, errors = process.communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"the run failed:\n{errors}")


def digest(out):
    """Hash of the final weights, bit for bit."""
    tensors = torch.load(out / "weights.torch", weights_only=True)["state_dict"]
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name].numpy().tobytes())
    return total.hexdigest()


def kill_once(words, out, rng, seconds):
    """Starts the run and kills it somewhere between its start and its end; True if it was still running then."""
    process = start(words)
    time.sleep(rng.uniform(0.05, 1.0) * seconds)
    running = process.poll() is None
    if running:
        kill(process)
    return running and not (out / "weights.torch").exists()


def campaign(method, times, processes, workers, limit, rng):
    """Runs and kills one method; seconds of a run, kills, runs resumed from a checkpoint, differences, leftovers."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        reference = root / "reference"
        began = time.monotonic()
        finish(start(command(method, reference, processes, workers, limit)))
        seconds = time.monotonic() - began
        expected, kills, resumed, different, leftovers = digest(reference), 0, 0, 0, 0
        for number in range(times):
            out = root / f"killed{number}"
            for _ in range(rng.choice([1, 1, 2])):
                kills += kill_once(command(method, out, processes, workers, limit), out, rng, seconds)
            resumed += bool(list(out.glob("checkpoints/step_*.ckpt")))
            finish(start(command(method, out, processes, workers, limit)))
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
        seconds, kills, resumed, different, leftovers = campaign(
            method, arguments.times, arguments.processes, arguments.workers, arguments.limit, rng
        )
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
