"""Suites: what was done is not done again, a failure is a hole with its reason; several weights share a pass."""

import dataclasses
import json
import logging
import weakref

import numpy as np
import pytest
import torch
from helpers.coloured_pictures import class_folders
from helpers.suites import run_suite

from sslbench import evaluation
from sslbench.backbones.build import build
from sslbench.data.loading import loader
from sslbench.errors import DataError, ResultError, UsageError
from sslbench.evaluation import Request, RunSettings, estimate, extract_several, make_task, suite
from sslbench.evaluation import suite as suite_module
from sslbench.evaluation.suite import SuiteCell
from sslbench.features import streams
from sslbench.library.benchmarks import load_benchmark
from sslbench.results import holes
from sslbench.results.holes import Hole

RUN = RunSettings(workers=0, floors=False, device="cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    rng, colours = np.random.default_rng(0), np.eye(3, dtype=int) * 100
    root = tmp_path_factory.mktemp("photos")
    return str(
        class_folders(root, ("cat", "dog", "eel"), lambda c: rng.integers(0, 120, (8, 8, 3)) + colours[c], {".": 12})
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path


def cell(weights, data, protocol="knn", benchmark=None, **settings):
    task = make_task(protocol, settings or {"k": (3,)}, benchmark)
    name = benchmark.name if benchmark else protocol
    return SuiteCell(weights, name, (Request(weights=weights, data=data, tasks=(task,)),))


def run(cells, folder, settings=RUN):
    found = run_suite(cells, settings, store=folder / "store", out=folder / "out", command="test")
    return found


def test_a_cell_that_fails_is_a_hole_and_the_others_go_on(cache, photos):
    missing = SuiteCell("pixels:4", "knn/far", (), DataError("the files of FAR are not here", "Get them."))
    cells = [cell("pixels:4", photos), missing, cell("gone.torch", photos), cell("pixels:2", photos)]
    results, found = run(cells, cache)
    assert [(r.weights.name, r.protocol.name) for r in results] == [("pixels:4", "knn"), ("pixels:2", "knn")]
    assert [(h.weights, h.benchmark) for h in found] == [("pixels:4", "knn/far"), ("gone.torch", "knn")]
    assert (found[0].reason, found[0].remedy) == ("the files of FAR are not here", "Get them.")
    assert "gone.torch" in found[1].reason
    assert holes.read(cache / "out") == found
    assert len(list((cache / "out").glob("*/*.json"))) == 2


def test_what_is_there_is_not_computed_again(cache, photos, monkeypatch, caplog):
    cells = [cell("pixels:4", photos), cell("pixels:4", photos, k=(5,))]
    first, _ = run(cells[:1], cache)
    calls = []
    original = suite_module.evaluate
    monkeypatch.setattr(suite_module, "evaluate", lambda *a, **k: calls.append(a) or original(*a, **k))
    with caplog.at_level("INFO", logger="sslbench"):
        second, found = run(cells, cache)
    assert len(calls) == 1 and not found
    assert [r.id for r in second] == [first[0].id, second[1].id] and second[0].created == first[0].created
    assert "already computed" in caplog.text


def test_weights_that_cannot_be_loaded_are_tried_once(cache, photos, monkeypatch):
    calls = []

    def refuse(request, settings):
        calls.append(request.weights)
        raise UsageError("no such weights")

    monkeypatch.setattr(suite_module, "load", refuse)
    _, found = run([cell("a", photos), cell("a", photos, k=(5,)), cell("b", photos)], cache)
    assert calls == ["a", "b"] and len(found) == 3


def test_running_out_of_memory_is_a_hole_but_a_fault_of_the_program_is_not_hidden(cache, photos, monkeypatch):
    def fail(error):
        def evaluate(*args, **kwargs):
            raise error

        return evaluate

    monkeypatch.setattr(suite_module, "evaluate", fail(MemoryError()))
    _, found = run([cell("pixels:4", photos)], cache)
    assert found == [Hole("pixels:4", "knn", "MemoryError")]
    monkeypatch.setattr(suite_module, "evaluate", fail(TypeError("a bug")))
    with pytest.raises(TypeError, match="a bug"):
        run([cell("pixels:4", photos)], cache)


def test_a_hole_that_is_filled_leaves_the_table_and_others_stay(tmp_path):
    holes.write(tmp_path, [("a", "x"), ("a", "y")], [Hole("a", "x", 'why, "so"', ""), Hole("a", "y", "b", "c")])
    assert holes.read(tmp_path) == [Hole("a", "x", 'why, "so"', ""), Hole("a", "y", "b", "c")]
    holes.write(tmp_path, [("a", "x"), ("b", "x")], [Hole("b", "x", "r")])
    assert holes.read(tmp_path) == [Hole("a", "y", "b", "c"), Hole("b", "x", "r")]
    holes.write(tmp_path, [("a", "y"), ("b", "x")], [])
    assert not (tmp_path / holes.HOLES).exists() and holes.read(tmp_path) == []
    (tmp_path / holes.HOLES).write_text("one,two\n1,2\n")
    with pytest.raises(ResultError, match=r"holes.csv is damaged"):
        holes.read(tmp_path)


def test_the_metric_that_a_benchmark_puts_first_leads(cache, photos):
    base = dataclasses.replace(load_benchmark("knn/digits"), classes=3)
    usual, led = (dataclasses.replace(base, metric=metric) for metric in ("", "balanced_accuracy"))
    (first, second), _ = run(
        [cell("pixels:4", photos, benchmark=usual), cell("pixels:2", photos, benchmark=led)], cache
    )
    assert (first.headline, second.headline) == ("top1", "balanced_accuracy")
    assert second.train is None, "the score on train is known for the usual metric only"
    _, found = run([cell("pixels:8", photos, benchmark=dataclasses.replace(base, metric="balanced"))], cache)
    assert "no result has the metric 'balanced'" in found[0].reason and "balanced_accuracy" in found[0].remedy


def test_a_suite_of_nothing_is_done(tmp_path):
    evaluation.check_writable(tmp_path / "out")
    assert run([], tmp_path) == ([], [])


def test_a_bug_of_torchs_kind_stops_the_suite_and_lack_of_memory_does_not(cache, photos, monkeypatch):
    for message, is_hole in (("mat1 and mat2 shapes cannot be multiplied", False), ("can't allocate memory", True)):

        def fail(*_, message=message):
            raise RuntimeError(message)

        monkeypatch.setattr(suite_module, "_load_together", fail)
        if is_hole:
            assert message in run([cell("pixels:4", photos)], cache)[1][0].reason
        else:
            with pytest.raises(RuntimeError, match=message):
                run([cell("pixels:4", photos)], cache)


def test_weights_are_released_before_the_next_are_read(cache, photos, monkeypatch):
    alive, load = [], suite_module.load

    def watched(request, settings):
        alive.append(sum(each() is not None for each in loaded))
        backbone = load(request, settings)
        loaded.append(weakref.ref(backbone))
        return backbone

    loaded = []
    monkeypatch.setattr(suite_module, "load", watched)
    monkeypatch.setattr(suite_module, "TOGETHER_BYTES", -1)
    results, _ = run([cell(f"pixels:{side}", photos) for side in (2, 3, 4)], cache)
    assert len(results) == 3 and alive == [0, 0, 0]


def test_a_record_whose_metrics_were_edited_is_made_again(cache, photos, caplog):
    (result,), _ = run([cell("pixels:4", photos)], cache)
    written = json.loads(result.file.read_text())
    top1 = written["metrics"]["top1"]
    inside = {**written["metrics"], "top1": {**top1, "value": (top1["low"] + top1["high"]) / 2 + 0.01}}
    result.file.write_text(json.dumps({**written, "metrics": inside}))
    ((again,), _) = run([cell("pixels:4", photos)], cache)
    assert again.metrics == result.metrics and "the record was edited" in caplog.text
    older = {key: value for key, value in written.items() if key != "checksum"}
    result.file.write_text(json.dumps({**older, "notes": ["ours"]}))
    ((kept,), _) = run([cell("pixels:4", photos)], cache)
    assert kept.notes == ("ours",) and kept.metrics == result.metrics


OF_EIGHT = RunSettings(workers=0, floors=False, device="cpu", batch_size=8)
SMALL = {"resize": 32, "crop": (32, 32)}


@pytest.fixture
def noise(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    return str(
        class_folders(
            tmp_path / "photos", ("cat", "dog"), lambda _: rng.integers(0, 255, (40, 40, 3), dtype=np.uint8), {".": 12}
        )
    )


@pytest.fixture
def decoded(monkeypatch):
    """Rows that the loader decodes, in order."""
    rows = []
    original = loader.read
    monkeypatch.setattr(
        loader, "read", lambda images, index, *rest: rows.append(index) or original(images, index, *rest)
    )
    return rows


@pytest.fixture
def weights(tmp_path):
    files, state = [], build("resnet_basic_1-1-1-1w0.125").module.state_dict()
    for seed in range(3):
        files.append(str(tmp_path / f"{seed}.pth"))
        torch.save(state | {"conv1.weight": state["conv1.weight"] + 0.01 * seed}, files[-1])
    return files


def cells(weights, data, **preprocessing):
    task = make_task("knn", {"k": (3,)})
    return [
        SuiteCell(each, "knn", (Request(weights=each, data=data, tasks=(task,), preprocessing=SMALL | preprocessing),))
        for each in weights
    ]


def run_cells(wanted, folder, settings=OF_EIGHT):
    results, holes = run_suite(wanted, settings, store=folder / "store", out=folder / "out", command="test")
    return results, holes, {file.parent.name: np.load(file) for file in folder.glob("store/*/*.npy")}


def test_three_weights_decode_once_and_have_the_features_of_single_runs(noise, weights, decoded, tmp_path, caplog):
    with caplog.at_level("DEBUG", "sslbench"):
        results, holes, found = run_cells(cells(weights, noise), tmp_path / "together")
    assert sorted(decoded) == list(range(24)) and not holes
    assert "encoded together, 2 passes over the images saved" in caplog.text
    single = {}
    for number, each in enumerate(weights):
        own, _, features = run_cells(cells([each], noise), tmp_path / str(number))
        single |= features
        assert own[0].metrics == results[number].metrics
    assert len(decoded) == 4 * 24
    assert found.keys() == single.keys() and len(found) == 3
    for name, features in found.items():
        np.testing.assert_array_equal(features, single[name])


def test_the_untrained_copy_shares_the_pass(noise, weights, decoded, tmp_path):
    settings = dataclasses.replace(OF_EIGHT, floors=True, overlaps=False)
    results, holes, _ = run_cells(cells(weights[:2], noise), tmp_path, settings)
    assert not holes and len(results) == 2
    assert len(decoded) == 2 * 24, "two weights and the untrained network together, and the pixels"


def test_what_has_a_record_or_stored_features_is_not_encoded_again(noise, weights, decoded, tmp_path):
    run_cells(cells(weights[:1], noise), tmp_path)
    for file in (tmp_path / "store").glob("*/*.npy"):
        file.unlink()
    decoded.clear()
    run_cells(cells(weights, noise), tmp_path)
    assert len(list((tmp_path / "store").glob("*/*.npy"))) == 2, "the record of the first is there"
    assert len(decoded) == 24


def test_what_fails_together_is_encoded_alone(noise, weights, monkeypatch, tmp_path):
    original = streams.encoded
    calls = []

    def fail_together(batches, encoders, pieces):
        calls.append(len(encoders))
        if len(encoders) > 1:
            raise RuntimeError("too much for one pass")
        return original(batches, encoders, pieces)

    monkeypatch.setattr(streams, "encoded", fail_together)
    results, holes, _ = run_cells(cells(weights, noise), tmp_path)
    assert calls == [3, 1, 1, 1]
    assert len(results) == 3 and not holes


def test_memory_bounds_the_weights_that_are_loaded_together(noise, weights, decoded, monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "TOGETHER_BYTES", 0)
    run_cells(cells(weights, noise), tmp_path)
    assert len(decoded) == 3 * 24


def test_another_decoding_has_a_pass_of_its_own(noise, weights, decoded, tmp_path):
    other = cells(weights[2:], noise, crop=(24, 24))
    run_cells([*cells(weights[:2], noise), *other], tmp_path)
    assert len(decoded) == 2 * 24


def test_extract_writes_an_entry_for_each_of_the_weights_from_one_pass(noise, weights, decoded, tmp_path):
    requests = [Request(weights=each, data=noise, tasks=(), preprocessing=SMALL) for each in weights]
    found = dict(extract_several(requests, OF_EIGHT, store=tmp_path / "store"))
    assert list(found) == weights and len(decoded) == 24
    assert len({own["all"].entry.folder for own in found.values()}) == 3


def test_the_time_of_all_weights_and_protocols_is_told_once_before_the_first(cache, photos, monkeypatch, caplog):
    monkeypatch.setattr(estimate, "_FEW_IMAGES", 10)
    monkeypatch.setattr(estimate, "measure_rate", lambda network, *given: estimate.Rate(1.0, {"pixels": 12}))
    caplog.set_level(logging.INFO, logger="sslbench")
    cells = [cell("pixels:4", photos), cell("pixels:2", photos), cell("pixels:4", photos, "svm", costs=(1.0,))]
    run(cells, cache)
    lines = [record.getMessage() for record in caplog.records if " estimated " in record.getMessage()]
    assert len(lines) == 1 and lines[0].startswith("these 3 evaluations are estimated to take 72 s"), lines
