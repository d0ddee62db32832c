"""Data behind URLs: copied once, whole, to a cache that stays within its limit."""

import contextlib
import http.server
import os
import subprocess
import sys
import threading

import containers
import fsspec
import pytest

from sslbench import paths
from sslbench.data import remote
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    remote._use.cache_clear()
    yield
    remote._use.cache_clear()


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


@pytest.fixture
def server(tmp_path):
    """The address of a server of tmp_path/served, and the requests that it got."""
    (tmp_path / "served").mkdir()
    requests = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "served"))

        def log_message(self, *_):
            requests.append(f"{self.command} {self.path}")

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}", requests
        finally:
            running.shutdown()
            thread.join()


def copies():
    return sorted(p for p in (paths.cache_dir() / "remote").rglob("*") if p.is_file() and p.suffix in (".tar", ".zip"))


WRITE = {"tar": containers.write_tar, "zip": containers.write_zip, "tsv": containers.write_tsv}


@pytest.mark.parametrize("kind", WRITE)
def test_a_container_behind_a_url_gives_what_the_file_gives(tmp_path, memory, kind):
    local = open_data(WRITE[kind](tmp_path, containers.pictures()))["all"]
    memory.pipe(f"/b/t.{kind}", next(p for p in tmp_path.iterdir() if p.suffix == f".{kind}").read_bytes())
    source = open_data(f"memory://b/t.{kind}")["all"]
    assert source.fingerprint() == local.fingerprint()
    assert source.images.read(3) == local.images.read(3)


def test_braces_stand_for_several_shards(tmp_path, memory):
    spec = containers.write_shards(tmp_path, containers.pictures())
    for path in tmp_path.glob("*.tar"):
        memory.pipe(f"/b/{path.name}", path.read_bytes())
    assert open_data("memory://b/s-{0000..0002}.tar")["all"].fingerprint() == open_data(spec)["all"].fingerprint()
    with pytest.raises(UsageError, match=r"there is no file memory://b/s-0003\.tar"):
        open_data("memory://b/s-{0000..0003}.tar")


def test_it_is_copied_once_and_again_when_it_changes(tmp_path, server):
    address, requests = server
    samples = containers.pictures()
    containers.write_zip(tmp_path / "served", samples)
    first = open_data(f"{address}/t.zip")["all"]
    open_data(f"{address}/t.zip")
    assert [r for r in requests if r.startswith("GET")] == ["GET /t.zip"]
    containers.write_zip(tmp_path / "served", dict(list(samples.items())[:6]))
    os.utime(tmp_path / "served" / "t.zip", (1, 1))
    assert len(first) == 12 and len(open_data(f"{address}/t.zip")["all"]) == 6


def test_a_query_of_the_server_is_kept_and_options_of_ours_are_taken_off(tmp_path, server):
    address, requests = server
    containers.write_zip(tmp_path / "served", containers.pictures())
    open_data(f"{address}/t.zip?token=a1")
    assert "GET /t.zip?token=a1" in requests
    with pytest.raises(UsageError, match="takes no options"):
        open_data(f"{address}/t.zip?unit=annotation")


def test_what_is_not_there_or_cannot_be_reached_is_said(tmp_path, server, caplog):
    address, _ = server
    with pytest.raises(UsageError, match="there is no file"):
        open_data(f"{address}/nothing.zip")
    with pytest.raises(DataError, match="cannot be reached"):
        open_data("http://127.0.0.1:1/t.zip")
    with pytest.raises(UsageError, match="Did you mean"):
        open_data("memry://b/t.tar")


def test_without_a_connection_the_copy_is_used(tmp_path, memory, monkeypatch, caplog):
    containers.write_zip(tmp_path, containers.pictures())
    memory.pipe("/b/t.zip", (tmp_path / "t.zip").read_bytes())
    open_data("memory://b/t.zip")

    def fail(*_):
        raise OSError("no route to host")

    monkeypatch.setattr(remote, "_by_fsspec", fail)
    assert len(open_data("memory://b/t.zip")["all"]) == 12
    assert "no route to host" in caplog.text


def test_the_package_that_is_missing_is_named(monkeypatch):
    def missing(*_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(UsageError, match="pip install s3fs"):
        open_data("s3://bucket/t.tar")


def test_a_transfer_that_breaks_off_leaves_nothing(tmp_path, memory, monkeypatch):
    memory.pipe("/b/t.zip", b"x" * 5000)

    class Broken:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read(self, _, parts=iter([b"x" * 100, b""])):  # noqa: B008
            return next(parts)

    whole = remote._by_fsspec("memory://b/t.zip")
    monkeypatch.setattr(remote, "_by_fsspec", lambda url: remote._Remote(url, whole.size, whole.state, Broken))
    with pytest.raises(DataError, match="broke off after 100 of 5,000 bytes"):
        open_data("memory://b/t.zip")
    left = [p for p in (paths.cache_dir() / "remote").rglob("*") if p.is_file() and p.stat().st_size]
    assert left == []


def test_the_cache_keeps_to_its_limit_and_to_what_is_in_use(tmp_path, memory, monkeypatch):
    for i in range(3):
        memory.pipe(f"/b/{i}.tar", bytes(1000))
    monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", "2500")
    for i in range(3):
        (copy,) = remote.local_copies([f"memory://b/{i}.tar"])
        os.utime(copy.with_name(copy.name + ".info"), (i + 1, i + 1))
    assert len(copies()) == 3  # this process uses all of them
    remote._use.cache_clear()
    for mark in (paths.cache_dir() / "remote").rglob(".*.used"):
        mark.unlink()
    remote._evict(2500)
    assert [copy.name for copy in copies()] == ["1.tar", "2.tar"]
    monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", "1.5KB")
    with pytest.raises(DataError, match="2,000 bytes do not fit into the cache of 1,500"):
        remote.local_copies(["memory://b/0.tar", "memory://b/1.tar"])
    monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", "much")
    with pytest.raises(UsageError, match="no size"):
        remote.local_copies(["memory://b/0.tar"])


def test_with_no_cache_the_copy_goes_when_the_process_ends(tmp_path, server):
    address, _ = server
    containers.write_zip(tmp_path / "served", containers.pictures())
    code = (
        "import sys; from pathlib import Path; from sslbench.data.open import open_data\n"
        "source = open_data(sys.argv[1])['all']; print(Path(source.images.containers[0]).is_file(), len(source))"
    )
    environment = os.environ | {"SSLBENCH_REMOTE_CACHE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, f"{address}/t.zip"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "12"]
    with contextlib.suppress(FileNotFoundError):
        assert copies() == []
