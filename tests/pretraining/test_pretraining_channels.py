"""Pretraining on images of other channels than red, green and blue, from the files to the weights and back."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from helpers import runs
from PIL import Image

from sslbench.backbones.load import load_backbone
from sslbench.config import build
from sslbench.data.decode.handlers import Reading
from sslbench.data.loading.batch import measure
from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.open import open_data
from sslbench.data.views import Augment, Blur, Jitter, Solarize, View, ops, without_colours
from sslbench.data.views.ops import make_view
from sslbench.errors import SslbenchError, UsageError
from sslbench.evaluation.pretraining import knn_evaluator
from sslbench.library.recipes import compose_pretraining
from sslbench.pretraining import PretrainRequest, prepare, pretrain
from sslbench.train.method import find_method

COUNT, SIDE = 32, 32
STILL = Augment((View(1, SIDE, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0),))
COLOURFUL = View(1, 8, jitter=Jitter(1.0, 0.4, 0.4, 0.4, 0.1), grayscale=0.2, blur=Blur(0.5), solarize=Solarize(0.5))


def arrays(root, channels, dtype=np.uint8, count=COUNT, side=SIDE):
    """Two classes of .npy files; the bands have means and ranges of their own."""
    rng = np.random.default_rng(0)
    top = np.iinfo(dtype).max
    written = {}
    for i in range(count):
        scale = np.linspace(0.1, 0.9, channels)
        array = (rng.random((side, side, channels)) * scale * top).astype(dtype)
        path = root / "ab"[i % 2] / f"{i:02d}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
        written[f"{path.parent.name}/{path.name}"] = array
    return written


def request_for(method, data, out, channels, *, chosen=(), **changes):
    backbone = f"{runs.METHODS[method][2]},in_chans={channels}"
    own = runs.METHODS[method][0]
    if "teacher_backbone" in own:  # the teacher sees the same images
        teacher = f"{own['teacher_backbone']},in_chans={channels}"
        changes = {"method": {"name": method, **own, "teacher_backbone": teacher}, **changes}
    settings = runs.settings(method, **{"backbone": backbone, "epochs": 1, **changes})
    return PretrainRequest(settings, str(data), Path(out), chosen=chosen)


@pytest.fixture(scope="module")
def one_batch(tmp_path_factory):
    """Folder of 16 images of four channels."""
    folder = tmp_path_factory.mktemp("four") / "data"
    arrays(folder, 4, count=16)
    return folder


@pytest.mark.parametrize("method", list(runs.METHODS))
def test_every_method_trains_on_four_channels_and_its_weights_are_read_again(method, one_batch, tmp_path):
    if find_method(method).space != "RGB":
        return
    torch.set_num_threads(1)
    outcome = pretrain(request_for(method, one_batch, tmp_path / "out", 4), command="test")
    assert outcome.last.step == outcome.steps == 1
    again = load_backbone(str(outcome.weights))
    assert again.preprocessing.channels == 4 and "in_chans=4" in again.name
    stem = next(p for p in again.module.parameters() if p.dim() == 4)
    assert stem.shape[1] == 4


@pytest.mark.parametrize(("channels", "dtype"), [(1, np.uint8), (2, np.uint16), (13, np.uint16)])
def test_what_comes_out_encodes_the_values_in_the_files(channels, dtype, tmp_path):
    """The weights say how images are normalised: kNN beside training and `eval` afterwards see what views were."""
    torch.set_num_threads(1)
    written = arrays(tmp_path / "data", channels, dtype)
    data = str(tmp_path / "data")
    request = request_for("simclr", data, tmp_path / "out", channels, batch_size=8)
    request = PretrainRequest(request.settings, data, request.out, eval_data=data)
    outcome = pretrain(request, command="test", evaluator=knn_evaluator(request))
    assert {record["step"] for record in outcome.evaluations} == {0, 4}
    top = np.iinfo(dtype).max
    whole = np.stack([written[name] for name in sorted(written)]).astype(np.float64) / top
    again = load_backbone(str(outcome.weights))
    np.testing.assert_allclose(again.preprocessing.mean, whole.mean((0, 1, 2)), atol=1e-3)
    np.testing.assert_allclose(again.preprocessing.std, whole.std((0, 1, 2)), atol=1e-3)


@pytest.mark.parametrize(("channels", "dtype"), [(4, np.uint8), (4, np.uint16), (1, np.uint16), (1, np.uint8)])
def test_views_have_the_values_in_the_files(channels, dtype, tmp_path):
    written = arrays(tmp_path / "data", channels, dtype, count=6)
    (source,) = open_data(str(tmp_path / "data")).values()
    (batch,) = TrainingData(source, STILL, batch_size=6, channels=channels).batches(0, 1)
    (view,) = batch.views
    assert view.dtype == (torch.uint8 if dtype is np.uint8 else torch.float32)
    expected = np.stack([written[source.ids[i]] for i in batch.indices.tolist()]) * (255 / np.iinfo(dtype).max)
    np.testing.assert_allclose(view.permute(0, 2, 3, 1).numpy(), expected, atol=1e-3)


def test_pictures_of_8_and_16_bits_may_be_mixed_in_a_batch(tmp_path):
    arrays(tmp_path, 4, np.uint8, count=4)
    np.save(tmp_path / "b" / "99.npy", np.full((SIDE, SIDE, 4), 128 * 257, np.uint16))
    (source,) = open_data(str(tmp_path)).values()
    (batch,) = TrainingData(source, STILL, batch_size=5, channels=4).batches(0, 1)
    row = batch.indices.tolist().index(source.ids.index("b/99.npy"))
    assert torch.allclose(batch.views[0][row], torch.tensor(128.0))
    assert batch.views[0].max() <= 255 and len(batch.views[0].unique()) > 100


def test_one_channel_is_the_luminance_of_colour(tmp_path):
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8)
    for i, array in enumerate(pixels):
        Image.fromarray(array).save(tmp_path / f"{i}.png")
    (source,) = open_data(str(tmp_path)).values()
    (batch,) = TrainingData(source, STILL, batch_size=2, channels=1).batches(0, 1)
    for row, i in enumerate(batch.indices.tolist()):
        grey = np.asarray(Image.fromarray(pixels[i]).convert("L"))
        np.testing.assert_array_equal(batch.views[0][row, 0].numpy(), grey)


class TestRecipes:
    def settings(self, tmp_path, words=None, channels=4):
        values = {"backbone": f"resnet18w0.125,in_chans={channels}", "device": "cpu", "workers": 0, "batch_size": 8}
        values |= {"epochs": 2, "augment.size": 16, "schedule.warmup_epochs": 0, "log_every": 1, **(words or {})}
        composed = compose_pretraining("simclr", values, {})
        chosen = tuple(key for key, origin in composed.origins.items() if origin == "key=value")
        settings = build(type(runs.settings("simclr")), composed.values, "test")
        return PretrainRequest(settings, str(tmp_path / "data"), tmp_path / "out", chosen=chosen)

    def test_what_means_colour_is_left_out_and_said_everywhere(self, tmp_path, caplog):
        arrays(tmp_path / "data", 4)
        caplog.set_level(logging.INFO)
        request = self.settings(tmp_path)
        prepared = prepare(request)
        (view,) = prepared.request.settings.augment.views
        before = request.settings.augment.views[0]
        assert (view.grayscale, view.jitter.hue, view.jitter.saturation) == (0, 0, 0)
        assert before.grayscale and before.jitter.hue and before.jitter.saturation
        assert (view.jitter.brightness, view.jitter.contrast, view.blur) == (0.8, 0.8, before.blur)
        text = "without grayscale, jitter.hue, jitter.saturation"
        assert text in caplog.text and "measured on 32 images" in caplog.text
        weights = pretrain(request, command="test").weights
        config = (tmp_path / "out" / "config.yaml").read_text()
        assert f"# augment.views: {text}" in config and "# augment.mean: measured on 32 images" in config
        assert len(yaml.safe_load(config)["augment"]["mean"]) == 4
        metadata = torch.load(weights, weights_only=True)["metadata"]
        assert text in metadata["changes"]["augment.views"]
        assert json.loads(metadata["preprocessing"])["mean"] == list(prepared.request.settings.augment.mean)

    def test_a_run_that_was_stopped_continues_with_the_same_numbers(self, tmp_path):
        arrays(tmp_path / "data", 4)
        first = self.settings(tmp_path, {"save_every": "1 epoch"})
        whole = pretrain(first, command="test")
        expected = torch.load(whole.weights, weights_only=True)
        for file in (whole.weights, *sorted((tmp_path / "out" / "checkpoints").glob("*"))[-1:]):
            file.unlink()
        again = pretrain(first, command="test")
        assert again.resumed_from == 4
        found = torch.load(again.weights, weights_only=True)
        (key,) = (k for k, v in expected.items() if isinstance(v, dict) and "conv1.weight" in v)
        assert all(torch.equal(expected[key][name], found[key][name]) for name in expected[key])

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ({"augment.views": [{"count": 2, "size": 16, "grayscale": 0.2}]}, "grayscale: for RGB images only"),
            ({"augment.mean": [0.1, 0.2]}, "augment.mean has 2 values.*takes images of 4 channels"),
            ({"augment.std": [0.1, 0.2, 0.1]}, "augment.std has 3 values.*takes images of 4 channels"),
        ],
    )
    def test_the_users_own_setting_is_refused(self, words, message, tmp_path):
        arrays(tmp_path / "data", 4)
        with pytest.raises(UsageError, match=message):
            prepare(self.settings(tmp_path, words))
        assert not (tmp_path / "out").exists()

    def test_given_numbers_are_used_and_nothing_is_measured(self, tmp_path):
        arrays(tmp_path / "data", 4)
        words = {"augment.mean": [0.1, 0.2, 0.3, 0.4], "augment.std": [0.5] * 4}
        prepared = prepare(self.settings(tmp_path, words))
        assert prepared.plan.normalisation.mean == (0.1, 0.2, 0.3, 0.4)
        assert list(prepared.changes) == ["augment.views"]

    @pytest.mark.parametrize(("has", "takes"), [(4, 3), (3, 4), (13, 4), (4, 1)])
    def test_data_of_other_channels_are_refused_with_a_network_that_takes_them(self, has, takes, tmp_path):
        arrays(tmp_path / "data", has, count=8)
        with pytest.raises(UsageError) as caught:
            prepare(self.settings(tmp_path, channels=takes))
        assert f"a/00.npy has {has} channels, and resnet18w0.125" in str(caught.value)
        assert f"--backbone resnet18w0.125,in_chans={has}" in str(caught.value)

    def test_three_channels_stay_three_whatever_else_is_said(self, tmp_path):
        arrays(tmp_path / "data", 3)
        prepared = prepare(self.settings(tmp_path, channels=3))
        assert prepared.changes == {} and prepared.request.settings.augment.views[0].grayscale == 0.2
        with pytest.raises(UsageError, match=r"augment\.mean has 4 values"):
            prepare(self.settings(tmp_path, {"augment.mean": [0.1] * 4}, channels=3))

    def test_weights_to_start_from_bring_their_normalisation(self, tmp_path):
        arrays(tmp_path / "data", 4)
        words = {"augment.mean": [0.1, 0.2, 0.3, 0.4], "augment.std": [0.5] * 4}
        weights = pretrain(self.settings(tmp_path, words), command="test").weights
        asked = self.settings(tmp_path)
        prepared = prepare(PretrainRequest(asked.settings, asked.data, tmp_path / "two", init=str(weights)))
        assert prepared.plan.normalisation.mean == (0.1, 0.2, 0.3, 0.4)
        assert "pretrained on views" in prepared.changes["augment.mean"]


def test_an_alexnet_has_three_channels(tmp_path):
    arrays(tmp_path / "data", 4)
    request = request_for("simclr", tmp_path / "data", tmp_path / "out", 4, backbone="alexnet,in_chans=4")
    with pytest.raises(SslbenchError, match="not an option of alexnet"):
        prepare(request)


def test_a_band_that_is_the_same_everywhere_is_named(tmp_path, caplog):
    for i in range(8):
        np.save(tmp_path / f"{i}.npy", np.stack([np.full((16, 16), 7), np.full((16, 16), i * 9)], 2).astype(np.uint8))
    (source,) = open_data(str(tmp_path)).values()
    found = measure(source, 2)
    assert found.constant == (0,) and found.std[0] == 1.0 and found.images == 8
    assert found.mean == pytest.approx((7 / 255, 31.5 / 255), abs=1e-5)


def test_measuring_leaves_out_what_cannot_be_read_and_keeps_to_the_sample(tmp_path):
    arrays(tmp_path, 2, count=12)
    (tmp_path / "a" / "00.npy").write_bytes(b"junk")
    (source,) = open_data(str(tmp_path)).values()
    assert measure(source, 2).images == 11
    assert measure(source, 2, sample=5).images <= 5
    assert measure(source, 2, reading=Reading(max_pixels=10)).images == 0


class TestBands:
    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    @pytest.mark.parametrize("channels", [1, 2, 5, 13])
    @pytest.mark.parametrize("change", ["flip", "adjust_brightness", "adjust_contrast", "gaussian_blur", "invert_from"])
    def test_every_channel_is_changed_by_itself(self, change, channels, dtype):
        pixels = np.random.default_rng(0).integers(0, 256, (12, 9, channels)).astype(dtype)
        more = {
            "adjust_brightness": (1.3,),
            "adjust_contrast": (0.4,),
            "gaussian_blur": (1.2, 3),
            "invert_from": (100,),
        }.get(change, ())
        function = getattr(ops, change)
        whole = function(pixels, *more)
        assert whole.shape == pixels.shape and whole.dtype == dtype and whole.min() >= 0 and whole.max() <= 255
        assert not np.array_equal(whole, pixels)
        for c in range(channels):
            alone = function(np.ascontiguousarray(pixels[..., c : c + 1]), *more)
            np.testing.assert_allclose(whole[..., c].astype(float), alone[..., 0].astype(float), atol=1e-3)

    def test_they_do_to_rgb_what_is_done_to_rgb(self):
        pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        deep = pixels.astype(np.float32)
        changes = [(ops.adjust_brightness, 1.4), (ops.gaussian_blur, 1.5, 5), (ops.invert_from, 90), (ops.flip,)]
        for change, *more in changes:
            assert np.abs(change(pixels, *more).astype(int) - change(deep, *more).astype(int)).max() <= 1

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
    @pytest.mark.parametrize("channels", [1, 2, 13])
    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
    def test_a_view_keeps_type_and_range(self, interpolation, channels, dtype):
        augment, dropped = without_colours(Augment((COLOURFUL,)))
        assert dropped == ("grayscale", "jitter.hue", "jitter.saturation")
        (view,) = augment.views
        made = make_view(View(**{**vars(view), "interpolation": interpolation}))
        image = (torch.rand(channels, 20, 30).round() * 255).to(dtype)
        for _ in range(10):
            out = made(image)
            assert out.shape == (channels, 8, 8) and out.dtype == dtype
            assert out.min() >= 0 and out.max() <= 255

    def test_colours_are_not_silently_lost_when_the_stream_is_used_directly(self, tmp_path):
        arrays(tmp_path, 4, count=4)
        (source,) = open_data(str(tmp_path)).values()
        with pytest.raises(UsageError, match=r"jitter\.saturation: for RGB images only"):
            TrainingData(source, Augment((COLOURFUL,)), batch_size=2, channels=4)


def test_views_png_shows_any_channels(tmp_path):
    from sslbench.train.observers.always import Views

    torch.set_num_threads(1)
    for channels in (1, 4):
        arrays(tmp_path / str(channels), channels)
        observer = Views(tmp_path / f"{channels}.png", mean=(0.5,) * 3, std=(0.2,) * 3)
        request = request_for("simclr", tmp_path / str(channels), tmp_path / f"out{channels}", channels)
        pretrain(request, command="test", observers=[observer])
        pixels = np.asarray(Image.open(tmp_path / f"{channels}.png"))[40:130, 40:130]
        assert (np.ptp(pixels.astype(int), axis=2).max() > 20) == (channels == 4)
