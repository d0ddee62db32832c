"""Boundaries by trained heads: readers of annotations, targets, loss and scores, features that know the answer."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.targets import bright_objects
from PIL import Image
from scipy.io import savemat
from torch import nn

from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.open import open_as
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import ImageInputs, edges
from sslbench.protocols.edges import Edges, annotations
from sslbench.runtime.seeds import seeded
from sslbench.solvers.dense.losses import balanced_cross_entropy
from sslbench.targets.pixel_values import Boundaries

SIZE = (20, 30)


def lines(*columns):
    """One map for each column, with a line there."""
    found = np.zeros((len(columns), *SIZE), dtype=bool)
    found[np.arange(len(columns)), :, columns] = True
    return found


def write_mat(path, maps):
    cells = np.empty((1, len(maps)), dtype=object)
    for i, each in enumerate(maps):
        cells[0, i] = {"Segmentation": each.astype(np.uint16), "Boundaries": each.astype(np.uint8)}
    savemat(path, {"groundTruth": cells}, do_compression=True)


@pytest.fixture
def bsds(tmp_path):
    """A folder laid out as BSDS500, with two images for each of train and test, and 2 or 3 annotators."""
    for split in ("train", "test"):
        for folder in ("images", "groundTruth"):
            (tmp_path / folder / split).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", SIZE[::-1], (90 * i, 0, 0)).save(tmp_path / "images" / split / f"{i}.jpg")
            write_mat(tmp_path / "groundTruth" / split / f"{i}.mat", lines(*(4, 4, 9)[: 2 + i]))
    return tmp_path


def test_files_of_bsds_have_a_map_for_every_annotator(bsds):
    parts = open_as(str(bsds), Boundaries)
    assert list(parts) == ["train", "test"] and parts["test"].ids == ("0.jpg", "1.jpg")
    values = parts["test"].target.pixels.read_values(1, size=SIZE)
    np.testing.assert_array_equal(values, np.moveaxis(lines(4, 4, 9), 0, 2))


def test_a_folder_beside_the_splits_of_bsds_is_passed_over(bsds):
    (bsds / "images" / "more").mkdir()
    write_mat(bsds / "groundTruth" / "0.mat", lines(4))
    parts = open_as(str(bsds), Boundaries)
    assert {split: source.ids for split, source in parts.items()} == dict.fromkeys(
        ("train", "test"), ("0.jpg", "1.jpg")
    )


def test_a_target_has_the_consensus_and_every_annotator(bsds):
    test = open_as(str(bsds), Boundaries)["test"]
    target = Edges(edges.Settings()).read(test, 1, SIZE)
    assert (target[0, :, 4] == 1).all() and np.isnan(target[0, :, 9]).all() and (target[0, :, 5] == 0).all()
    np.testing.assert_array_equal(annotations(target), lines(4, 4, 9))
    assert (Edges(edges.Settings(consensus=0.3)).read(test, 1, SIZE)[0, :, 9] == 1).all()


@pytest.mark.parametrize("content", [b"", b"no matlab" * 40, b"MATLAB 5.0 MAT-file" + bytes(300)])
def test_a_damaged_file_is_one_message(bsds, content):
    (bsds / "groundTruth" / "test" / "0.mat").write_bytes(content)
    with pytest.raises(UnreadableImage, match=r"0\.mat"):
        open_as(str(bsds), Boundaries)["test"].target.pixels.read_values(0)


def test_a_file_of_something_else_and_another_size_are_one_message(bsds):
    values = open_as(str(bsds), Boundaries)["test"].target.pixels
    with pytest.raises(DataError, match="boundaries is 30 x 20 pixels, but its image 8 x 9"):
        values.read_values(0, size=(9, 8))
    savemat(bsds / "groundTruth" / "test" / "0.mat", {"other": np.ones(3)})
    with pytest.raises(UnreadableImage, match="groundTruth"):
        open_as(str(bsds), Boundaries)["test"].target.pixels.read_values(0)


def test_folders_of_maps_are_thinned_and_masks_refused(tmp_path):
    for folder in ("images", "boundaries"):
        (tmp_path / folder).mkdir()
    Image.new("RGB", SIZE[::-1]).save(tmp_path / "images" / "a.png")
    thick = lines(9, 10, 11).any(axis=0)
    Image.fromarray((255 * thick).astype(np.uint8)).save(tmp_path / "boundaries" / "a.png")
    (source,) = open_as(str(tmp_path), Boundaries).values()
    marked = source.target.pixels.read_values(0, size=SIZE)[..., 0]
    assert marked[5:-5].sum(axis=1).tolist() == [1] * 10 and (marked[5:-5, 10] == 1).all()
    Image.fromarray(np.full(SIZE, 255, np.uint8)).save(tmp_path / "boundaries" / "a.png")
    with pytest.raises(DataError, match="100% of the pixels are marked"):
        open_as(str(tmp_path), Boundaries)["all"].target.pixels.read_values(0, size=SIZE)


def test_a_location_without_boundaries_is_one_message(tmp_path):
    for spec, message in ((tmp_path, "has no images/"), (tmp_path / "none", "does not exist")):
        with pytest.raises(UsageError, match=message):
            open_as(str(spec), Boundaries)
    with pytest.raises(UsageError, match="unknown key 'classes'"):
        open_as(f"{tmp_path}?classes=a.txt", Boundaries)


def test_the_loss_is_that_of_a_slow_loop():
    rng = np.random.default_rng(0)
    found, truth = rng.uniform(0.05, 0.95, (2, 1, 5, 6)), (rng.random((2, 1, 5, 6)) < 0.2).astype(float)
    truth[0, 0, 0] = np.nan
    wanted = []
    for p, t in zip(found, truth, strict=True):
        pairs = [(x, y) for x, y in zip(p.ravel(), t.ravel(), strict=True) if not np.isnan(y)]
        share = sum(y for _, y in pairs) / len(pairs)
        each = [-(1 - share) * np.log(x) if y else -share * np.log(1 - x) for x, y in pairs]
        wanted.append(sum(each) / len(each))
    loss = balanced_cross_entropy(torch.tensor(found), torch.tensor(truth))
    assert float(loss) == pytest.approx(np.mean(wanted), rel=1e-5)


def test_a_perfect_map_scores_1_in_all_metrics(bsds):
    source = open_as(str(bsds), Boundaries)["test"]
    one = Edges(edges.Settings())
    target = one.read(source, 0, SIZE)
    row = one.row(torch.tensor(target[:1]), target)
    assert row.shape == (396,) and one.value(row[None]) == 1.0


def differences():
    """A network with the absolute differences of brightness along rows and columns."""
    with seeded(0):
        conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="replicate", bias=False)
        conv.weight.data.zero_()
        for i, (row, column) in enumerate(((0, 1), (2, 1), (1, 0), (1, 2))):
            conv.weight.data[i, :, 1, 1], conv.weight.data[i, :, row, column] = 1, -1
        module = nn.Sequential(conv, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    plain = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
    return from_module("differences", module.eval().requires_grad_(False), plain)


def test_features_that_hold_the_differences_find_boundaries_better_than_all_floors(tmp_path):
    settings = edges.Settings(lr=(0.05,), steps=80, warmup_steps=5, batch_size=8, max_epochs=None, crop=(32, 32))
    backbone, train, test = differences(), *(bright_objects(n, n, kind="boundaries") for n in (16, 6))
    layers = resolve_layers(backbone, ["1"])
    engine = ExtractSettings(torch.device("cpu"), workers=0)
    kind = edges.PROTOCOL.kind
    outcome = kind.run(ImageInputs(settings, 0, train, test, backbone, layers, engine, tmp_path, None))["1"]
    assert outcome.headline == "boundary_ods" and outcome.metrics["boundary_ods"][0] > 0.9
    assert outcome.scores.shape == (6, 396)
    for name, values in {**outcome.floors, "constant": outcome.chance}.items():
        assert values["boundary_ods"] < outcome.metrics["boundary_ods"][0] - 0.1, name


def test_impossible_settings_and_other_labels_are_refused():
    labels = bright_objects(2, 0, kind="boundaries").target
    for change, message in (({"consensus": 0.0}, "consensus"), ({"tolerance": 1.0}, "tolerance")):
        with pytest.raises(UsageError, match=message):
            edges.PROTOCOL.kind.check(dataclasses.replace(edges.Settings(), **change), labels)
