"""Names: what exists is found, what does not exist gets a suggestion, and a user's own things need no registration."""

import pytest

from sslbench import names, paths
from sslbench.errors import UsageError


def test_every_kind_lists_what_is_there():
    kinds = "augment benchmark format launcher method optimizer preset protocol schedule source suite"
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
