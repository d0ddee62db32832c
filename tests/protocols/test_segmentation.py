"""Segmentation by trained heads: against slow loops, continued bit for bit, and refusals before training."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.targets import ArrayMaps, map_pictures
from torch import nn
from torch.nn import functional

from sslbench.backbones.dense import DenseEncoder
from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.data.loading.joint import JointView
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import ImageInputs, segmentation
from sslbench.protocols._parts.dense import training
from sslbench.protocols._parts.dense.heads import HeadInput, MapEncoder, Sizes, fitted_sizes, head_inputs, make_heads
from sslbench.protocols._parts.dense.run import _different_crops
from sslbench.protocols._parts.dense.scoring import Inference, Scoring, outputs_of
from sslbench.protocols._parts.dense.training import KeptMaps, rate_factor
from sslbench.protocols._parts.selection import holdout_rows
from sslbench.protocols.segmentation import Segmentation, Settings, regions
from sslbench.results import percent_metrics
from sslbench.runtime.seeds import seeded
from sslbench.targets.label_maps import LabelMap
from sslbench.train import checkpoints, loop

QUICK = Settings(steps=40, warmup_steps=4, batch_size=8)
TASK = Segmentation(QUICK, map_pictures(1, 0).target.classes)


@pytest.fixture(scope="module")
def backbone():
    with seeded(0):
        module = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.ReLU()).eval().requires_grad_(False)
    plain = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
    return from_module("small", module, plain)


def run(backbone, folder, settings=QUICK, train=None, test=None, workers=0, layer="1"):
    return segmentation.PROTOCOL.kind.run(
        ImageInputs(
            settings,
            0,
            map_pictures(30, 1) if train is None else train,
            map_pictures(12, 2) if test is None else test,
            backbone,
            resolve_layers(backbone, layer.split()),
            ExtractSettings(torch.device("cpu"), workers=workers),
            folder,
            None,
        )
    )


def heads_of(backbone, settings=QUICK, outputs=4):
    layers = resolve_layers(backbone, ["1"])
    inputs, maps = head_inputs(backbone, layers, settings, protocol="segmentation")
    encode = MapEncoder(DenseEncoder(backbone, maps), 3, pixels=True)
    inputs = (*inputs, HeadInput("pixels", ("pixels",) * max(len(each.parts) for each in inputs)))
    heads = make_heads(inputs, encode, outputs, settings, seed=0)
    for head in heads:
        head.eval()
    return heads, encode


def test_colours_are_learnt_and_every_floor_stands_beside(backbone, tmp_path):
    (outcome,) = run(backbone, tmp_path).values()
    assert outcome.metrics["mIoU"][0] > 0.7 and outcome.metrics["boundary_F"][0] > 0.5
    assert outcome.floors["pixels"]["mIoU"] > 0.7, "the colours themselves tell the class"
    assert outcome.floors["position only"]["mIoU"] < 0.4 and outcome.chance["mIoU"] < 0.1
    assert outcome.selected["lr"] in QUICK.lr and set(outcome.selected["tried"]) == {f"lr={lr:g}" for lr in QUICK.lr}


@pytest.mark.parametrize("head", ["conv", "dpt", "fpn", "upernet"])
def test_other_heads_learn_too(backbone, tmp_path, head):
    settings = dataclasses.replace(QUICK, head=head, width=32, lr=(1e-3,), steps=16, size=16, crop=(16, 16))
    (outcome,) = run(backbone, tmp_path, settings).values()
    assert outcome.metrics["mIoU"][0] > 0.6 and not outcome.selected


# Square images whose crops are whole: of each there are two, as it is and mirrored.
STILL = dataclasses.replace(QUICK, size=None, colours="none", resize_range=(1.0, 1.0), crop=(16, 16), boundary=0.0)


@pytest.mark.parametrize("settings", [dataclasses.replace(QUICK, dropout=0.2), dataclasses.replace(STILL, size=16)])
def test_workers_and_a_kill_change_nothing(backbone, tmp_path, monkeypatch, settings):
    train = map_pictures(30, 1, grid=(2, 2))
    whole = run(backbone, tmp_path / "whole", settings, train)
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    original = checkpoints.write

    def killed(folder, step, content, *, keep):
        original(folder, step, content, keep=keep)
        if step == 23:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        run(backbone, tmp_path / "killed", settings, train, workers=2)
    monkeypatch.setattr(checkpoints, "write", original)
    continued = run(backbone, tmp_path / "killed", settings, train)
    for name, outcome in whole.items():
        np.testing.assert_array_equal(outcome.scores, continued[name].scores)
        assert outcome.selected == continued[name].selected


def test_a_crop_that_comes_again_is_not_encoded_again(backbone, tmp_path, monkeypatch):
    settings, encode, encoded = dataclasses.replace(STILL, size=16, lr=(1e-3,)), KeptMaps._encoded, []
    monkeypatch.setattr(KeptMaps, "_encoded", lambda self, x: encoded.append(len(x)) or encode(self, x))
    train = map_pictures(30, 1, grid=(2, 2))
    kept = run(backbone, tmp_path / "kept", settings, train)["1"]
    assert 30 < sum(encoded) <= 60, "each image, as it is and mirrored, in 40 updates of 8 crops"
    before = sum(encoded)
    monkeypatch.setattr(training, "MOST_BYTES", 0)
    anew = run(backbone, tmp_path / "anew", settings, train)["1"]
    assert sum(encoded) - before > 8 * 40 - 1
    np.testing.assert_allclose(anew.metrics["mIoU"], kept.metrics["mIoU"], atol=0.01)
    views = [JointView((16, 16), short_side=16, flip=flip) for flip in (0.0, 0.5, 1.0)]
    assert [_different_crops(view, 30) for view in views] == [30, 60, 30], "as many as memory is needed for"


def test_images_in_one_forward_pass_have_the_outputs_of_each_alone(backbone):
    heads, encode = heads_of(backbone)
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 3, 20, 33)).astype(np.float32))
    inference = Inference(Sizes(None, (16, 16), (16, 16), (10, 10)), scales=(1.0, 1.5), flip=True)
    options = (heads, encode, TASK, inference)
    with torch.inference_mode():
        together = [list(each) for each in outputs_of(images, [(20, 33)] * 3, *options)]
        alone = [list(next(outputs_of(image[None], [(20, 33)], *options))) for image in images]
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together[0][0], together[1][0])


def test_dropout_draws_the_same_channels_whatever_other_rows_there_are(backbone, tmp_path):
    settings = dataclasses.replace(QUICK, steps=10, dropout=0.3, lr=(1e-3,))
    alone = run(backbone, tmp_path / "alone", settings)["1"]
    beside = run(backbone, tmp_path / "beside", settings, layer="0 1")["1"]
    np.testing.assert_array_equal(alone.scores, beside.scores)


def test_the_colours_beside_a_layer_are_those_on_its_own_grid(tmp_path):
    with seeded(0):
        module = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.AvgPool2d(4)).eval().requires_grad_(False)
    plain = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
    network, settings = from_module("two grids", module, plain), dataclasses.replace(QUICK, lr=(1e-3,))
    both = run(network, tmp_path / "both", settings, layer="1 2")
    for layer in ("1", "2"):
        (alone,) = run(network, tmp_path / layer, settings, layer=layer).values()
        assert both[layer].floors["pixels"] == alone.floors["pixels"]
    assert both["1"].floors["pixels"] != both["2"].floors["pixels"]


def test_a_head_that_diverges_is_left_out_and_named(backbone, tmp_path):
    (outcome,) = run(backbone, tmp_path, dataclasses.replace(QUICK, lr=(1e-3, 1e38))).values()
    assert outcome.selected["lr"] == 1e-3 and any("lr=1e+38" in note for note in outcome.notes)


def test_windows_are_the_mean_of_the_windows(backbone):
    heads, encode = heads_of(backbone)
    image = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 3, 20, 33)).astype(np.float32))
    inference = Inference(Sizes(None, (16, 16), (16, 16), (10, 10)))
    with torch.inference_mode():
        (found, *_) = next(outputs_of(image, [(20, 33)], heads, encode, TASK, inference))
        total, number = torch.zeros(4, 20, 33), torch.zeros(20, 33)
        for top in (0, 4):
            for left in (0, 10, 17):
                part = image[:, :, top : top + 16, left : left + 16]
                logits = heads[0](encode(part))
                large = functional.interpolate(logits, (16, 16), mode="bilinear", align_corners=False)[0]
                total[:, top : top + 16, left : left + 16] += large
                number[top : top + 16, left : left + 16] += 1
    torch.testing.assert_close(found, total / number)


def test_flips_and_scales_average_probabilities(backbone):
    heads, encode = heads_of(backbone)
    image = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 3, 16, 24)).astype(np.float32))
    inference = Inference(Sizes(None, (16, 16), None, (10, 10)), scales=(1.0, 2.0), flip=True)
    with torch.inference_mode():
        (found, *_) = next(outputs_of(image, [(32, 48)], heads, encode, TASK, inference))
        large = functional.interpolate(image, (32, 48), mode="bilinear", align_corners=False)
        wanted = []
        for each in (image, large):
            for flip in (False, True):
                seen = each.flip(-1) if flip else each
                logits = heads[0](encode(seen))
                logits = functional.interpolate(logits, seen.shape[2:], mode="bilinear", align_corners=False)
                shares = logits.softmax(dim=1)
                shares = shares.flip(-1) if flip else shares
                wanted.append(functional.interpolate(shares, (32, 48), mode="bilinear", align_corners=False))
    torch.testing.assert_close(found, torch.stack(wanted).mean(dim=0)[0])


def test_the_score_is_that_of_the_areas_of_all_images(backbone, tmp_path):
    """One learning rate and no training to speak of: the head is predicted by hand."""
    settings = dataclasses.replace(QUICK, lr=(1e-12,), steps=1, warmup_steps=0)
    test = map_pictures(5, 2)
    test.target.maps.maps[:, :3] = -1
    (outcome,) = run(backbone, tmp_path, settings, test=test).values()
    heads, encode = heads_of(backbone, settings)
    heads[0].train()
    batch = next(_first_batch(settings, backbone))
    heads[0](encode(batch))  # statistics of the normalisation move once
    heads[0].eval()
    both, predicted, labelled = np.zeros((3, 4))
    for index in range(5):
        pixels = torch.from_numpy(test.images.read(index).astype(np.float32)).permute(2, 0, 1)[None]
        with torch.inference_mode():
            logits = heads[0](encode((pixels / 255 - 0.5) / 0.25))
        large = functional.interpolate(logits, (16, 24), mode="bilinear", align_corners=False)[0]
        found, label = large.argmax(dim=0).numpy(), test.target.maps.maps[index]
        for number in range(4):
            one, other = (found == number) & (label >= 0), label == number
            both[number], predicted[number] = both[number] + (one & other).sum(), predicted[number] + one.sum()
            labelled[number] += other.sum()
    union = predicted + labelled - both
    assert outcome.metrics["mIoU"][0] == pytest.approx(np.mean(both[union > 0] / union[union > 0]), abs=0.02)


def _first_batch(settings, backbone):
    from sslbench.data.decode.transforms import normalise
    from sslbench.data.loading.joint import JointBatches, JointView
    from sslbench.protocols._parts.dense.classes import read_classes

    view = JointView(
        crop=(16, 16),
        short_side=16,
        resize_range=settings.resize_range,
        most_of_one=settings.most_of_one_class,
        flip=settings.flip,
        colours=settings.colours,
        fill=(127.5,) * 3,
    )
    stream = JointBatches(map_pictures(30, 1), read_classes, view, batch_size=settings.batch_size, seed=0)
    for batch in stream.batches(0, 1):
        yield normalise(batch.images, backbone.preprocessing)


def test_instances_are_the_connectedregions(backbone, tmp_path):
    settings = dataclasses.replace(QUICK, panoptic=True)
    with pytest.raises(UsageError, match="panoptic=true needs label maps that know instances"):
        run(backbone, tmp_path / "none", settings)
    train, test = (
        dataclasses.replace(part, target=part.target.changed(maps=WithInstances(part.target.maps.maps)))
        for part in pairs()
    )
    (outcome,) = run(backbone, tmp_path, settings, train=train, test=test).values()
    assert 0.3 < outcome.metrics["PQ"][0] <= outcome.metrics["SQ"][0] <= 1
    assert set(outcome.floors["pixels"]) == set(outcome.metrics)
    plain = run(backbone, tmp_path / "plain", QUICK, train=train, test=test)["1"]
    np.testing.assert_array_equal(plain.scores, outcome.scores)
    # A map that knows no instances has none.
    target = Segmentation.of(settings, train, backbone.preprocessing, 0).read(map_pictures(1, 2), 0)
    assert len(target) == 2 and not target[1].any()


def pairs():
    return map_pictures(30, 1), map_pictures(12, 2)


class WithInstances(ArrayMaps):
    """Label maps in which every connected region of classes 1 and 2 is an instance."""

    def read_map(self, index, *, size=None):
        semantic = super().read_map(index, size=size).semantic
        return LabelMap(semantic, regions(semantic, np.array([False, True, True, False])).astype(np.int32))

    def select(self, indices):
        return WithInstances(self.maps[np.asarray(indices)])


def test_the_rates_are_those_of_mmsegmentation():
    factor = rate_factor(Settings(), 40_000, 1_500)
    for step in (0, 1, 700, 1_499, 1_500, 30_000):
        poly = 1 - step / 40_000
        warm = 1 - (1 - min(1.0, step / 1_500)) * (1 - 1e-6)
        assert factor(step / 40_000) == pytest.approx(poly * warm, rel=1e-9)


def test_what_cannot_be_used_is_listed_before_training(backbone, tmp_path):
    train = map_pictures(8, 1)
    train.target.maps.maps[2], train.target.maps.maps[5] = -5, -5
    with pytest.raises(DataError, match=r"2 targets of pictures 1 cannot be used:\n  a value.*\n  a value") as caught:
        run(backbone, tmp_path, train=train)
    assert "check-data --label-maps`" in str(caught.value.remedy)
    nothing = map_pictures(8, 1)
    nothing = dataclasses.replace(
        nothing, target=nothing.target.changed(maps=ArrayMaps(np.full_like(nothing.target.maps.maps, -1)))
    )
    with pytest.raises(DataError, match="no pixel of pictures 1 counts"):
        run(backbone, tmp_path, train=nothing)
    one = dataclasses.replace(
        nothing, target=nothing.target.changed(maps=ArrayMaps(np.zeros_like(nothing.target.maps.maps)))
    )
    with pytest.raises(DataError, match="all counted pixels of train belong to one"):
        run(backbone, tmp_path, train=one)


@pytest.mark.parametrize(
    "change",
    [
        {"lr": ()},
        {"lr": (0.1, 0.1)},
        {"steps": 0},
        {"batch_size": 1},
        {"warmup_steps": 40_000},
        {"most_of_one_class": 0.0},
        {"resize_range": (2.0, 0.5)},
        {"stride": (600, 600)},
        {"holdout": 1.0},
        {"schedule": "cosine", "power": 0.9},
        {"enlarge": "size", "size": None},
        {"size": 0},
        {"crop": (0, 8)},
        {"boundary": 1.0},
        {"scales": ()},
        {"stride": (100, 100), "window": None},
    ],
)
def test_settings_that_are_not_possible_are_refused(change):
    with pytest.raises(UsageError, match=next(iter(change)).split("_")[0]):
        segmentation.PROTOCOL.kind.check(dataclasses.replace(Settings(), **change), map_pictures(4, 0).target)


@pytest.mark.parametrize(
    ("enlarge", "data", "trained", "side"),
    [
        ("none", 92.0, 224, 92),
        ("trained", 92.0, 224, 224),  # a network of 224 pixels sees small images as large as it knows them
        ("trained", 92.0, 32, 92),  # images are never made smaller for it
        ("trained", 480.0, 224, 480),
        ("trained", 92.0, 1024, 512),  # nor larger than size
        ("size", 92.0, 224, 512),
    ],
)
def test_small_images_are_enlarged_as_far_as_the_setting_says(enlarge, data, trained, side):
    sizes = fitted_sizes(Settings(enlarge=enlarge), 1, data, trained)
    assert (sizes.short_side, sizes.crop, sizes.window) == (side, (side, side), (side, side))


def test_several_processes_are_refused_before_training(backbone, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    layers = resolve_layers(backbone, ["1"])
    with pytest.raises(UsageError, match="trains its heads in one process, and 2 were started"):
        segmentation.PROTOCOL.kind.rows(backbone, layers, map_pictures(30, 1), QUICK, seed=0)


def test_maps_are_enlarged_to_cells_of_three_pixels_at_most(backbone):
    settings = dataclasses.replace(QUICK, upsample=4)
    layers = resolve_layers(backbone, ["1"])  # of stride 2
    inputs, maps = head_inputs(backbone, layers, settings, protocol="segmentation")
    encode = MapEncoder(DenseEncoder(backbone, maps), 3, pixels=True)
    assert encode.strides == {"1": 2, "pixels": 2}
    for stride, factor in ((2, 1), (8, 2), (14, 4), (16, 4), (32, 4)):
        encode.strides["1"] = stride
        (head,) = make_heads(inputs, encode, 4, dataclasses.replace(settings, lr=(0.1,)), seed=0)
        assert head(encode(torch.zeros(1, 3, 16, 16))).shape[2:] == (8 * factor, 8 * factor)


def test_every_part_is_scored_with_flips_and_scales_and_few_windows_at_a_time(backbone, tmp_path, monkeypatch):
    seen, batches = [], []
    outputs, encode = Scoring.outputs, MapEncoder.__call__

    def noted(scoring, heads, source):
        seen.append((len(source), scoring.inference.flip, scoring.inference.scales))
        return outputs(scoring, heads, source)

    monkeypatch.setattr(Scoring, "outputs", noted)
    monkeypatch.setattr(MapEncoder, "__call__", lambda self, x: batches.append(len(x)) or encode(self, x))
    settings = dataclasses.replace(
        QUICK, steps=2, warmup_steps=0, batch_size=3, flip_test=True, scales=(1.0, 1.5), window=(8, 8), stride=(4, 4)
    )
    run(backbone, tmp_path, dataclasses.replace(settings, size=None, crop=(16, 16)))
    assert {count for count, *_ in seen} >= {3, 12} and {(flip, *scales) for _, flip, scales in seen} == {
        (True, 1, 1.5)
    }
    assert max(batches) == 3


def test_windows_in_small_batches_are_the_same(backbone):
    heads, encode = heads_of(backbone)
    image = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 3, 20, 33)).astype(np.float32))
    whole = Inference(Sizes(None, (16, 16), (16, 16), (5, 5)), batch=1000)
    with torch.inference_mode():
        found = [
            next(next(outputs_of(image, [(20, 33)], heads, encode, TASK, inference)))
            for inference in (whole, dataclasses.replace(whole, batch=3))
        ]
    torch.testing.assert_close(*found)


def test_a_held_out_part_of_ignored_pixels_is_refused_before_training(backbone, tmp_path):
    train = map_pictures(30, 1)
    _, held_out = holdout_rows(train.target, QUICK.holdout, 0, None)
    train.target.maps.maps[held_out] = -1
    with pytest.raises(DataError, match=r"none of the 3 images held out .*\nGive one learning rate, such as lr=0.001"):
        run(backbone, tmp_path, train=train)
    assert not list(tmp_path.iterdir()), "nothing was trained"
    (outcome,) = run(backbone, tmp_path, dataclasses.replace(QUICK, steps=5, lr=(1e-3,)), train=train).values()
    assert not outcome.selected


def test_classes_of_test_that_train_lacks_are_named(backbone, tmp_path):
    train = map_pictures(30, 1)
    train.target.maps.maps[train.target.maps.maps == 3] = -1
    (outcome,) = run(backbone, tmp_path, dataclasses.replace(QUICK, steps=5), train=train).values()
    (note,) = (note for note in outcome.notes if "no pixel in train" in note)
    assert note.startswith("1 class of test has") and note.endswith(f": {train.target.classes[3]}.")


def test_intervals_count_the_images_with_a_counted_pixel(backbone, tmp_path):
    test = map_pictures(12, 2)
    test.target.maps.maps[[3, 7]] = -1
    (outcome,) = run(backbone, tmp_path, dataclasses.replace(QUICK, steps=5), test=test).values()
    assert outcome.scored == 10 and percent_metrics(outcome, 12)["mIoU"].n == 10
    assert 0 <= outcome.selected["score"] <= 1, "a fraction, as in knn and linear"
