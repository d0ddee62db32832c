"""Data behind URLs: copied once, whole, to a cache that stays within its limit."""

import gzip
import os
import subprocess
import sys

import fsspec
import pytest
from helpers import containers
from helpers.serving import serving

from sslbench import paths
from sslbench.data import remote
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    yield
    remote._HELD.clear()


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


@pytest.fixture
def server(tmp_path):
    """A server of tmp_path/served."""
    with serving(tmp_path / "served") as served:
        yield served


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
    address = server.address
    samples = containers.pictures()
    containers.write_zip(tmp_path / "served", samples)
    first = open_data(f"{address}/t.zip")["all"]
    open_data(f"{address}/t.zip")
    assert server.fetched() == {"t.zip": 1}
    containers.write_zip(tmp_path / "served", dict(list(samples.items())[:6]))
    os.utime(tmp_path / "served" / "t.zip", (1, 1))
    assert len(first) == 12 and len(open_data(f"{address}/t.zip")["all"]) == 6


def test_a_query_of_the_server_is_kept_and_options_of_ours_are_taken_off(tmp_path, server):
    containers.write_zip(tmp_path / "served", containers.pictures())
    open_data(f"{server.address}/t.zip?token=a1")
    assert server.fetched() == {"t.zip?token=a1": 1}
    with pytest.raises(UsageError, match="takes no options"):
        open_data(f"{server.address}/t.zip?unit=annotation")


def test_what_is_not_there_or_cannot_be_reached_is_said(tmp_path, server, caplog):
    with pytest.raises(UsageError, match="there is no file"):
        open_data(f"{server.address}/nothing.zip")
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

    monkeypatch.setattr(remote, "described", fail)
    assert len(open_data("memory://b/t.zip")["all"]) == 12
    assert "no route to host" in caplog.text


def test_the_package_that_is_missing_is_named(monkeypatch):
    def missing(*_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(UsageError, match="pip install s3fs"):
        open_data("s3://bucket/t.tar")


def test_a_transfer_that_breaks_off_is_begun_again_a_few_times(tmp_path, server, monkeypatch, caplog):
    monkeypatch.setattr(remote, "PAUSES_S", (0.01, 0.01))
    containers.write_zip(tmp_path / "served", containers.pictures())
    server.breaks["t.zip"] = 2
    assert len(open_data(f"{server.address}/t.zip")["all"]) == 12
    assert server.fetched() == {"t.zip": 3}
    assert "t.zip: the transfer ended after" in caplog.text


def test_one_that_always_breaks_off_is_given_up_and_leaves_nothing(tmp_path, server, monkeypatch):
    monkeypatch.setattr(remote, "PAUSES_S", (0.01, 0.01))
    containers.write_zip(tmp_path / "served", containers.pictures())
    server.breaks["t.zip"] = 99
    size = (tmp_path / "served" / "t.zip").stat().st_size
    broken = rf"/t\.zip cannot be read: the transfer ended after .* of {size:,} bytes \(tried 3 times\)"
    with pytest.raises(DataError, match=broken):
        open_data(f"{server.address}/t.zip")
    assert copies() == [] and not list(remote.folder().rglob("*.part"))


def test_the_cache_keeps_to_its_limit_and_to_what_is_in_use(memory, monkeypatch):
    monkeypatch.setattr(remote, "_PATIENCE_S", 0.1)
    monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", "3000")
    for i in range(3):
        memory.pipe(f"/b/{i}.zip", bytes(1000))
    for i in range(2):
        (copy,) = remote.local_copies([f"memory://b/{i}.zip"])
        os.utime(copy, ns=(i + 1, copy.stat().st_mtime_ns))
    with pytest.raises(DataError, match="does not fit into the cache of 3,000 bytes: all other copies are in use"):
        remote.local_copies(["memory://b/2.zip"])
    assert [copy.name for copy in copies()] == ["0.zip", "1.zip"]
    remote._HELD.clear()
    remote.local_copies(["memory://b/2.zip"])
    assert [copy.name for copy in copies()] == ["1.zip", "2.zip"]
    with pytest.raises(DataError, match="4 files of 4,000 bytes do not fit into the cache of 3,000"):
        memory.pipe("/b/3.zip", bytes(1000))
        remote.local_copies([f"memory://b/{i}.zip" for i in range(4)])
    monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", "much")
    with pytest.raises(UsageError, match="not a size"):
        remote.local_copies(["memory://b/0.zip"])


def test_what_a_killed_process_was_writing_is_removed_and_what_another_writes_is_not(tmp_path, memory, monkeypatch):
    monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", "6000")
    monkeypatch.setattr(remote, "_PATIENCE_S", 0.1)
    place = remote.folder() / "ab"
    place.mkdir(parents=True)
    (place / ".left.part").write_bytes(bytes(3000))
    memory.pipe("/b/0.zip", bytes(2000))
    origin = remote.Origin("x.tar", "", 2000, str(place / "x.tar"))
    with remote._new_copy(origin, 2000) as part:
        part.write(bytes(1000))
        remote.local_copies(["memory://b/0.zip"])
        assert not (place / ".left.part").exists()
        with pytest.raises(DataError, match=r"x\.tar has more than 6,999 bytes, and the cache may hold 6,000"):
            part.write(bytes(6000))
        part.write(bytes(1000))
        part.finish().close()
    assert (place / "x.tar").read_bytes() == bytes(2000)


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path, memory, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "file"))
    memory.pipe("/b/t.tar", b"x")
    with pytest.raises(UsageError, match=r"cannot be written.*\nSet \$SSLBENCH_CACHE"):
        open_data("memory://b/t.tar")


READS = """
import os, sys
from pathlib import Path
from sslbench.data.open import open_data

def there(spec):
    source = open_data(spec)["all"]
    child = os.fork()
    if child == 0:  # as a worker of torch's: it may read what this process does not, and ends without cleaning up
        source.images.read(0)
        print(Path(source.images.containers[0]).is_file(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)

for spec in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        there(spec)
        sys.exit()
    os.waitpid(child, 0)
os._exit(0)  # it opened nothing; to clean up after torch takes a second
"""


def test_with_no_cache_the_copies_go_when_the_process_ends(tmp_path, server):
    containers.write_zip(tmp_path / "served", containers.pictures())
    containers.write_tar(tmp_path / "served", containers.pictures())
    environment = os.environ | {"SSLBENCH_REMOTE_CACHE": "0"}
    command = [sys.executable, "-c", READS, f"{server.address}/t.zip", f"{server.address}/t.tar"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
    assert copies() == []


@pytest.mark.parametrize(("bound", "message"), [("100", "has more than"), ("much", "which is not a size")])
def test_a_packed_file_that_cannot_be_kept_is_told_at_once_and_in_words(tmp_path, bound, message):
    packed = tmp_path / "t.tar.gz"
    containers.write_tar(tmp_path, containers.pictures())
    packed.write_bytes(gzip.compress((tmp_path / "t.tar").read_bytes()))
    # What is known about files of earlier commands counts, and cannot make room.
    about = tmp_path / "cache" / "remote" / "0123456789abcdef" / ".other.tar.info"
    about.parent.mkdir(parents=True)
    about.write_text("x" * 200, encoding="utf-8")
    environment = os.environ | {"SSLBENCH_REMOTE_CACHE": bound, "SSLBENCH_CACHE": str(tmp_path / "cache")}
    program = "import sys; from sslbench.data.open import open_data; open_data(sys.argv[1])"
    arguments = [sys.executable, "-c", program, str(packed)]
    found = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert message in found.stderr and "Exception ignored" not in found.stderr
