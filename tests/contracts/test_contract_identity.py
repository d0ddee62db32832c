"""The keys of stored work against the table in `sslbench.identity`: every row of it is tried, on every key."""

import csv
import dataclasses
import pickle
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

from sslbench import identity
from sslbench.backbones.build import build
from sslbench.backbones.in_memory import from_module
from sslbench.evaluation import Request, RunSettings, make_task, prepare
from sslbench.evaluation.preparation import extract_settings
from sslbench.evaluation.record import Encoded, asked, describe, measurement
from sslbench.evaluation.score import row_subjects
from sslbench.features.extract import store_key
from sslbench.features.store import StoreEntry
from sslbench.leaderboard.compare import differing
from sslbench.leaderboard.model import column_keys
from sslbench.library.benchmarks import Benchmark
from sslbench.library.presets import Preset
from sslbench.preprocessing import Preprocessing
from sslbench.protocols.finetune.plan import portions
from sslbench.protocols.finetune.run import row_name
from sslbench.results import MetricValue, Result

SMALL = Preprocessing(resize=(16, 16), crop=None)
NET = """
from torch import nn
from {helper} import act


class Net(nn.Module):
    preprocessing = {{"resize": [16, 16], "crop": None}}

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return act(self.conv(x)).mean((2, 3))
"""
PROTOCOL = """
import dataclasses
from sslbench.config import setting
from sslbench.protocols import OnFeatures, Protocol
@dataclasses.dataclass(frozen=True)
class Settings:
    k: int = setting(3, "neighbours")
def check(settings, train): ...
def run(train, test, settings, *, seed, device="cpu"): return 1
PROTOCOL = Protocol(version=1, summary="mine", settings=Settings, kind=OnFeatures(check, run))
"""


def table():
    """Row of the table in the module's docstring -> {key: its cell}."""
    lines = identity.__doc__.splitlines()
    ruler = next(line for line in lines if re.fullmatch(r"=+( +=+)+", line))
    starts = [match.start() for match in re.finditer("=+", ruler)]
    top, head, bottom = (i for i, line in enumerate(lines) if line == ruler)
    cut = [[line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)] for line in lines]
    assert cut[top + 1] == ["change", "features", "record", "column", "row"] and head == top + 2
    return {row[0]: dict(zip(cut[top + 1][1:], row[1:], strict=True)) for row in cut[head + 1 : bottom]}


