"""Locks of files: a script without a guard that runs again in a worker is refused rather than left waiting."""

import multiprocessing

import pytest

from sslbench.errors import UsageError
from sslbench.locks import lock


def test_a_script_that_runs_again_in_a_worker_is_told_instead_of_waiting_for_its_parent(tmp_path, monkeypatch):
    """Processes that do not fork import the script; its parent holds the lock and waits for them."""
    with (tmp_path / "store").open("w") as held, (tmp_path / "store").open("w") as wanted:
        assert lock(held)
        monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
        with pytest.raises(UsageError, match="the script runs again") as caught:
            lock(wanted)
    assert "if __name__ == '__main__':" in str(caught.value)
