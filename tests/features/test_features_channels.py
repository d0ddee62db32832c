"""Images with any number of channels, from files to features; and what the features are known by."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.evaluation.preparation import with_preprocessing
from sslbench.features.array import ExtractSettings
from sslbench.features.extract import extract, store_key
from sslbench.identity import FeatureKey
from sslbench.preprocessing import Preprocessing

CPU = ExtractSettings(torch.device("cpu"), batch_size=3, workers=0)
COUNT = 7


def backbone_for(channels, **values):
    torch.set_num_threads(1)
    made = build(f"resnet18w0.25,in_chans={channels}")
    mean, std = np.linspace(0.1, 0.4, channels).tolist(), np.linspace(0.2, 0.3, channels).tolist()
    return with_preprocessing(made, {"resize": None, "crop": [32, 32], "mean": mean, "std": std, **values})[0]


def arrays(root, channels, dtype, suffix, count=COUNT):
    rng = np.random.default_rng(0)
    written = rng.integers(0, np.iinfo(dtype).max, (count, 32, 32, channels), endpoint=True).astype(dtype)
    for i, array in enumerate(written):
        folder = root / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        if suffix == ".npy":
            np.save(folder / f"{i}.npy", array)
        elif suffix == ".png":
            Image.fromarray(array[..., 0] if channels == 1 else array).save(folder / f"{i}.png")
        else:
            pytest.importorskip("tifffile").imwrite(folder / f"{i}.tif", array, photometric="minisblack")
    (source,) = open_data(str(root)).values()
    return source, np.concatenate([written[0::2], written[1::2]])  # in the order of the ids: a/0, a/2, ..., b/1


def encode(backbone, source, root, settings=CPU):
    return extract(backbone, source, resolve_layers(backbone, ("res5avg",)), settings, root=root, split="all")


@pytest.mark.parametrize(
    ("channels", "dtype", "suffix"),
    [
        (4, np.uint8, ".png"),
        (4, np.uint8, ".npy"),
        (4, np.uint16, ".tif"),
        (13, np.uint16, ".npy"),
        (13, np.uint16, ".tif"),
        (2, np.uint8, ".tif"),
        (3, np.uint16, ".npy"),
        (1, np.uint8, ".png"),
        (1, np.uint16, ".npy"),
    ],
)
def test_features_are_those_of_the_network_on_the_values_in_the_files(channels, dtype, suffix, tmp_path):
    backbone = backbone_for(channels)
    source, written = arrays(tmp_path / "data", channels, dtype, suffix)
    found = encode(backbone, source, tmp_path / "store").features["res5avg"]
    shape = (1, channels, 1, 1)
    mean, std = (torch.tensor(v).view(shape) for v in (backbone.preprocessing.mean, backbone.preprocessing.std))
    exact = torch.from_numpy(written.astype(np.float64) / np.iinfo(dtype).max).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        expected = backbone.module((exact - mean) / std).flatten(1).numpy()
    np.testing.assert_allclose(found.x, expected, atol=1e-4)


def test_pictures_of_8_and_of_16_bits_may_be_mixed(tmp_path):
    backbone = backbone_for(4)
    arrays(tmp_path / "data", 4, np.uint16, ".tif", count=3)
    np.save(tmp_path / "x.npy", np.zeros((32, 32, 4), np.uint8))
    Image.fromarray(np.full((32, 32, 4), 255, np.uint8)).save(tmp_path / "data" / "b" / "9.png")
    (source,) = open_data(str(tmp_path / "data")).values()
    assert encode(backbone, source, tmp_path / "store").features["res5avg"].x.shape == (4, 128)


@pytest.mark.parametrize(("has", "takes", "workers"), [(13, 3, 0), (13, 4, 0), (3, 13, 0), (4, 1, 0), (13, 3, 1)])
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_data_of_other_channels_are_refused_with_a_network_that_takes_them(has, takes, on_error, workers, tmp_path):
    source, _ = arrays(tmp_path / "data", has, np.uint8, ".npy")
    settings = dataclasses.replace(CPU, on_error=on_error, workers=workers)
    with pytest.raises(UsageError) as caught:
        encode(backbone_for(takes), source, tmp_path / "store", settings)
    takes = 3 if takes == 1 else takes
    assert f"a/0.npy has {has} channels, and resnet18w0.25" in str(caught.value)
    assert f"--backbone resnet18w0.25,in_chans={has}" in str(caught.value)


def test_one_image_of_other_channels_counts_as_unreadable(tmp_path):
    source, _ = arrays(tmp_path / "data", 4, np.uint8, ".npy")
    np.save(tmp_path / "data" / "a" / "0.npy", np.zeros((32, 32, 3), np.uint8))
    backbone = backbone_for(4)
    with pytest.raises(DataError, match=r"1 of 7 images.*\n.*a/0\.npy: 3 channels, the backbone takes 4"):
        encode(backbone, source, tmp_path / "store")
    found = encode(backbone, source, tmp_path / "store", dataclasses.replace(CPU, on_error="skip"))
    assert [row["id"] for row in found.unreadable] == ["a/0.npy"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": [0.5]}, r"do not fit resnet18w0\.25, which takes 3 channels"),
        ({"std": [0.1] * 4}, r"do not fit resnet18w0\.25, which takes 3 channels"),
        ({"std": [0.1, 0.1, 0.0]}, "std should be finite numbers above 0"),
    ],
)
def test_mean_and_std_have_one_value_per_channel(change, message):
    with pytest.raises(UsageError, match=message):
        with_preprocessing(build("resnet18w0.25"), change)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_every_channel_is_resized_by_itself_and_stays_in_range(interpolation, dtype, tmp_path):
    from sslbench.data.decode.picture import Wanted, from_array
    from sslbench.data.decode.transforms import resize_and_crop

    rng = np.random.default_rng(0)
    array = (rng.integers(0, 2, (40, 50, 5)) * np.iinfo(dtype).max).astype(dtype)
    preprocessing = Preprocessing(resize=24, crop=(20, 20), interpolation=interpolation)
    whole = resize_and_crop(from_array(array, "", Wanted(5, deep=True)).image, preprocessing)
    assert whole.shape == (5, 20, 20) and whole.min() >= 0 and whole.max() <= 255
    for channel in range(5):
        plane = np.repeat(array[..., channel : channel + 1], 3, axis=2)
        alone = resize_and_crop(from_array(plane, "", Wanted(3, deep=True)).image, preprocessing)
        torch.testing.assert_close(alone[1].float(), whole[channel].float(), atol=1e-3, rtol=0)


class TestKeys:
    def test_stores_of_this_encoding_are_found_again(self):
        """The digest changes with `identity.ENCODING` only; the defaults of decoding are no part of it."""
        values = Preprocessing(squash=(9, 9)).values()
        key = FeatureKey("w", {"name": "resnet50"}, "i", values, "fp32", "float32")
        assert key.digest() == "c66b68d1dbe1d7f7"
        assert set(Preprocessing().record()) == {
            "resize",
            "crop",
            "interpolation",
            "mean",
            "std",
            "squash",
            "space",
            "origin",
        }

    @pytest.mark.parametrize("change", [{"decoder": ["fast"]}, {"max_pixels": 10**6}])
    def test_what_changes_pixels_changes_the_key(self, change, tmp_path):
        backbone = build("resnet18w0.25")
        source, _ = arrays(tmp_path / "data", 3, np.uint8, ".png")
        changed, origins = with_preprocessing(backbone, change)
        assert store_key(changed, source, CPU).digest() != store_key(backbone, source, CPU).digest()
        ((name, value),) = change.items()
        assert origins[name] == "asked for"
        shown = changed.preprocessing.record()[name]
        assert list(shown) == value if isinstance(value, list) else shown == value

    def test_a_sources_own_handlers_change_the_key(self, tmp_path):
        source, _ = arrays(tmp_path / "data", 3, np.uint8, ".png")
        before = store_key(build("resnet18w0.25"), source, CPU).digest()
        object.__setattr__(source.images, "handlers", (print,))
        assert store_key(build("resnet18w0.25"), source, CPU).digest() != before

    def test_the_limit_decides_which_images_are_there(self, tmp_path):
        source, _ = arrays(tmp_path / "data", 3, np.uint8, ".png")
        Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(tmp_path / "data" / "a" / "9.png")
        (source,) = open_data(str(tmp_path / "data")).values()
        backbone = backbone_for(3, max_pixels=2000)
        with pytest.raises(DataError, match="64 x 64 pixels, more than the limit of 2,000"):
            encode(backbone, source, tmp_path / "store")
        assert len(encode(backbone_for(3), source, tmp_path / "store").features["res5avg"].x) == COUNT + 1
