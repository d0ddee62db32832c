"""Errors that several processes have are shown once."""

import contextlib
import subprocess
import sys
import threading

import pytest
from helpers import two_processes

from sslbench.distributed import messages
from sslbench.distributed.collectives import barrier
from sslbench.distributed.messages import show_once, shown_elsewhere


@contextlib.contextmanager
def patient():
    """Wait for a slow process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "_WAIT_SECONDS", 600.0)
        patch.setattr(messages, "_LINGER_SECONDS", 600.0)
        yield


def shown(rank, texts, first):
    """Messages that this process shows; `first` has the message before the other one, or None."""
    seen, text = [], texts[rank]
    with patient():
        if first == 1 - rank:
            barrier()
            show_once(text, lambda: seen.append(text))
        else:
            show_once(text, lambda: (rank == first and barrier(), seen.append(text)))
    return seen


@pytest.mark.parametrize("first", [None, 0, 1])
def test_the_same_text_is_shown_by_one(first):
    shown_first, shown_second = two_processes.run(shown, ["no such file"] * 2, first)
    assert shown_first + shown_second == ["no such file"]


def test_different_texts_are_all_shown():
    first, second = two_processes.run(shown, ["of the first", "of the second"], None)
    assert (first, second) == (["of the first"], ["of the second"])


def silent(rank):
    """Answer of the second process, and whether it came before the first one had shown its error."""
    with patient():
        if rank == 0:
            barrier()
            return show_once("of the first", lambda: None)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(shown_elsewhere()))
        thread.start()
        thread.join(0.3)
        early = list(answers)
        barrier()
        thread.join()
        return answers, early


def test_a_silent_process_stays_until_the_error_is_shown():
    assert two_processes.run(silent)[1] == ([True], [])


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
