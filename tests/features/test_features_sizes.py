"""Images of their own sizes, several scales, joined layers and regions, against one image at a time."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from PIL import Image

from sslbench.backbones.build import build
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.pools import most_regions, region_maxima
from sslbench.data.decode.transforms import normalise
from sslbench.data.images import Files
from sslbench.data.source import Source
from sslbench.errors import BackboneError, UsageError
from sslbench.evaluation.preparation import with_preprocessing
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract
from sslbench.preprocessing import Preprocessing
from sslbench.targets.classes import Classes

SIZES = [(40, 64), (64, 40), (64, 64), (40, 64), (64, 40)]
OWN = Preprocessing(resize=None, crop=None)


@pytest.fixture(scope="module")
def backbone():
    torch.set_num_threads(1)
    return dataclasses.replace(build("resnet_basic_1-1-1-1w0.25"), preprocessing=OWN)


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    files = []
    for i, size in enumerate(SIZES):
        files.append(tmp_path / f"{i}.png")
        Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(files[-1])
    labels = Classes(("a",), np.zeros(len(files), np.int64))
    return Source("pictures", tuple(f.name for f in files), labels, Files(tuple(files)))


def run(backbone, source, root, *layers, batch_size=3):
    settings = ExtractSettings(torch.device("cpu"), batch_size=batch_size, workers=0)
    return extract(backbone, source, resolve_layers(backbone, layers), settings, root=root, split="all").features


def slow(backbone, source, layer, scales=(1.0,)):
    """Features of one image after the other, each scale by itself."""
    rows = []
    for i in range(len(source)):
        pixels = np.array(Image.open(source.images.path(i)))
        image = normalise(torch.from_numpy(pixels).permute(2, 0, 1)[None], backbone.preprocessing)
        with torch.no_grad():
            found = []
            for scale in scales:
                size = [int(side * scale) for side in image.shape[2:]]
                seen = F.interpolate(image, size=size, mode="bilinear") if scale != 1 else image
                found.append(forward_layers(backbone.module, seen, resolve_layers(backbone, [layer]))[layer])
        rows.append(torch.stack(found).mean(0).numpy()[0])
    return np.stack(rows)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_images_of_any_aspect_ratio_are_encoded_whole(backbone, source, tmp_path, batch_size):
    layers = ("res4:gem(4)", "res5:rmac(2)", "res5:max")
    found = run(backbone, source, tmp_path / "store", *layers, batch_size=batch_size)
    for layer in layers:
        np.testing.assert_allclose(found[layer].x, slow(backbone, source, layer), rtol=1e-3, atol=1e-4)


def test_features_of_several_scales_are_averaged(backbone, source, tmp_path):
    several, _ = with_preprocessing(backbone, {"scales": [1, 0.5]})
    found = run(several, source, tmp_path / "store", "res5:gem(3)")["res5:gem(3)"].x
    wanted = slow(backbone, source, "res5:gem(3)", (1.0, 0.5))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    # Another key of the store than one scale.
    assert np.abs(run(backbone, source, tmp_path / "store", "res5:gem(3)")["res5:gem(3)"].x - wanted).max() > 1e-2


def test_a_scale_that_leaves_no_pixel_is_one_message(backbone, source, tmp_path):
    several, _ = with_preprocessing(backbone, {"scales": [1, 0.02]})
    with pytest.raises(BackboneError, match=r"images of 64 x 40 pixels have no pixel left at the scale 0.02"):
        run(several, source, tmp_path / "store", "res5:gem(3)")


def test_joined_layers_follow_each_other(backbone, source, tmp_path):
    found = run(backbone, source, tmp_path / "store", "concat(res4:gem,res5:max)", "res4:gem", "res5:max")
    joined = found.pop("concat(res4:gem(3),res5:max)").x
    np.testing.assert_allclose(joined, np.hstack([each.x for each in found.values()]), rtol=1e-6)


def test_regions_are_padded_with_zeros_to_the_most_that_there_are(backbone, source, tmp_path):
    features = run(backbone, source, tmp_path / "store", "res4:regions(2)")["res4:regions(2)"]
    assert features.regions == most_regions(2) == 23
    regions = features.x.reshape(len(source), 23, -1)
    image = normalise(torch.from_numpy(np.array(Image.open(source.images.path(0)))).permute(2, 0, 1)[None], OWN)
    with torch.no_grad():
        maps = forward_layers(backbone.module, image, resolve_layers(backbone, ["res4:flatten"]))["res4:flatten"]
    height, width = (-(-side // 16) for side in SIZES[0])
    wanted = region_maxima(maps.reshape(1, -1, height, width), 2)[0].numpy()
    np.testing.assert_allclose(regions[0, : len(wanted)], wanted, rtol=1e-3, atol=1e-4)
    assert (regions[0, len(wanted) :] == 0).all()


def test_vectors_of_different_lengths_are_one_message(backbone, source, tmp_path):
    with pytest.raises(BackboneError, match=r"images of 40 x 64 pixels \(.*1.png\).*for the first image|64 x 64"):
        run(backbone, source, tmp_path / "store", "res4:flatten")
    several, _ = with_preprocessing(backbone, {"scales": [1, 0.5]})
    with pytest.raises(BackboneError, match="different lengths at the scales"):
        run(several, source, tmp_path / "store", "res4:flatten")
    with pytest.raises(UsageError, match="other regions at every scale"):
        run(several, source, tmp_path / "store", "res4:regions")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scales": []}, "different numbers from 0 to 8"),
        ({"scales": [1, 1]}, "different numbers from 0 to 8"),
        ({"scales": [0]}, "different numbers from 0 to 8"),
        ({"resized_side": "longer", "crop": None, "resize": None}, "needs a resize to one number"),
        ({"resized_side": "longer", "resize": 64, "crop": (64, 64)}, None),
    ],
)
def test_scales_and_sides_without_a_meaning_are_refused(backbone, values, message):
    if message is None:
        with_preprocessing(backbone, values)
        return
    with pytest.raises(UsageError, match=message):
        with_preprocessing(backbone, values)


@pytest.mark.parametrize("text", ["concat(res4,res4)", "concat(res4:regions,res5)", "concat(concat(res4,res5),res2)"])
def test_layers_that_cannot_be_joined_are_refused(backbone, text):
    with pytest.raises(UsageError, match="different single layers"):
        resolve_layers(backbone, [text])
