"""Errors that several processes have are shown once."""

import subprocess
import sys
import time

import pytest
from helpers import two_processes

from sslbench.distributed.messages import show_once, shown_elsewhere


def shown(rank, texts, delays):
    """Messages that this process shows."""
    seen = []
    time.sleep(delays[rank])
    show_once(texts[rank], lambda: (time.sleep(0.3), seen.append(texts[rank])))
    return seen


@pytest.mark.parametrize("delays", [(0, 0), (0, 0.6), (0.6, 0)])
def test_the_same_text_is_shown_by_one(delays):
    first, second = two_processes.run(shown, ["no such file"] * 2, delays)
    assert first + second == ["no such file"]


def test_different_texts_are_all_shown():
    first, second = two_processes.run(shown, ["of the first", "of the second"], (0, 0))
    assert (first, second) == (["of the first"], ["of the second"])


def silent(rank):
    started = time.monotonic()
    if rank == 1:
        return shown_elsewhere(), time.monotonic() - started
    time.sleep(0.7)
    show_once("of the first", lambda: None)
    return None


def test_a_silent_process_stays_until_the_error_is_shown():
    shown, seconds = two_processes.run(silent)[1]
    assert shown and seconds > 0.3


def test_without_other_processes_it_is_shown(monkeypatch):
    seen = []
    show_once("alone", lambda: seen.append(1))
    assert not shown_elsewhere()
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "2")  # contradictory
    show_once("alone", lambda: seen.append(2))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    show_once("no address", lambda: seen.append(3))
    assert seen == [1, 2, 3]


def test_torchrun_prints_a_mistake_once():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run([*launcher, "-m", "sslbench", "pretrain", "simclir"], capture_output=True, text=True)
    assert done.stderr.count("there is no method called 'simclir'") == 1
    assert "exitcode  : 2" in done.stderr and done.returncode == 1  # that of torchrun itself
