import dataclasses

import cv2
import numpy as np
import pytest
import torch
from helpers import runs
from helpers.training_samples import batch_of, gradient, network, random_rows, setup_for, step_of

from sslbench.backbones.load import load_backbone
from sslbench.data.decode.transforms import normalise
from sslbench.distributed.collectives import world_size
from sslbench.errors import DataError, UsageError
from sslbench.methods import colorization
from sslbench.methods._parts.networks import feature_map
from sslbench.preprocessing import LIGHTNESS
from sslbench.train.method import Step

NAME = "resnet18w0.125,in_chans=1,last_stride=1"
# From a to b: ranges of the published colours (pts_in_hull.npy), 313 in all.
PUBLISHED = {
    **{-90: (50, 90), -80: (20, 90), -70: (0, 90), -60: (-20, 90), -50: (-30, 100), -40: (-40, 100), -30: (-50, 100)},
    **{-20: (-50, 100), -10: (-60, 100), 0: (-70, 100), 10: (-80, 90), 20: (-80, 90), 30: (-90, 90), 40: (-100, 90)},
    **{50: (-100, 80), 60: (-110, 80), 70: (-110, 80), 80: (-110, 70), 90: (-110, 70), 100: (-90, 0)},
}


def made(config=None, **changes):
    backbone = network(NAME)
    setup = dataclasses.replace(setup_for_one(backbone), **changes)
    return colorization.Method(backbone, config or colorization.Config(), setup), setup


def setup_for_one(backbone, size=32):
    """The views have three channels, the backbone one."""
    wide = setup_for(network(), sizes=(size,))
    return dataclasses.replace(wide, feature_dim=64, backbone=NAME)


def slow_encoding(ab, neighbours, sigma):
    """One distribution over the published colours per row, by loops."""
    points = np.array([(a, b) for a, (low, high) in PUBLISHED.items() for b in range(low, high + 1, 10)], float)
    encoded = np.zeros((len(ab), len(points)))
    for row, pixel in zip(encoded, ab, strict=True):
        distances = np.array([np.hypot(*(pixel - point)) for point in points])
        for i in np.argsort(distances, kind="stable")[:neighbours]:
            row[i] = np.exp(-(distances[i] ** 2) / (2 * sigma**2))
        row /= row.sum()
    return encoded


def test_the_colours_are_the_published_ones():
    points = [[a, b] for a, (low, high) in PUBLISHED.items() for b in range(low, high + 1, 10)]
    assert len(points) == 313
    assert colorization.colours().int().tolist() == points


