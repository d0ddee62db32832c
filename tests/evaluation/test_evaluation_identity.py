"""Stored features, records and floors are found again for the same thing only; floors that are missing are named."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.coloured_pictures import class_folders
from helpers.suites import run_suite
from torch import nn

import sslbench
from sslbench import evaluation, identity, paths
from sslbench.backbones.build import build
from sslbench.backbones.in_memory import from_module
from sslbench.cli.main import main
from sslbench.errors import BackboneError, UsageError
from sslbench.evaluation import Request, RunSettings, floors, make_task
from sslbench.evaluation.suite import SuiteCell
from sslbench.leaderboard import table
from sslbench.library.benchmarks import load_benchmark
from sslbench.preprocessing import Preprocessing
from sslbench.results import ExcludedImage, records
from sslbench.weights.save import save

RUN = RunSettings(device="cpu", workers=0, overlaps=False)
BARE = dataclasses.replace(RUN, floors=False)
SMALL = {"resize": [12, 12], "crop": None}


@pytest.fixture
def photos(tmp_path):
    rng, colours = np.random.default_rng(0), np.eye(3, dtype=int) * 55
    return class_folders(
        tmp_path / "photos", ("cat", "dog", "eel"), lambda c: rng.integers(0, 200, (12, 12, 3)) + colours[c], {".": 20}
    )


def evaluate(net, photos, run=BARE, protocols=("knn",), **request):
    settings = {"knn": {"k": 3}}
    out = photos.parent / "out"
    request = {"preprocessing": SMALL, **request}
    return sslbench.evaluate(net, photos, protocols=protocols, settings=settings, run=run, out=out, **request)


def sequence(*parts):
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 6, 3), *parts, nn.Flatten())


class TestModulesInMemory:
    def test_equal_tensors_are_not_an_equal_network(self, photos, monkeypatch, tmp_path):
        """Seen: ReLU and MaxPool, then Tanh and AvgPool around the same convolution gave one score twice."""
        nets = [sequence(nn.ReLU(), nn.MaxPool2d(2)), sequence(nn.Tanh(), nn.AvgPool2d(2))]
        found = [
            sslbench.extract_features(net, photos, run=BARE, preprocessing=SMALL)["all"]["output"].x for net in nets
        ]
        monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "another cache"))
        alone = sslbench.extract_features(nets[1], photos, run=BARE, preprocessing=SMALL)["all"]["output"].x
        assert np.array_equal(found[1], alone) and not np.allclose(found[0], alone)
        results = [evaluate(net, photos)[0] for net in nets]
        assert results[0].id != results[1].id

    def test_the_same_network_is_found_again_and_left_as_it_was(self, photos):
        net = sequence(nn.BatchNorm2d(6), nn.Dropout()).train()
        net[0].weight.grad = torch.ones_like(net[0].weight)
        before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        states = torch.get_rng_state(), np.random.get_state()[1].copy()
        results = [evaluate(net, photos)[0] for _ in range(2)]
        assert results[0].id == results[1].id and results[1].timings["images decoded"] == 0
        assert net.training and net[0].weight.requires_grad and torch.equal(net[0].weight.grad, torch.ones(6, 3, 3, 3))
        assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
        assert not net[0]._forward_hooks
        assert torch.equal(states[0], torch.get_rng_state()) and np.array_equal(states[1], np.random.get_state()[1])

    def test_features_are_kept_for_this_process_only(self, photos):
        evaluate(sequence(nn.ReLU()), photos)
        assert [path.name[:9] for path in (paths.cache_dir() / "features").iterdir()] == ["not-kept-"]

    def test_code_without_a_file_is_not_compared(self, photos):
        """Closures and cells of a notebook: two objects with equal tensors and attributes are two networks."""

        def net(factor):
            made = sequence(nn.Identity())
            made[1].forward = lambda x: x * factor
            return made

        found = [
            sslbench.extract_features(net(factor), photos, run=BARE, preprocessing=SMALL)["all"]["output"].x
            for factor in (1, 2)
        ]
        assert not np.allclose(*found)

    def test_other_state_than_tensors_counts(self):
        class Scaled(nn.Module):
            def __init__(self, factor):
                super().__init__()
                self.options = {"factor": [factor]}
                self.table = torch.full((2,), float(factor))

            def forward(self, x):
                return x.flatten(1)

        found = [from_module("net", Scaled(f).eval(), Preprocessing((8, 8), None)).identity for f in (1, 2, 1)]
        assert found[0] == found[2] and found[0]["structure"] != found[1]["structure"]

    def test_features_that_depend_on_the_batch_are_not_kept(self, caplog):
        net = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten())
        backbone = from_module("net", net.eval(), Preprocessing((8, 8), None))
        assert backbone.process_key != backbone.in_process
        assert "depend on the other images of the batch" in caplog.text

    def test_features_that_differ_each_time_are_not_kept(self, photos, caplog):
        class Random(nn.Module):
            def forward(self, x):
                return x.flatten(1) + torch.rand(())

        results = [evaluate(Random(), photos)[0] for _ in range(2)]
        assert results[1].timings["images decoded"] == 60
        assert "its features of one image change with every call; its features are not stored" in caplog.text

    def test_several_processes_cannot_share_such_features(self, photos, monkeypatch):
        class Random(nn.Module):
            def forward(self, x):
                return x.flatten(1) + torch.rand(())

        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(BackboneError, match="Run one process"):
            evaluate(Random(), photos)


class TestPreprocessingOfModules:
    def test_a_dict_is_taken(self, photos):
        """Seen: {"resize": 32} ran at 256 and 224."""
        net = sequence()
        net.preprocessing = {"resize": [10, 10], "crop": None}
        (result,) = evaluate(net, photos, preprocessing={})
        assert tuple(result.preprocessing["resize"]) == (10, 10) and result.preprocessing["crop"] is None
        features = sslbench.extract_features(net, photos, run=BARE)["all"]["output"]
        assert features.x.shape[1] == 6 * 8 * 8

    @pytest.mark.parametrize(
        ("given", "error", "says"),
        [
            ({"resize": 32}, UsageError, "do not fill the centre crop of 224x224"),
            ({"resise": 32}, UsageError, "Did you mean 'resize'"),
            (nn.Identity(), BackboneError, "'preprocessing' of Sequential is a Identity"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, photos, given, error, says):
        net = sequence()
        net.__dict__["preprocessing"] = given
        with pytest.raises(error, match=says):
            evaluate(net, photos, preprocessing={})


NET = """
from torch import nn


