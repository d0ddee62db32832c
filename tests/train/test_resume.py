"""Two processes and their checkpoints: one choice for both, one message when they see different files, no hang."""

import logging
import os

import pytest
import torch
from helpers import two_processes
from helpers.full_disk import files_up_to

from sslbench.distributed.collectives import from_first, on_all
from sslbench.errors import SslbenchError, UsageError, WeightsError
from sslbench.train import checkpoints, lock
from sslbench.train.checkpoints import continue_from, newest_whole
from sslbench.weights.reading.folders import checkpoint_files


def write(folder, *steps):
    for step in steps:
        checkpoints.write(folder, step, {"number": step}, keep=9)


def resumed(rank, folders):
    """What a process reads, or the message it ends with and whether the first process prints it."""
    try:
        found = newest_whole(folders[rank])
    except SslbenchError as error:
        return str(error), error.printed_by_rank_0
    return found and (found[0].name, found[1]["number"])


def test_every_process_continues_from_the_choice_of_the_first(tmp_path):
    """Although a later checkpoint has not shown itself to the first, or not to the second."""
    write(tmp_path / "early", 6)
    write(tmp_path / "late", 6, 8)
    early, late = tmp_path / "early", tmp_path / "late"
    assert two_processes.run(resumed, (early, late)) == [("step_000000006.ckpt", 6)] * 2
    assert two_processes.run(resumed, (late, early)) == [("step_000000008.ckpt", 8)] * 2


def test_processes_that_see_different_folders_end_with_one_message(tmp_path):
    """The second process has its own folder in which the chosen file is another one, or is not there."""
    paths = tmp_path / "first", tmp_path / "second"
    write(paths[0], 6, 8)
    write(paths[1], 6)
    outcomes = two_processes.run(resumed_as_seen, paths[0], paths[1])
    assert [told for _, told in outcomes] == [False, True]
    for message, _ in outcomes:
        assert (
            "process 1 on" in message and "cannot read" in message and "file system shared by their machines" in message
        )
    checkpoints.write(paths[1], 8, {"number": 88}, keep=9)
    for message, _ in two_processes.run(resumed_as_seen, paths[0], paths[1]):
        assert "differs between process 1 on" in message


def resumed_as_seen(rank, first, second):
    """The second process sees `second` at the path of `first`: as on a machine with a disk of its own."""
    if rank == 1:
        real = checkpoints.check
        checkpoints.check = lambda path, **how: real(second / path.name, **how)
        try:
            return resumed(rank, (first, first))
        finally:
            checkpoints.check = real
    return resumed(rank, (first, first))


def failing(rank, where):
    def act():
        if rank == where:
            raise UsageError("no") if where else ValueError("a defect")
        return rank

    messages = []
    for together in (on_all, from_first):
        try:
            messages.append(together(act))
        except SslbenchError as error:
            messages.append(f"{type(error).__name__}: {error}")
    return messages


def test_an_error_of_one_process_is_raised_on_all():
    assert two_processes.run(failing, 1) == [["UsageError: no", 0], ["UsageError: no", 0]]
    assert two_processes.run(failing, 0) == [["SslbenchError: process 0 failed: ValueError: a defect"] * 2] * 2


def test_what_comes_after_is_set_aside(tmp_path, caplog):
    write(tmp_path, 2, 4, 6)
    caplog.set_level(logging.INFO, "sslbench")
    found, content = newest_whole(tmp_path, given=tmp_path / "step_000000002.ckpt")
    continue_from(tmp_path, found, content["step"])
    assert [path.name for path in checkpoint_files(tmp_path)] == ["step_000000002.ckpt"]
    assert sorted(p.name for p in tmp_path.glob("*.set-aside")) == [f"step_00000000{n}.ckpt.set-aside" for n in (4, 6)]
    assert "step_000000006.ckpt.set-aside" in caplog.text


@pytest.mark.parametrize("position", [0.02, 0.3, 0.5, 0.7, 0.98])
def test_a_flipped_byte_is_found(position, tmp_path):
    """Wherever it is; one in the padding between the parts changes nothing and may pass."""
    import torch

    content = {"tensor": torch.arange(5000.0), "text": "words " * 50}
    path = checkpoints.write(tmp_path, 1, content, keep=1)
    whole, data = checkpoints.check(path), bytearray(path.read_bytes())
    data[int(position * len(data))] ^= 0x10
    path.write_bytes(data)
    try:
        digest = checkpoints.check(path)
    except checkpoints.DamagedError:
        return
    assert digest == whole and torch.equal(checkpoints.read(path)["tensor"], content["tensor"])


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_file_that_was_cut_off_is_damaged(length, tmp_path):
    path = checkpoints.write(tmp_path, 1, {"number": 1}, keep=1)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(checkpoints.DamagedError):
        checkpoints.check(path)
    with pytest.raises(WeightsError, match="every checkpoint in"):
        newest_whole(tmp_path)


def holding(rank, folder):
    """Both join the run that has the folder; the first says who has it."""
    with lock.exclusive(folder):
        return (folder / lock.NAME).read_text()


def test_one_run_of_several_processes_has_the_folder(tmp_path):
    first, second = two_processes.run(holding, tmp_path / "new")
    assert first == second and first.startswith("process ")


def refused(rank, folder):
    try:
        with lock.exclusive(folder):
            return "entered"
    except UsageError as error:
        return str(error)


def test_another_run_is_refused_on_all_processes(tmp_path):
    with lock.exclusive(tmp_path):
        for message in two_processes.run(refused, tmp_path):
            assert f"in use by another run: process {os.getpid()} on" in message
    assert two_processes.run(refused, tmp_path) == ["entered", "entered"]


def test_a_requeued_job_waits_for_its_earlier_piece(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setattr(lock, "REQUEUE_SECONDS", 1.5)
    asked = []
    monkeypatch.setattr(lock.time, "sleep", asked.append)
    (tmp_path / lock.NAME).write_text("process 1 on here, SLURM job 5, since then")
    import fcntl

    def taken(file, how):
        if len(asked) < 3:
            raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(fcntl, "lockf", taken)
    with lock.exclusive(tmp_path):
        assert asked == [1, 1, 1]


def test_a_machine_whose_name_is_no_text_has_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(lock.socket, "gethostname", lambda: "kn\udcf6ten")  # a byte of Latin-1, as Python reads it
    with lock.exclusive(tmp_path):
        assert " on kn?ten, since " in (tmp_path / lock.NAME).read_text()


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, caplog):
    import errno
    import fcntl

    def unknown(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", unknown)
    with lock.exclusive(tmp_path):
        pass
    assert "its file system has no locks; start no second run" in caplog.text


def test_a_full_disk_is_named_with_its_bytes(tmp_path):
    """Torch itself turns the error of the disk into a RuntimeError about its own writer."""
    content = {"tensors": [torch.zeros(1000) for _ in range(10)]}
    checkpoints.write(tmp_path, 1, content, keep=2)
    with files_up_to(20_000), pytest.raises(SslbenchError, match="File too large; ") as raised:
        checkpoints.write(tmp_path, 2, content, keep=2)
    assert "step_000000001.ckpt" in str(raised.value.remedy)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000001.ckpt"]
