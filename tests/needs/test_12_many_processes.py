"""Any number of processes gives the features and the score of one: each image once, in order.

That a killed process ends the others with its number is shown in tests/features/test_features_processes.py.
"""

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from helpers.kills import digest
from helpers.waiting import SECONDS, until
from PIL import Image
from world import SIMCLR

from sslbench.cli.main import main
from sslbench.results.records import read_tree

FORK = multiprocessing.get_context("fork")
OWN = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "few", "--workers", "0")
KNN = ("eval", "knn", *OWN, "--no-floors", "--no-overlaps", "k=3")


@pytest.fixture
def images(world):
    """Write a number of pictures of three classes, to train and to test."""

    def write(n):
        rng = np.random.default_rng(0)
        for part in ("train", "test"):
            for i in range(n):
                file = Path("few") / part / "abc"[i % 3] / f"{i:02d}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray((rng.integers(0, 100, (18, 16, 3)) + 50 * (i % 3)).astype(np.uint8)).save(file)

    return write


def rank(number, processes, words, log):
    """Run a command as torchrun or srun would start it."""
    os.environ.update(RANK=str(number), WORLD_SIZE=str(processes))
    with Path(log).open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        main(list(words))


def start(processes, words, folder):
    started = [FORK.Process(target=rank, args=(i, processes, words, f"{folder}/{i}.log")) for i in range(processes)]
    for process in started:
        process.start()
    return started


@pytest.mark.parametrize(("n", "processes"), [(22, 2), (23, 5)])
def test_features_and_scores_are_those_of_one(images, sslbench, tmp_path, n, processes):
    images(n)
    store = ("--store", "alone")
    assert sslbench("extract", *OWN, *store, "-o", "alone.npz")[0] == 0
    assert sslbench(*KNN, *store, "--out", "alone-results")[0] == 0
    for words in (
        ("extract", *OWN, "--store", "together", "-o", "together.npz"),
        (*KNN, "--store", "together", "--out", "together-results"),
    ):
        for process in start(processes, words, tmp_path):
            process.join(SECONDS)
            assert process.exitcode == 0, (tmp_path / "0.log").read_text()
    alone, together = np.load("alone.npz"), np.load("together.npz")
    assert len(together["id"]) == 2 * n and list(together["id"]) == list(alone["id"])
    np.testing.assert_allclose(together["features"], alone["features"], atol=1e-5)
    [one], [many] = read_tree(Path("alone-results")), read_tree(Path("together-results"))
    assert (one.id, one.metrics) == (many.id, many.metrics)


def machines(processes, *words):
    """Start a command on two machines of so many processes each, as torchrun does; gloo on the loopback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    nodes = ("--nnodes", "2", "--nproc-per-node", str(processes), "--master-addr", "127.0.0.1", "--master-port", port)
    torchrun = (sys.executable, "-m", "torch.distributed.run", *nodes, "--node-rank")
    variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
    return [
        subprocess.Popen([*torchrun, node, "-m", "sslbench", *words], env=variables, stderr=subprocess.PIPE, text=True)
        for node in "01"
    ]


def wait_for(machines):
    for machine in machines:
        errors = machine.communicate(timeout=SECONDS)[1]
        assert machine.returncode == 0, errors[-3000:]


@pytest.mark.long
def test_two_machines_give_the_records_of_one_process(images, sslbench):
    images(11)
    evaluation = ("eval", "knn", "linear", *OWN, "--no-floors", "--no-overlaps", "k=3")
    assert sslbench(*evaluation, "--store", "alone", "--out", "alone-results")[0] == 0
    wait_for(machines(2, *evaluation, "--store", "together", "--out", "together-results", "--device", "cpu"))
    one, many = read_tree(Path("alone-results")), read_tree(Path("together-results"))
    assert [result.protocol.name for result in many] == ["knn", "linear"]
    assert [(result.id, result.metrics) for result in one] == [(result.id, result.metrics) for result in many]


PAUSES = """
from pathlib import Path

from sslbench.train.observers import Observer


class Pauses(Observer):
    def started(self, run):
        Path(f"started-after-{run.start}").touch()

    def line(self, record):
        pipe = Path(f"pause-{record.step}")
        if pipe.exists():
            Path("paused").touch()
            pipe.read_bytes()
"""


@pytest.mark.long
def test_pretraining_goes_on_after_the_loss_of_either_machine(tmp_path, monkeypatch):
    """Weights are those of an undisturbed run, bit for bit, although each machine was lost once.

    Of more than two processes DistributedDataParallel adds gradients in another order after a start: they differ by
    rounding.
    """
    monkeypatch.chdir(tmp_path)
    Path("pauses.py").write_text(PAUSES)
    command = (*SIMCLR, "save_every='2 updates'", "--observer", "pauses:Pauses", "--out")
    wait_for(machines(1, *command, "undisturbed"))
    for lost, update in ((1, 3), (0, 5)):
        pipe = Path(f"pause-{update}")
        os.mkfifo(pipe)
        started = machines(1, *command, "disturbed")
        until(Path("paused").exists, lambda both=started: all(machine.poll() is None for machine in both))
        processes = psutil.Process(started[lost].pid)
        for process in (*processes.children(recursive=True), processes):
            process.kill()
        if lost:
            pipe.write_bytes(b"")
        errors = started[1 - lost].communicate(timeout=SECONDS)[1]
        assert started[1 - lost].returncode == 1 and "continues from the last checkpoint" in errors
        pipe.unlink()
        Path("paused").unlink()
    wait_for(machines(1, *command, "disturbed"))
    assert sorted(path.name for path in tmp_path.glob("started-after-*")) == [f"started-after-{n}" for n in (0, 2, 4)]
    assert digest(Path("disturbed")) == digest(Path("undisturbed"))
