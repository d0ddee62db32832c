"""Depth and normals by trained heads: against values by hand and slow loops, floors, regions, and refusals."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from helpers.targets import ArrayValues, value_pictures
from torch import nn

from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.metrics.dense.depth import COLUMNS
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import ImageInputs, depth, normals
from sslbench.protocols._parts.selection import holdout_rows
from sslbench.results import percent_metrics
from sslbench.runtime.seeds import seeded
from sslbench.targets.pixel_values import Depth

PROTOCOLS = {"depth": depth, "normals": normals}
QUICK = {"steps": 60, "warmup_steps": 6, "batch_size": 8, "lr": (1e-2,), "upsample": 1, "colours": "none"}


@pytest.fixture(scope="module")
def backbone():
    with seeded(0):
        module = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.ReLU()).eval().requires_grad_(False)
    plain = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
    return from_module("small", module, plain)


def run(kind, backbone, folder, train=None, test=None, **settings):
    protocol = PROTOCOLS[kind]
    found = protocol.PROTOCOL.kind.run(
        ImageInputs(
            protocol.Settings(**{**QUICK, **settings}),
            0,
            value_pictures(kind, 24, 1) if train is None else train,
            value_pictures(kind, 8, 2) if test is None else test,
            backbone,
            resolve_layers(backbone, ["1"]),
            ExtractSettings(torch.device("cpu"), workers=0),
            folder,
            None,
        )
    )
    return found["1"]


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_colours_that_tell_the_value_are_learnt_well_above_the_floors(kind, backbone, tmp_path):
    outcome = run(kind, backbone, tmp_path)
    name = {"depth": "depth_rmse", "normals": "angle_mean"}[kind]
    assert outcome.headline == name
    value, low, high = outcome.metrics[name]
    assert low <= value <= high
    for floor in (outcome.chance, outcome.floors["position only"]):
        assert set(floor) == set(outcome.metrics) and value < 0.7 * floor[name]
    assert outcome.train < 0.7 * outcome.chance[name]


def test_the_row_of_an_image_by_hand():
    """Prediction 2 and 4 m for a true 1 and 4 m; a pixel without depth and one beyond max_depth do not count."""
    settings = depth.Settings(min_depth=0.1, max_depth=10.0, align="median")
    one = depth.Depth(settings, depth.limits_of(settings, None))
    target = np.array([[[1.0, 4.0, np.nan, 12.0]]], dtype=np.float32)
    row = dict(zip(COLUMNS, one.row(torch.tensor([[[2.0, 4.0, 7.0, 3.0]]]), target).tolist(), strict=True))
    assert row["pixels"] == 2 and row["below 1.25"] == 1 and row["below 1.25^3"] == 1
    assert row["relative"] == 1 and row["squared"] == 1 and row["squared relative"] == 1
    assert row["ln"] == pytest.approx(np.log(2)) and row["pixels (affine)"] == 0
    # medians are 3 and 2.5: the prediction becomes 5/3 and 10/3
    assert row["absolute (median)"] == pytest.approx(4 / 3, rel=1e-6)
    assert one.value(np.array([list(row.values())])) == pytest.approx(-np.sqrt(0.5))


def test_predictions_are_enlarged_before_they_are_clipped():
    settings = depth.Settings(min_depth=1.0, max_depth=3.0)
    one = depth.Depth(settings, depth.limits_of(settings, None))
    row = one.row(torch.tensor([[[0.0, 4.0]]]), np.full((1, 1, 4), 2.0, dtype=np.float32))
    # bilinear: 0, 1, 3, 4; clipped: 1, 1, 3, 3
    assert row[COLUMNS.index("absolute")] == 4 and row[COLUMNS.index("pixels")] == 4


def test_the_loss_is_that_of_the_known_pixels():
    settings = depth.Settings(bins=8, min_depth=1.0, max_depth=8.0)
    one = depth.Depth(settings, depth.limits_of(settings, None))
    outputs = one.activated(torch.randn(2, 8, 3, 4, generator=torch.Generator().manual_seed(0)))
    assert outputs.shape == (2, 1, 3, 4) and float(outputs.min()) >= 1 and float(outputs.max()) <= 8
    target = torch.full((2, 1, 3, 4), float("nan"))
    target[0, 0, 1], target[1, 0, 2, 2] = 3.0, 5.0
    error = (outputs + 1e-3).log() - (target + 1e-3).log()
    known = error[~target.isnan()]
    assert float(one.loss(outputs, target, 0)) == pytest.approx(float((known.var() + 0.15 * known.mean() ** 2).sqrt()))
    mean_only = dataclasses.replace(settings, mean_steps=5)
    early = depth.Depth(mean_only, depth.limits_of(mean_only, None)).loss
    assert float(early(outputs, target, 4)) == pytest.approx(float(0.15**0.5 * known.mean().abs()))
    assert float(early(outputs, target, 5)) == pytest.approx(float(one.loss(outputs, target, 0)))


def test_steps_of_the_mean_alone_keep_their_share_where_few_images_end_the_training(backbone, tmp_path, monkeypatch):
    seen, of_both = [], depth.sig_loss
    monkeypatch.setattr(
        depth, "sig_loss", lambda *given, mean_only: seen.append(mean_only) or of_both(*given, mean_only=mean_only)
    )
    run("depth", backbone, tmp_path, mean_steps=30, max_epochs=2)  # 6 updates in place of 60
    assert seen[::2] == seen[1::2] == [True] * 3 + [False] * 3  # the head, and that of the floor
    with pytest.raises(UsageError, match="mean_steps should be below steps=60, not 60"):
        depth.Settings(**QUICK, mean_steps=60)


def test_logarithmic_bins_have_equal_ratios_between_the_limits():
    settings = depth.Settings(bins=4, spacing="logarithmic", min_depth=0.1, max_depth=100.0)
    one = depth.Depth(settings, depth.limits_of(settings, None))
    logits = torch.full((1, 4, 1, 1), -1.0)
    logits[0, 1] = 1e6
    assert float(one.activated(logits)) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize(
    ("scored", "size", "region"),
    [
        ("nyu", (480, 640), (slice(45, 471), slice(41, 601))),
        ("garg", (375, 1242), (slice(153, 371), slice(44, 1197))),
        ("garg_kitti", (375, 1242), (slice(166, 372), slice(56, 1185))),
    ],
)
def test_the_scored_region(scored, size, region):
    expected = np.zeros(size, dtype=bool)
    expected[region] = True
    np.testing.assert_array_equal(depth.scored_region(np.ones(size), (0.001, 80), scored), expected)


def test_flipped_normals_change_the_sign_of_x_and_flips_average():
    one = normals.Normals(normals.Settings())
    outputs = torch.tensor([3.0, 0.0, -4.0, 7.0]).reshape(1, 4, 1, 1)
    assert one.averaged(outputs).flatten().tolist() == pytest.approx([0.6, 0.0, -0.8])
    assert one.mirrored(one.averaged(outputs)).flatten().tolist() == pytest.approx([-0.6, 0.0, -0.8])
    assert one.mirrored(outputs[0]).flatten().tolist() == [-3.0, 0.0, -4.0, 7.0]


def test_a_mean_of_opposite_normals_is_scored_as_any_direction():
    row = normals.Normals(normals.Settings()).row(
        torch.zeros(3, 1, 1), np.array([0, 0, -1], dtype=np.float32)[:, None, None] + np.zeros((3, 2, 2), "f4")
    )
    assert row[0] == 4 and row[1] == 0


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_images_without_values_are_left_out_and_listed(kind, backbone, tmp_path):
    test = value_pictures(kind, 8, 2)
    test.target.pixels.values[3] = np.nan
    outcome = run(kind, backbone, tmp_path, test=test, steps=10)
    assert any("1 test image has no pixel to score" in note and "2-0003" in note for note in outcome.notes)
    assert outcome.scored == 7 and {value.n for value in percent_metrics(outcome, 8).values()} == {7}
    fewer = run(kind, backbone, tmp_path / "fewer", test=test.select([0, 1, 2, 4, 5, 6, 7]), steps=10)
    assert fewer.metrics.keys() == outcome.metrics.keys()
    for name, values in fewer.metrics.items():
        assert values == pytest.approx(outcome.metrics[name], nan_ok=True)


def test_the_limits_come_from_the_settings_or_from_train():
    train = value_pictures("depth", 4, 0)
    known = depth.range_of(train, 0)
    assert (known.low, known.high) == (1, 8)
    assert depth.limits_of(depth.Settings(), known) == depth.Limits((1, 8), (0, np.inf))
    both = depth.Settings(min_depth=0.5, max_depth=9.0)
    assert depth.limits_of(both, known) == depth.Limits((0.5, 9), (0.5, 9))


def scaled(factor):
    train = value_pictures("depth", 24, 1)
    return dataclasses.replace(train, target=Depth(ArrayValues(factor * train.target.pixels.values)))


@pytest.mark.parametrize(
    ("train", "settings", "message"),
    [
        (functools.partial(scaled, 1000.0), {}, r"depths of 1e\+03 to 8e\+03 m .*\nSay which stored number"),
        (functools.partial(scaled, np.nan), {}, "no pixel of pictures 1 counts: a depth of 0 or NaN is unknown"),
        (functools.partial(scaled, 1.0), {"max_depth": 0.5}, "none between min_depth=0 and max_depth=0.5"),
        (functools.partial(scaled, 1.0), {"train_region": (0, 0, 25, 16)}, r"reaches beyond .* of 24 x 16 pixels"),
        (functools.partial(scaled, 1.0), {"scored": "nyu"}, "32 targets of pictures 1 and pictures 2 cannot be used"),
    ],
)
def test_depths_that_cannot_be_used_are_one_message_before_training(train, settings, message, backbone, tmp_path):
    with pytest.raises(DataError, match=message):
        run("depth", backbone, tmp_path, train=train(), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bins": 1}, "bins should be 2 or more"),
        ({"min_depth": 0.0}, "min_depth should be above 0"),
        ({"min_depth": 2.0, "max_depth": 1.0}, "max_depth should be above min_depth"),
        ({"gradient": -1.0}, "gradient should be 0 or more"),
        ({"train_region": (5, 0, 4, 4)}, "no left, top, right, bottom"),
    ],
)
def test_settings_that_are_not_possible_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        depth.PROTOCOL.kind.check(depth.Settings(**settings), value_pictures("depth", 2, 0).target)


def test_other_layers_are_refused(backbone):
    with pytest.raises(UsageError, match="blocks need a vision transformer"):
        depth.PROTOCOL.kind.rows(
            backbone,
            resolve_layers(backbone, ["0"]),
            value_pictures("depth", 4, 0),
            depth.Settings(raw_blocks="last"),
            seed=0,
        )


def test_a_rotation_of_normals_is_refused():
    with pytest.raises(UsageError, match="rotation=30 would turn the images and not their normals"):
        normals.PROTOCOL.kind.check(normals.Settings(rotation=30.0), value_pictures("normals", 2, 0).target)


def test_a_held_out_part_without_values_is_refused_before_training(backbone, tmp_path):
    train = value_pictures("depth", 24, 1)
    _, held_out = holdout_rows(train.target, depth.Settings().holdout, 0, None)
    train.target.pixels.values[held_out] = np.nan
    with pytest.raises(DataError, match=r"images held out to select a head has a pixel that counts; \d of 24"):
        run("depth", backbone, tmp_path, train=train, lr=(1e-3, 1e-2))


def test_a_held_out_part_outside_the_scored_region_is_refused(backbone, tmp_path, monkeypatch):
    """The survey sees known depths, and the region has none of them."""
    monkeypatch.setattr(depth, "scored_region", lambda target, limits, scored: np.zeros(target.shape, dtype=bool))
    with pytest.raises(DataError, match=r"no head has a score on the \d images held out"):
        run("depth", backbone, tmp_path, lr=(1e-3, 1e-2), steps=4, warmup_steps=1)
