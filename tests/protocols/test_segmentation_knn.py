"""Segmentation by nearest patches against slow loops, and the memory of patches."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from helpers.targets import ArrayMaps, map_pictures, map_sample
from PIL import Image
from torch import nn

from sslbench.backbones.build import build
from sslbench.backbones.grids import resolve_grids
from sslbench.backbones.in_memory import from_module
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract
from sslbench.features.streamed import streamed
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import segmentation_knn
from sslbench.protocols.segmentation_knn import Settings, patch_memory, run
from sslbench.runtime.seeds import seeded


def slow_miou(train, test, k, temperature):
    """Hummingbird in loops: cosines of all pairs, softmax of the k largest, bilinear, argmax, areas."""
    n_classes, (rows, columns) = len(train.target.classes), train.grid
    memory, shares = [], []
    for i in range(len(train)):
        label = train.target.maps.maps[i]
        height, width = label.shape[0] // rows, label.shape[1] // columns
        for r in range(rows):
            for c in range(columns):
                pixels = label[r * height : (r + 1) * height, c * width : (c + 1) * width]
                counted = pixels[pixels >= 0]
                if counted.size:
                    memory.append(train.x[i].reshape(rows * columns, -1)[r * columns + c].astype(float))
                    shares.append([np.mean(counted == number) for number in range(n_classes)])
    memory, shares = np.array(memory), np.array(shares)
    memory /= np.linalg.norm(memory, axis=1, keepdims=True)
    both, predicted, labelled = np.zeros((3, n_classes))
    for i in range(len(test)):
        scores = []
        for query in test.x[i].reshape(rows * columns, -1).astype(float):
            cosines = memory @ (query / np.linalg.norm(query))
            nearest = np.argsort(-cosines)[:k]
            weights = np.exp(cosines[nearest] / temperature)
            scores.append(weights @ shares[nearest] / weights.sum())
        grid = torch.tensor(np.array(scores)).T.reshape(1, n_classes, rows, columns)
        label = test.target.maps.maps[i]
        large = torch.nn.functional.interpolate(grid, label.shape, mode="bilinear", align_corners=False)[0]
        found = large.argmax(0).numpy()
        for number in range(n_classes):
            one, other = (found == number) & (label >= 0), label == number
            both[number] += (one & other).sum()
            predicted[number] += one.sum()
            labelled[number] += other.sum()
    union = predicted + labelled - both
    return np.mean(both[union > 0] / union[union > 0])


def ignoring(features, seed):
    """The same with a fifth of the pixels and one whole image ignored."""
    maps = features.target.maps.maps.copy()
    maps[np.random.default_rng(seed).random(maps.shape) < 0.2] = -1
    maps[0] = -1
    return dataclasses.replace(features, target=features.target.changed(maps=ArrayMaps(maps)))


@pytest.mark.parametrize("k", [1, 5, 10_000])
def test_the_score_is_that_of_loops(k):
    train, test = ignoring(map_sample(12, 0, noise=2.0), 0), ignoring(map_sample(9, 1, noise=2.0), 1)
    found = run(train, test, Settings(k=k, temperature=0.1), seed=0)
    assert found.metrics["mIoU"][0] == pytest.approx(slow_miou(train, test, k, 0.1), abs=1e-3)
    value, low, high = found.metrics["mIoU"]
    assert 0 <= low < value < high <= 1


def test_images_alone_decide_and_not_their_blocks(monkeypatch):
    train, test = map_sample(12, 0, noise=2.0), map_sample(9, 1, noise=2.0)
    whole = run(train, test, Settings(), seed=0)
    monkeypatch.setattr(segmentation_knn, "_QUERIES", 7)
    np.testing.assert_array_equal(run(train, test, Settings(), seed=0).scores, whole.scores)


def test_a_small_memory_keeps_equally_many_patches_of_each_image_and_rare_classes():
    train = map_sample(20, 0)
    cells = train.target.maps.maps[:, ::8, ::8].copy()
    cells[:] = 0
    cells[:, 1, 2] = 3
    rare = dataclasses.replace(
        train, target=train.target.changed(maps=ArrayMaps(np.kron(cells, np.ones((1, 8, 8), dtype=int))))
    )
    memory = patch_memory(rare, 40, seed=0)
    assert len(memory.x) == 40 and memory.left_out == 80
    assert (memory.labels[:, 3] == 1).sum() >= 15, "one patch in six has class 3, and stays"
    assert len(patch_memory(rare, 10_000, seed=0).x) == 120


def test_position_and_majority_are_floors():
    train, test = map_sample(60, 0), map_sample(20, 1)
    top = np.arange(6).reshape(2, 3) // 3  # class 0 above, class 1 below
    maps = np.kron(top, np.ones((8, 8), dtype=int))
    of = [
        dataclasses.replace(part, target=part.target.changed(maps=ArrayMaps(np.stack([maps] * len(part)))))
        for part in (train, test)
    ]
    found = run(*of, Settings(), seed=0)
    assert found.floors["position only"]["mIoU"] == 1.0
    assert found.chance["mIoU"] == pytest.approx(0.25), "half of the pixels, of two classes with pixels"


def test_classes_of_test_that_train_lacks_are_named():
    train, test = map_sample(12, 0), map_sample(9, 1)
    assert not any("no pixel in train" in note for note in run(train, test, Settings(k=5), seed=0).notes)
    maps = np.where(train.target.maps.maps == 1, -1, train.target.maps.maps)
    found = run(
        dataclasses.replace(train, target=train.target.changed(maps=ArrayMaps(maps))), test, Settings(k=5), seed=0
    )
    assert any("no pixel in train" in note and train.target.classes[1] in note for note in found.notes)


def test_a_score_that_says_nothing_of_the_network_is_noted():
    train, test = map_sample(12, 0), map_sample(9, 1)
    assert len(run(train, test, Settings(k=5), seed=0).notes) == 1
    constant = [dataclasses.replace(part, x=np.ones_like(part.x)) for part in (train, test)]
    for parts in ((train, test), constant):
        notes = run(*parts, Settings(k=100_000, temperature=100.0), seed=0).notes
        assert any("k=100,000 is not below the 72 patches of the memory" in note for note in notes)
        assert any(note.startswith("No better than predicting") for note in notes)
    of = [
        dataclasses.replace(part, target=part.target.changed(maps=ArrayMaps(np.zeros_like(part.target.maps.maps))))
        for part in (train, test)
    ]
    notes = run(*of, Settings(k=5), seed=0).notes
    for part in ("train", "test"):
        assert any(f"All counted pixels of {part} belong to '{train.target.classes[0]}'" in note for note in notes)


def test_matching_only_adds_metrics_and_can_only_raise_them():
    train, test = map_sample(12, 0, noise=3.0), map_sample(9, 1, noise=3.0)
    swapped = dataclasses.replace(
        train, target=train.target.changed(maps=ArrayMaps(np.array([1, 0, 2, 3])[train.target.maps.maps]))
    )
    plain, right = run(swapped, test, Settings(), seed=0), run(train, test, Settings(), seed=0)
    for by in ("iou", "pixels"):
        found = run(swapped, test, Settings(matching=by), seed=0)
        assert {name: found.metrics[name] for name in plain.metrics} == plain.metrics
        assert found.metrics["matched_mIoU"][0] == pytest.approx(right.metrics["mIoU"][0])
        assert found.metrics["matched_mIoU"][0] > plain.metrics["mIoU"][0] + 0.1


def test_what_cannot_be_used_is_one_message():
    train, test = map_sample(8, 0), map_sample(4, 1)
    for change in ({"k": 0}, {"memory": 0}, {"temperature": 0.0}):
        with pytest.raises(UsageError, match=next(iter(change))):
            segmentation_knn.check(Settings(**change), train.target)
    nothing = dataclasses.replace(
        train, target=train.target.changed(maps=ArrayMaps(np.full_like(train.target.maps.maps, -1)))
    )
    with pytest.raises(DataError, match="no pixel of the training maps counts"):
        run(nothing, test, Settings(), seed=0)
    with pytest.raises(UsageError, match="a layer with a vector per patch"):
        run(dataclasses.replace(train, grid=None), test, Settings(), seed=0)
    x = train.x.copy()
    x[3, 5] = np.nan
    with pytest.raises(DataError, match="0-0003"):
        run(dataclasses.replace(train, x=x), test, Settings(), seed=0)


def test_maps_without_meaning_are_predicted_at_chance():
    """The classes of 240 test cells are drawn apart from all else: Hoeffding's bound fails once in a million seeds."""
    train, test = (
        dataclasses.replace(map_sample(n, seed), target=map_sample(n, seed + 10).target)
        for n, seed in ((48, 1), (40, 2))
    )
    outcome = run(train, test, Settings(), seed=0)
    assert abs(outcome.metrics["aAcc"][0] - 1 / 4) < math.sqrt(math.log(2e6) / (2 * 240))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_features_that_are_not_stored_give_the_same_result(tmp_path, dtype, monkeypatch):
    with seeded(0):
        module = nn.Sequential(nn.Conv2d(3, 12, 3, stride=4, padding=1), nn.ReLU()).eval().requires_grad_(False)
    plain = Preprocessing(resize=None, crop=(16, 24), mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
    backbone = from_module("small", module, plain)
    (layer,) = resolve_grids(backbone, ["1:grid+flip"], (16, 24))
    settings = ExtractSettings(torch.device("cpu"), batch_size=4, workers=0, dtype=dtype)
    parts = {"train": map_pictures(14, 1), "test": map_pictures(9, 2)}
    stored = [
        extract(backbone, part, (layer,), settings, root=tmp_path, split=name).features[layer.text]
        for name, part in parts.items()
    ]
    stored = [
        dataclasses.replace(found, target=found.target.changed(maps=part.target.maps))
        for found, part in zip(stored, parts.values(), strict=True)
    ]
    seen = []
    fresh = [
        streamed(backbone, part, layer, settings, lambda done, total: seen.append((done, total)))
        for part in parts.values()
    ]
    for one, other in zip(stored, fresh, strict=True):
        assert other.x.shape == one.x.shape and other.grid == one.grid and other.x.dtype == one.x.dtype
    monkeypatch.setattr(segmentation_knn, "_QUERIES", 60)  # two images, of batches of four
    wanted, found = (run(train, test, Settings(memory=100), seed=0) for train, test in (stored, fresh))
    np.testing.assert_array_equal(found.scores, wanted.scores)
    assert found.metrics == wanted.metrics and found.notes == wanted.notes
    assert [done for done, _ in seen] == [4, 8, 12, 14, 4, 8, 9], "every image is encoded once"


def test_rows_that_are_not_stored_may_be_read_again_and_name_unreadable_images(tmp_path):
    folder = tmp_path / "train" / "images"
    folder.mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(folder / f"{i}.png")
    source = open_data(str(tmp_path))["train"]
    backbone = build("resnet18w0.125", seed=0)
    backbone = dataclasses.replace(
        backbone, preprocessing=dataclasses.replace(backbone.preprocessing, resize=(64, 64), crop=None)
    )
    (layer,) = resolve_grids(backbone, ["res3"], (64, 64))
    x = streamed(backbone, source, layer, ExtractSettings(torch.device("cpu"), batch_size=2, workers=0)).x
    both = x[0:3]
    np.testing.assert_array_equal(x[1], both[1])
    (folder / "1.png").write_bytes(b"no image")
    again = streamed(backbone, source, layer, ExtractSettings(torch.device("cpu"), batch_size=2, workers=0)).x
    with pytest.raises(DataError, match=r"1 of 3 images .* cannot be read:\n.*1.png"):
        again[0]
