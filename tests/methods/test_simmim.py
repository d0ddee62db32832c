import dataclasses
import functools

import numpy as np
import pytest
import torch
from helpers.training_samples import gradient, made, random_rows, step_of

from sslbench.errors import UsageError
from sslbench.methods import simmim
from sslbench.methods._parts.masks import image_generators, unit_masks
from sslbench.methods.mae import patchify

CONFIG = simmim.Config()
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


make = functools.partial(made, simmim, CONFIG, sizes=(32,), backbone=VIT)


def test_the_loss_agrees_with_a_loop_and_its_gradient_with_differences():
    predicted, patches = random_rows(3, 4), random_rows(3, 4, seed=1)

    def oracle(x):
        return np.mean([abs(a - b) for a, b in zip(x.ravel(), patches.ravel(), strict=True)])

    value, ours = gradient(lambda x: simmim.pixel_loss(x, torch.from_numpy(patches)), predicted)
    assert value == pytest.approx(oracle(predicted), rel=1e-12)
    for index in np.ndindex(predicted.shape):
        step = np.zeros_like(predicted)
        step[index] = 1e-6
        assert ours[index] == pytest.approx((oracle(predicted + step) - oracle(predicted - step)) / 2e-6, abs=1e-6)


def test_the_loss_is_that_of_the_published_image_form():
    """Masks on pixels, the decoder as a 1 x 1 convolution and a pixel shuffle."""
    method, setup, batch = make()
    ours = method(batch, step_of(0, setup)).value
    mask = torch.cat([unit_masks(1, (4, 4), 2, 3, each) for each in image_generators(0, batch, step_of(0, setup))])
    images = batch.views[0]
    tokens = method._tokens(images, mask)[:, 1:]
    pixels = method.decoder(tokens).view(8, 4, 4, 8, 8, 3).permute(0, 5, 1, 3, 2, 4).reshape(8, 3, 32, 32)
    hidden = mask.view(8, 1, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3)
    wanted = ((images - pixels).abs() * hidden).sum() / hidden.sum() / 3
    torch.testing.assert_close(ours, wanted)


def test_units_are_masked_as_a_whole():
    torch.manual_seed(0)
    masks = unit_masks(500, (4, 6), 2, 4).view(500, 2, 2, 3, 2)
    assert torch.equal(masks.any(4).any(2), masks.all(4).all(2))
    assert (masks.all(4).all(2).sum((1, 2)) == 4).all()
    assert masks.float().mean(0).numpy() == pytest.approx(np.full((2, 2, 3, 2), 4 / 6), abs=0.08)


def test_masked_pixels_do_not_reach_the_network():
    method, _, batch = make()
    mask = unit_masks(8, (4, 4), 2, 3)
    images = batch.views[0].clone()
    patches = patchify(images, (8, 8))
    patches[mask] = 0
    blank = patches.view(8, 4, 4, 8, 8, 3).permute(0, 5, 1, 3, 2, 4).reshape(8, 3, 32, 32)
    assert not torch.equal(blank, images)
    with torch.no_grad():
        torch.testing.assert_close(method._tokens(images, mask), method._tokens(blank, mask))


@pytest.mark.parametrize(("backbone", "changes", "message"), [
    ("resnet18w0.125", {}, "simmim needs a plain vision transformer"),
    (VIT, {"unit": 4}, "masks none or all of the 1 units"),
    (VIT, {"unit": 3}, "Set method.unit=2"),
    (VIT, {"unit": 0}, "Set method.unit=1"),
    (VIT, {"masked": 0.9}, "masks none or all of the 4 units"),
    (VIT, {"masked": 0.0}, "masks none"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, changes, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes), backbone=backbone)
