"""A process that dies before it comes to the features is noticed by the others, with its reason."""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
import torch

from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.data.images import Arrays
from sslbench.data.labels import no_labels
from sslbench.data.source import Source
from sslbench.distributed import Process
from sslbench.errors import StoreError, WeightsError
from sslbench.features import job, presence
from sslbench.features.extract import extract
from sslbench.features.presence import RunPresence, announced
from sslbench.features.settings import ExtractSettings
from sslbench.preprocessing import Preprocessing

FORK = multiprocessing.get_context("fork")
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
    source = Source("pictures", ids, no_labels(11), Arrays(pixels, "pictures"))
    return extract(backbone, source, resolve_layers(backbone, ("res5avg",)), CPU, root=root, split="all")


def _process(backbone, root, rank, how, queue):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    presence.BEAT_SECONDS, presence.GONE_SECONDS = 0.1, 1.0
    job.ABSENT_SECONDS = 1.5
    with contextlib.suppress(WeightsError):
        try:
            with announced(root):
                if how == "fails":
                    time.sleep(0.5)
                    raise WeightsError("there is no weights file w.torch")
                if how == "hangs":
                    queue.put("hangs")
                    time.sleep(60)
                features(backbone, root)
            queue.put("done")
        except StoreError as error:
            queue.put(str(error))


def start(*arguments):
    process = FORK.Process(target=_process, args=arguments)
    process.start()
    return process


@pytest.mark.parametrize("dying", [0, 1])
@pytest.mark.parametrize("how", ["fails", "killed", "absent", "failed before"])
def test_the_other_one_ends_within_seconds_with_the_reason(backbone, tmp_path, how, dying):
    queue, signals = FORK.Queue(), FORK.Queue()
    if how == "failed before":
        start(backbone, tmp_path, dying, "fails", signals).join(20)
    other = start(backbone, tmp_path, 1 - dying, "", queue)
    if how == "fails":
        start(backbone, tmp_path, dying, "fails", signals)
    elif how == "killed":
        process = start(backbone, tmp_path, dying, "hangs", signals)
        assert signals.get(timeout=20) == "hangs"
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGKILL)
    message = queue.get(timeout=20)
    other.join(20)
    absent = "it has not started"
    # One that is killed before it was seen twice looks like one that was never there.
    reasons = {"killed": ("it was killed, or has hung", absent), "absent": (absent,)}
    expected = reasons.get(how, ("WeightsError: there is no weights file w.torch",))
    start_of_message = f"process {dying} of 2 is no longer running: "
    assert message.startswith(tuple(start_of_message + reason for reason in expected)), message


def test_the_next_run_is_not_disturbed_and_leaves_nothing(backbone, tmp_path):
    start(backbone, tmp_path, 1, "fails", FORK.Queue()).join(20)
    assert list(tmp_path.glob(".processes-*/process-1.alive"))
    queue = FORK.Queue()
    both = [start(backbone, tmp_path, rank, "", queue) for rank in (0, 1)]
    assert [queue.get(timeout=30) for _ in both] == ["done", "done"]
    for process in both:
        process.join(20)
    assert not list(tmp_path.glob(".processes-*"))
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
    with RunPresence(tmp_path, Process(0, 2)).announced():
        deadline = time.monotonic() + 5
        while not (tmp_path / ".processes-17-0" / "process-0.alive").is_file() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not old.exists()
        (tmp_path / ".processes-17-0" / "process-1.alive").write_text("failed: no weights")
        with pytest.raises(StoreError, match="process 1 of 2 is no longer running: no weights"):
            RunPresence(tmp_path, Process(0, 2)).check()


def test_the_library_alone_does_not_wait_for_what_is_never_announced(tmp_path):
    assert RunPresence(tmp_path, Process(0, 2)).refuse_absent([1]) is None
    assert list(tmp_path.iterdir()) == []
