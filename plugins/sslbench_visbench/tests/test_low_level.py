"""Regression of edges and corners: targets and scores against loops, heads on features that know the answer."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from torch import nn

from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.images import Arrays
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import ImageInputs
from sslbench.protocols._parts.dense.task import DenseTask, HeadSettings
from sslbench.runtime.seeds import seeded
from sslbench_visbench import low_level
from sslbench_visbench.metrics import signal_row
from sslbench_visbench.signal_maps import open_signals
from sslbench_visbench.signals import signal_of
from sslbench_visbench.targets import Signals


def slow_tensor(image, sigma):
    """Structure tensor (2, 2, H, W) with sums over single pixels, the border continued."""
    height, width = image.shape[:2]
    grey = image.astype(float) @ [0.299, 0.587, 0.114] / 255

    def at(values, row, column):
        return values[min(max(row, 0), height - 1), min(max(column, 0), width - 1)]

    kernel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
    gradient = np.zeros((2, height, width))
    for r in range(height):
        for c in range(width):
            part = np.array([[at(grey, r + i, c + j) for j in (-1, 0, 1)] for i in (-1, 0, 1)])
            gradient[:, r, c] = (kernel * part).sum(), (kernel.T * part).sum()
    radius = int(3 * sigma + 0.5)
    weights = np.array([math.exp(-(i**2) / (2 * sigma**2)) for i in range(-radius, radius + 1)])
    weights /= weights.sum()
    tensor = np.zeros((2, 2, height, width))
    for a in range(2):
        for b in range(2):
            product = gradient[a] * gradient[b]
            for r in range(height):
                for c in range(width):
                    tensor[a, b, r, c] = sum(
                        weights[i + radius] * weights[j + radius] * at(product, r + i, c + j)
                        for i in range(-radius, radius + 1)
                        for j in range(-radius, radius + 1)
                    )
    return tensor


@pytest.mark.parametrize("sigma", [0.7, 1.5])
def test_signals_are_the_eigenvalues_of_the_structure_tensor(sigma):
    image = np.random.default_rng(0).integers(0, 256, (9, 8, 3)).astype(np.uint8)
    tensor = slow_tensor(image, sigma)
    values = np.linalg.eigvalsh(np.moveaxis(tensor, (0, 1), (2, 3)))
    np.testing.assert_allclose(signal_of(image, "corners", sigma), np.log1p(1e4 * values[..., 0]), rtol=1e-4)
    np.testing.assert_allclose(signal_of(image, "edges", sigma), np.log1p(100 * np.sqrt(values[..., 1])), rtol=1e-4)


def test_scores_of_an_image_are_numpys_and_unknown_pixels_do_not_count():
    rng = np.random.default_rng(1)
    target, predicted = rng.normal(size=(2, 7, 5))
    target[2, 3] = np.nan
    known = ~np.isnan(target)
    x, y = predicted[known], target[known]
    wanted = [np.corrcoef(x, y)[0, 1], math.sqrt(((x - y) ** 2).mean()), abs(x - y).mean()]
    np.testing.assert_allclose(signal_row(predicted, target), wanted, rtol=1e-12)
    assert signal_row(np.full((7, 5), 0.3), target)[0] == 0 == signal_row(predicted, np.full((7, 5), 1 / 3))[0]
    assert signal_row(-3 * target + 1, target)[0] == pytest.approx(-1)


def test_sums_of_cells_hold_every_known_pixel_once():
    target = np.random.default_rng(2).random((1, 37, 50)).astype(np.float32)
    target[0, :3] = np.nan
    sums, numbers = DenseTask(HeadSettings()).cells(target, (32, 32))
    assert sums.shape == (1, 32, 32) and numbers.sum() == 34 * 50
    assert sums.sum() == pytest.approx(np.nansum(target), rel=1e-5)


def blobs(n, seed, side=32):
    """Grey images with a bright rectangle."""
    rng = np.random.default_rng(seed)
    images = np.full((n, side, side, 3), 60, dtype=np.uint8)
    for image in images:
        top, left = rng.integers(4, 14, 2)
        image[top : top + 10, left : left + 12] = 200
    labels = Signals(n)
    return Source(f"blobs {seed}", tuple(f"{seed}-{i:03d}" for i in range(n)), labels, Arrays(images, f"blobs {seed}"))


def derivatives():
    """A network with the absolute derivatives of the brightness."""
    with seeded(0):
        conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="replicate", bias=False)
        kernel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 24
        for i, each in enumerate((kernel, -kernel, kernel.T, -kernel.T)):
            conv.weight.data[i] = each
        module = nn.Sequential(conv, nn.ReLU(), nn.AvgPool2d(5, 1, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    plain = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
    return from_module("derivatives", module.eval().requires_grad_(False), plain)


SMALL = {
    "size": None,
    "crop": (32, 32),
    "window": None,
    "steps": 60,
    "warmup_steps": 5,
    "batch_size": 8,
    "max_epochs": 60,
}


def run(folder, train, test, **settings):
    backbone = derivatives()
    chosen = low_level.Settings(**{**SMALL, **settings})
    layers = resolve_layers(backbone, ["2"])
    names = low_level.PROTOCOL.kind.rows(backbone, layers, train, chosen, seed=0)
    engine = ExtractSettings(torch.device("cpu"), workers=0)
    found = low_level.PROTOCOL.kind.run(ImageInputs(chosen, 0, train, test, backbone, layers, engine, folder, None))
    assert tuple(found) == names == ("2",)
    return found["2"]


def test_features_that_hold_the_derivatives_predict_edges_better_than_all_floors(tmp_path):
    outcome = run(tmp_path, blobs(24, 1), blobs(8, 2), lr=(0.05,), sigma=1.5)
    assert outcome.headline == "signal_correlation" and outcome.metrics["signal_correlation"][0] > 0.8
    assert outcome.chance["signal_correlation"] == 0
    for name in ("position only", "pixels"):
        assert outcome.floors[name]["signal_correlation"] < outcome.metrics["signal_correlation"][0] - 0.1, name
    assert outcome.scores.shape == (8, 3)


def test_the_target_has_the_size_of_the_image_in_its_file():
    source, corners = blobs(2, 3), low_level.Settings(signal="corners", sigma=1.0)
    target = low_level.LowLevel(corners, derivatives().preprocessing).read(source, 1, (32, 32))
    assert target.shape == (1, 32, 32) and target.dtype == np.float32
    np.testing.assert_array_equal(target[0], signal_of(source.images.read(1), "corners", 1.0))


def test_images_of_one_colour_and_impossible_settings_are_one_message(tmp_path):
    flat = blobs(6, 1)
    flat = Source(flat.name, flat.ids, flat.target, Arrays(np.full((6, 32, 32, 3), 9, np.uint8), "flat"))
    with pytest.raises(DataError, match="no signal to predict"):
        run(tmp_path, flat, flat, lr=(0.05,))
    for change, message in (({"sigma": 0}, "sigma"), ({"lr": ()}, "lr")):
        with pytest.raises(UsageError, match=message):
            low_level.PROTOCOL.kind.check(low_level.Settings(**change), flat.target)


def test_any_images_serve():
    (source,) = open_signals("sklearn:digits").values()
    assert isinstance(source.target, Signals) and len(source) == 1797


def test_images_are_read_as_for_the_backbone(tmp_path):
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        for i in range(2):
            Image.fromarray(rng.integers(0, 256, (8, 9, 3)).astype(np.uint8)).save(tmp_path / part / f"{i}.png")
            tifffile.imwrite(tmp_path / part / f"{i}.tif", rng.integers(0, 256, (8, 9, 5)).astype(np.uint8))
    source, own = open_signals(str(tmp_path))["train"], derivatives().preprocessing
    names = [Path(source.images.path(i)).name for i in range(len(source))]
    settings = low_level.Settings(sigma=1.0)
    colours, bands = names.index("0.png"), names.index("0.tif")
    with pytest.raises(UnreadableImage, match="9 x 8 pixels, more than the limit of 71"):
        low_level.LowLevel(settings, dataclasses.replace(own, max_pixels=71)).read(source, colours, (8, 9))
    of_bands = dataclasses.replace(own, mean=(0.5,) * 5, std=(0.25,) * 5)
    raw = tifffile.imread(tmp_path / "train" / "0.tif").astype(np.float32)
    grey = np.repeat(raw.mean(axis=2, keepdims=True), 3, axis=2)
    found = low_level.LowLevel(settings, of_bands).read(source, bands, (8, 9))
    np.testing.assert_allclose(found[0], signal_of(grey, "edges", 1.0), rtol=1e-4)


@dataclasses.dataclass(frozen=True)
class OwnMaps:
    """Maps (N, H, W, 1) in memory."""

    values: np.ndarray

    def read_values(self, index, *, size=None):
        assert size in (None, self.values[index].shape[:2])
        return self.values[index]

    def select(self, indices):
        return OwnMaps(self.values[np.asarray(indices)])

    def fingerprint(self):
        return str(np.nansum(self.values))

    def path(self, index):
        return f"map {index}"


def mapped(n, seed, unknown=3):
    """Blobs with maps: three times the strength of edges, unknown in the first rows."""
    source = blobs(n, seed)
    values = np.stack([3 * signal_of(source.images.read(i), "edges", 1.5) for i in range(n)])[..., None]
    values[:, :unknown] = np.nan
    return dataclasses.replace(source, target=Signals(n, ("heat",), OwnMaps(values)))


def test_maps_from_files_are_the_targets_and_unknown_pixels_have_no_part(tmp_path):
    outcome = run(tmp_path / "a", mapped(24, 1), mapped(8, 2), lr=(0.05,))
    assert outcome.metrics["signal_correlation"][0] > 0.8
    test = mapped(8, 2)
    test.target.pixels.values[:, 3:] *= -1
    turned = run(tmp_path / "b", mapped(24, 1), test, lr=(0.05,))
    np.testing.assert_allclose(turned.scores[:, 0], -outcome.scores[:, 0], atol=1e-6)


def test_an_image_without_a_known_pixel_is_left_out_of_the_means_and_named(tmp_path):
    test = mapped(8, 2)
    test.target.pixels.values[5] = np.nan
    outcome = run(tmp_path, mapped(24, 1), test, lr=(0.05,), steps=10)
    assert np.isnan(outcome.scores[5]).all() and np.isfinite(np.delete(outcome.scores, 5, 0)).all()
    assert outcome.metrics["signal_correlation"][0] == pytest.approx(np.nanmean(outcome.scores[:, 0]))
    assert outcome.metrics["signal_correlation"][1] < outcome.metrics["signal_correlation"][2]
    assert outcome.scored == 7 and any(
        f"no pixel to score, left out of all means: {test.ids[5]}" in n for n in outcome.notes
    )


def test_settings_of_computed_signals_are_refused_for_maps_from_files():
    for change in ({"signal": "edges"}, {"sigma": 1.0}):
        with pytest.raises(UsageError, match=f"{next(iter(change))} has no effect on the maps of heat/"):
            low_level.PROTOCOL.kind.check(low_level.Settings(**change), mapped(2, 1).target)
    low_level.PROTOCOL.kind.check(low_level.Settings(signal="corners", sigma=1.0), blobs(2, 1).target)
