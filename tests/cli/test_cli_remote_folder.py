"""Weights, data and results at addresses of fsspec, by its file system in memory."""

import fsspec
import pytest
import torch

from sslbench.backbones.build import build
from sslbench.cli import remote_folder
from sslbench.errors import ResultError, UsageError


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """File system in memory, empty, and a cache folder of this test's own."""
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


def test_everything_lies_in_a_bucket(sslbench, bucket, tmp_path):
    torch.save(build("resnet18w0.25").module.state_dict(), tmp_path / "w.pth")
    bucket.pipe_file("/b/w.pth", (tmp_path / "w.pth").read_bytes())
    words = ("eval", "knn", "--weights", "memory://b/w.pth", "k=3", "--resize", "8", "--crop", "8", "--workers", "0")
    code, _, err = sslbench(*words, "--no-floors", "--out", "memory://b/results")
    assert code == 0, err
    (record,) = bucket.glob("/b/results/knn/*.json")
    code, out, _ = sslbench("leaderboard", "memory://b/results")
    assert code == 0 and "w.pth" in out
    # another machine, which has nothing
    own = remote_folder.local_folder("memory://b/results")
    own.rename(tmp_path / "moved")
    code, out, _ = sslbench("leaderboard", "memory://b/results", "--csv", "board.csv")
    assert code == 0 and (tmp_path / "board.csv").read_text().count("w.pth") == 1
    assert (own / "knn" / record.rpartition("/")[2]).is_file()


def test_what_is_new_on_either_side_goes_to_the_other(bucket):
    place = "memory://b/r"
    bucket.pipe_file("/b/r/knn/one.json", b"1")
    with pytest.raises(RuntimeError), remote_folder.synchronised(place) as folder:
        assert (folder / "knn" / "one.json").read_bytes() == b"1"
        (folder / "knn" / "two.json").write_bytes(b"2")
        (folder / "slurm").mkdir()
        (folder / "slurm" / "1_log.err").write_bytes(b"of this machine")
        raise RuntimeError("the command failed")
    assert bucket.cat_file("/b/r/knn/two.json") == b"2", "what was computed is kept"
    assert not bucket.exists("/b/r/slurm")
    bucket.pipe_file("/b/r/knn/one.json", b"changed")
    with remote_folder.synchronised(place) as folder:
        assert (folder / "knn" / "one.json").read_bytes() == b"changed"
        (folder / "knn" / "two.json").write_bytes(b"again")
    assert bucket.cat_file("/b/r/knn/two.json") == b"again"
    assert bucket.cat_file("/b/r/knn/one.json") == b"changed"


def test_records_that_could_not_be_sent_go_with_the_next_command(bucket, monkeypatch):
    place = "memory://b/r"

    def refuse(*args, **kwargs):
        raise OSError("no network")

    with monkeypatch.context() as broken:
        broken.setattr(type(bucket), "pipe_file", refuse)
        with pytest.raises(ResultError, match="no network"), remote_folder.synchronised(place) as folder:
            (folder / "one.json").write_bytes(b"1")
    with remote_folder.synchronised(place):
        pass
    assert bucket.cat_file("/b/r/one.json") == b"1"


def test_a_name_that_leaves_the_folder_is_refused(tmp_path):
    with pytest.raises(ResultError, match="is not the name of a result"):
        remote_folder._inside(tmp_path, "../x.json")


def test_an_unknown_scheme_is_told(sslbench):
    with pytest.raises(UsageError, match="nothing-like-it"):
        remote_folder.pull("nothing-like-it://b/r")
    assert remote_folder.local_folder("results").as_posix() == "results"
    assert not remote_folder.is_address("results/a:b")
    assert all(remote_folder.is_address(text) for text in ("s3://b/r", "s3:/b/r", "gs://b"))
