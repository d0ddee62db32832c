"""Empty files, Ctrl-C and full disks at the command line: one message that says what happened, and the exit code."""

import errno
import io
import os
import signal
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from sslbench.data import export as kwcoco
from sslbench.errors import UsageError
from sslbench.features import job, partial
from sslbench.weights.save import write_torch

EXTRACT = (
    "extract",
    "--data",
    "photos",
    "--backbone",
    "tiny_net_of_the_tests:net",
    "--weights",
    "w.pth",
    "--workers",
    "0",
)


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
@pytest.mark.parametrize("content", [b"", b"\x93NUM", b"PK\x03\x04"])
def test_features_that_are_empty_or_cut_off_are_named(sslbench, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "y.csv").write_text("label\n")
    code, _, said = sslbench("eval", "knn", "--features", tmp_path / name, "--labels", tmp_path / "y.csv")
    assert code == 2
    assert f"{name} cannot be read as a NumPy array" in said and "interrupted" not in said


def test_stored_features_of_0_bytes_are_named(sslbench, world):
    assert sslbench(*EXTRACT, "--store", "store")[0] == 0
    file = next((world / "store").glob("*/*.npy"))
    file.write_bytes(b"")
    code, _, said = sslbench(*EXTRACT, "--store", "store")
    assert code == 1
    assert f"{file.name} cannot be read" in said and "Delete the folder" in said


def test_features_of_0_bytes_cannot_be_compared(sslbench, tmp_path):
    for name in ("a.npy", "b.npy"):
        (tmp_path / name).write_bytes(b"")
    code, _, said = sslbench("cka", tmp_path / "a.npy", tmp_path / "b.npy")
    assert code == 2 and "a.npy" in said


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (EOFError("no data left"), 1, "error: a file ends too early: no data left"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
    ],
)
def test_a_file_that_ends_is_no_interruption(sslbench, monkeypatch, error, code, message):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("sslbench.cli.commands.list.list_names", fail)
    found, _, said = sslbench("list", "methods")
    assert (found, said.strip()) == (code, message)


@pytest.mark.parametrize("hidden", [RuntimeError("unexpected pos 64"), UsageError("there is no x")])
def test_an_interrupt_that_a_library_hides_is_one(sslbench, monkeypatch, hidden):
    def fail(*arguments):
        try:
            _interrupt()
        finally:
            raise hidden

    monkeypatch.setattr("sslbench.cli.commands.list.list_names", fail)
    assert sslbench("list", "methods")[::2] == (130, "error: interrupted\n")


def test_ctrl_c_while_torch_writes_is_ctrl_c(tmp_path, monkeypatch):
    class Interrupting(io.BytesIO):
        def write(self, data):
            _interrupt()

    monkeypatch.setattr(Path, "open", lambda *_: Interrupting())
    with pytest.raises(KeyboardInterrupt):
        write_torch(tmp_path / "w.torch", {"a": torch.zeros(3)})


def test_ctrl_c_says_that_what_was_extracted_is_kept(sslbench, world, monkeypatch):
    monkeypatch.setattr(job.ExtractionJob, "check_others", lambda self: _interrupt())
    code, _, said = sslbench(*EXTRACT, "--store", "store", "--batch-size", "4")
    assert code == 130
    assert said.strip().endswith(
        "error: interrupted: the features extracted so far are kept; the same command continues"
    )
    (progress,) = (world / "store").glob("*/*.progress")
    assert (np.fromfile(progress, dtype=partial.RECORD)["state"] == partial.DONE).sum() == 4


def _interrupt():
    raise KeyboardInterrupt


@pytest.fixture
def heeds_ctrl_c():
    """A process that a shell starts in the background ignores SIGINT, and so do the tests that it runs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_says_what_is_kept(sslbench, world, monkeypatch, heeds_ctrl_c, number, code, word):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(job.ExtractionJob, "check_others", lambda self: os.kill(os.getpid(), number))
    found, _, said = sslbench(*EXTRACT, "--store", "store", "--batch-size", "4")
    assert found == code
    kept = "the features extracted so far are kept; the same command continues"
    assert said.strip().endswith(f"error: {word}: {kept}")
    monkeypatch.setattr("sslbench.cli.commands.eval.work.results_of", lambda *_: os.kill(os.getpid(), number))
    found, _, said = sslbench("eval", "knn", "--weights", "pixels", "--limit", "20", "--no-floors")
    assert found == code
    kept = "records, features and checkpoints that were written are kept; the same command continues"
    assert said.strip().endswith(f"error: {word}: {kept}")
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list(world.rglob("*.part")), "temporary files are removed"


def test_a_full_disk_names_the_file_and_what_is_needed(sslbench, world, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(partial.os, "posix_fallocate", full)
    code, _, said = sslbench(*EXTRACT, "--store", "store")
    assert code == 1
    assert ".npy.partial.tmp: No space left on device; " in said and " bytes are free in " in said
    assert " are needed" in said


def test_a_full_disk_under_a_manifest_or_a_name_is_told_with_its_bytes(sslbench, world, monkeypatch, tmp_path):
    def full(*arguments, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kwcoco, "json", types.SimpleNamespace(dumps=full))
    monkeypatch.setattr(yaml, "safe_dump", full)
    monkeypatch.chdir(tmp_path)
    digits = "sklearn:digits"
    for command in (("to-kwcoco", digits, "d.kwcoco.json", "--extract", "images"), ("add", "d", digits, "--project")):
        code, _, said = sslbench("data", *command)
        assert code == 1
        assert "No space left on device; " in said and "bytes are free in" in said
    assert not [path for path in tmp_path.iterdir() if path.name.strip(".").startswith(("d.kwcoco", "sslbench-data"))]