def test_a_and_b_are_those_of_scikit_image_and_opencv():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3)).astype(np.uint8)
    pixels[0, :6] = [[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [3, 9, 5]]
    found = colorization.chroma(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0].permute(1, 2, 0).numpy()
    lab = cv2.cvtColor(pixels.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)[..., 1:]
    np.testing.assert_allclose(found, lab, atol=0.6)  # OpenCV interpolates in tables
    color = pytest.importorskip("skimage.color")
    np.testing.assert_allclose(found, color.rgb2lab(pixels)[..., 1:], atol=0.01)  # rounding of the white point


def test_a_and_b_are_as_exact_under_autocast():
    images = torch.randint(0, 256, (2, 3, 4, 4), generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = colorization.chroma(images)
    assert torch.equal(found, colorization.chroma(images))


@pytest.mark.parametrize("neighbours", [1, 5, 10])
def test_the_encoding_is_that_of_a_loop(neighbours):
    ab = np.random.default_rng(1).uniform(-60, 60, (50, 2))
    indices, shares = colorization.soft_encode(torch.from_numpy(ab), neighbours, 5.0)
    found = torch.zeros(50, 313, dtype=shares.dtype).scatter_(1, indices, shares)
    np.testing.assert_allclose(found.numpy(), slow_encoding(ab, neighbours, 5.0), atol=1e-12)
    nearest = (torch.from_numpy(ab)[:, None] - colorization.colours()).norm(dim=2).argmin(dim=1)
    assert torch.equal(indices[:, 0], nearest)


def test_the_weights_are_those_of_a_loop():
    counts = np.random.default_rng(2).integers(0, 1000, 313).astype(float)
    counts[:100] = 0
    points = colorization.colours().numpy().astype(float)
    prior = np.zeros(313)
    for i in range(313):
        shares = np.exp(-((points - points[i]) ** 2).sum(1) / 50)
        prior += counts[i] / counts.sum() * shares / shares.sum()
    weights = 1 / (0.5 * prior + 0.5 / 313)
    weights /= (prior * weights).sum()
    found = colorization.rebalancing_weights(torch.from_numpy(counts), 0.5, 5.0)
    np.testing.assert_allclose(found.numpy(), weights, rtol=1e-10)
    assert float(torch.from_numpy(prior) @ found) == pytest.approx(1)


def test_loss_and_gradient_are_those_of_the_definition():
    """Equation 2, with the whole distribution over 313 colours and a loop over the pixels."""
    ab, logits = random_rows(2, 3, 3, 2) * 30, random_rows(2, 313, 3, 3, seed=1)
    weights = np.random.default_rng(3).uniform(0, 2, (2, 3, 3))
    encoded = slow_encoding(ab.reshape(-1, 2), 5, 5.0).reshape(2, 3, 3, 313)
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    value, wanted = 0.0, np.zeros_like(logits)
    for i, y, x in np.ndindex(2, 3, 3):
        z, p, weight = encoded[i, y, x], softmax[i, :, y, x], weights[i, y, x] / 18
        value -= weight * (z * np.log(p)).sum()
        wanted[i, :, y, x] = weight * (p - z)
    target = colorization.soft_encode(torch.from_numpy(ab), 5, 5.0)
    loss, found = gradient(
        lambda x: colorization.rebalanced_cross_entropy(x, *target, torch.from_numpy(weights)), logits
    )
    assert loss == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_the_loss_is_that_of_lightness_and_colours_of_the_pictures():
    """From 8-bit pictures to the value, with OpenCV's colours; one of the pictures is grey and has no part."""
    method, setup = made(colorization.Config(stride=4))
    method.eval()
    rng = np.random.default_rng(4)
    pixels = np.repeat(np.repeat(rng.integers(0, 256, (8, 4, 4, 3)), 8, 1), 8, 2).astype(np.uint8)
    pixels[3] = pixels[3][..., :1]
    raw = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    view = normalise(raw, setup.normalisation)
    batch = dataclasses.replace(batch_of(setup), views=(view,))
    method.weights.copy_(torch.from_numpy(rng.uniform(0.5, 2, 313)))
    found = method(batch, step_of(0, setup)).value.item()
    with torch.no_grad():
        maps = feature_map(method.backbone, normalise(raw, LIGHTNESS))
        logits = torch.nn.functional.interpolate(method.map_head(maps), size=(8, 8), mode="bilinear")
    log_p = logits.double().log_softmax(1).permute(0, 2, 3, 1).numpy()
    total = 0.0
    for i in range(8):
        lab = cv2.cvtColor(pixels[i].astype(np.float32) / 255, cv2.COLOR_RGB2LAB)[::4, ::4, 1:]
        for y, x in np.ndindex(8, 8):
            encoded = slow_encoding(lab[y, x][None], 5, 5.0)[0]
            total -= (i != 3) * float(method.weights[encoded.argmax()]) * (encoded * log_p[i, y, x]).sum()
    assert found == pytest.approx(total / (8 * 64), rel=0.02)  # OpenCV's tables: 0.6 to 1.2 % with 12 seeds


def test_the_first_pass_counts_colours_and_weights_them():
    method, setup = made()
    batch = batch_of(setup)
    assert torch.equal(method.weights, torch.ones(313))
    counts = torch.zeros(313, dtype=torch.float64)
    for index in (-2, -1):
        with torch.no_grad():
            assert method(batch, step_of(index, setup)).value.item() == 0
        ab = colorization.chroma(method._pictures(batch.views[0])[:, :, ::8, ::8])
        points = ab.permute(0, 2, 3, 1).reshape(-1, 2)
        counts += torch.bincount(torch.cdist(points, colorization.colours()).argmin(1), minlength=313)
        method.after_update(step_of(index, setup))
    assert world_size() == 1
    wanted = colorization.rebalancing_weights(counts, 0.5, 5.0)
    torch.testing.assert_close(method.weights, wanted.float())
    before = method.weights.clone()
    method.after_update(Step(0, 20, 10))
    assert torch.equal(before, method.weights)


def test_grey_images_are_refused():
    method, setup = made()
    grey = batch_of(setup).views[0][:, :1].repeat(1, 3, 1, 1) * 0
    shape = (1, 3, 1, 1)
    mean, std = (torch.tensor(v).view(shape) for v in (setup.normalisation.mean, setup.normalisation.std))
    with torch.no_grad():
        method(dataclasses.replace(batch_of(setup), views=((grey + 0.5 - mean) / std,)), step_of(-1, setup))
    with pytest.raises(DataError, match="all images are grey"):
        method.after_update(step_of(-1, setup))


@pytest.mark.parametrize(
    ("config", "message"),
    [({"neighbours": 0}, "neighbours should be from 1 to 313"), ({"stride": 33}, "stride should be from 1 to 32")],
)
def test_settings_out_of_bounds_are_refused(config, message):
    with pytest.raises(UsageError, match=message):
        made(colorization.Config(**config))


def test_a_backbone_of_colours_is_refused():
    backbone = network()
    with pytest.raises(UsageError, match="lightness, which resnet18w0"):
        colorization.Method(backbone, colorization.Config(), setup_for(backbone, sizes=(32,)))


def test_alexnet_predicts_from_its_last_convolution():
    from sslbench.backbones.build import build

    backbone = build("alexnet_colorization").module.train().requires_grad_(True)
    setup = dataclasses.replace(setup_for_one(backbone, 67), backbone="alexnet_colorization")
    method = colorization.Method(backbone, colorization.Config(hidden=(8, 4)), setup)
    assert method.map_head[0].weight.shape == (8, 256, 1, 1) and method.map_head[-1].weight.shape == (313, 4, 1, 1)
    method(batch_of(setup), step_of(0, setup)).value.backward()
    assert all(p.grad is not None for p in method.parameters())


def test_weights_say_lightness_and_evaluations_honour_it(tmp_path):
    outcome = runs.run("colorization", tmp_path / "run", epochs=1, schedule={"lr": 1.0})
    backbone = load_backbone(str(outcome.weights))
    assert backbone.name == f"{runs.RESNET},in_chans=1"
    assert backbone.preprocessing.space == "lightness"
    assert (backbone.preprocessing.mean, backbone.preprocessing.std) == (LIGHTNESS.mean, LIGHTNESS.std)
    assert backbone.preprocessing.resize == (32, 32)


def test_a_normalisation_without_effect_is_refused(tmp_path):
    from sslbench.pretraining import PretrainRequest, prepare

    data = runs.coloured(tmp_path / "coloured", 32)
    request = PretrainRequest(runs.settings("colorization"), data, tmp_path / "out", chosen=("augment.mean",))
    with pytest.raises(UsageError, match=r"augment\.mean has no effect on colorization"):
        prepare(request)
