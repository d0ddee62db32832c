"""Several weights are encoded in one pass over the images; nothing else changes."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.suites import run_suite
from PIL import Image

from sslbench.backbones.build import build
from sslbench.data.loading import loader
from sslbench.evaluation import Request, RunSettings, extract_several, make_task, suite
from sslbench.evaluation.suite import SuiteCell
from sslbench.features import streams

RUN = RunSettings(workers=0, floors=False, device="cpu", batch_size=8)
SMALL = {"resize": 32, "crop": (32, 32)}


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(12):
            pixels = rng.integers(0, 255, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return str(tmp_path / "photos")


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


def run(wanted, folder, settings=RUN):
    results, holes = run_suite(wanted, settings, store=folder / "store", out=folder / "out", command="test")
    return results, holes, {file.parent.name: np.load(file) for file in folder.glob("store/*/*.npy")}


def test_three_weights_decode_once_and_have_the_features_of_single_runs(photos, weights, decoded, tmp_path, caplog):
    with caplog.at_level("INFO", "sslbench"):
        results, holes, found = run(cells(weights, photos), tmp_path / "together")
    assert sorted(decoded) == list(range(24)) and not holes
    assert "encoded together, 2 passes over the images saved" in caplog.text
    single = {}
    for number, each in enumerate(weights):
        own, _, features = run(cells([each], photos), tmp_path / str(number))
        single |= features
        assert own[0].metrics == results[number].metrics
    assert len(decoded) == 4 * 24
    assert found.keys() == single.keys() and len(found) == 3
    for name, features in found.items():
        np.testing.assert_array_equal(features, single[name])


def test_the_untrained_copy_shares_the_pass(photos, weights, decoded, tmp_path):
    settings = dataclasses.replace(RUN, floors=True, overlaps=False)
    results, holes, _ = run(cells(weights[:2], photos), tmp_path, settings)
    assert not holes and len(results) == 2
    assert len(decoded) == 2 * 24, "two weights and the untrained network together, and the pixels"


def test_what_has_a_record_or_stored_features_is_not_encoded_again(photos, weights, decoded, tmp_path):
    run(cells(weights[:1], photos), tmp_path)
    for file in (tmp_path / "store").glob("*/*.npy"):
        file.unlink()
    decoded.clear()
    run(cells(weights, photos), tmp_path)
    assert len(list((tmp_path / "store").glob("*/*.npy"))) == 2, "the record of the first is there"
    assert len(decoded) == 24


def test_what_fails_together_is_encoded_alone(photos, weights, monkeypatch, tmp_path):
    original = streams.encoded
    calls = []

    def fail_together(batches, works, pieces):
        calls.append(len(works))
        if len(works) > 1:
            raise RuntimeError("too much for one pass")
        return original(batches, works, pieces)

    monkeypatch.setattr(streams, "encoded", fail_together)
    results, holes, _ = run(cells(weights, photos), tmp_path)
    assert calls == [3, 1, 1, 1]
    assert len(results) == 3 and not holes


def test_memory_bounds_the_weights_that_are_loaded_together(photos, weights, decoded, monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "TOGETHER_BYTES", 0)
    run(cells(weights, photos), tmp_path)
    assert len(decoded) == 3 * 24


def test_another_decoding_has_a_pass_of_its_own(photos, weights, decoded, tmp_path):
    other = cells(weights[2:], photos, crop=(24, 24))
    run([*cells(weights[:2], photos), *other], tmp_path)
    assert len(decoded) == 2 * 24


def test_extract_writes_an_entry_for_each_of_the_weights_from_one_pass(photos, weights, decoded, tmp_path):
    requests = [Request(weights=each, data=photos, tasks=(), preprocessing=SMALL) for each in weights]
    found = dict(extract_several(requests, RUN, store=tmp_path / "store"))
    assert list(found) == weights and len(decoded) == 24
    assert len({own["all"].entry.folder for own in found.values()}) == 3
