"""Compressed tar files: unpacked once into the cache, within its bound, and nothing beside the user's file."""

import bz2
import gzip
import lzma
import sys
import tarfile

import pytest
from helpers.containers import add_to_tar, pictures, png, write_tar

from sslbench.data.open import open_data
from sslbench.errors import DataError

PACK = {"tar.gz": gzip.compress, "tgz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "remote"


@pytest.mark.parametrize("suffix", [*PACK, "tar"])
def test_a_compressed_archive_is_unpacked_once_into_the_cache(tmp_path, cache, suffix):
    plain = open_data(write_tar(tmp_path, pictures()))["all"]
    (tmp_path / "packed").mkdir()
    packed = tmp_path / "packed" / f"t.{suffix}"  # .tar: told by what is in it
    packed.write_bytes(PACK.get(suffix, gzip.compress)((tmp_path / "t.tar").read_bytes()))
    source = open_data(str(packed))["all"]
    assert source.ids == plain.ids and source.fingerprint() == plain.fingerprint()
    assert source.images.path(0) == f"{packed}/{plain.ids[0]}"
    assert list(packed.parent.iterdir()) == [packed]
    (copy,) = cache.glob(f"*/t.{suffix}")
    assert copy.read_bytes() == (tmp_path / "t.tar").read_bytes()
    before = copy.stat().st_ino
    assert open_data(str(packed))["all"].images.read(3) == plain.images.read(3)
    assert copy.stat().st_ino == before
    copy.unlink()
    assert source.images.read(3) == plain.images.read(3)


def test_compressed_shards_with_the_same_names_inside_have_the_ids_of_plain_ones(tmp_path, cache):
    for k in range(2):
        with tarfile.open(tmp_path / f"s{k}.tar", "w") as archive:
            add_to_tar(archive, "1.png", png(k))
            add_to_tar(archive, "1.cls", b"ab"[k : k + 1])
        (tmp_path / f"s{k}.tar.gz").write_bytes(gzip.compress((tmp_path / f"s{k}.tar").read_bytes()))
    source = open_data(f"{tmp_path}/s{{0..1}}.tar.gz")["all"]
    assert source.ids == open_data(f"{tmp_path}/s{{0..1}}.tar")["all"].ids == ("s0/1.png", "s1/1.png")


def test_an_archive_that_unpacks_to_more_than_the_cache_holds_stops_there(tmp_path, cache, monkeypatch):
    (tmp_path / "t.tar.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", "3MB")
    with pytest.raises(DataError, match=r"t.tar.gz has more than [\d,]+ bytes, and the cache may hold 3,000,000"):
        open_data(str(tmp_path / "t.tar.gz"))
    assert sum(p.stat().st_size for p in cache.rglob("*") if p.is_file()) == 0


@pytest.mark.parametrize("damage", [lambda c: c[: len(c) // 2], lambda c: c[:300] + bytes(50) + c[350:]])
@pytest.mark.parametrize("suffix", ["tar.gz", "tar.bz2", "tar.xz"])
def test_a_damaged_compressed_archive_is_named(tmp_path, cache, suffix, damage):
    write_tar(tmp_path, pictures())
    packed = tmp_path / f"t.{suffix}"
    packed.write_bytes(damage(PACK[suffix]((tmp_path / "t.tar").read_bytes())))
    with pytest.raises(DataError, match=rf"{packed} is damaged or truncated"):
        open_data(str(packed))
    assert list(cache.glob("*/t.*")) == []


def test_zstandard_is_named_where_it_is_missing(tmp_path, cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "t.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(DataError, match=r"needs the package zstandard\npip install zstandard"):
        open_data(str(tmp_path / "t.tar.zst"))


def test_zstandard_unpacks(tmp_path, cache):
    zstandard = pytest.importorskip("zstandard")
    plain = open_data(write_tar(tmp_path, pictures()))["all"]
    content = zstandard.ZstdCompressor().compress((tmp_path / "t.tar").read_bytes())
    (tmp_path / "t.tar.zst").write_bytes(content)
    assert open_data(str(tmp_path / "t.tar.zst"))["all"].fingerprint() == plain.fingerprint()
    (tmp_path / "half.tar.zst").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="damaged or truncated"):
        open_data(str(tmp_path / "half.tar.zst"))
