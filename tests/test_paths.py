"""Temporary files beside their targets: removed by the next writer after a writer was killed, never while it lives."""

import errno
import multiprocessing
import os
import re
import signal
import threading

import fsspec
import pytest

from sslbench import paths
from sslbench.backbones.named import fetch
from sslbench.data import remote
from sslbench.errors import DataError
from sslbench.paths import temporary_beside
from sslbench.results.records import replace_file
from sslbench.weights.save import new_file


def write_half(path, end):
    """Begin a file, say so, and wait to be killed."""
    with new_file(path) as temporary:
        temporary.write_text("half")
        end.send("writing")
        signal.pause()


@pytest.fixture
def writer(tmp_path):
    """Return a process that holds its temporary file of out.json, half written."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=write_half, args=(tmp_path / "out.json", there))
    process.start()
    there.close()  # the end of the process is then the end of the pipe
    assert here.recv() == "writing"
    yield process
    process.kill()
    process.join()


def hidden(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def write(path, text):
    with new_file(path) as temporary:
        temporary.write_text(text)


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path, writer):
    writer.kill()
    writer.join()
    assert len(hidden(tmp_path)) == 1
    write(tmp_path / "other.json", "another file")
    assert len(hidden(tmp_path)) == 1
    write(tmp_path / "out.json", "whole")
    assert hidden(tmp_path) == []
    assert (tmp_path / "out.json").read_text() == "whole"


def test_the_file_of_a_living_writer_stays(tmp_path, writer):
    write(tmp_path / "out.json", "whole")
    (left,) = hidden(tmp_path)
    assert (tmp_path / left).read_text() == "half"
    assert (tmp_path / "out.json").read_text() == "whole"


def test_records_remove_leftovers_and_no_files_of_others(tmp_path):
    path = tmp_path / "a.json"
    leftover, others = tmp_path / ".a.json.01234567.part", (".a.json.part", ".b.json.01234567.part", ".a.json.swp")
    for name in (leftover.name, *others):
        (tmp_path / name).write_text("")
    replace_file(path, b"{}")
    assert sorted(hidden(tmp_path)) == sorted(others)
    assert path.read_bytes() == b"{}"


def test_writers_of_one_file_at_once_do_not_disturb_each_other(tmp_path):
    def work(text):
        for _ in range(100):
            replace_file(tmp_path / "a", text)

    errors = []
    threads = [threading.Thread(target=lambda text=text: errors.append(_error(work, text))) for text in (b"1", b"22")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [None, None] and list(tmp_path.iterdir()) == [tmp_path / "a"]


def _error(function, argument):
    try:
        function(argument)
    except OSError as error:
        return error
    return None


def test_files_have_the_mode_of_the_users_mask(tmp_path):
    mask = os.umask(0o027)
    try:
        replace_file(tmp_path / "a", b"")
        write(tmp_path / "b", "")
    finally:
        os.umask(mask)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [0o640, 0o640]


def test_an_error_leaves_neither_file(tmp_path):
    with pytest.raises(KeyboardInterrupt), temporary_beside(tmp_path / "a", ".png") as temporary:
        assert temporary.suffix == ".png" and temporary.is_file()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_with_the_file_and_the_free_bytes(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught, paths.temporary_beside(tmp_path / "x.json"):
        full()
    assert caught.value.filename == str(tmp_path / "x.json")
    text = paths.not_written(tmp_path / "new" / "x.json", caught.value)
    assert re.fullmatch(
        rf"cannot write {tmp_path}/new/x.json: No space left on device; [\d,]+ bytes are free in {tmp_path}", text
    )
    assert list(tmp_path.iterdir()) == []


def test_a_full_cache_is_no_missing_network(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path))
    fsspec.filesystem("memory").pipe_file("/b/w.pth", b"weights")
    monkeypatch.setattr(remote._NewCopy, "finish", full)
    with pytest.raises(DataError, match=r"w.pth cannot be copied: .* bytes are free in .*\n.*SSLBENCH_CACHE") as caught:
        fetch("memory://b/w.pth")
    assert "network" not in str(caught.value)
    assert not list(tmp_path.rglob("*.part"))
