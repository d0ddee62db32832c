"""Any number of processes writes what one writes: each image once, in order; one that dies ends the others."""

import contextlib
import csv
import dataclasses
import itertools
import multiprocessing
import os
import signal
import time
import types

import numpy as np
import pytest
import torch
from helpers.waiting import SECONDS, until

from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.data.images import Arrays
from sslbench.data.source import Source
from sslbench.distributed import Process, this_process
from sslbench.errors import StoreError, UsageError, WeightsError
from sslbench.features import job, presence
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract
from sslbench.features.presence import Presence, announced
from sslbench.preprocessing import Preprocessing
from sslbench.targets.classes import Classes
from sslbench.targets.none import Unlabelled

CPU = ExtractSettings(torch.device("cpu"), batch_size=4, workers=0)
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def backbone():
    torch.set_num_threads(1)
    return dataclasses.replace(build("resnet_basic_1-1-1-1w0.125"), preprocessing=Preprocessing(16, (16, 16)))


def source_of(n, channels=3):
    pixels = np.random.default_rng(0).integers(0, 256, (n, 18, 16, channels), dtype=np.uint8)
    labels = Classes(("a", "b", "c"), np.arange(n) % 3)
    return Source("pictures", tuple(f"{i:03d}" for i in range(n)), labels, Arrays(pixels, "pictures"))


def run(backbone, n, root, settings=CPU, progress=None):
    layers = resolve_layers(backbone, ("res5avg",))
    source = source_of(n) if isinstance(n, int) else n
    return extract(backbone, source, layers, settings, root=root, split="all", progress=progress)


def _rank(backbone, n, root, rank, world, names=("RANK", "WORLD_SIZE")):
    os.environ.update({names[0]: str(rank), names[1]: str(world)})
    run(backbone, n, root)


