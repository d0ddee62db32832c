"""Regression of orientations: the target against eigenvectors, the loss against angles, heads on known features."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from test_low_level import SMALL, blobs, derivatives, slow_tensor
from torch import nn

from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.data.images import Arrays
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import ImageInputs
from sslbench_visbench import orientation
from sslbench_visbench.metrics import orientation_measures, orientation_row
from sslbench_visbench.signals import orientation_of
from sslbench_visbench.targets import Orientations

TASK = orientation.Orientation(orientation.Settings(), Preprocessing())


def test_the_target_is_the_first_eigenvector_of_the_structure_tensor():
    image = np.random.default_rng(0).integers(0, 256, (9, 8, 3)).astype(np.uint8)
    found = orientation_of(image, 1.0)
    tensor = slow_tensor(image, 1.0)
    for r in range(9):
        for c in range(8):
            values, vectors = np.linalg.eigh(tensor[:, :, r, c])
            coherence = (values[1] - values[0]) / values.sum()
            x, y = vectors[:, 1]
            wanted = coherence * np.array([x * x - y * y, 2 * x * y])  # cos 2t and sin 2t
            np.testing.assert_allclose(found[:, r, c], wanted, atol=1e-5)
    assert not orientation_of(np.full((5, 5, 3), 77, np.uint8), 1.0).any()


def test_the_orientations_of_a_mirrored_image_are_the_mirrored_ones():
    image = np.random.default_rng(1).integers(0, 256, (12, 9, 3)).astype(np.uint8)
    own = torch.from_numpy(orientation_of(image, 1.5))
    turned = orientation_of(np.ascontiguousarray(image[:, ::-1]), 1.5)
    np.testing.assert_allclose(TASK.mirrored(own.flip(2)).numpy(), turned, atol=1e-5)


def test_the_loss_is_the_mean_doubled_angle_weighted_by_coherence():
    rng = np.random.default_rng(2)
    outputs, targets = rng.normal(size=(2, 2, 2, 3, 4))
    targets[0, :, 0, 0] = np.nan
    total = weights = 0.0
    for b in range(2):
        for r in range(3):
            for c in range(4):
                if np.isnan(targets[b, :, r, c]).any():
                    continue
                a, t = (math.atan2(v[b, 1, r, c], v[b, 0, r, c]) for v in (outputs, targets))
                length = math.hypot(*targets[b, :, r, c])
                total += length * abs((a - t + math.pi) % (2 * math.pi) - math.pi)
                weights += length
    found = TASK.loss(torch.from_numpy(outputs), torch.from_numpy(targets), 0)
    assert float(found) == pytest.approx(total / weights, rel=1e-3)
    assert float(TASK.loss(torch.ones(1, 2, 2, 2), torch.full((1, 2, 2, 2), math.nan), 0)) == 0


class Products(nn.Module):
    """Averaged products of the derivatives, of length 1: the orientation as features."""

    def forward(self, x):
        dx = nn.functional.pad(x[..., 2:] - x[..., :-2], (1, 1, 0, 0))
        dy = nn.functional.pad(x[..., 2:, :] - x[..., :-2, :], (0, 0, 1, 1))
        parts = torch.stack([dx * dx - dy * dy, 2 * dx * dy, dx * dx + dy * dy], dim=1).mean(dim=2)
        for _ in range(2):
            parts = nn.functional.avg_pool2d(parts, 5, 1, 2)
        return parts[:, :2] / (parts[:, 2:] + 1e-6)


def knowing():
    module = nn.Sequential(Products(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    return from_module("products", module.eval().requires_grad_(False), derivatives().preprocessing)


def oriented(n, seed):
    source = blobs(n, seed)
    return dataclasses.replace(source, target=Orientations(n))


def run(folder, train, test):
    backbone, settings = knowing(), orientation.Settings(**{**SMALL, "norm": False, "lr": (0.05,), "sigma": 1.5})
    layers, engine = resolve_layers(backbone, ["0"]), ExtractSettings(torch.device("cpu"), workers=0)
    names = orientation.PROTOCOL.kind.rows(backbone, layers, train, settings, seed=0)
    outcomes = orientation.PROTOCOL.kind.run(
        ImageInputs(settings, 0, train, test, backbone, layers, engine, folder, None)
    )
    assert tuple(outcomes) == names == ("0",)
    return outcomes["0"]


def test_features_that_hold_the_structure_tensor_are_better_than_all_floors(tmp_path):
    outcome = run(tmp_path, oriented(24, 1), oriented(8, 2))
    value, low, high = outcome.metrics["orientation_error"]
    assert outcome.headline == "orientation_error" and value < 20 and low <= value <= high
    assert 0 < outcome.train < 20, "the error on train, as on test"
    assert outcome.scores.shape == (8, 5) and outcome.picture
    for floor in (outcome.chance, outcome.floors["position only"], outcome.floors["pixels"]):
        assert floor["orientation_error"] > value + 5
    assert all(note.endswith(".") for note in outcome.notes)


def test_images_without_structure_and_impossible_settings_are_one_message(tmp_path):
    flat = oriented(6, 1)
    flat = dataclasses.replace(flat, images=Arrays(np.full((6, 32, 32, 3), 9, np.uint8), "flat"))
    with pytest.raises(DataError, match="no orientation to predict"):
        run(tmp_path, flat, flat)
    with pytest.raises(DataError, match="every test image is of one colour"):
        run(tmp_path, oriented(6, 1), flat)
    for change, message in (({"sigma": 0}, "sigma"), ({"rotation": 5.0}, "rotation"), ({"lr": ()}, "lr")):
        with pytest.raises(UsageError, match=message):
            orientation.PROTOCOL.kind.check(orientation.Settings(**change), flat.target)


# Errors of orientations against loops over pixels with angles, not vectors.


def slow_row(predicted, target):
    """Values of an image from angles: undirected difference, weights, and the median by expanding weights."""
    weighted = []
    for r in range(target.shape[1]):
        for c in range(target.shape[2]):
            if np.isnan(target[:, r, c]).any():
                continue
            a = math.degrees(math.atan2(predicted[1, r, c], predicted[0, r, c])) / 2
            b = math.degrees(math.atan2(target[1, r, c], target[0, r, c])) / 2
            difference = abs(a - b) % 180
            weighted.append((min(difference, 180 - difference), math.hypot(*target[:, r, c])))
    total = sum(weight for _, weight in weighted)
    cumulative, median = 0.0, math.nan
    for error, weight in sorted(weighted):
        cumulative += weight
        if math.isnan(median) and cumulative >= total / 2:
            median = error
    below = [sum(w for e, w in weighted if e < limit) / total for limit in (11.25, 22.5)]
    return [total, sum(e * w for e, w in weighted) / total, median, *below]


def test_an_image_against_loops_over_its_pixels():
    rng = np.random.default_rng(0)
    for _ in range(5):
        predicted, target = rng.normal(size=(2, 2, 6, 7))
        predicted += 2 * target
        target /= np.maximum(1, np.hypot(*target))
        target[:, 2, 3] = np.nan
        np.testing.assert_allclose(orientation_row(predicted, target), slow_row(predicted, target), rtol=1e-9)


def test_opposite_directions_are_one_orientation_and_random_ones_are_at_chance():
    angles = np.random.default_rng(1).uniform(0, math.pi, (2, 100, 100))
    predicted, target = (np.stack([np.cos(2 * a), np.sin(2 * a)]) for a in angles)
    turned = np.stack([np.cos(2 * (angles[1] + math.pi)), np.sin(2 * (angles[1] + math.pi))])
    assert orientation_row(turned, target)[1] == pytest.approx(0, abs=1e-6)
    assert orientation_row(predicted, target)[1] == pytest.approx(45, abs=1)
    assert orientation_row(np.zeros_like(target), target)[1] == 45


def test_images_without_coherence_do_not_count():
    rows = np.stack([orientation_row(np.ones((2, 2, 2)), np.zeros((2, 2, 2))), [1, 30, 30, 0, 0]])
    (measure,) = orientation_measures(rows)
    assert measure.statistic(np.ones((1, 2)))[0].tolist() == [30, 30, 0, 0]
    assert np.isnan(orientation_measures(rows[:1])[0].statistic(np.ones((1, 1)))).all()