@dataclasses.dataclass(frozen=True)
class World:
    """Everything that an evaluation starts from."""

    data: str
    weights: str = "net.torch"
    backbone: object = None
    protocol: str = "knn"
    settings: tuple = (("k", (3,)),)
    benchmark: object = None
    preset: object = None
    run: RunSettings = RunSettings(device="cpu", workers=0)  # noqa: RUF009 - frozen
    asked: tuple = ()  # fields of the request
    metric: str | None = None
    skipped: int = 0

    def keys(self):
        """Every key, the file of the layer, and what the record is asked to hold."""
        task = make_task(self.protocol, dict(self.settings), self.benchmark, self.preset)
        fields = {"layers": ("res5avg",), "backbone": "resnet18w0.25", **dict(self.asked)}
        if self.backbone is not None:
            fields["layers"] = dict(self.asked).get("layers", ())
        request = Request(weights=self.weights, data=self.data, tasks=(task,), **fields)
        prepared = prepare(request, self.run, backbone=self.backbone)
        layer = prepared.layers[0].text
        train, test = ({layer: part} for part in (prepared.data.train, prepared.data.test))
        test = {layer: test[layer].select(range(len(test[layer]) - self.skipped))}
        subject = describe(prepared, prepared.backbone, layer, Encoded(train, test, (), 0.0, 0), "a command")
        subject, _ = row_subjects(subject, task, prepared.sets[0])[""]
        if self.protocol == "finetune":
            (part,) = portions(task.settings, prepared.data.train)
            used = dataclasses.replace(subject.data, train_part=part.listed or part.text)
            subject = dataclasses.replace(subject, layer=row_name(prepared.layers[0], part), data=used)
        measured = measurement(subject, task)
        result = Result(
            **{f.name: getattr(measured, f.name) for f in dataclasses.fields(measured)},
            id="",
            created="2026-01-31T12:00:00+00:00",
            command="a command",
            headline=(self.benchmark.metric if self.benchmark else "") or "top1",
            metrics={"top1": MetricValue(value=1.0)},
            asked=asked(subject, task),
        )
        features = store_key(prepared.backbone, prepared.data.train, extract_settings(self.run)).digest()
        return {
            "features": features,
            "record": identity.record_id(result),
            "column": identity.comparability_key(result, self.metric),
            "row": identity.row_key(result),
            "file": StoreEntry(Path("store")).layer_file(layer),
            "asked": result.asked,
            "group": identity.comparability_key(result, "worst_group(site).top1"),
            "result": result,
            "metric": self.metric,
        }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    rng = np.random.default_rng(0)
    rows = []
    for i in range(24):
        Image.fromarray(rng.integers(0, 255, (20, 20, 3)).astype(np.uint8)).save(tmp_path / f"{i:02d}.png")
        split = "train" if i < 16 else "test"
        rows.append({"path": f"{i:02d}.png", "label": "ab"[i % 2], "split": split, "site": "xy"[i // 2 % 2]})
    write(tmp_path, rows)
    return tmp_path


def write(folder, rows, name="data.csv"):
    with (folder / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(folder / name)


def rows_of(folder):
    with (folder / "data.csv").open() as file:
        return list(csv.DictReader(file))


def base(folder, **changes):
    return World(str(folder / "data.csv"), **{"backbone": resnet(), **changes})


def resnet(seed=0):
    return dataclasses.replace(build("resnet18w0.25", seed=seed), preprocessing=SMALL)


def in_memory(*parts):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), *parts, nn.Flatten()).eval().requires_grad_(False)
    return from_module("net", module, SMALL)


CHANGES = {}


def change(row):
    def add(function):
        CHANGES[function.__name__] = (row, function)
        return function

    return add


CHANGED = (("corrupt", ("contrast",)), ("severities", (1,)), ("rotations", ()), ("scales", ()), ("crops", ()))


def on_sets(folder, *settings):
    larger = dataclasses.replace(resnet(), preprocessing=Preprocessing(resize=(32, 32), crop=None))
    return base(folder, backbone=larger, protocol="robustness", settings=(*CHANGED, *settings))


@change("content of further sets, versions of changes")
def another_set_at_the_same_place(folder, _):
    place, other = folder / "set" / "a", folder / "other" / "a"
    for path, name in ((place, "00.png"), (other, "01.png")):
        path.mkdir(parents=True)
        shutil.copy(folder / name, path / "0.png")
    one = on_sets(folder, ("sets", {"set": str(folder / "set")}))
    return one, on_sets(folder, ("sets", {"set": str(folder / "other")}))


def photos(folder):
    """Folder with a folder per split and class; below `others` lie others of the same names."""
    rng = np.random.default_rng(0)
    for place, n in (("photos/train", 6), ("photos/test", 2), ("others/a/fog/1", 2), ("others/b/fog/1", 2)):
        for name in "xy":
            (folder / place / name).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 255, (20, 20, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / place / name / f"{i}.png")
    return str(folder / "photos")


@change("content of further sets, versions of changes")
def other_corrupted_images_of_the_same_name(folder, _):
    plain = (("corrupt", ("fog",)), *CHANGED[1:])
    one, other = (on_sets(folder, *plain[1:], ("corrupted", str(folder / "others" / name))) for name in "ab")
    data = photos(folder)
    return tuple(dataclasses.replace(w, data=data, settings=(*plain, w.settings[-1])) for w in (one, other))


@change("content of further sets, versions of changes")
def other_unknown_images(folder, _):
    for name, image in (("one", "00.png"), ("other", "01.png")):
        (folder / name / "z").mkdir(parents=True)
        shutil.copy(folder / image, folder / name / "z" / "0.png")
    return tuple(on_sets(folder, ("unknown", str(folder / name)), ("neighbours", 3)) for name in ("one", "other"))


@change("part of train, of a network finetuned on it")
def listed_images(folder, _):
    small = (("batch_size", 4), ("epochs", 1), ("train_list", str(folder / "list.txt")))
    world = base(folder, protocol="finetune", settings=small)
    (folder / "list.txt").write_text("00.png\n01.png\n02.png\n03.png\n")
    first = world.keys()
    (folder / "list.txt").write_text("00.png\n01.png\n02.png\n05.png\n")
    return Known(first), world


class NewCorruptions(World):
    """The same with another version of the corruptions."""

    def keys(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sslbench.data.corruptions.CORRUPTIONS_VERSION", 99)
            return super().keys()


@change("content of further sets, versions of changes")
def another_version_of_the_corruptions(folder, _):
    one = on_sets(folder)
    return one, NewCorruptions(**vars(one))


@change("a tensor of the weights")
def one_tensor(folder, _):
    other = resnet()
    other.module.bn1.bias.data[0] += 1e-3
    return base(folder), base(folder, backbone=other)


@change("the backbone's name or one of its options")
def name(folder, _):
    return base(folder), base(folder, backbone=dataclasses.replace(resnet(), name="resnet18w0.25-s2d"))


@change("timm's version, for timm's models")
def timms_version(folder, monkeypatch):
    small = (("layers", ("features",)), ("preprocessing", {"resize": 16, "crop": (16, 16)}))
    before, after = base(folder, asked=small), base(folder, asked=small)
    before = dataclasses.replace(before, backbone=build("timm:test_resnet"))
    monkeypatch.setattr(timm, "__version__", "99.0")
    return before, dataclasses.replace(after, backbone=build("timm:test_resnet"))


@change("code, structure or state of a user's module")
def activation_and_pool(folder, _):
    one, other = in_memory(nn.ReLU(), nn.MaxPool2d(4)), in_memory(nn.Tanh(), nn.AvgPool2d(4))
    return base(folder, backbone=one), base(folder, backbone=other)


@change("code, structure or state of a user's module")
def an_attribute_that_the_probe_does_not_show(folder, _):
    one, other = in_memory(nn.Hardtanh(-90, 90)), in_memory(nn.Hardtanh(-91, 91))
    return base(folder, backbone=one), base(folder, backbone=other)


@change("code, structure or state of a user's module")
def a_buffer_beside_the_state(folder, _):
    one, other = in_memory(nn.ReLU()), in_memory(nn.ReLU())
    for value, each in ((1.0, one), (2.0, other)):
        each.module[1].register_buffer("scale", torch.tensor(value), persistent=False)
    return base(folder, backbone=one), base(folder, backbone=other)


@change("code, structure or state of a user's module")
def a_hook(folder, _):
    one, other = in_memory(nn.ReLU()), in_memory(nn.ReLU())
    other.module[1].register_forward_hook(lambda module, given, output: output * 2)
    return base(folder, backbone=one), base(folder, backbone=other)


def users_net(folder, edit):
    """Two backbones of one file, which is edited in between."""

    def fresh():
        for module in ("a_net_of_the_contract", "a_helper_of_the_contract"):
            sys.modules.pop(module, None)
        return build("a_net_of_the_contract:Net")

    (folder / "a_helper_of_the_contract.py").write_text("import torch\n\ndef act(x):\n    return torch.relu(x)\n")
    (folder / "a_net_of_the_contract.py").write_text(NET.format(helper="a_helper_of_the_contract"))
    first = base(folder, backbone=fresh()).keys()
    edit()
    return Known(first), base(folder, backbone=fresh())


@change("code, structure or state of a user's module")
def forward_in_the_users_file(folder, _):
    file = folder / "a_net_of_the_contract.py"
    return users_net(folder, lambda: file.write_text(file.read_text().replace("mean((2, 3))", "amax((2, 3)) ")))


@change("code, structure or state of a user's module")
def a_function_that_the_users_file_imports(folder, _):
    file = folder / "a_helper_of_the_contract.py"
    return users_net(
        folder, lambda: file.write_text("import torch\n\ndef act(x):\n    return torch.clamp(x, 0, 1e3)\n")
    )


@change("a value of the preprocessing, code of a decoder")
def crop(folder, _):
    other = dataclasses.replace(resnet(), preprocessing=dataclasses.replace(SMALL, crop=(12, 12)))
    return base(folder), base(folder, backbone=other)


@change("a value of the preprocessing, code of a decoder")
def scales(folder, _):
    other = dataclasses.replace(resnet(), preprocessing=dataclasses.replace(SMALL, scales=(1.0, 0.5)))
    return base(folder), base(folder, backbone=other)


@change("a value of the preprocessing, code of a decoder")
def decoder(folder, _):
    run = RunSettings(device="cpu", workers=0, decoder=("a_decoder_of_the_contract.read",))
    file = folder / "a_decoder_of_the_contract.py"
    file.write_text("def read(path, file):\n    return None\n")
    before = base(folder, run=run)
    first = before.keys()
    file.write_text("def read(path, file):\n    return None  # another version\n")
    return Known(first), before


@dataclasses.dataclass(frozen=True)
class Known:
    """Keys that were taken before something was edited."""

    found: dict

    def keys(self):
        return self.found


@change("precision, dtype of the stored features")
def precision(folder, _):
    return base(folder), base(folder, run=RunSettings(device="cpu", workers=0, precision="bf16"))


@change("images that decide the ranges of int8")
def calibration(folder, _):
    images = torch.zeros(2, 3, 16, 16)
    return (base(folder, backbone=dataclasses.replace(resnet(), calibration=images + i)) for i in range(2))


@change("precision, dtype of the stored features")
def feature_dtype(folder, _):
    return base(folder), base(folder, run=RunSettings(device="cpu", workers=0, feature_dtype="float16"))


def with_head(activation):
    head = nn.Sequential(nn.Linear(128, 6), activation, nn.Linear(6, 5))
    for part in head[::2]:
        nn.init.ones_(part.weight)
    return dataclasses.replace(resnet(), heads={"head": head.eval()})


@change("a tensor or layer of a head, for its layers")
def activation_of_a_head(folder, _):
    asked = (("layers", ("head",)),)
    return (base(folder, backbone=with_head(each()), asked=asked) for each in (nn.ReLU, nn.GELU))


@change("a tensor or layer of a head, for other layers")
def head_that_is_not_evaluated(folder, _):
    asked = (("layers", ("res5avg", "head")),)
    return (base(folder, backbone=with_head(each()), asked=asked) for each in (nn.ReLU, nn.GELU))


@change("the layer or its pool")
def layer(folder, _):
    return base(folder), base(folder, asked=(("layers", ("res4",)),))


@change("the layer or its pool")
def pool(folder, _):
    return base(folder, asked=(("layers", ("res4",)),)), base(folder, asked=(("layers", ("res4:max",)),))


@change("content, ids or number of images")
def content(folder, _):
    first = base(folder).keys()
    Image.new("RGB", (20, 20)).save(folder / "03.png")
    return Known(first), base(folder)


@change("content, ids or number of images")
def number(folder, _):
    return base(folder), base(folder, asked=(("limit", 6),))


@change("labels, classes, queries, groups of a split")
def labels(folder, _):
    rows = rows_of(folder)
    rows[0]["label"] = "b"
    return base(folder), dataclasses.replace(base(folder), data=write(folder, rows, "other.csv"))


@change("labels, classes, queries, groups of a split")
def classes_of_test(folder, _):
    rows = [row for row in rows_of(folder) if row["split"] == "train" or row["label"] == "a"]
    data = write(folder, rows, "one_class.csv")
    same = World(data, backbone=resnet())
    return same, dataclasses.replace(same, asked=(("test_classes", "subset"),))


@change("labels, classes, queries, groups of a split")
def answers_to_queries(folder, _):
    worlds = []
    names = [f"{i:02d}" for i in range(8)]
    for name, junk in (("one", []), ("other", [3])):
        (folder / name).mkdir()
        gnd = [{"easy": [0], "hard": [1], "junk": junk, "bbx": [0, 0, 9, 9]}] * 2
        content = {"imlist": names[2:], "qimlist": names[:2], "gnd": gnd}
        file = folder / name / "gnd_toy.pkl"
        file.write_bytes(pickle.dumps(content))
        data = f"{file}?images={folder}"
        worlds.append(World(data, backbone=resnet(), protocol="retrieval", settings=()))
    return tuple(worlds)


@change("the protocol, its version, a setting")
def protocol(folder, _):
    return base(folder), base(folder, protocol="svm", settings=())


@change("the protocol, its version, a setting")
def version(folder, monkeypatch):
    from sslbench.protocols import knn

    first = base(folder).keys()
    monkeypatch.setattr(knn, "PROTOCOL", dataclasses.replace(knn.PROTOCOL, version=99))
    return Known(first), base(folder)


@change("the protocol, its version, a setting")
def setting(folder, _):
    return base(folder), base(folder, settings=(("k", (5,)),))


@change("code of a user's protocol")
def code_of_a_protocol(folder, _):
    (folder / "my_measures").mkdir()
    (folder / "my_measures" / "__init__.py").write_text("")
    file = folder / "my_measures" / "mine.py"
    file.write_text(PROTOCOL)
    mine = base(folder, protocol="my_measures.mine", settings=())
    first = mine.keys()
    file.write_text(PROTOCOL.replace("return 1", "return 22"))
    sys.modules.pop("my_measures.mine")
    return Known(first), mine


BENCHMARK = Benchmark(name="knn/photos", title="", version=1, protocol="knn", settings={"k": (3,)}, sha256="ab" * 8)


@change("benchmark or preset: name, version, file")
def benchmark(folder, _):
    return base(folder), base(folder, settings=(), benchmark=BENCHMARK)


@change("benchmark or preset: name, version, file")
def another_benchmark_that_measures_the_same(folder, _):
    one, other = (dataclasses.replace(BENCHMARK, name=name) for name in ("knn/a", "knn/b"))
    return base(folder, settings=(), benchmark=one), base(folder, settings=(), benchmark=other)


@change("benchmark or preset: name, version, file")
def preset(folder, _):
    found = Preset("knn/mine", title="", version=1, source="a paper", protocol="knn", settings={"k": (3,)})
    return base(folder), base(folder, settings=(), preset=found)


@change("the metric that a benchmark puts first")
def leading_metric(folder, _):
    led = dataclasses.replace(BENCHMARK, metric="balanced_accuracy")
    return base(folder, settings=(), benchmark=BENCHMARK), base(folder, settings=(), benchmark=led)


@change("the metric that a board or comparison is asked for")
def metric(folder, _):
    return base(folder), base(folder, metric="top5")


@change("the members of a group (`--groups`)")
def members(folder, _):
    rows = rows_of(folder)
    tests = [row for row in rows if row["split"] == "test"]
    tests[0]["site"], tests[2]["site"] = tests[2]["site"], tests[0]["site"]
    by_site = (("groups", ("site",)),)
    other = dataclasses.replace(base(folder, asked=by_site), data=write(folder, rows, "other.csv"))
    return base(folder, asked=by_site), other


@change("images that could not be read")
def unreadable(folder, _):
    return base(folder), base(folder, skipped=1)


@change("seed of splits, hold-outs and resamples")
def seed(folder, _):
    return base(folder), base(folder, run=RunSettings(device="cpu", workers=0, seed=1))


@change("number of trainings (`seeds=`)")
def trainings(folder, _):
    heads = {"protocol": "linear-online", "settings": (("batch_size", 4),)}
    return base(folder, **heads), base(folder, **heads, run=RunSettings(device="cpu", workers=0, seeds=3))


@change("`--groups`, `--no-overlaps`, `--no-floors`")
def groups(folder, _):
    return base(folder), base(folder, asked=(("groups", ("site",)),))


@change("`--groups`, `--no-overlaps`, `--no-floors`")
def overlaps(folder, _):
    return base(folder), base(folder, run=RunSettings(device="cpu", workers=0, overlaps=False))


@change("`--groups`, `--no-overlaps`, `--no-floors`")
def floors(folder, _):
    return base(folder), base(folder, run=RunSettings(device="cpu", workers=0, floors=False))


@change("where a value comes from, names and paths of files")
def origin(folder, _):
    other = dataclasses.replace(resnet(), preprocessing=dataclasses.replace(SMALL, origin="elsewhere"))
    return base(folder), base(folder, backbone=other)


@change("where a value comes from, names and paths of files")
def path(folder, _):
    (folder / "b").mkdir()
    for i in range(24):
        shutil.copy(folder / f"{i:02d}.png", folder / "b" / f"{i:02d}.png")
    data = write(folder / "b", rows_of(folder), "renamed.csv")
    return base(folder), dataclasses.replace(base(folder), data=data)


@change("batch size, workers, device, number of processes")
def way_of_computing(folder, _):
    other = RunSettings(device="cpu", workers=2, batch_size=7, start_method="spawn", on_error="skip")
    return base(folder), base(folder, run=other)


@change("batch size, workers, device, number of processes")
def threads(folder, monkeypatch):
    net = in_memory(nn.ReLU(), nn.AvgPool2d(4))
    one = base(folder, backbone=dataclasses.replace(net))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    first = one.keys()
    torch.set_num_threads(4)
    try:
        other = base(folder, backbone=dataclasses.replace(net)).keys()
    finally:
        torch.set_num_threads(before)
    return Known(first), Known(other)


@change("torch, Pillow, the operating system")
def torchs_version(folder, monkeypatch):
    first = base(folder).keys()
    monkeypatch.setattr(torch, "__version__", "99.0")
    return Known(first), base(folder)


def test_every_row_of_the_table_is_tried():
    assert {row for row, _ in CHANGES.values()} == set(table())


def test_the_guide_has_the_same_table():
    text = (Path(__file__).parents[2] / "docs" / "features.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert [[name, *cells.values()] for name, cells in table().items()] == [row for row in rows if row[0] in table()]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_changes_the_keys_of_its_row_and_no_other(name, folder, monkeypatch):
    row, make = CHANGES[name]
    cells = table()[row]
    before, after = (world.keys() for world in make(folder, monkeypatch))
    for key, cell in cells.items():
        changed = before[key] != after[key]
        assert changed == (cell == "new"), f"{name}: {key} is '{cell}' in the table"
        if cell in ("file", "asked", "group"):
            assert before[cell] != after[cell], f"{name}: the {cell} of {key} should differ"
    if "asked" not in cells.values():
        assert before["asked"] == after["asked"]
    if before["metric"] == after["metric"]:
        one, other = before["result"], after["result"]
        apart = len(set(column_keys([one, other], before["metric"]))) > 1
        assert bool(differing(one, other, before["metric"])) == apart, "compare and the board agree"
