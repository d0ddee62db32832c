"""All processes end when one fails; threads with a store in memory stand for processes."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from torch import distributed  # noqa: TID251

from sslbench.distributed import Process, failures
from sslbench.errors import DataError, SslbenchError


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(failures, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(failures, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(failures, "_LINGER_SECONDS", 0.3)


@pytest.fixture
def exits(monkeypatch):
    """Codes with which processes were ended from outside."""
    found = []
    monkeypatch.setattr(failures.os, "_exit", found.append)
    return found


def both(*bodies):
    """Errors of two processes, each of which runs its body."""
    store, errors = distributed.HashStore(), [None, None]

    def process(rank):
        try:
            with failures.ending_together(Process(rank, 2, rank), store):
                bodies[rank]()
        except Exception as error:  # noqa: BLE001  the test compares it
            errors[rank] = error

    threads = [threading.Thread(target=process, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return errors


def fail(error):
    def body():
        raise error

    return body


def lose_connection():
    time.sleep(0.1)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:29500")


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("error", [ValueError("observer"), DataError("unreadable")])
def test_the_one_that_failed_shows_the_reason_and_the_other_is_silent(failing, error, exits):
    bodies = [lose_connection, fail(error)] if failing else [fail(error), lose_connection]
    errors = both(*bodies)
    assert errors[failing] is error
    other = errors[1 - failing]
    assert isinstance(other, failures.OtherProcessError) and other.printed_by_rank_0
    assert exits == []


def test_of_a_killed_process_the_survivor_tells(exits):
    errors = both(lose_connection, lambda: time.sleep(0.01))
    assert isinstance(errors[0], SslbenchError) and not errors[0].printed_by_rank_0


def test_one_that_waits_for_the_failed_one_is_ended(exits):
    both(fail(ValueError("observer")), lambda: time.sleep(1.5))
    assert exits == [1]


def test_nobody_is_ended_after_a_run_without_errors(exits):
    assert both(lambda: None, lambda: time.sleep(0.6)) == [None, None]
    assert exits == []
    with pytest.raises(KeyError), failures.ending_together(Process(0, 2, 0), distributed.HashStore()):
        raise KeyError


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_process_is_named_and_all_end(frozen, exits, monkeypatch, caplog):
    real = failures._Watch.look_for_frozen
    monkeypatch.setattr(failures, "SILENT_SECONDS", 0.3)
    monkeypatch.setattr(
        failures._Watch, "look_for_frozen", lambda self: real(self) if self.process.rank != frozen else None
    )
    both(lambda: time.sleep(1.5), lambda: time.sleep(1.5))
    assert exits == [1, 1]
    assert f"process {frozen} on " in caplog.text and "has not answered for 0 s" in caplog.text


FROZEN = """
import logging, os, signal, sys, time, torch
from sslbench.distributed import failures
from sslbench.distributed.collectives import barrier, process_group

logging.basicConfig()
failures.LOOK_SECONDS, failures.GRACE_SECONDS, failures.SILENT_SECONDS = 0.1, 1, 3
with process_group(torch.device("cpu")):
    barrier()
    if os.environ["RANK"] == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGSTOP)
    barrier()
"""


def test_a_stopped_process_ends_the_run(tmp_path):
    """Of the second process; the first serves the store here, as under srun, and torchrun's launcher does otherwise."""
    (tmp_path / "frozen.py").write_text(FROZEN)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        environment = os.environ | {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
    first, second = (
        subprocess.Popen(
            [sys.executable, "frozen.py", "1"],
            cwd=tmp_path,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    )
    try:
        _, errors = first.communicate(timeout=120)
    finally:
        first.kill(), second.kill()
        second.communicate()
    assert first.returncode == 1
    assert "process 1 on " in errors and "has not answered for 3 s; ending all processes" in errors


TWO_GROUPS = """
import time, torch
from sslbench.distributed import failures
from sslbench.distributed.collectives import barrier, process_group
from sslbench.errors import DataError

failures.LOOK_SECONDS, failures.GRACE_SECONDS = 0.1, 2
try:
    with process_group(torch.device("cpu")):
        barrier()
        raise DataError("a part of a suite")
except DataError:
    pass
with process_group(torch.device("cpu")):
    barrier()
    time.sleep(4)
    barrier()
"""


def test_a_part_of_a_suite_that_failed_does_not_end_the_next(tmp_path):
    """torchrun's store outlives a group, with the addresses of its processes and the reason of its failure."""
    (tmp_path / "two_groups.py").write_text(TWO_GROUPS)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "two_groups.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[:4000]
