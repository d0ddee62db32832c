"""Names of things, folders and files, locks, arithmetic."""

import errno
import fcntl
import multiprocessing
import os
import re
import signal
import threading

import fsspec
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from sslbench import names, paths
from sslbench.arithmetic import arithmetic, float32_rounding
from sslbench.backbones.named import fetch
from sslbench.cli.main import cli
from sslbench.data import remote
from sslbench.errors import DataError, UsageError
from sslbench.locks import lock
from sslbench.paths import new_file, temporary_beside
from sslbench.results import holes
from sslbench.results.holes import Hole
from sslbench.results.records import replace_file
from sslbench.solvers.neighbours import nearest


def test_every_kind_lists_what_is_there():
    kinds = "augment benchmark format launcher method optimizer preset prompts protocol schedule sink source suite"
    assert list(names.KINDS) == kinds.split()
    assert {
        "clustering",
        "geolocation",
        "geometry",
        "knn",
        "linear",
        "low-shot",
        "lsr",
        "retrieval",
        "robustness",
        "svm",
    } <= set(names.list_names("protocol"))
    assert {"coco", "folder", "table", "tar", "torchvision", "voc", "zip"} <= set(names.list_names("source"))
    assert {"simclr", "moco_v1", "moco_v2", "swav", "rotnet"} <= set(names.list_names("method"))
    assert {"simclr", "small"} <= set(names.list_names("augment"))
    assert {"adamw", "larc", "lars", "sgd"} == set(names.list_names("optimizer"))
    assert {"constant", "cosine"} <= set(names.list_names("schedule"))
    assert names.list_names("launcher") == ["local", "slurm"]
    formats = names.list_names("format")  # tests/weights/test_weights_formats.py compares all with their key lists
    assert formats == sorted(formats) and {"dino", "moco", "timm", "torchvision", "vissl"} <= set(formats)


def test_a_name_alone_finds_the_file_that_the_list_of_all_names_has():
    for kind in names._FOLDERS:
        listed = names.yaml_files(kind)
        assert listed == {name: names._yaml_file(kind, name) for name in listed}
    for other in ("suites/small", "presets/dino", "data/cifar10", "knn/_each", "knn/nosuch", "nosuch/cifar10"):
        assert names._yaml_file("benchmark", other) is None, other


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(UsageError, match="no protocol called 'kn'\nDid you mean 'knn'"):
        names.find_module("protocol", "kn")
    with pytest.raises(UsageError, match="Did you mean 'benchmark'"):
        names.list_names("benchmarc")


def test_a_method_is_a_recipe_and_the_module_that_it_names():
    assert names.find_file("method", "moco_v2").name == "moco_v2.yaml"
    assert names.find_module("method", "moco").__name__ == "sslbench.methods.moco"
    with pytest.raises(UsageError, match="no method called 'mocov2'\nDid you mean 'moco_v2'"):
        names.find_file("method", "mocov2")


def test_a_protocol_of_the_users_own_is_found_by_its_dotted_name(tmp_path, monkeypatch):
    (tmp_path / "my_pkg").mkdir()
    (tmp_path / "my_pkg" / "__init__.py").write_text("")
    (tmp_path / "my_pkg" / "probe.py").write_text("VERSION = 7\n")
    monkeypatch.chdir(tmp_path)
    assert names.find_module("protocol", "my_pkg.probe").VERSION == 7


def test_an_object_of_the_users_own_is_found_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "nets_for_names_test.py").write_text("def tiny():\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    assert names.find_object("nets_for_names_test:tiny")() == 3
    with pytest.raises(UsageError, match="has no 'tini'\nDid you mean 'tiny'"):
        names.find_object("nets_for_names_test:tini")
    with pytest.raises(UsageError, match="there is no Python module 'no_such_module_here'"):
        names.find_object("no_such_module_here:tiny")


def test_a_users_module_that_fails_to_import_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_nets_for_test.py").write_text("import no_such_library_at_all\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UsageError, match="importing 'broken_nets_for_test' failed: No module named 'no_such_library_at_all'"
    ):
        names.find_object("broken_nets_for_test:net")


def test_a_users_yaml_comes_before_the_built_in_one(tmp_path, monkeypatch):
    (tmp_path / "benchmarks" / "knn").mkdir(parents=True)
    mine = tmp_path / "benchmarks" / "knn" / "digits.yaml"
    mine.write_text("title: mine\n")
    assert names.find_file("benchmark", "knn/digits").parent.parent == paths.builtin_dir("benchmarks")
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    assert names.find_file("benchmark", "knn/digits") == mine


