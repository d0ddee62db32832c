"""Weights, data and results at addresses of fsspec, by its file system in memory."""

import fsspec
import pytest

from sslbench.cli import remote_folder
from sslbench.data import remote
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


def test_everything_lies_in_a_bucket(sslbench, bucket, tmp_path, shared):
    bucket.pipe_file("/b/w.pth", (shared("weights") / "resnet18w0.25.pth").read_bytes())
    words = ("eval", "knn", "--weights", "memory://b/w.pth", "k=3", "--resize", "8", "--crop", "8", "--workers", "0")
    code, _, err = sslbench(*words, "--no-floors", "--out", "memory://b/results")
    assert code == 0, err
    assert "sent to memory://b/results" in err
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
    bucket.pipe_file("/b/r/knn/one.json", b'"changed"')
    with remote_folder.synchronised(place) as folder:
        assert (folder / "knn" / "one.json").read_bytes() == b'"changed"'
        (folder / "knn" / "two.json").write_bytes(b"again")
    assert bucket.cat_file("/b/r/knn/two.json") == b"again"
    assert bucket.cat_file("/b/r/knn/one.json") == b'"changed"'


def test_records_that_could_not_be_sent_go_with_the_next_command(bucket, monkeypatch):
    place = "memory://b/r"

    def refuse(*args, **kwargs):
        raise OSError("no network")

    with monkeypatch.context() as broken:
        broken.setattr(type(bucket), "put_file", refuse)
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


class StrangeError(Exception):
    """Error of a library that fsspec uses, such as botocore's NoCredentialsError: no OSError."""


def test_what_was_removed_there_does_not_come_back(bucket):
    place = "memory://b/r"
    for name in ("kept", "gone", "changed"):
        bucket.pipe_file(f"/b/r/{name}.json", b"1")
    with remote_folder.synchronised(place) as folder:
        (folder / "changed.json").write_bytes(b"written here")
        bucket.rm("/b/r/gone.json")
        (folder / "own.json").write_bytes(b"2")
    assert not bucket.exists("/b/r/gone.json")
    with remote_folder.synchronised(place):
        assert not (folder / "gone.json").exists()
    names = [path.rpartition("/")[2] for path in bucket.ls("/b/r", detail=False)]
    assert sorted(names) == ["changed.json", "kept.json", "own.json"]
    assert bucket.cat_file("/b/r/changed.json") == b"written here"


def test_errors_of_libraries_below_fsspec_are_messages(bucket, sslbench, monkeypatch):
    def refuse(*args, **kwargs):
        raise StrangeError("Unable to locate credentials")

    for asked in ("find", "info", "exists"):
        monkeypatch.setattr(type(bucket), asked, refuse)
    code, _, err = sslbench("leaderboard", "memory://b/r")
    assert code == 1 and "memory://b/r cannot be reached: Unable to locate credentials" in err
    assert "your credentials" in err and "kept" not in err
    for words in (("--weights", "memory://b/other.pth"), ("--weights", "random", "--data", "memory://b/s.tar")):
        code, _, err = sslbench("eval", "knn", "--backbone", "resnet18w0.25", *words)
        assert code == 1 and "cannot be reached: Unable to locate credentials" in err, err


def test_a_connection_that_breaks_while_an_object_is_read_is_told(bucket, sslbench, monkeypatch):
    class Broken:
        def read(self, size):
            raise StrangeError("connection lost")

        def close(self):
            pass

    monkeypatch.setattr(remote, "PAUSES_S", (0.0,))
    bucket.pipe_file("/b/s.tar", b"x" * 10_240)
    monkeypatch.setattr(type(bucket), "open", lambda *given, **named: Broken())
    code, _, err = sslbench(
        "eval", "knn", "--backbone", "resnet18w0.25", "--weights", "random", "--data", "memory://b/s.tar"
    )
    assert code == 1 and "memory://b/s.tar cannot be read: connection lost (tried 2 times)" in err


def test_a_bucket_that_does_not_exist_is_not_made(bucket, monkeypatch):
    monkeypatch.setattr(remote_folder, "_BUCKETS", ("memory",))
    with pytest.raises(UsageError, match="there is no bucket memory://typo"):
        remote_folder.pull("memory://typo/r")
    bucket.pipe_file("/b/w.pth", b"1")
    assert remote_folder.pull("memory://b/new").is_dir()


ADDRESSES = [
    ("eval", "knn", "--weights", "random", "--backbone", "resnet18w0.25", "--store", "memory://b/store"),
    ("extract", "--weights", "random", "--backbone", "resnet18w0.25", "-o", "memory://b/x.npz"),
    ("pretrain", "simclr", "--backbone", "resnet18w0.25", "--out", "memory://b/run", "batch_size=8"),
    ("demo", "--out", "memory://b/demo"),
    ("score", "p.csv", "--data", "sklearn:digits", "--out", "memory://b/r"),
    ("leaderboard", ".", "--csv", "memory://b/board.csv"),
    ("predict", "--weights", "random", "--csv", "memory://b/p.csv"),
    ("convert", "p.csv", "memory://b/w.pth", "--to", "vissl"),
]


def test_addresses_where_folders_of_this_machine_are_needed(sslbench, bucket, tmp_path):
    for words in ADDRESSES:
        (tmp_path / "p.csv").write_text("id,prediction\n")
        code, _, err = sslbench(*words)
        assert code == 2 and "is an address, and a place on this machine is needed" in err, err
        assert not (tmp_path / "memory:").exists()


def test_a_file_url_is_the_folder_that_it_names(sslbench, bucket, tmp_path):
    words = ("eval", "knn", "--weights", "pixels", "--limit", "20", "--no-floors", "--no-estimate", "-q", "k=1")
    code, _, err = sslbench(*words, "--out", f"file://{tmp_path}/my%20results")
    assert code == 0, err
    assert len(list((tmp_path / "my results" / "knn").glob("*.json"))) == 1
    assert not (tmp_path / "file:").exists()
    code, out, err = sslbench("leaderboard", f"file://{tmp_path}/my%20results")
    assert code == 0 and "pixels" in out
    code, _, err = sslbench(*words, "--out", "file://results/x")
    assert code == 2 and "names the machine 'results'" in err and "file:///PATH" in err
    code, _, err = sslbench("leaderboard", "my results", "--html", f"file://{tmp_path}/b.html")
    assert code == 2 and f"Write {tmp_path}/b.html." in err


def test_what_was_never_sent_is_kept_and_sent(bucket, monkeypatch):
    place = "memory://b/r"
    with monkeypatch.context() as broken:
        broken.setattr(type(bucket), "put_file", lambda *given, **named: (_ for _ in ()).throw(OSError("no network")))
        with pytest.raises(ResultError, match="no network"), remote_folder.synchronised(place) as folder:
            (folder / "one.json").write_bytes(b"1")
    bucket.pipe_file("/b/r/one.json", b"2")
    with remote_folder.synchronised(place):
        assert (folder / "one.json").read_bytes() == b"1"
    assert bucket.cat_file("/b/r/one.json") == b"1"


def test_the_error_of_a_command_is_not_hidden_by_that_of_sending(bucket, monkeypatch, caplog):
    with pytest.raises(RuntimeError, match="the command failed"), remote_folder.synchronised("memory://b/r") as folder:
        (folder / "one.json").write_bytes(b"1")
        monkeypatch.setattr(type(bucket), "find", lambda *given, **named: (_ for _ in ()).throw(OSError("no network")))
        monkeypatch.setattr(type(bucket), "put_file", bucket.find)
        raise RuntimeError("the command failed")
    assert "no network" in caplog.text and str(folder) in caplog.text
