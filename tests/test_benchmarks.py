"""Named benchmarks: every shipped one is complete, and changes to them are seen."""

import dataclasses

import pytest

from sslbench.benchmarks import load_benchmark, load_suite
from sslbench.config import build
from sslbench.detection.recipe import load_recipe
from sslbench.errors import UsageError
from sslbench.names import find_module, list_names

SHIPPED = {
    "detection/coco_c4_1x",
    "detection/coco_c4_2x",
    "detection/coco_fpn_1x",
    "detection/coco_fpn_2x",
    "detection/small",
    "detection/toy",
    "detection/voc07",
    "detection/voc07_12",
    "detection/voc07_12_fpn",
    "detection/voc07_12_iccv19",
    "detection/voc07_12_iccv19_pirl",
    "detection/voc07_12_mocov2",
    "detection/voc07_12_simclr_swav",
    "detection/voc07_12_vit",
    "detection/voc07_pirl",
    "knn/cifar10",
    "knn/digits",
    "knn/fashion_mnist",
    "knn/imagenet1k",
    "linear/cifar10",
    "linear/digits",
    "linear/imagenet1k",
    "low_shot/cifar10",
    "low_shot/digits",
    "low_shot/imagenet1k",
    "low_shot/places205",
    "low_shot/voc07",
    "low_shot/voc07_vissl",
    "lsr/cifar100",
    "lsr/digits",
    "svm/digits",
    "svm/voc07",
    "svm/voc07_goyal19",
}


def all_benchmarks():
    return set(list_names("benchmark"))


def test_the_shipped_benchmarks_are_the_expected_ones():
    assert all_benchmarks() == SHIPPED


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_shipped_benchmark_is_complete(name):
    benchmark = load_benchmark(name)
    assert benchmark.protocol == name.split("/")[0].replace("_", "-")
    assert benchmark.title and benchmark.version >= 1 and not benchmark.modified
    if benchmark.protocol == "detection":
        load_recipe(name)
    else:
        build(find_module("protocol", benchmark.protocol).Settings, benchmark.settings, name)
    assert benchmark.data or benchmark.samples, "says neither what the data is nor how large"
    assert all(reference.source for reference in benchmark.reference)


def test_no_two_benchmarks_measure_the_same():
    hashes = [
        dataclasses.replace(load_benchmark(name), name="", title="", sha256="") for name in sorted(all_benchmarks())
    ]
    assert all(hashes.count(one) == 1 for one in hashes)


def test_suites_name_benchmarks_that_exist():
    assert list_names("suite") == ["digits"]
    assert set(load_suite("digits")) <= SHIPPED
    with pytest.raises(UsageError, match="Did you mean 'digits'"):
        load_suite("digit")


def test_a_users_copy_is_marked_modified_only_when_it_differs(tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks" / "knn"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    text = "extends: knn/_base\ntitle: knn on scikit-learn's handwritten digits\ndata: sklearn:digits\nclasses: 10\n"
    (folder / "digits.yaml").write_text(text)
    same = load_benchmark("knn/digits")
    (folder / "digits.yaml").write_text(text + "settings: {temperature: 0.1}\n")
    changed = load_benchmark("knn/digits")
    assert (same.modified, changed.modified) == (False, True)
    assert changed.settings == {"metric": "cosine", "vote": "softmax", "temperature": 0.1}
    assert same.sha256 != changed.sha256


def test_a_wrong_key_in_a_benchmark_names_the_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: t\nversion: 1\nprotocol: knn\nsetings: {}\n")
    with pytest.raises(UsageError, match=r"mine.yaml: unknown key 'setings'\nDid you mean 'settings'"):
        load_benchmark(str(file))
