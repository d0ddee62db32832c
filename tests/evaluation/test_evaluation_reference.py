"""Published results beside those of benchmarks, and what is refused before an evaluation."""

import pytest

from sslbench.backbones.build import build
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import Request, RunSettings, make_task, prepare
from sslbench.evaluation.preparation import on_data, with_preprocessing
from sslbench.evaluation.record import compare_references
from sslbench.library.benchmarks import Benchmark, Reference, load_benchmark
from sslbench.metrics.retrieval import IMAGE_RECALL, TEXT_RECALL
from sslbench.names import list_names
from sslbench.results import MetricValue, WeightsUsed, records

WEIGHTS = WeightsUsed(
    name="moco.pth", path=None, sha256="abcd" * 16, format="moco", backbone="resnet50", loaded=318, total=318
)
REFERENCES = (
    Reference("MoCo", "top1", 60.6, "a paper", tolerance=0.5, files=("moco.pth",)),
    Reference("the same by its tensors", "top1", 59.0, "b", tolerance=0.5, sha256="abcdabcd"),
    Reference("another", "top1", 1.0, "c", files=("other.pth",)),
    Reference("MoCo", "top9", 2.0, "d", files=("moco.pth",)),
)
BENCHMARK = Benchmark(name="knn/x", title="x", version=1, protocol="knn", reference=REFERENCES)


def test_references_of_these_weights_are_compared_and_no_others():
    found = compare_references(BENCHMARK, WEIGHTS, {"top1": MetricValue(value=60.2)})
    assert [(each.source, each.within) for each in found] == [("a paper", True), ("b", False), ("d", False)]
    assert found[0].difference == pytest.approx(-0.4) and found[2].difference is None
    assert found[0].line() == "top1 60.20, published 60.6 (MoCo, a paper): -0.40, within the tolerance of 0.5"
    assert "NOT within the tolerance" in found[1].line() and "top9 is missing" in found[2].line()
    assert compare_references(None, WEIGHTS, {}) == ()


def test_shipped_references_name_metrics_that_are_reported_and_files():
    metrics = {"detection": ("AP", "AP50", "AP75"), "zero_shot": ("top1", "balanced_accuracy")}
    metrics["image_text"] = tuple(metric.name for metric in (*TEXT_RECALL, *IMAGE_RECALL))
    shipped = [(name, each) for name in list_names("benchmark") for each in load_benchmark(name).reference]
    wrong = [
        (name, each)
        for name, each in shipped
        if each.metric not in metrics.get(name.partition("/")[0], ())
        or not (each.files or each.sha256)  # nothing could be compared with it
    ]
    assert shipped and wrong == []


def test_the_difference_is_printed_and_recorded(tmp_path, monkeypatch, sslbench):
    import torch

    from sslbench.backbones.build import build

    monkeypatch.chdir(tmp_path)
    torch.save(build("resnet18w0.125").module.state_dict(), "net.pth")
    text = "extends: [knn/_base, data/_digits]\nreference:\n"
    text += "  - {weights: a net, files: [net.pth], metric: top1, value: 99, source: nowhere, tolerance: 98}\n"
    (tmp_path / "mine.yaml").write_text(text)
    words = ["eval", "--benchmark", "mine.yaml", "--weights", "net.pth", "--limit", "40", "--no-floors"]
    code, out, _ = sslbench(*words, "--resize", "32", "--crop", "none")
    assert code == 0
    assert "published 99 (a net, nowhere)" in out and "within the tolerance of 98, on a modified benchmark" in out
    (file,) = (tmp_path / "results" / "knn").glob("*.json")
    (reference,) = records.read(file).references
    assert reference.within and reference.difference < 0