def test_a_name_of_a_file_stays_one_when_it_is_copied_or_sent(monkeypatch):
    import pickle

    (name,) = names.from_file(["my_pkg.my_thing"], "w.torch: key", "--flag {}")
    for copy in (name, str(name), pickle.loads(pickle.dumps(name))):  # noqa: S301 - its own
        for load in (lambda one: names.find_module("protocol", one), names.find_object):
            with pytest.raises(UsageError, match=r"w\.torch: key names the Python code 'my_pkg\.my_thing'") as caught:
                load(copy)
            assert caught.value.remedy == "If you trust it, give it on the command line: --flag my_pkg.my_thing"
    assert names.from_file("resnet50", "", "") == "resnet50" and type(names.from_file("fast", "", "")) is str


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
    fsspec.filesystem("memory").pipe_file("/full/w.pth", b"weights")
    monkeypatch.setattr(remote._NewCopy, "finish", full)
    with pytest.raises(DataError, match=r"w.pth cannot be copied: .* bytes are free in .*\n.*SSLBENCH_CACHE") as caught:
        fetch("memory://full/w.pth")
    assert "network" not in str(caught.value)
    assert not list(tmp_path.rglob("*.part"))


def test_a_script_that_runs_again_in_a_worker_is_told_instead_of_waiting_for_its_parent(tmp_path, monkeypatch):
    """Processes that do not fork import the script; its parent holds the lock and waits for them."""
    with (tmp_path / "store").open("w") as held, (tmp_path / "store").open("w") as wanted:
        assert lock(held)
        monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
        with pytest.raises(UsageError, match="the script runs again") as caught:
            lock(wanted)
    assert "if __name__ == '__main__':" in str(caught.value)


@pytest.fixture
def no_locks(monkeypatch):
    """A file system without flock, such as Lustre's without `-o flock`."""

    def refuse(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_file_system_without_locks_is_told_and_everything_is_written(tmp_path, monkeypatch, no_locks, caplog):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    words = ["extract", "--weights", "pixels", "--limit", "20", "--workers", "0", "-o", str(tmp_path / "x.npz")]
    outcome = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    assert len(np.load(tmp_path / "x.npz")["features"]) == 40
    assert "its file system has no locks; start no second run" in outcome.output
    holes.write(tmp_path / "results", [], [Hole("a", "b", "lost")])
    assert len(holes.read(tmp_path / "results")) == 1


def test_without_locks_nothing_that_others_may_use_is_removed(tmp_path, monkeypatch, no_locks):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path))
    copy = tmp_path / "remote" / "0" / "x.tar"
    copy.parent.mkdir(parents=True)
    copy.touch()
    assert not remote._removed(copy) and copy.exists()
    being_written = tmp_path / ".x.json.0a1b2c3d.part"
    being_written.touch()
    with paths.temporary_beside(tmp_path / "x.json"):
        pass
    assert being_written.exists()


def test_an_error_of_locking_names_the_file(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (tmp_path / "store").open("w") as file, pytest.raises(OSError, match="store"):
        lock(file)


CHOICES = {
    "nothing": lambda: None,
    "old, products": lambda: torch.set_float32_matmul_precision("high"),
    "old, bf16 on processors": lambda: torch.set_float32_matmul_precision("medium"),
    "old, convolutions off": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "new, products": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "new, all": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "new, convolutions": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
    "new, processors": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
}


def switches():
    """What torch says of both interfaces, errors too."""
    backends = torch.backends
    read = {
        "products": torch.get_float32_matmul_precision,
        "convolutions": lambda: backends.cudnn.allow_tf32,
        "cuda": lambda: backends.cuda.matmul.fp32_precision,
        "cudnn": lambda: (backends.cudnn.conv.fp32_precision, backends.cudnn.rnn.fp32_precision),
        "mkldnn": lambda: (backends.mkldnn.matmul.fp32_precision, backends.mkldnn.conv.fp32_precision),
    }
    found = {}
    for name, each in read.items():
        try:
            found[name] = each()
        except (RuntimeError, AttributeError) as error:
            found[name] = type(error).__name__
    return found


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_is_overruled_and_restored(choice):
    if choice.startswith("new") and not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("torch before 2.9 has one interface")
    with arithmetic("cpu"):  # restores what the test changes
        torch.backends.cudnn.allow_tf32 = True
        CHOICES[choice]()
        before = switches()
        for device, tf32, expected in (("cuda", False, "ieee"), ("cuda", True, "tf32"), ("cpu", True, "ieee")):
            with arithmetic(device, tf32=tf32):
                assert float32_rounding() == expected or choice == "new, processors"
                assert "RuntimeError" not in switches().values(), "a compiler reads both interfaces"
            assert switches() == before
        eye = np.eye(4, dtype=np.float32)
        assert nearest(eye, eye, 1, metric="cosine", max_memory=0.1)[1].ravel().tolist() == [0, 1, 2, 3]
        if hasattr(torch.backends, "fp32_precision"):
            torch.backends.fp32_precision = "none"
