"""Tracking against the solver and the metrics on whole videos, and the data that it refuses."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.davis import semi_supervised
from helpers.targets import ArrayIds, moving_joints, moving_parts, moving_squares
from torch import nn

from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.data.images import Arrays
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.metrics.dense.video import TRACKING, object_values
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import ImageInputs
from sslbench.protocols.tracking import PROTOCOL, Settings
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
    return PROTOCOL.kind.run(ImageInputs(settings, 0, test, test, backbone, layers, engine, None, None))["0"]


@pytest.mark.parametrize("scaled", [False, True])
def test_the_scores_are_those_of_whole_videos(scaled):
    test = moving_squares(3, frames=6, step=3)
    outcome = track(test, dataclasses.replace(SMALL, scaled=scaled))
    for video in range(3):
        rows = test.target.rows(video)
        pixels = torch.stack([torch.from_numpy(test.target.images.read(row)).permute(2, 0, 1) for row in rows]).float()
        maps = network().module[0]((pixels / 255 - 0.5) / 0.25)
        truth = np.stack([test.target.masks.read_ids(row) for row in rows])
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
    ids = test.target.masks.ids.copy()
    ids[2:, 28:32, 28:32] = 2
    later = dataclasses.replace(test, target=test.target.changed(masks=ArrayIds(ids)))
    assert np.array_equal(track(later).scores, track(test).scores)


@pytest.mark.parametrize("first", ["shares", "centres"])
def test_objects_are_the_ids_that_occur_whatever_their_numbers(first):
    """Ids 2 to 199 that no frame has were scored as objects that are right: 99.00 for 0.00."""
    test = moving_squares(2)
    halves = test.target.masks.ids.copy()
    halves[:, 14:] *= 2
    outcomes = [
        track(
            dataclasses.replace(test, target=test.target.changed(masks=ArrayIds(ids))),
            dataclasses.replace(SMALL, first=first),
        )
        for ids in (halves, np.array([0, 1, 200], np.int32)[halves])
    ]
    assert np.array_equal(outcomes[0].scores, outcomes[1].scores) and outcomes[0].scores[:, 0].tolist() == [2, 2]
    assert outcomes[0].chance == outcomes[1].chance and outcomes[0].metrics["jf_mean"][0] < 1


def test_masks_of_another_size_are_refused():
    test = moving_squares(1)
    small = ArrayIds(test.target.masks.ids[:, ::2, ::2])
    other = dataclasses.replace(test, target=test.target.changed(masks=small))
    with pytest.raises(DataError, match="is 32 x 32 pixels, its mask 16 x 16"):
        track(other)


def test_settings_without_effect_are_refused():
    labels = moving_squares().target
    for changes, message in (
        ({"multiple": 64}, "multiple has no effect"),
        ({"radius": 0.0, "window": "disk"}, "without a radius"),
        ({"topk": 0}, "topk should be 1 or more"),
        ({"temperature": 0.0}, "temperature should be above 0"),
    ):
        with pytest.raises(UsageError, match=message):
            PROTOCOL.kind.check(dataclasses.replace(Settings(), **changes), labels)


EXACT = Settings(radius=0.0, window="square", topk=1, temperature=0.01, all_ties=False)
"""With these, cells of a moving texture find themselves."""


def slow_iou(videos):
    """IoU of each class over all pixels of pairs of prediction and truth, pixel by pixel; 255 does not count."""
    both, either = {}, {}
    for found, truth in videos:
        for a, b in zip(found.ravel().tolist(), truth.ravel().tolist(), strict=True):
            if b == 255:
                continue
            both[b] = both.get(b, 0) + (a == b)
            for each in {a, b}:
                either[each] = either.get(each, 0) + 1
    return {each: both.get(each, 0) / number for each, number in either.items()}


@pytest.mark.parametrize("first", ["shares", "centres"])
def test_moving_parts_have_the_exact_iou_of_all_pixels_of_all_videos(first):
    test = moving_parts()
    outcome = track(test, dataclasses.replace(EXACT, first=first))
    ids = test.target.masks.ids
    found = np.where(ids == 3, 1, np.where(ids == 255, 0, ids))  # the scarf is not in the first frame
    wanted = slow_iou(zip(found, ids, strict=True))
    assert outcome.headline == "mIoU" and wanted[2] == 1 and wanted[3] == 0 and wanted[1] < 1
    assert outcome.per_class == pytest.approx(
        dict(zip(test.target.classes, (wanted[c] for c in range(4)), strict=True))
    )
    assert outcome.metrics["mIoU"][0] == pytest.approx(np.mean(list(wanted.values())))
    kept = slow_iou((ids[4 * (i // 4)], truth) for i, truth in enumerate(ids))
    assert outcome.chance["mIoU"] == pytest.approx(np.mean(list(kept.values()))) and kept[2] < 0.5
    assert outcome.scores.shape == (2, 12) and "scarf" in outcome.per_class


def test_a_class_that_never_occurs_is_left_out_of_the_mean_and_said():
    classes = ("background", "hat", "hair", "scarf")
    outcome, more = (track(moving_parts(classes=names), EXACT) for names in (classes, (*classes, "dress")))
    assert more.metrics["mIoU"][0] == pytest.approx(outcome.metrics["mIoU"][0]) and np.isnan(more.per_class["dress"])
    assert "1 classes are neither labelled nor predicted" in more.notes[-1]


def test_moving_joints_are_found_exactly_and_those_outside_the_first_frame_do_not_count():
    outcome = track(moving_joints(), EXACT)
    assert outcome.headline == "pose_pck@0.1" and outcome.metrics["pose_pck@0.1"][0] == 1
    assert outcome.scores.reshape(2, 3, 4)[:, -1].tolist() == [[3, 3, 3, 0]] * 2
    assert np.isnan(outcome.per_class["wrist"]) and outcome.per_class["neck"] == 1
    size = 0.6 * np.hypot(4, 20)  # joints kept at their first place are off by 4, 8 and 12 pixels
    wanted = [sum(4 * t <= alpha * size for t in (1, 2, 3)) / 3 for alpha in (0.1, 0.2)]
    assert [outcome.chance[f"pose_pck@{alpha}"] for alpha in (0.1, 0.2)] == wanted and wanted == [0, 0]


def test_joints_whose_labels_vanish_are_misses_or_nothing():
    """The second frame has the colour of one cell of the first, which no joint is near; the third is found again."""
    test = moving_joints(frames=3)
    pixels = test.target.images.array.copy()
    for first in (0, 3):
        pixels[first + 1] = pixels[first, -1, -1]
    other = dataclasses.replace(test, target=test.target.changed(images=Arrays(pixels, "vanishing")))
    missed, nothing = (track(other, dataclasses.replace(EXACT, lost=lost)) for lost in ("missed", "left out"))
    counted = [each.scores.reshape(2, 3, 4)[:, -1].sum(axis=1).tolist() for each in (missed, nothing)]
    assert counted == [[6, 6], [3, 3]]
    assert [each.metrics["pose_pck@0.1"][0] for each in (missed, nothing)] == [0.5, 1.0]


def test_frames_are_squashed_to_a_square():
    usual = track(moving_parts(side=32), EXACT).scores
    assert not np.array_equal(track(moving_parts(side=32), dataclasses.replace(EXACT, side=48)).scores, usual)


def test_settings_of_other_labels_are_refused():
    masks, joints = moving_parts().target, moving_joints().target
    for changes, labels, message in (
        ({"first": "centres"}, joints, "first=centres has no effect on videos with joints"),
        ({"scaled": True}, joints, "scaled=True has no effect on videos with joints"),
        ({"peak": 3}, masks, "peak=3 has no effect on videos with masks of classes"),
        ({"lost": "left out"}, moving_squares().target, "lost=left out has no effect on videos with masks of objects"),
        ({"peak": 0}, joints, "peak should be 1 or more"),
        ({"side": 64, "short": 64}, masks, "short has no effect beside side"),
    ):
        with pytest.raises(UsageError, match=message):
            PROTOCOL.kind.check(dataclasses.replace(Settings(), **changes), labels)
    PROTOCOL.kind.check(Settings(peak=3, lost="left out", side=320), joints)
