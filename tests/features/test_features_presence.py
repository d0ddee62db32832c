"""A process that dies before it comes to the features is noticed by the others, with its reason."""

import dataclasses
import os
import time

import numpy as np
import pytest
import torch
from helpers.waiting import until

from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.data.images import Arrays
from sslbench.data.source import Source
from sslbench.distributed import Process
from sslbench.errors import StoreError, WeightsError
from sslbench.features import job, presence
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract
from sslbench.features.presence import Presence, announced
from sslbench.preprocessing import Preprocessing
from sslbench.targets.none import Unlabelled

CPU = ExtractSettings(torch.device("cpu"), batch_size=4, workers=0)


@pytest.fixture(scope="module")
def backbone():
    torch.set_num_threads(1)
    return dataclasses.replace(build("resnet18w0.125"), preprocessing=Preprocessing(16, (16, 16)))


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
            other._tidy()
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
