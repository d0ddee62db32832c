"""Shards behind URLs that do not all fit: fetched when they are read, once per machine, within the cache's limit."""

import contextlib
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers import containers
from helpers.serving import serving

from sslbench.data import remote
from sslbench.data.loading import loader
from sslbench.data.open import open_data
from sslbench.data.sharded import by_shard
from sslbench.errors import DataError, UsageError
from sslbench.preprocessing import Preprocessing

SHARDS, EACH = 6, 8
AS_IT_IS = Preprocessing(resize=None, crop=None)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PAUSES_S", (0.01, 0.01))
    yield
    remote._HELD.clear()


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path / "served") as served:
        yield served


@pytest.fixture
def local(tmp_path, server):
    """The shards as files; names run across them: the second image of all lies in the second shard."""
    return open_data(containers.write_shards(tmp_path / "served", containers.pictures(SHARDS * EACH), SHARDS))["all"]


def size_of(tmp_path):
    return (tmp_path / "served" / "s-0000.tar").stat().st_size


def room_for(monkeypatch, tmp_path, shards):
    about = 300 * SHARDS  # what is written about each
    monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", str(shards * size_of(tmp_path) + about))
    return remote.bound()


def opened(server):
    return open_data(f"{server.address}/s-{{0000..{SHARDS - 1:04d}}}.tar")["all"]


def on_disk():
    """Bytes of the files that are in the folder at one moment."""
    sizes = {}
    with contextlib.ExitStack() as stack:
        files = []
        for folder, _, names in os.walk(remote.folder()):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    files.append(stack.enter_context(Path(folder, name).open("rb")))
        # An open file keeps its number, so no later file has the same. Those that have a link after all were asked for
        # their sizes lay there together.
        seen = [os.fstat(file.fileno()) for file in files]
        for file, status in zip(files, seen, strict=True):
            if os.fstat(file.fileno()).st_nlink:
                sizes[status.st_ino] = status.st_size
    return sum(sizes.values())


def copies():
    return sorted(p.name for p in remote.folder().rglob("*.tar") if not p.name.startswith("."))


@contextlib.contextmanager
def watched():
    """Gives a list whose only entry is the most that lay in the folder meanwhile."""
    peak, stop = [0], threading.Event()

    def watch():
        while not stop.wait(0.001):
            peak[0] = max(peak[0], on_disk())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
        peak[0] = max(peak[0], on_disk())  # a busy machine may never have let the thread look


def read_all(source, workers, batch_size=4):
    order = by_shard(source.images, np.arange(len(source)))
    found = loader.batches(source, order, AS_IT_IS, batch_size=batch_size, workers=workers)
    parts = [(batch.indices, batch.images.numpy()) for batch in found]
    indices = np.concatenate([part for part, _ in parts])
    return np.concatenate([images for _, images in parts])[np.argsort(indices)]


def test_more_shards_than_fit_give_what_the_files_give(tmp_path, monkeypatch, server, local):
    bound = room_for(monkeypatch, tmp_path, 2)
    with watched() as peak:
        source = opened(server)
        assert source.ids == local.ids and source.fingerprint() == local.fingerprint()
        assert set(server.fetched().values()) == {1}  # indexed and hashed in one pass
        server.requests.clear()
        assert opened(server).fingerprint() == local.fingerprint()
        assert server.fetched() == {}  # the index is kept, the shard need not be
        assert [source.images.read(i) for i in range(EACH)] == [local.images.read(i) for i in range(EACH)]
    assert 0 < size_of(tmp_path) < peak[0] <= bound
    assert source.name == f"{server.address}/s-{{0000..0005}}.tar"
    assert source.images.path(0) == f"{server.address}/s-0000.tar/{local.images.names[0]}"


@pytest.mark.parametrize("workers", [0, 2])
def test_in_the_order_of_shards_each_is_fetched_once(tmp_path, monkeypatch, server, local, workers):
    bound = room_for(monkeypatch, tmp_path, 3)
    source = opened(server)
    server.requests.clear()
    _forget_copies()
    with watched() as peak:
        images = read_all(source, workers)
    assert np.array_equal(images, read_all(local, 0))
    assert server.fetched() == {f"s-{k:04d}.tar": 1 for k in range(SHARDS)}
    assert peak[0] <= bound


def test_with_room_for_one_shard_only_it_is_slow_and_right(tmp_path, monkeypatch, server, local):
    bound = room_for(monkeypatch, tmp_path, 1)
    with watched() as peak:
        assert np.array_equal(read_all(opened(server), 2, batch_size=5), read_all(local, 0))
    assert peak[0] <= bound
    assert len(copies()) == 1


def test_all_that_fits_stays(server, local):
    source = opened(server)
    read_all(source, 2)
    assert set(server.fetched().values()) == {1} and len(copies()) == SHARDS


def test_a_shard_that_does_not_fit_alone_is_refused_with_the_number(tmp_path, monkeypatch, server, local):
    monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", "5KB")
    with pytest.raises(DataError, match=rf"s-0000.tar has {size_of(tmp_path):,} bytes and the cache holds 5,000"):
        opened(server)
    assert server.fetched() == {}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_server_that_fails_in_the_middle_is_named_and_no_image_skipped(tmp_path, monkeypatch, server, local, workers):
    room_for(monkeypatch, tmp_path, 2)
    source = opened(server)
    server.breaks["s-0003.tar"] = 99
    _forget_copies()
    with pytest.raises(DataError, match=rf"{server.address}/s-0003.tar cannot be read: the transfer ended"):
        read_all(source, workers)
    server.breaks.clear()
    server.breaks["s-0003.tar"] = 1
    _forget_copies()
    assert np.array_equal(read_all(source, workers), read_all(local, 0))


def test_a_shard_that_changed_since_it_was_opened_is_refused(tmp_path, monkeypatch, server, local):
    source = opened(server)
    _forget_copies()
    os.utime(tmp_path / "served" / "s-0002.tar", (1, 1))
    with pytest.raises(DataError, match=r"s-0002.tar has changed since it was opened"):
        read_all(source, 0)
    assert len(opened(server)) == len(local)


def test_without_a_connection_the_index_and_the_copies_are_used(server, local, monkeypatch, caplog):
    source = opened(server)

    def fail(*_):
        raise OSError("no route to host")

    monkeypatch.setattr(remote, "described", fail)
    assert opened(server).fingerprint() == local.fingerprint()
    assert "no route to host" in caplog.text
    _forget_copies()
    with pytest.raises(DataError, match="no route to host"):
        source.images.read(0)


def test_missing_shards_and_odd_braces_are_said_before_anything_is_fetched(server, local):
    with pytest.raises(UsageError, match=rf"there is no file {server.address}/s-0006.tar"):
        open_data(f"{server.address}/s-{{0000..0006}}.tar")
    with pytest.raises(UsageError, match="in a URL, braces are allowed in the file name only"):
        open_data(f"{server.address}/{{.,./.}}/s-0000.tar")
    assert server.fetched() == {}


def _forget_copies():
    for path in remote.folder().rglob("*.tar"):
        if not path.name.startswith("."):
            path.unlink()
