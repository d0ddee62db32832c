"""Named benchmarks: every shipped one is complete, and changes to them are seen."""

import collections
import csv
import dataclasses
import functools

import pytest
from helpers.detection_recipes import load_recipe
from helpers.offenders import offenders

from sslbench import paths
from sslbench.config import build
from sslbench.data.formats import sklearn, torchvision
from sslbench.errors import UsageError
from sslbench.leaderboard.model import Published
from sslbench.leaderboard.published import read_file
from sslbench.library.benchmarks import data_of, load_benchmark, load_suite, source_text
from sslbench.library.presets import load_preset
from sslbench.metrics.summary import summarise
from sslbench.names import list_names
from sslbench.protocols import find
from sslbench.targets import kinds
from sslbench.targets.classes import Classes

FILES = {
    "anomaly": 2,
    "correspondence": 4,
    "depth": 2,
    "detection": 27,
    "discovery": 3,
    "finetune": 29,
    "geolocation": 2,
    "image_text": 2,
    "knn": 69,
    "linear": 67,
    "linear_online": 26,
    "low_shot": 7,
    "lsr": 6,
    "normals": 1,
    "retrieval": 14,
    "robustness": 12,
    "saliency": 3,
    "segmentation": 12,
    "segmentation_knn": 12,
    "svm": 4,
    "tracking": 3,
    "zero_shot": 12,
}
"""Folder of benchmarks -> how many there are: one that is lost in packaging or renamed by mistake is noticed."""
DATA_SETS = 74
SUITES = [
    *("digits", "fine_grained", "geobench", "imagenet", "medmnist", "small", "transfer", "vissl"),
    *("vtab1k", "vtab_natural", "vtab_specialized", "vtab_structured"),
]
PUBLISHED = {
    "dinov2.csv": 24,
    "dinov3.csv": 12,
    "discovery.csv": 33,
    "lightly.csv": 28,
    "mmpretrain.csv": 14,
    "open_clip.csv": 98,
    "solo_learn.csv": 3,
    "vissl.csv": 76,
}
NO_CLASSES = ("anomaly", "geolocation", "depth", "image-text", "normals")
OF_OBJECTS = ("detection", "discovery", "saliency")
TRAIN_NOTHING = ("correspondence", "tracking")


@functools.cache
def shipped():
    """Name -> benchmark, of all that are shipped."""
    return {name: load_benchmark(name) for name in list_names("benchmark")}


def on_features():
    return {name: benchmark for name, benchmark in shipped().items() if not name.startswith(OF_OBJECTS)}


def test_the_numbers_of_benchmarks_are_the_expected_ones():
    assert dict(collections.Counter(name.split("/")[0] for name in list_names("benchmark"))) == FILES
    assert len(list((paths.builtin_dir("benchmarks") / "data").rglob("*.yaml"))) == DATA_SETS
    assert list_names("suite") == SUITES


def is_complete(name):
    benchmark = load_benchmark(name)
    assert benchmark.protocol == name.split("/")[0].replace("_", "-")
    assert benchmark.title and benchmark.version >= 1 and not benchmark.modified
    if benchmark.protocol == "detection":
        load_recipe(name)
        assert benchmark.data or (benchmark.folder and benchmark.page.startswith("http")), "nobody could find the data"
    else:
        build(find(benchmark.protocol).settings, benchmark.settings, name)
    assert all(reference.source for reference in benchmark.reference)
    assert benchmark.data or benchmark.samples, "says neither what the data is nor how large"


def test_every_shipped_benchmark_is_complete():
    assert offenders(list_names("benchmark"), is_complete) == []


def is_plausible(name):
    benchmark = shipped()[name]
    has_queries = benchmark.protocol in ("retrieval", "image-text", *TRAIN_NOTHING) and set(benchmark.samples) == {
        "test"
    }
    assert has_queries or benchmark.classes >= 2 or benchmark.protocol in NO_CLASSES
    assert benchmark.data == "sklearn:digits" or has_queries or set(benchmark.samples) == {"train", "test"}
    assert all(n >= 2 * benchmark.classes or benchmark.test_classes != "same" for n in benchmark.samples.values())
    if benchmark.data:
        known = [f"torchvision:{set_name}" for set_name in torchvision.all_sets()]
        assert benchmark.data in [*known, f"{sklearn.PREFIX}digits"]
        assert not benchmark.folder and not benchmark.page, "the source says where its data are and come from"
    else:
        assert benchmark.folder and benchmark.page.startswith("http"), "nobody could find the data"
    assert not benchmark.folder.startswith(("/", ".")), "a benchmark names no path of a machine"
    assert len(source_text(name)[1].splitlines()) <= 12


