"""Tracking against the solver and the metrics on whole videos, and the data that it refuses."""

import dataclasses

import numpy as np
import pytest
import torch
from sample_tuples import ArrayIds, moving_squares, shifted_pairs
from torch import nn

from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.errors import DataError, UsageError
from sslbench.features.extract import ExtractSettings
from sslbench.metrics.dense.video import TRACKING, object_values, semi_supervised
from sslbench.preprocessing import Preprocessing
from sslbench.protocols.tracking import check, run
from sslbench.protocols.tracking.settings import Settings
from sslbench.runtime.seeds import seeded
from sslbench.solvers.in_context import class_counts, shares
from sslbench.solvers.propagation import propagate_video
from sslbench.solvers.upsampling import upsampled_classes

PLAIN = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
SMALL = Settings(radius=3.0, temperature=0.02, topk=2)


def network():
    with seeded(0):
        module = nn.Sequential(nn.Conv2d(3, 24, 4, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return from_module("cells", module.eval().requires_grad_(False), PLAIN)


def track(test, settings=SMALL):
    backbone = network()
    layers, engine = resolve_layers(backbone, ("0",)), ExtractSettings(torch.device("cpu"), workers=1)
    return run(backbone, layers, test, test, settings, seed=0, engine=engine, folder=None)["0"]


@pytest.mark.parametrize("scaled", [False, True])
def test_the_scores_are_those_of_whole_videos(scaled):
    test = moving_squares(3, frames=6, step=3)
    outcome = track(test, dataclasses.replace(SMALL, scaled=scaled))
    for video in range(3):
        rows = test.tuples.rows(video)
        pixels = torch.stack([torch.from_numpy(test.tuples.images.read(row)).permute(2, 0, 1) for row in rows]).float()
        maps = network().module[0]((pixels / 255 - 0.5) / 0.25)
        truth = np.stack([test.tuples.masks.read_ids(row) for row in rows])
        first = shares(class_counts(truth[0], (8, 8), 2, ignore=())).reshape(8, 8, 2).transpose(2, 0, 1).copy()
        labels = propagate_video(maps, torch.from_numpy(first), SMALL.propagation())
        found = np.stack([upsampled_classes(label, (32, 32), min_max=scaled).numpy() for label in labels])
        wanted = object_values(semi_supervised(truth, found))
        np.testing.assert_allclose(outcome.scores[video], np.append(1, wanted.sum(axis=0)), rtol=1e-5)
        kept = object_values(semi_supervised(truth, np.broadcast_to(truth[0], truth.shape)))
        assert kept[0, 0] < wanted[0, 0]
    names = [metric.name for metric in TRACKING]
    assert outcome.chance["jf_mean"] < outcome.metrics["jf_mean"][0] and set(names) == set(outcome.metrics)


def test_presets_of_the_first_frame_and_of_sizes_change_the_result():
    test = moving_squares(2, step=3, start=1)
    usual = track(test).scores
    for changes in ({"first": "centres"}, {"short": 64}, {"previous": 0}):
        assert not np.array_equal(track(test, dataclasses.replace(SMALL, **changes)).scores, usual), changes


def test_objects_that_come_later_are_background():
    test = moving_squares(1)
    ids = test.tuples.masks.ids.copy()
    ids[2:, 28:32, 28:32] = 2
    later = dataclasses.replace(test, tuples=dataclasses.replace(test.tuples, masks=ArrayIds(ids)))
    assert np.array_equal(track(later).scores, track(test).scores)


def test_masks_of_another_size_are_refused():
    test = moving_squares(1)
    small = ArrayIds(test.tuples.masks.ids[:, ::2, ::2])
    other = dataclasses.replace(test, tuples=dataclasses.replace(test.tuples, masks=small))
    with pytest.raises(DataError, match="is 32 x 32 pixels, its mask 16 x 16"):
        track(other)


def test_settings_without_effect_and_other_data_are_refused():
    labels = moving_squares().labels
    for changes, message in (
        ({"multiple": 64}, "multiple has no effect"),
        ({"radius": 0.0, "window": "disk"}, "without a radius"),
        ({"topk": 0}, "topk must be at least 1"),
        ({"temperature": 0.0}, "temperature must be positive"),
    ):
        with pytest.raises(UsageError, match=message):
            check(dataclasses.replace(Settings(), **changes), labels)
    with pytest.raises(DataError, match="needs videos with masks"):
        check(Settings(), shifted_pairs().labels)
