"""Correspondence against slow loops, its intervals, and the settings and data that it refuses."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.targets import shifted_pairs, texture, warped_pairs
from PIL import Image
from torch import nn

from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.errors import UsageError
from sslbench.features.array import ExtractSettings
from sslbench.metrics.dense.correspondence import ALPHAS, PIXELS, dyadic_errors
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import ImageInputs
from sslbench.protocols.correspondence import PROTOCOL, Settings
from sslbench.runtime.seeds import seeded

PLAIN = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
CELL = 4


def cells_network():
    """A network whose features of a cell of 4 x 4 pixels depend on that cell alone."""
    with seeded(0):
        module = nn.Sequential(nn.Conv2d(3, 24, CELL, stride=CELL), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return from_module("cells", module.eval().requires_grad_(False), PLAIN)


def correspond(test, **changes):
    backbone = cells_network()
    settings = dataclasses.replace(Settings(size=32), **changes)
    engine = ExtractSettings(torch.device("cpu"), workers=1)
    found = PROTOCOL.kind.run(
        ImageInputs(settings, 0, test, test, backbone, resolve_layers(backbone, ("0",)), engine, None, None)
    )
    return found["0"]


def features(image):
    """Unit features (h, w, D) of an image of whole cells."""
    pixels = torch.from_numpy(image.astype(np.float32) / 255).permute(2, 0, 1)[None]
    value = cells_network().module[0]((pixels - 0.5) / 0.25)[0].permute(1, 2, 0).double().numpy()
    return value / np.linalg.norm(value, axis=2, keepdims=True)


def slow_match(source, target, point):
    """The centre of the cell of the target nearest to the bilinear features at a point of the source."""
    x, y = (np.clip((v + 0.5) / CELL - 0.5, 0, source.shape[0] - 1) for v in point)
    left, upper = int(x), int(y)
    mixed = np.zeros(source.shape[2])
    for column, row in ((left, upper), (left + 1, upper), (left, upper + 1), (left + 1, upper + 1)):
        share = max(0.0, 1 - abs(x - column)) * max(0.0, 1 - abs(y - row))
        if share:
            mixed += share * source[row, column]
    best = max(
        ((row, column) for row in range(target.shape[0]) for column in range(target.shape[1])),
        key=lambda cell: target[cell] @ mixed,
    )
    return (best[1] + 0.5) * CELL - 0.5, (best[0] + 0.5) * CELL - 0.5


def test_keypoints_are_found_as_by_loops():
    test = shifted_pairs(4, shift=(7, 5), points=9)
    outcome = correspond(test)
    images = test.target.images
    for number, pair in enumerate(test.target.pairs):
        source, target = (features(images.read(row)) for row in (pair.source, pair.target))
        found = [slow_match(source, target, point) for point in pair.source_points]
        distance = np.hypot(*(np.array(found) - pair.target_points).T)
        assert outcome.scores[number, :4].tolist() == [(distance <= alpha * 32).sum() for alpha in ALPHAS]
    assert 0 < outcome.metrics["pck_per_image@0.1"][0] <= outcome.variants["ceiling"]["pck_per_image@0.1"]


def test_whole_cells_are_found_and_the_three_averages_are_those_of_the_counts():
    test = shifted_pairs(5, shift=(8, 4), points=6, centred=True)
    outcome = correspond(test)
    shares = outcome.scores[:, 2] / outcome.scores[:, -1]
    classes = test.target.values
    assert outcome.metrics["pck_per_image@0.1"][0] == pytest.approx(shares.mean())
    assert outcome.metrics["pck_per_class@0.1"][0] == pytest.approx(
        np.mean([shares[classes == c].mean() for c in (0, 1)])
    )
    assert outcome.metrics["pck_per_point@0.1"][0] == pytest.approx(
        outcome.scores[:, 2].sum() / outcome.scores[:, -1].sum()
    )
    assert outcome.chance["pck_per_image@0.1"] < 0.1 < outcome.metrics["pck_per_image@0.1"][0]
    assert outcome.floors["pixels"]["pck_per_image@0.1"] == 1, "the same pixels"
    assert outcome.metrics["pck_per_image@0.01"][0] == 1, "the centre of the same cell"
    assert set(outcome.per_class) == {"cat", "dog"}


def test_chance_and_ceiling_are_counted_by_loops():
    test = shifted_pairs(3, side=40, points=6, centred=True)  # some cells are 0.1 of 40 pixels from a point
    outcome = correspond(test, size=40)
    cells = [np.array([x + 0.5, y + 0.5]) * CELL - 0.5 for y in range(10) for x in range(10)]
    for alpha in ALPHAS:
        near = np.array(
            [
                [[np.hypot(*(cell - point)) <= alpha * 40 for cell in cells] for point in pair.target_points]
                for pair in test.target.pairs
            ]
        )
        for found, counts in ((outcome.chance, near.mean(axis=2)), (outcome.variants["ceiling"], near.any(axis=2))):
            assert found[f"pck_per_image@{alpha}"] == pytest.approx(counts.mean(), rel=1e-12)


@pytest.mark.parametrize("changes", [{"max_memory": 0.0}, {"max_memory": 1e-4}])
def test_images_that_do_not_fit_into_memory_come_twice_with_the_same_result(changes):
    test = shifted_pairs(4)
    pairs = test.target.pairs
    crossed = tuple(dataclasses.replace(p, source=q.target, target=q.source) for p, q in zip(pairs, pairs, strict=True))
    test = dataclasses.replace(test, target=test.target.changed(pairs=crossed))
    assert np.array_equal(correspond(test).scores, correspond(test, **changes).scores)


@pytest.mark.parametrize("shape", ["aspect", "square", "pad"])
def test_the_shape_of_the_input_does_not_move_the_points(shape):
    """Points at the centres of cells are found to a fraction of a pixel, whatever the input."""
    test = shifted_pairs(3, shift=(8, 8), points=8, centred=True)
    assert correspond(test, shape=shape, size=32).metrics["pck_per_point@0.01"][0] == 1


def test_soft_matches_are_between_cells():
    test = shifted_pairs(4, points=9, centred=True)
    sharp = correspond(test, matcher="soft", radius=1, temperature=1e-4)
    assert sharp.metrics["pck_per_point@0.01"][0] == 1
    assert correspond(test, matcher="soft", radius=1, temperature=1.0).metrics["pck_per_point@0.01"][0] < 1


def test_homographies_are_found_as_by_loops():
    test = warped_pairs()
    outcome = correspond(test)
    images = test.target.images
    centres = np.stack(np.meshgrid(*2 * [np.arange(8) + 0.5]), axis=2).reshape(-1, 2) * CELL
    ceilings, chances = [], []
    for number, pair in enumerate(test.target.pairs):
        source, target = (features(images.read(row)) for row in (pair.source, pair.target))
        errors = []
        for row in range(8):
            for column in range(8):
                centre = np.array([column + 0.5, row + 0.5, 8]) / 8
                place = pair.homography @ centre
                true = place[:2] / place[2] * 32
                if not ((true >= 0) & (true <= 32)).all():
                    continue
                best = np.unravel_index((target @ source[row, column]).argmax(), (8, 8))
                errors.append(np.hypot(*((np.array(best[::-1]) + 0.5) * CELL - true)))
                within = np.hypot(*(centres - true).T)[:, None] <= PIXELS
                ceilings.append(within.any(axis=0))
                chances.append(within.mean(axis=0))
        wanted = [sum(error <= limit for error in errors) for limit in PIXELS]
        assert outcome.scores[number].tolist() == [*wanted, len(errors)]
    for found, shares in ((outcome.variants["ceiling"], ceilings), (outcome.chance, chances)):
        recalls = [found[f"match_recall@{limit}px"] for limit in PIXELS]
        np.testing.assert_allclose(recalls, np.mean(shares, axis=0), rtol=1e-9)
    assert outcome.variants["ceiling"]["match_recall@3px"] > 0.95 > outcome.metrics["match_recall@3px"][0]


def test_fewer_matches_by_ratio_mutual_and_number():
    test = warped_pairs()
    every = correspond(test).scores[:, -1]
    for changes in ({"ratio": 0.7}, {"mutual": True}, {"matches": 5}):
        fewer = correspond(test, **changes).scores[:, -1]
        assert (fewer <= every).all() and (fewer < every).any()
    assert (correspond(test, outside=True).scores[:, -1] == 64).all()


def test_errors_of_pairs_that_share_images_are_those_of_all_pairs_of_pairs():
    rng = np.random.default_rng(0)
    images, each = rng.integers(0, 8, (40, 2)), rng.normal(size=(40, 2))
    images[:, 1] = np.where(images[:, 1] == images[:, 0], (images[:, 0] + 1) % 8, images[:, 1])
    wanted = np.zeros(2)
    for i in range(40):
        for j in range(40):
            if set(images[i]) & set(images[j]):
                wanted += each[i] * each[j]
    dyads = {}
    for pair, value in zip(images, each, strict=True):
        dyads[tuple(sorted(pair))] = dyads.get(tuple(sorted(pair)), 0) + value
    least = sum(value**2 for value in dyads.values())
    np.testing.assert_allclose(dyadic_errors(each, images), np.sqrt(np.maximum(wanted, least) * 8 / 7))


def test_settings_without_effect_are_refused():
    points, plane = shifted_pairs().target, warped_pairs().target
    for labels, changes, message in (
        (points, {"radius": 3}, "radius has no effect with matcher=nearest"),
        (points, {"ratio": 0.9}, "ratio has no effect on keypoints"),
        (plane, {"matcher": "soft"}, "matcher has no effect on homographies"),
        (points, {"size": 0}, "size should be 1 or more, not 0"),
        (plane, {"ratio": 1.5}, "ratio should be above 0 to 1"),
    ):
        with pytest.raises(UsageError, match=message):
            PROTOCOL.kind.check(dataclasses.replace(Settings(), **changes), labels)


def test_layers_with_a_pool_are_refused():
    backbone = cells_network()
    with pytest.raises(UsageError, match="not pooled"):
        PROTOCOL.kind.rows(backbone, resolve_layers(backbone, ("0:avg",)), shifted_pairs(), Settings(), seed=0)


def test_a_picture_that_cannot_be_read_is_one_message_and_may_be_left_out(tmp_path, sslbench):
    for name in ("a.png", "b.png"):
        Image.fromarray(texture(np.random.default_rng(ord(name[0])))).save(tmp_path / name)
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    words = ("eval", "correspondence", "--weights", "random", "--backbone", "resnet18w0.125", "--no-floors")
    words += ("--data", f"homography:{tmp_path}", "size=32", "--out", str(tmp_path / "results"))
    code, _, err = sslbench(*words)
    assert code == 1 and "cannot be read" in err and err.count("a.png: truncated PNG") == 1 and "Traceback" not in err
    code, _, err = sslbench(*words, "--on-error", "skip")
    assert code == 0 and "6 of 12 images cannot be read and are left out" in err and err.count("a.png") == 1, err