def test_what_a_benchmark_says_about_its_data_is_plausible():
    assert offenders(on_features(), is_plausible) == []


def test_one_data_set_has_one_description_whatever_the_protocol():
    described = collections.defaultdict(set)
    for b in on_features().values():
        described[b.data or (b.folder, b.test_folder)].add((tuple(b.samples.items()), b.classes, b.test_classes))
    assert all(len(found) == 1 for found in described.values())


def test_a_leading_metric_is_one_that_single_labels_have():
    import numpy as np

    found = collections.defaultdict(set)
    for benchmark in on_features().values():
        found["no training" if benchmark.protocol in TRAIN_NOTHING else benchmark.protocol].add(benchmark.metric)
    assert found.pop("retrieval") == {"", "recall@1", "micro_AP"}
    assert found.pop("robustness") == {"", "top1(imagenet-real)", "top1(objectnet)"}
    assert found.pop("no training") == {"", "pck_per_image@0.05"}
    wanted = set().union(*found.values()) - {""}
    metrics, _, _ = summarise(Classes, ("a", "b"), np.array([0, 1]), np.eye(2), seed=0, resamples=10)
    assert wanted == {"balanced_accuracy", "macro_auroc", "macro_f1", "top1"} <= set(metrics)
    assert shipped()["linear/pets"].metric == "balanced_accuracy" and shipped()["linear/cars"].metric == ""


def test_no_two_benchmarks_measure_the_same():
    hashes = [dataclasses.replace(benchmark, name="", title="", sha256="") for benchmark in shipped().values()]
    assert all(hashes.count(one) == 1 for one in hashes)


def names_benchmarks_once(suite):
    benchmarks = load_suite(suite)
    assert len(benchmarks) >= 3 and len(set(benchmarks)) == len(benchmarks)
    assert set(benchmarks) <= shipped().keys()


def test_suites_name_benchmarks_that_exist_once():
    assert offenders(SUITES, names_benchmarks_once) == []


def test_the_suite_of_vissl_has_its_benchmarks_with_its_layers_splits_and_settings():
    suite = {name: shipped()[name] for name in load_suite("vissl")}
    linear = {name: b for name, b in suite.items() if name.startswith("linear")}
    assert len(linear) == 26 and {b.protocol for b in linear.values()} == {"linear-online"}
    preset, imagenet = load_preset("linear/vissl"), linear["linear_online/imagenet1k_vissl"]
    assert (imagenet.settings, imagenet.layers, imagenet.preprocessing) == (
        preset.settings,
        preset.layers,
        preset.preprocessing,
    )
    for name in ("places205", "inaturalist18"):
        own, benchmark = load_preset(f"linear/vissl_{name}"), linear[f"linear_online/{name}_vissl"]
        assert (own.settings, own.layers, own.preprocessing) == (
            benchmark.settings,
            benchmark.layers,
            benchmark.preprocessing,
        )
    common = ("batch_size", "optimizer", "momentum", "nesterov", "decay_norm", "norm", "init")
    for name, benchmark in linear.items():
        assert {key: benchmark.settings[key] for key in common} == {key: preset.settings[key] for key in common}, name
    for name in ("caltech101", "dsprites_location", "eurosat", "kitti_dist", "patch_camelyon", "resisc45"):
        assert linear[f"linear_online/{name}_vissl"].folder == f"vissl/{name}", "the split is one that VISSL drew"
    kinds = ("knn", "svm", "low_shot", "finetune", "detection", "retrieval")
    assert {kind: sum(name.startswith(f"{kind}/") for name in suite) for kind in kinds} == {
        **{"knn": 2, "svm": 1, "low_shot": 2},
        **{"finetune": 5, "detection": 3, "retrieval": 3},
    }
    for name, other in {
        "knn/places205_vissl": "knn/vissl",
        "retrieval/roxford5k_vissl": "retrieval/vissl_rmac",
        "finetune/places205_vissl": "finetune/vissl",
    }.items():
        own, benchmark = load_preset(other), suite[name]
        assert own.settings.items() <= benchmark.settings.items() and own.preprocessing == benchmark.preprocessing
    short = suite["finetune/inaturalist18_vissl"].settings
    assert (short["epochs"], short["schedule"]["milestones"], short["lr"]) == (24, [7, 14, 21], [0.1])
    places = suite["low_shot/places205_vissl"]
    assert places.settings["metric"] == "mAP" == load_preset("low_shot/vissl_places").settings["metric"]