@pytest.mark.parametrize(
    ("name", "settings", "modified"),
    [
        ("finetune/imagenet1k_1pct_swav", {"train_list": "elsewhere/1percent.txt"}, False),
        ("finetune/imagenet1k_1pct_swav", {"strategy": "fsdp"}, False),
        ("finetune/imagenet1k_mae", {"train_list": "mine.txt"}, True),
        ("robustness/imagenet_c", {"corrupted": "moved/imagenet-c"}, False),
        ("robustness/cifar10", {"corrupted": "mine/"}, True),
    ],
)
def test_a_list_or_folder_that_a_benchmark_does_not_have_marks_it(name, settings, modified):
    benchmark = load_benchmark(name)
    assert make_task(benchmark.protocol, settings, benchmark).benchmark.modified is modified


def test_a_benchmark_on_other_data_is_marked(tmp_path, monkeypatch, sslbench):
    """The published numbers of a benchmark are those of its data, whatever --data names (digits have ten classes)."""
    monkeypatch.chdir(tmp_path)
    words = "eval --benchmark knn/cifar10 --weights pixels --data sklearn:digits --no-overlaps"
    code, out, err = sslbench(*words.split())
    assert code == 0 and "knn/cifar10 has 50000 train samples, this data has 1438" in out + err
    (file,) = (tmp_path / "results" / "knn").glob("*.json")
    assert records.read(file).benchmark.modified
    benchmark = load_benchmark("knn/cifar10")
    assert on_data(benchmark, {"train": 50000, "test": 10000}, 10) is benchmark and not benchmark.modified
    with pytest.raises(DataError, match="has 10 classes, this data has 3"):
        on_data(benchmark, {"train": 50000, "test": 10000}, 3)


def test_a_recipe_of_detection_takes_the_classes_of_the_data_and_is_marked(caplog):
    recipe = load_benchmark("detection/coco_c4_1x")
    full = {"train": 118287, "test": 5000}
    with caplog.at_level("WARNING", logger="sslbench"):
        assert on_data(recipe, full, 3, any_classes=True).modified
        assert "detection/coco_c4_1x has 80 classes, this data has 3: the result is marked" in caplog.text
    assert not on_data(recipe, full, 80, any_classes=True).modified


def test_an_address_that_cannot_be_reached_is_one_message_with_the_place_for_the_file(tmp_path, monkeypatch, sslbench):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    code, _, err = sslbench("eval", "knn", "--weights", "http://127.0.0.1:9/models/r50.pth")  # a port without a server
    assert code == 1 and "http://127.0.0.1:9/models/r50.pth cannot be reached" in err
    assert str(tmp_path / "cache" / "weights" / "127.0.0.1-9" / "models" / "r50.pth") in err


def test_a_protocol_on_one_part_leaves_both_to_the_others():
    tasks = make_task("geometry", {"part": "test"}), make_task("knn", {})
    request = Request("pixels:8", "sklearn:digits", tasks=tasks, limit=100)
    data = prepare(request, RunSettings(device="cpu", workers=0)).data
    assert not set(data.train.ids) & set(data.test.ids)


@pytest.mark.parametrize("resize", [32, [32, 500]])
def test_a_resize_that_leaves_most_of_the_crop_black_is_refused(resize):
    with pytest.raises(UsageError, match=r"do not fill the centre crop of 224x224") as caught:
        with_preprocessing(build("resnet18w0.25"), {"resize": resize})
    assert "--crop none" in str(caught.value)


@pytest.mark.parametrize("values", [{"resize": 32, "crop": None}, {"resize": 32, "crop": [224, 224]}, {"resize": 224}])
def test_a_crop_that_was_asked_for_and_one_that_is_filled_are_taken(values):
    used = with_preprocessing(build("resnet18w0.25"), values)[0].preprocessing
    assert (used.resize, used.crop) == (values["resize"], tuple(values["crop"]) if values.get("crop") else used.crop)


@pytest.mark.parametrize("values", [{"resize": 10**400}, {"crop": [10**400, 8]}, {"resize": 16_385}, {"crop": [0, 8]}])
def test_sizes_that_no_image_has_are_refused(values):
    with pytest.raises(UsageError, match="sizes should be from 1 to 16,384 pixels"):
        with_preprocessing(build("resnet18w0.25"), values)