def finished(target, arguments):
    """Run a process for each of several arguments until they end."""
    processes = [FORK.Process(target=target, args=of_rank) for of_rank in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def files_of(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def accuracy(features):
    half = len(features.x) // 2
    x, y = np.array(features.x, dtype=np.float32), np.asarray(features.target.values)
    similar = x[half:] @ x[:half].T
    nearest = y[:half][np.argsort(-similar, axis=1, kind="stable")[:, :5]]
    votes = np.array([np.bincount(row, minlength=3).argmax() for row in nearest])
    return float((votes == y[half:]).mean())


def described(entry):
    """The content of meta.json; of the checksums their files, since other batches round the features otherwise."""
    meta = entry.meta()
    return meta | {"checksums": sorted(meta["checksums"])}


def test_the_store_of_any_number_of_processes_is_that_of_one(backbone, tmp_path):
    n = 22  # divides into 2, and leaves 1 and 2 images
    alone = run(backbone, n, tmp_path / "1")
    x = alone.features["res5avg"]
    for world in (2, 3, 5):
        root = tmp_path / str(world)
        finished(_rank, [(backbone, n, root, rank, world) for rank in range(world)])
        together = run(backbone, n, root)
        assert together.decoded == 0
        found = together.features["res5avg"]
        assert found.x.shape == (n, 64)
        assert found.ids == x.ids
        assert np.allclose(found.x, x.x, atol=1e-5)
        assert accuracy(found) == accuracy(x)
        assert files_of(root) == files_of(tmp_path / "1")
        assert (together.entry.folder / "index.csv").read_bytes() == (alone.entry.folder / "index.csv").read_bytes()
        assert described(together.entry) == described(alone.entry)
    with (alone.entry.folder / "index.csv").open() as file:
        assert [row["id"] for row in csv.DictReader(file)] == [f"{i:03d}" for i in range(n)]


def test_the_first_process_may_publish_while_another_one_opens_the_files(backbone, tmp_path, monkeypatch):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(backbone, 9, tmp_path, progress=interrupt)
    verify = job.PartialLayer.verify

    def after_publishing(partial, rows):
        monkeypatch.setattr(job.PartialLayer, "verify", verify)
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        run(backbone, 9, tmp_path)
        return verify(partial, rows)

    monkeypatch.setattr(job.PartialLayer, "verify", after_publishing)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(backbone, 9, tmp_path).decoded == 0
    assert list(tmp_path.glob("*/*.npy"))


def _counting_rank(backbone, n, root, rank, world, answers):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    told = []
    found = run(backbone, source_of(n, channels=1), root, progress=lambda *counts: told.append(counts))
    answers.put((rank, found.decoded, found.conversions, told))


def test_counts_are_those_of_all_processes(backbone, tmp_path):
    answers = FORK.Queue()
    finished(_counting_rank, [(backbone, 21, tmp_path, rank, 2, answers) for rank in range(2)])
    found = {rank: rest for rank, *rest in (answers.get() for _ in range(2))}
    decoded, conversions, told = found[0]
    assert decoded == 21
    assert conversions == {"grey to RGB": 21}
    assert told[-1] == (21, 21)
    assert found[1][0] == 11, "a share of rows beside each other, the larger one last"
    assert not list(tmp_path.rglob("*.counts"))


def test_under_srun_the_steps_variables_count(backbone, tmp_path):
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    finished(_rank, [(backbone, 9, tmp_path, rank, 2, names) for rank in range(2)])
    assert run(backbone, 9, tmp_path).decoded == 0


@pytest.mark.parametrize(
    ("variables", "process"),
    [
        ({"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1"}, Process(1, 3, 1)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, Process(5, 8, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Process()),
        ({"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, Process()),
    ],
)
def test_which_process_this_is(variables, process, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert this_process() == process


@pytest.mark.parametrize("variables", [{"RANK": "3", "WORLD_SIZE": "3"}, {"RANK": "one", "WORLD_SIZE": "3"}])
def test_variables_that_contradict_each_other_are_refused(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="RANK"):
        this_process()


def _dying(backbone, root, rank, queue, reached, seen, killed, fails):
    """Encode images one by one; process 1 gets to its third one. Once it is killed, time flies for the other one."""
    check = presence.Presence._check

    def look(self, other, now):
        check(self, other, now)
        if other in self._moved:
            seen.set()

    presence.Presence._check = look
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    seconds = itertools.count(0, 5)
    presence.BEAT_SECONDS, job.FLUSH_SECONDS = 0.1, 0.0
    presence.time = types.SimpleNamespace(
        monotonic=lambda: time.monotonic() + (next(seconds) if killed.is_set() else 0), time=time.time
    )

    def progress(done, total):
        if rank == 1 and done > 2:
            until(lambda: list(root.glob(".processes-*/process-1.alive")))  # a thread writes it
            reached.set()
            if fails:
                raise ValueError("the disk is on fire")
            signal.pause()

    with contextlib.suppress(ValueError):
        try:
            run(backbone, 22, root, dataclasses.replace(CPU, batch_size=1), progress)
        except StoreError as error:
            queue.put((str(error), error.printed_by_rank_0))


@pytest.mark.parametrize("how", ["killed", "fails"])
def test_a_process_that_dies_ends_the_others_with_its_reason(backbone, tmp_path, how):
    queue, reached, seen, killed = FORK.Queue(), FORK.Event(), FORK.Event(), FORK.Event()
    ranks = [
        FORK.Process(target=_dying, args=(backbone, tmp_path, rank, queue, reached, seen, killed, how == "fails"))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    if how == "killed":
        # One that dies before the other has seen it live could be of an earlier run.
        assert reached.wait(SECONDS) and seen.wait(SECONDS)
        os.kill(ranks[1].pid, signal.SIGKILL)
        ranks[1].join()
        killed.set()
    message, printed = queue.get(timeout=SECONDS)
    assert printed == (how == "fails")  # a killed one says nothing itself
    reason = "it was killed, or has hung" if how == "killed" else "ValueError: the disk is on fire"
    assert "process 1 of 2" in message
    assert reason in message
    for process in ranks:
        process.join(SECONDS)
        assert not process.is_alive()
    assert not list(tmp_path.glob("*/*.npy")) and not list(tmp_path.glob("*/meta.json"))
    again = run(backbone, 22, tmp_path)
    assert 0 < again.decoded < 22, "what was done is kept"
    whole = run(backbone, 22, tmp_path / "whole").features["res5avg"].x
    assert np.allclose(again.features["res5avg"].x, whole, atol=1e-5)
    assert not list(tmp_path.glob("[!.]*/process-*"))


def test_what_a_killed_run_has_left_says_nothing_about_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(presence, "time", types.SimpleNamespace(monotonic=itertools.count(0, 10).__next__))
    (tmp_path / "process-0.failed").write_text("long ago")
    presence.Failures(tmp_path, Process(1, 2)).check()
    presence.Failures(tmp_path, Process(0, 2)).check()
    assert not list(tmp_path.iterdir())
    second = presence.Presence(tmp_path, Process(1, 2))
    second.folder.mkdir()
    (second.folder / "process-0.alive").write_text("17 3")
    for _ in range(5):  # longer than a heartbeat lives
        second.check()


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in (*presence._NAMES, "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def features(backbone, root):
    pixels = np.random.default_rng(0).integers(0, 256, (11, 16, 16, 3), dtype=np.uint8)
    ids = tuple(f"{i:03d}" for i in range(11))
    source = Source("pictures", ids, Unlabelled(11), Arrays(pixels, "pictures"))
    return extract(backbone, source, resolve_layers(backbone, ("res5avg",)), CPU, root=root, split="all")


class Clock:
    """Time that passes only while a process waits for another one: a second per look, in which that one acts.

    Attributes:
        seconds: since the start.
        own: heartbeat of the waiting process.
        act: called with the number of seconds.
    """

    def __init__(self, own, act):
        self.seconds, self.own, self.act = 0, own, act

    def monotonic(self):
        return float(self.seconds)

    def sleep(self, _):
        until(self.own.is_file)  # a thread writes it
        self.seconds += 1
        self.act(self.seconds)

    time, perf_counter = time.time, time.perf_counter


@pytest.fixture
def clock(tmp_path, monkeypatch):
    """Function that makes this process a rank of two, and sets what the other one does while this one waits."""

    def started(rank, act):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        made = Clock(tmp_path / ".processes-run" / f"process-{rank}.alive", act)
        for module in (presence, job):
            monkeypatch.setattr(module, "time", made)
        return made

    return started


def fail(process):
    """Fail as a process does that finds no weights."""
    with pytest.raises(WeightsError), process.announced():
        raise WeightsError("there is no weights file w.torch")


@pytest.mark.parametrize("dying", [0, 1])
@pytest.mark.parametrize(
    ("how", "reason", "soon"),
    [
        ("fails", "WeightsError: there is no weights file w.torch", 8),
        ("failed before", "WeightsError: there is no weights file w.torch", presence.GONE_SECONDS + 3),
        ("killed", "it was killed, or has hung", presence.GONE_SECONDS + 8),
        ("absent", "it has not started", job.ABSENT_SECONDS + 3),
    ],
)
def test_the_other_one_ends_soon_with_the_reason(backbone, tmp_path, clock, how, reason, soon, dying):
    other = Presence(tmp_path, Process(dying, 2))

    def act(second):
        if how in ("fails", "killed") and second <= 5:
            other.folder.mkdir(parents=True, exist_ok=True)
            other._write(f"17 {second}")
        elif how == "fails" and second == 6:
            fail(other)

    if how == "failed before":
        fail(other)
    passed = clock(1 - dying, act)
    message = f"process {dying} of 2 is no longer running: {reason}"
    with pytest.raises(StoreError, match=message), announced(tmp_path):
        features(backbone, tmp_path)
    assert passed.seconds <= soon


def test_the_next_run_is_not_disturbed_and_leaves_nothing(backbone, tmp_path, clock, monkeypatch):
    other = Presence(tmp_path, Process(1, 2))
    fail(other)

    def act(second):
        assert (tmp_path / ".processes-run" / "process-1.alive").read_text().startswith(presence.FAILED)
        if second == 5:  # it starts late
            monkeypatch.setenv("RANK", "1")
            with announced(tmp_path):
                features(backbone, tmp_path)
            monkeypatch.setenv("RANK", "0")

    clock(0, act)
    with announced(tmp_path):
        assert features(backbone, tmp_path).decoded == 11
    assert not list(tmp_path.glob(".processes-*"))
    monkeypatch.delenv("RANK")
    assert features(backbone, tmp_path).decoded == 0


def test_one_process_alone_says_nothing(tmp_path):
    with announced(tmp_path / "store"):
        assert not (tmp_path / "store").exists()


def test_runs_of_a_cluster_have_a_folder_each_and_old_ones_go(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    old = tmp_path / ".processes-12-0"
    old.mkdir()
    (old / "process-1.alive").write_text("failed: long ago")
    os.utime(old, (0, 0))
    with Presence(tmp_path, Process(0, 2)).announced():
        until((tmp_path / ".processes-17-0" / "process-0.alive").is_file)
        assert not old.exists()
        (tmp_path / ".processes-17-0" / "process-1.alive").write_text("failed: no weights")
        with pytest.raises(StoreError, match="process 1 of 2 is no longer running: no weights"):
            Presence(tmp_path, Process(0, 2)).check()


def test_the_library_alone_does_not_wait_for_what_is_never_announced(tmp_path):
    assert Presence(tmp_path, Process(0, 2), of_command=False).refuse_absent([1]) is None
    assert list(tmp_path.iterdir()) == []
