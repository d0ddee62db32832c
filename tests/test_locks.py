"""Locks of files: a script without a guard that runs again in a worker is refused rather than left waiting."""

import errno
import fcntl
import multiprocessing
import os

import numpy as np
import pytest
from click.testing import CliRunner

from sslbench import paths
from sslbench.cli.main import cli
from sslbench.data import remote
from sslbench.errors import UsageError
from sslbench.locks import lock
from sslbench.results import holes
from sslbench.results.holes import Hole


def test_a_script_that_runs_again_in_a_worker_is_told_instead_of_waiting_for_its_parent(tmp_path, monkeypatch):
    """Processes that do not fork import the script; its parent holds the lock and waits for them."""
    with (tmp_path / "store").open("w") as held, (tmp_path / "store").open("w") as wanted:
        assert lock(held)
        monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
        with pytest.raises(UsageError, match="the script runs again") as caught:
            lock(wanted)
    assert "if __name__ == '__main__':" in str(caught.value)


@pytest.fixture
def no_locks(monkeypatch):
    """A file system without flock, such as Lustre's without `-o flock`."""

    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_file_system_without_locks_is_told_and_everything_is_written(tmp_path, monkeypatch, no_locks, caplog):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    words = ["extract", "--weights", "pixels", "--limit", "20", "--workers", "0", "-o", str(tmp_path / "x.npz")]
    outcome = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    assert len(np.load(tmp_path / "x.npz")["features"]) == 40
    assert "its file system has no locks; start no second run" in outcome.output
    holes.write(tmp_path / "results", [], [Hole("a", "b", "lost")])
    assert len(holes.read(tmp_path / "results")) == 1


def test_without_locks_nothing_that_others_may_use_is_removed(tmp_path, monkeypatch, no_locks):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path))
    copy = tmp_path / "remote" / "0" / "x.tar"
    copy.parent.mkdir(parents=True)
    copy.touch()
    assert not remote._removed(copy) and copy.exists()
    being_written = tmp_path / ".x.json.0a1b2c3d.part"
    being_written.touch()
    with paths.temporary_beside(tmp_path / "x.json"):
        pass
    assert being_written.exists()


def test_an_error_of_locking_names_the_file(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (tmp_path / "store").open("w") as file, pytest.raises(OSError, match="store"):
        lock(file)