def test_finetuning_has_the_settings_of_its_presets():
    for preset in ("vissl", "mae", "beit", "dino"):
        benchmark, published = load_benchmark(f"finetune/imagenet1k_{preset}"), load_preset(f"finetune/{preset}")
        assert (benchmark.settings, benchmark.layers, benchmark.preprocessing) == (
            published.settings,
            published.layers,
            published.preprocessing,
        )
    for share, file in (("1", "1percent"), ("10", "10percent")):
        for authors in ("simclr", "swav"):
            settings = load_benchmark(f"finetune/imagenet1k_{share}pct_{authors}").settings
            listed = {"fractions": [], "train_list": f"imagenet_subsets/{file}.txt"}
            assert settings == {**load_preset(f"finetune/{authors}_{share}pct").settings, **listed}
    tasks, preset = [shipped()[name] for name in load_suite("vtab1k")], load_preset("finetune/vtab1k")
    assert len(tasks) == 19 and all(name.startswith("finetune/") for name in load_suite("vtab1k"))
    for task in tasks:
        assert (task.settings, task.preprocessing) == (preset.settings, preset.preprocessing)
        assert task.metric in ("", "top1"), "VTAB reports accuracy"


def test_a_mistyped_suite_is_answered_with_the_nearest():
    with pytest.raises(UsageError, match="Did you mean 'digits'"):
        load_suite("digit")


def kind_of(benchmark):
    """The kind of labels whose leading metric is published for a benchmark."""
    kinds = {"discovery": "boxes", "saliency": "mask", "segmentation": "map", "segmentation_knn": "map"}
    kinds |= {"anomaly": "anomalies", "depth": "depth", "normals": "normals"}
    return kinds.get(benchmark.partition("/")[0], "single")


def scores_one_part(name):
    benchmark = shipped()[name]
    assert list(benchmark.samples) == [benchmark.settings["part"]]
    assert benchmark.folder and benchmark.page.startswith("http") and not benchmark.data
    assert len(source_text(name)[1].splitlines()) <= 12


def test_a_benchmark_of_objects_scores_one_part_and_says_where_its_data_are():
    names = [name for name in shipped() if name.startswith(OF_OBJECTS[1:])]
    assert len(names) == 6 and offenders(names, scores_one_part) == []


def test_published_rows_belong_to_benchmarks_and_have_sources():
    folder = paths.builtin_dir("benchmarks") / "published"
    rows = {file.name: read_file(file) for file in sorted(folder.glob("*.csv"))}
    assert {name: len(found) for name, found in rows.items()} == PUBLISHED
    every = [row for found in rows.values() for row in found]
    for row in every:
        assert row.benchmark in shipped() and 0 < row.value < 100
        assert kinds()[kind_of(row.benchmark)].metric == row.metric or row.metric.startswith(
            ("saliency_", "image_recall@", "text_recall@")
        )
        assert row.weights and row.backbone and row.protocol and " at " in row.source and row.where
    keys = [(r.benchmark, r.weights, r.backbone, r.metric, r.source) for r in every]
    assert len(set(keys)) == len(keys)
    by_name = {(r.benchmark, r.weights, r.backbone): r.value for r in every}
    assert by_name["linear/imagenet1k", "supervised, torchvision", "resnet50"] == 76.1
    assert by_name["knn/imagenet1k", "DINOv2, distilled", "vit_large_patch14"] == 83.5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("linear/x,w,b,top1,much,p,s,t", "line 2: the value 'much' is not a number"),
        ("linear/x,w,b,top1,nan,p,s,t", "line 2: the value 'nan' is not a number"),
        ("linear/x,w,b,top1,5,p,,t", "line 2: source is empty"),
        ("linear/x,w,b,top1,5,p,s,t,u", "line 2: more values than columns"),
    ],
)
def test_a_published_row_that_is_wrong_is_named(tmp_path, line, message):
    file = tmp_path / "mine.csv"
    header = ",".join(field.name for field in dataclasses.fields(Published))
    file.write_text(f"{header}\n{line}\n")
    with pytest.raises(UsageError, match=message):
        read_file(file)
    file.write_text("benchmark,weights\n")
    with pytest.raises(UsageError, match="the columns should be benchmark,weights,backbone,metric,value"):
        read_file(file)


