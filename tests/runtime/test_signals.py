"""Signals that end a run: recorded, agreed on by all processes, and reported with the exit code that shells expect."""

import os
import signal
import threading

import pytest
import torch
from helpers import two_processes

from sslbench.distributed.collectives import rank
from sslbench.runtime.signals import StoppedError, signal_on_any_process, stop_signals, stop_together

CPU = torch.device("cpu")


def test_signals_are_recorded_during_the_block_only():
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(StoppedError, match="after the last update; everything is saved"),
        stop_signals() as signal_number,
    ):
        assert signal_number() == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal_number() == signal.SIGTERM
        # A single process always knows its own signal.
        assert signal_on_any_process(signal_number, CPU, compare=False) == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_second_ctrl_c_stops_at_once():
    with pytest.raises(KeyboardInterrupt), stop_signals():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_other_threads_record_nothing():
    found = []

    def block():
        with stop_signals() as signal_number:
            found.append(signal_number())

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert found == [0]


def _received(number):
    own = signal.SIGUSR1 if rank() == 1 else 0
    return [signal_on_any_process(lambda: own, CPU, compare=compare) for compare in (False, True)]


def test_all_processes_get_the_signal_of_one_when_they_compare():
    assert two_processes.run(_received) == [[0, signal.SIGUSR1]] * 2


def _ended(number, folder):
    """The first process saves, and tells what is there when it ends; so does the other one."""
    if number == 0:
        (folder / "checkpoint").write_text("all of it")
    with pytest.raises(StoppedError):
        stop_together(15, "update 3 of 10")
    return (folder / "checkpoint").is_file()


def test_no_process_ends_before_the_first_one_has_saved(tmp_path, monkeypatch):
    assert two_processes.run(_ended, tmp_path) == [True, True]
    waited = []
    monkeypatch.setattr("sslbench.runtime.signals.barrier", lambda: waited.append("for the others"))
    with pytest.raises(StoppedError):
        stop_together(15, "update 3 of 10")
    assert waited == ["for the others"]


def test_the_error_has_the_exit_code_of_the_signal():
    error = StoppedError(15, "update 3 of 10")
    assert error.exit_code == 143
    assert str(error).startswith("stopped by signal 15 after update 3 of 10; everything is saved\nRun the same command")
