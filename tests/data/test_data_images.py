"""Reading and hashing images: the hash follows the content, and a second run does not read what has not changed."""

import hashlib
import os
import pickle
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sslbench import paths
from sslbench.data import hashes
from sslbench.data import images as images_module
from sslbench.data.images import UNREADABLE_DIGEST, Arrays, Files


@pytest.fixture
def reads(monkeypatch):
    """The files whose content was read in order to hash it."""
    seen = []
    hash_file = images_module._hash_file

    def counting(file):
        seen.append(Path(file).name)
        return hash_file(file)

    monkeypatch.setattr(images_module, "_hash_file", counting)
    return seen


@pytest.fixture(autouse=True)
def a_minute_later(monkeypatch):
    """No file is of the very moment at which it is hashed."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 60 * 10**9)


def written(folder, n):
    files = [folder / f"{i}.bin" for i in range(n)]
    for i, file in enumerate(files):
        file.write_bytes(b"content %d" % i)
    return files


def test_digests_are_the_blake2b_of_each_file_in_order(tmp_path):
    files = written(tmp_path, 3)
    expected = [hashlib.blake2b(f.read_bytes(), digest_size=16).digest() for f in files]
    digests = Files(files).digests()
    assert digests.shape == (3, 16)
    assert digests.dtype == np.uint8
    assert [d.tobytes() for d in digests] == expected
    assert [d.tobytes() for d in Files(files).select(np.array([2, 0])).digests()] == [expected[2], expected[0]]


def test_a_second_run_reads_no_file_and_gives_the_same(tmp_path, reads):
    files = written(tmp_path, 5)
    first = Files(files).digests()
    assert len(reads) == 5
    reads.clear()
    np.testing.assert_array_equal(Files(files).digests(), first)
    assert reads == []


def test_relative_paths_share_the_memo_with_absolute_ones(tmp_path, reads, monkeypatch):
    files = written(tmp_path, 2)
    Files(files).digests()
    reads.clear()
    monkeypatch.chdir(tmp_path)
    Files(("0.bin", "1.bin")).digests()
    Files(("0.bin", "1.bin"), str(tmp_path)).digests()
    assert reads == []


@pytest.mark.parametrize("what", ["content of the same length and time", "replaced by another file", "longer"])
def test_only_a_changed_file_is_read_again(tmp_path, reads, what):
    files = written(tmp_path, 4)
    before = Files(files).digests()
    reads.clear()
    stat = files[2].stat()
    if what == "replaced by another file":
        (tmp_path / "new").write_bytes(b"content X")
        (tmp_path / "new").replace(files[2])
    else:
        files[2].write_bytes(b"content X" if "same" in what else b"content 2 and more")
    os.utime(files[2], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    while files[2].stat().st_ctime_ns == stat.st_ctime_ns:  # the clock of the file system ticks every few milliseconds
        os.utime(files[2], ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = Files(files).digests()
    assert reads == ["2.bin"]
    assert (after != before).any(axis=1).tolist() == [False, False, True, False]


def test_a_file_written_this_moment_is_not_remembered():
    now = 10**18 + 5
    tick = 1_000_000
    assert not hashes.settled((1, now - tick, now - tick, 1), now)
    assert hashes.settled((1, now - 100 * tick, now - 100 * tick, 1), now)
    # Where the file system keeps whole seconds only, a second is one tick.
    assert not hashes.settled((1, 10**18 - 10**9, 10**18 - 10**9, 1), now)


@pytest.mark.parametrize("damage", ["corrupt", "a folder", "other columns"])
def test_an_unusable_memo_is_a_warning_and_costs_only_time(tmp_path, caplog, damage):
    files = written(tmp_path, 2)
    memo = paths.cache_dir() / "file-hashes.sqlite"
    memo.parent.mkdir(parents=True, exist_ok=True)
    if damage == "corrupt":
        memo.write_bytes(b"no database " * 500)
    elif damage == "a folder":
        memo.mkdir()
    else:
        with sqlite3.connect(memo) as database:
            database.execute("CREATE TABLE hashes (path TEXT)")
    hashes.warn_once.cache_clear()
    digests = Files(files).digests()
    Files(files).digests()
    assert digests[1].tobytes() == hashlib.blake2b(b"content 1", digest_size=16).digest()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert str(memo) in warnings[0]


def test_a_cache_folder_that_cannot_be_made_is_a_warning(tmp_path, caplog, monkeypatch):
    files = written(tmp_path, 2)
    monkeypatch.setenv("SSLBENCH_CACHE", str(files[0] / "below a file"))
    hashes.warn_once.cache_clear()
    assert len(Files(files).digests()) == 2
    assert "SSLBENCH_CACHE" in caplog.text


def test_a_file_that_cannot_be_read_does_not_stop_the_others(tmp_path):
    files = written(tmp_path, 2)
    digests = Files([files[0], tmp_path / "gone.png", tmp_path, files[1]]).digests()
    assert [d.tobytes() == UNREADABLE_DIGEST for d in digests] == [False, True, True, False]
    with pytest.raises(OSError, match="gone"):
        Files([tmp_path / "gone.png"]).read(0)


def test_several_processes_may_hash_the_same_files_at_once(tmp_path):
    files = written(tmp_path, 300)
    code = (
        "import sys; from sslbench.data.images import Files; "
        "print(Files([f'{sys.argv[1]}/{i}.bin' for i in range(300)]).digests().tobytes().hex())"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [run.communicate() for run in runs]
    assert {out.strip() for out, _ in outputs} == {Files(files).digests().tobytes().hex()}
    assert [err for _, err in outputs] == [""] * 4


def test_a_name_that_is_no_utf8_can_be_read_hashed_and_printed(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    try:
        (tmp_path / name).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    files = Files((name,), str(tmp_path))
    assert files.read(0) == b"x"
    assert files.path(0).endswith("caf\\xe9.png")
    files.path(0).encode()
    assert files.digests().any()


def test_arrays_read_name_and_hash_the_rows_that_were_selected():
    array = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3)
    images = Arrays(array, "digits")
    some = images.select(np.array([3, 1, 4])).select(np.array([2, 0]))
    assert [some.path(i) for i in range(2)] == ["digits[4]", "digits[3]"]
    np.testing.assert_array_equal(some.read(1), array[3])
    np.testing.assert_array_equal(some.digests(), images.digests()[[4, 3]])
    assert len(np.unique(images.digests(), axis=0)) == 5


def test_the_same_bytes_in_another_shape_are_another_image():
    wide, high = np.zeros((1, 2, 3), np.uint8), np.zeros((1, 3, 2), np.uint8)
    assert (Arrays(wide, "a").digests() != Arrays(high, "a").digests()).any()


def test_a_view_of_an_array_hashes_like_its_copy():
    array = np.random.default_rng(0).integers(0, 256, (3, 3, 4, 5), dtype=np.uint8).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(Arrays(array, "a").digests(), Arrays(array.copy(), "a").digests())


def test_arrays_of_another_type_are_refused():
    with pytest.raises(ValueError, match="uint8"):
        Arrays(np.zeros((2, 3, 3), np.float32), "a")


@pytest.mark.parametrize("make", [lambda f: Files((f,)), lambda f: Arrays(np.ones((2, 3, 3), np.uint8), "a")])
def test_images_survive_the_way_to_another_process(tmp_path, make):
    images = make(written(tmp_path, 1)[0])
    copy = pickle.loads(pickle.dumps(images))  # noqa: S301 - written one call earlier
    np.testing.assert_array_equal(copy.digests(), images.digests())
    assert copy.path(0) == images.path(0)


def test_files_are_hashed_once_per_object_and_anew_where_the_data_is_opened_anew(tmp_path, monkeypatch):
    files = Files(("a", "b"), str(tmp_path))
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    first = files.digests()
    with monkeypatch.context() as patch:
        patch.setattr(images_module, "HashMemo", None)
        patch.setattr(images_module, "_stamp", None)
        files.digests()[:] = 0
        assert np.array_equal(files.digests(), first)
        assert np.array_equal(files.select(np.array([1])).digests(), first[1:])
    (tmp_path / "b").write_bytes(b"another")
    with pytest.raises(OSError, match="has changed since it was hashed"):
        files.read(1)
    again = Files(("a", "b"), str(tmp_path)).digests()
    assert [row.tobytes() for row in again] == [images_module.digest(b"a"), images_module.digest(b"another")]