def test_the_published_files_are_plain_csv():
    for file in (paths.builtin_dir("benchmarks") / "published").glob("*.csv"):
        with file.open(newline="") as opened:
            assert {len(row) for row in csv.reader(opened)} == {8}
        assert "\r" not in file.read_text()


def test_a_benchmark_takes_what_it_does_not_say_from_its_bases_the_later_ones_first(tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    (folder / "_one.yaml").write_text("title: one\nprotocol: knn\nversion: 1\nsettings: {k: [1], temperature: 0.1}\n")
    (folder / "_two.yaml").write_text("title: two\nclasses: 3\nsettings: {k: [2]}\n")
    (folder / "mine.yaml").write_text("extends: [_one, _two]\nversion: 4\nsettings: {vote: uniform}\n")
    mine = load_benchmark("mine")
    assert (mine.title, mine.version, mine.classes) == ("two", 4, 3)
    assert mine.settings == {"k": [2], "temperature": 0.1, "vote": "uniform"}
    (folder / "_two.yaml").write_text("extends: _zero\nclasses: 5\n")
    (folder / "_zero.yaml").write_text("classes: 4\nsettings: {temperature: 0.2, k: [3]}\n")
    deep = load_benchmark("mine")  # a base may extend another one
    assert (deep.title, deep.classes) == ("one", 5)
    assert deep.settings == {"k": [3], "temperature": 0.2, "vote": "uniform"}
    (folder / "_zero.yaml").write_text("extends: _two\n")
    with pytest.raises(UsageError, match=r"_zero.yaml: extends .*_two.yaml, which extends this file in turn"):
        load_benchmark("mine")
    (folder / "mine.yaml").write_text("extends: [_one, _three]\n")
    with pytest.raises(UsageError, match=r"mine.yaml: extends '_three', which does not exist"):
        load_benchmark("mine")


def test_data_are_looked_for_in_the_users_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_DATA", str(tmp_path))
    sketch = load_benchmark("knn/imagenet_sketch")
    (tmp_path / "imagenet").mkdir()
    with pytest.raises(UsageError) as error:
        data_of(sketch)
    assert str(tmp_path / "imagenet-sketch") in str(error.value) and "HaohanWang" in str(error.value)
    assert str(tmp_path / "imagenet\n") not in str(error.value), "that one is there"
    (tmp_path / "imagenet-sketch").mkdir()
    assert data_of(sketch) == (str(tmp_path / "imagenet"), str(tmp_path / "imagenet-sketch"))
    assert data_of(sketch, "a", "b") == ("a", "b")
    with pytest.raises(UsageError, match="Give --test-data"):
        data_of(sketch, "a")
    assert data_of(load_benchmark("knn/cifar10")) == ("torchvision:CIFAR10", None)
    context = load_benchmark("segmentation/pascal_context")
    with pytest.raises(UsageError, match=r"looked for .*/VOCdevkit/VOC2010\n.*the folder that holds VOCdevkit"):
        data_of(context)
    (tmp_path / "VOCdevkit" / "VOC2010").mkdir(parents=True)
    assert data_of(context) == (str(tmp_path / "VOCdevkit" / "VOC2010?maps=SegmentationClassContext"), None)


def test_a_users_copy_is_marked_modified_only_when_it_differs(tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks" / "knn"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    text = "extends: [knn/_base, data/_digits]\n"
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


def test_a_data_set_of_the_users_own_has_the_computed_benchmarks(tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks" / "data"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    (folder / "_mine.yaml").write_text("title: mine\ndata: photos.csv\nclasses: 3\n")
    assert {"knn/mine", "linear/mine", "knn/cifar10"} <= set(list_names("benchmark"))
    mine = load_benchmark("knn/mine")
    assert (mine.name, mine.protocol, mine.data, mine.modified) == ("knn/mine", "knn", "photos.csv", True)
    (folder.parent / "knn").mkdir()
    (folder.parent / "knn" / "mine.yaml").write_text("extends: [knn/_base, data/_mine]\nclasses: 4\n")
    assert load_benchmark("knn/mine").classes == 4


def test_a_computed_benchmark_is_shown_with_the_name_of_its_data_set():
    file, text = source_text("knn/cifar10")
    assert file.name == "_each.yaml" and 'extends: [knn/_base, "data/_cifar10"]' in text
    assert source_text("knn/imagenet1k")[0].name == "imagenet1k.yaml"