class Net(nn.Module):
    preprocessing = {"resize": [12, 12], "crop": None}

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)

    def forward(self, x):
        return self.conv(x).flatten(1)
"""


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs `sslbench eval`; what it prints, and the messages. The user's modules are imported afresh each time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*words):
        sys.modules.pop("edited_net", None)
        with pytest.raises(SystemExit) as done:
            main(["eval", *words, "--device", "cpu", *(() if "--features" in words else ("--workers", "0"))])
        captured = capsys.readouterr()
        assert done.value.code == 0, captured.err
        return captured.out + captured.err

    return run


def test_a_suite_computes_again_after_forward_was_edited(photos, command):
    """Seen: it said 'already computed' and gave the old score."""
    folder = photos.parent
    (folder / "edited_net.py").write_text(NET)
    words = ["knn", "--weights", "random", "pixels:2", "--backbone", "edited_net:Net", "--data", "photos", "k=3"]
    words += ["--no-floors"]
    command(*words)
    again = command(*words)
    assert again.count("already computed") == 1 and len(list((folder / "results/knn").glob("*.json"))) == 2
    (folder / "edited_net.py").write_text(NET.replace("self.conv(x).flatten(1)", "0 * self.conv(x).flatten(1)"))
    edited = command(*words)
    assert edited.count("already computed") == 1
    found = {read["weights"]["name"]: read for read in map(_json, sorted((folder / "results/knn").glob("*.json")))}
    assert len(list((folder / "results/knn").glob("edited*.json"))) == 2
    values = {read["metrics"]["top1"]["value"] for read in map(_json, (folder / "results/knn").glob("edited*.json"))}
    assert len(values) == 2 and min(values) == 0, "a network of zeros predicts none of three equally frequent classes"
    assert set(found) == {"edited_net:Net untrained", "pixels:2"}


def _json(path):
    return json.loads(path.read_text())


def test_the_dtype_of_the_features_is_another_measurement_and_another_row(photos):
    net = sequence()
    half = dataclasses.replace(BARE, feature_dtype="float16")
    results = [evaluate(net, photos, run=run)[0] for run in (BARE, half)]
    assert results[0].id != results[1].id
    board = table(results)
    assert sorted(row.precision for row in board.rows if not row.floor) == ["fp32", "fp32, stored as float16"]
    assert len({row.label for row in board.rows if not row.floor}) == 2


def test_records_name_themselves_by_what_they_hold(photos):
    """The id can be made again from the file, so that what is found under a name is what the name says."""
    evaluate(sequence(), photos, run=RUN)
    files = list((photos.parent / "out").rglob("*.json"))
    assert len(files) == 5, "the network, pixels, three untrained networks"
    for file in files:
        assert identity.record_id(records.read(file)) == records.read(file).id == file.stem.rpartition("-")[2]


class TestBenchmarks:
    def cells(self, photos, *benchmarks):
        for benchmark in benchmarks:
            task = make_task("knn", {} if benchmark else {"k": (3,)}, benchmark)
            request = Request(weights="pixels:4", data=str(photos), tasks=(task,))
            yield SuiteCell("pixels:4", benchmark.name if benchmark else "knn", (request,))

    def run(self, photos, *benchmarks, run=RUN):
        folder = photos.parent
        cells = list(self.cells(photos, *benchmarks))
        return run_suite(cells, run, store=folder / "store", out=folder / "out", command="test")[0]

    def named(self, name, **changes):
        base = dataclasses.replace(load_benchmark("knn/digits"), name=name, data="", classes=3, samples={})
        return dataclasses.replace(base, settings={"k": (3,)}, **changes)

    def test_two_that_measure_the_same_have_a_record_each(self, photos):
        """The second would have replaced the record of the first, and its column."""
        both = self.named("knn/a"), self.named("knn/b")
        first = self.run(photos, *both)
        board = table(records.read_tree(photos.parent / "out"))
        assert [column.name for column in board.columns] == ["knn/a", "knn/b"]
        again = self.run(photos, *both)
        assert [result.created for result in again] == [result.created for result in first]

    def test_the_same_with_and_without_a_benchmark_is_one_cell_and_no_further_seed(self, photos):
        self.run(photos, None)
        self.run(photos, self.named("knn/a"))
        board = table(records.read_tree(photos.parent / "out"))
        ((row,),) = ([row for row in board.rows if row.label.startswith("pixels:4")],)
        assert len(board.columns) == 1 and len(row.cells[0].records) == 1
        assert any("older records" in note for note in board.notes)

    def test_a_floor_of_another_leading_metric_is_not_served(self, photos):
        """Seen: the floor without a benchmark, under one that leads with balanced accuracy, had a column of its own."""
        net = sequence(nn.ReLU())
        evaluate(net, photos, run=RUN)
        led = self.named("knn/led", metric="balanced_accuracy")
        request = Request(weights="net", data=str(photos), tasks=(make_task("knn", {}, led),), preprocessing=SMALL)
        backbone = from_module("net", net.eval().requires_grad_(False), Preprocessing())
        prepared = evaluation.prepare(request, RUN, backbone=backbone)
        out = photos.parent / "led"
        evaluation.evaluate(prepared, store=photos.parent / "store", out=out, command="test")
        board = table(records.read_tree(out))
        assert [column.metric for column in board.columns] == ["balanced_accuracy"]
        assert {result.headline for result in records.read_tree(out)} == {"balanced_accuracy"}


class TestFloors:
    def stored(self):
        return sorted((paths.cache_dir() / "floors").rglob("*.json"))

    @pytest.mark.parametrize("damage", ["json", "scores", "no scores", "another", "edited"])
    def test_a_damaged_one_is_computed_again(self, photos, caplog, damage):
        net = sequence(nn.ReLU())
        (first,) = evaluate(net, photos, run=RUN)
        assert len(self.stored()) == 1, "that of the module in memory is kept for the process only"
        for file in self.stored():
            scores = file.with_name(file.stem + ".scores.npz")
            if damage == "json":
                file.write_bytes(file.read_bytes()[:100])
            elif damage == "scores":
                scores.write_bytes(scores.read_bytes()[:50])
            elif damage == "no scores":
                scores.unlink()
            elif damage == "edited":
                written = json.loads(file.read_text())
                written["metrics"][written["headline"]]["value"] = 49.0
                file.write_text(json.dumps(written))
            else:
                file.write_text(file.read_text().replace('"fp32"', '"bf16"'))
        (second,) = evaluate(net, photos, run=RUN)
        assert caplog.text.count("a stored result is computed again") == 1
        assert second.floors == first.floors
        caplog.clear()
        evaluate(net, photos, run=RUN)
        assert "computed again" not in caplog.text

    def test_one_of_fewer_images_is_not_served(self, photos):
        """An image may fail to be read once (a network file system), which no content shows."""
        evaluate(sequence(nn.ReLU()), photos, run=RUN)
        for file in self.stored():
            result = records.read(file)
            assert floors.cached(result.id, result.data) is not None
            gone = (ExcludedImage(id="cat/1.png", path="cat/1.png", reason="a passing failure"),)
            assert floors.cached(result.id, dataclasses.replace(result.data, unreadable=gone)) is None

    def test_a_cache_that_cannot_be_written_does_not_stop_an_evaluation(self, photos, caplog):
        (paths.cache_dir() / "floors").write_text("no folder")
        (result,) = evaluate(sequence(nn.ReLU()), photos, run=RUN)
        assert set(result.floors) == {"chance", "majority", "pixels", "untrained"}
        assert "a floor cannot be stored for later runs" in caplog.text

    def test_groups_of_a_stored_floor_are_those_of_today(self, photos):
        """The members may change while everything that a score depends on stays."""
        net = sequence(nn.ReLU())
        net.eval().requires_grad_(False)
        backbone = from_module("net", net, Preprocessing((12, 12), None))
        rows = sorted(photos.rglob("*.png"))
        worst = []
        for sites in ("xy", "yx"):
            text = "".join(
                f"{file},{file.parent.name},{'train' if i % 2 else 'test'},{sites[i // 2 % 2] if i < 30 else 'x'}\n"
                for i, file in enumerate(rows)
            )
            (photos.parent / "photos.csv").write_text("path,label,split,site\n" + text)
            task = make_task("knn", {"k": (3,)})
            request = Request("net", str(photos.parent / "photos.csv"), (task,), groups=("site",))
            prepared = evaluation.prepare(request, RUN, backbone=backbone)
            evaluation.evaluate(prepared, store=photos.parent / "store", out=photos.parent / "out", command="test")
            found = [r for r in records.read_tree(photos.parent / "out") if r.weights.name == "pixels:8"]
            assert len(found) == 1
            worst.append({group.name: group.metric.n for group in found[0].groups["site"]})
        assert worst[0] != worst[1]

    def test_a_module_in_memory_is_initialised_anew(self, photos):
        net = sequence(nn.ReLU())
        net[0].weight.data.mul_(3.0)
        (result,) = evaluate(net, photos, run=RUN)
        assert set(result.floors) == {"chance", "majority", "pixels", "untrained"} and result.missing_floors == {}
        untrained = floors.untrained_like(from_module("net", net, Preprocessing()))
        assert not torch.equal(untrained.module[0].weight, net[0].weight)
        again = floors.untrained_like(from_module("net", net, Preprocessing()))
        assert torch.equal(untrained.module[0].weight, again.module[0].weight)

    def test_one_that_cannot_be_is_said_to_be_missing(self, photos):
        class Token(nn.Module):
            def __init__(self):
                super().__init__()
                self.token = nn.Parameter(torch.ones(()))

            def forward(self, x):
                return (x * self.token).flatten(1)

        (result,) = evaluate(Token(), photos, run=RUN)
        assert "reset_parameters" in result.missing_floors["untrained"]
        assert records.read(result.file).missing_floors == result.missing_floors
        assert set(result.floors) == {"chance", "majority", "pixels"}

    def test_features_made_elsewhere_say_that_they_have_none(self, command, tmp_path):
        rng = np.random.default_rng(0)
        np.save(tmp_path / "x.npy", rng.normal(size=(40, 4)).astype(np.float32))
        (tmp_path / "y.csv").write_text("label\n" + "a\nb\n" * 20)
        said = command("knn", "--features", "x.npy", "--labels", "y.csv", "k=3")
        assert "knn: no floor 'pixels': the features came without images" in said
        (file,) = (tmp_path / "results/knn").glob("*.json")
        assert set(records.read(file).missing_floors) == {"pixels", "untrained"}

    def test_a_baseline_on_images_that_was_trained_once_stands_beside_the_next_run_for_nothing(
        self, photos, monkeypatch
    ):
        net = build("resnet_basic_1-1-1-1w0.125", seed=5)
        weights = photos.parent / "w.torch"
        save(weights, net.module.state_dict(), backbone=net.name, metadata={})
        one = {"epochs": 1, "batch_size": 8, "lr": [1.0]}

        def online(**more):
            run = dataclasses.replace(RUN, **more)
            out = photos.parent / "out"
            request = {"protocols": ["linear-online"], "settings": {"linear-online": one}, "preprocessing": SMALL}
            return sslbench.evaluate(weights, photos, out=out, run=run, **request)[0]

        bare = online()
        assert "baseline=true" in bare.missing_floors["untrained"] and "untrained" not in bare.floors
        trained = online(baseline=True)
        assert set(trained.missing_floors) == {"pixels"} and "untrained" in trained.floors
        assert online().floors == trained.floors


def test_a_record_that_was_asked_for_by_name_is_not_replaced_by_the_floor(photos, command):
    folder = photos.parent
    words = [
        "--data",
        "photos",
        "k=3",
        "--backbone",
        "resnet_basic_1-1-1-1w0.125",
        "--resize",
        "12x12",
        "--crop",
        "none",
    ]
    command("knn", "--weights", "random", *words)
    (file,) = [f for f in (folder / "results/knn").glob("*.json") if "untrained" in f.name]
    asked_for = records.read(file)
    assert asked_for.overlaps is not None and "pixels" in asked_for.floors
    net = build("resnet_basic_1-1-1-1w0.125", seed=5)
    save(folder / "w.torch", net.module.state_dict(), backbone=net.name, metadata={})
    command("knn", "--weights", "w.torch", *words)
    assert records.read(file) == asked_for


def test_old_records_are_read_and_share_the_row_of_the_same_network(photos):
    """Records of version 0.1.0 have no code, dtype, floors that are missing and nothing that was asked."""
    (new,) = sslbench.evaluate(
        "random",
        photos,
        backbone="resnet_basic_1-1-1-1w0.125",
        protocols=["knn"],
        out=photos.parent / "out",
        run=BARE,
        preprocessing={"resize": 32, "crop": [32, 32]},
    )
    content = json.loads(new.file.read_text())
    for key in ("feature_dtype", "asked", "missing_floors"):
        del content[key]
    del content["weights"]["code"], content["protocol"]["code"]
    old = photos.parent / "out" / "knn" / f"{Path(new.file).stem.rpartition('-')[0]}-0123456789abcdef.json"
    old.write_text(json.dumps({**content, "id": "0123456789abcdef", "created": "2025-01-01T00:00:00+00:00"}))
    board = table(records.read_tree(photos.parent / "out"))
    rows = [row for row in board.rows if row.weights.startswith("resnet")]
    assert len(rows) == 1 and [record.id for record in rows[0].cells[0].records] == [new.id]


def test_labels_in_the_index_of_the_store_are_those_of_today(photos, tmp_path):
    """Features do not depend on labels, index.csv does: --features with --labels index.csv reads it."""
    files = sorted(photos.rglob("*.png"))
    net = sequence()
    for names in (("a", "b"), ("b", "a")):
        text = "".join(f"{file},{names[i % 2]}\n" for i, file in enumerate(files))
        (tmp_path / "table.csv").write_text("path,label\n" + text)
        sslbench.extract_features(net, tmp_path / "table.csv", store=tmp_path / "store", run=BARE, preprocessing=SMALL)
        (index,) = (tmp_path / "store").glob("*/index.csv")
        assert [line.split(",")[3] for line in index.read_text().splitlines()[1:3]] == list(names)
