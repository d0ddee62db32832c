import dataclasses
import functools
import math

import numpy as np
import pytest
import torch
from helpers.training_samples import gradient, made, random_rows, step_of

from sslbench.errors import UsageError
from sslbench.methods import maskfeat
from sslbench.methods._parts.masks import filled_block_masks, image_generators

CONFIG = maskfeat.Config(cell=4, smallest_block=2)
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


make = functools.partial(made, maskfeat, CONFIG, sizes=(32,), backbone=VIT)


def hog_by_pixels(image, patch, cell, bins):
    """Histograms of one image (C, H, W), pixel by pixel: {(channel, row of cells, column of cells): (bins,)}."""
    channels, height, width = image.shape
    found = {}

    def at(channel, y, x):  # mirrored at the border, without repeating it
        y = abs(y) if y < height else 2 * height - 2 - y
        x = abs(x) if x < width else 2 * width - 2 - x
        return image[channel, y, x]

    for channel in range(channels):
        for y in range(height):
            for x in range(width):
                dx = sum(
                    k * (at(channel, y + d, x - 1) - at(channel, y + d, x + 1)) for d, k in ((-1, 1), (0, 2), (1, 1))
                )
                dy = sum(
                    k * (at(channel, y - 1, x + d) - at(channel, y + 1, x + d)) for d, k in ((-1, 1), (0, 2), (1, 1))
                )
                angle = math.atan2(dx, dy) % math.pi  # unsigned
                distance = [((p % patch) - (patch - 1) / 2) / (patch // 2) for p in (y, x)]
                weight = math.exp(-sum(d * d for d in distance) / 2)
                histogram = found.setdefault((channel, y // cell, x // cell), np.zeros(bins))
                histogram[int(angle / math.pi * bins) % bins] += weight * math.hypot(dx, dy)
    return {key: value / max(np.linalg.norm(value), 1e-12) for key, value in found.items()}


def test_histograms_agree_with_those_of_a_loop_over_pixels():
    images = random_rows(2, 2, 16, 24)
    ours = maskfeat.hog(torch.from_numpy(images), (8, 8), cell=4, bins=5).view(2, 2, 3, 2, 2, 2, 5)
    for image, found in zip(images, ours, strict=True):
        for (channel, row, column), wanted in hog_by_pixels(image, 8, 4, 5).items():
            histogram = found[row // 2, column // 2, row % 2, column % 2, channel]
            assert histogram.numpy() == pytest.approx(wanted, abs=1e-9)


def test_rounding_does_not_decide_the_orientation_of_a_gradient_along_an_axis():
    ramp = torch.arange(16.0)[:, None].expand(1, 1, 16, 16) / 10
    noisy = (ramp + 1e-7 * torch.randn(1, 1, 16, 16) for _ in range(4))
    for image in (*noisy, 2 - ramp):
        histograms = maskfeat.hog(image, (8, 8), cell=8, bins=9)
        torch.testing.assert_close(histograms, torch.eye(9)[0].expand(1, 4, 9), rtol=0, atol=1e-4)


def test_brightness_and_contrast_of_a_channel_change_no_histogram():
    images = torch.from_numpy(random_rows(1, 3, 16, 16))
    factors, shifts = torch.tensor([2.0, 0.5, 3.0])[:, None, None], torch.tensor([1.0, -4.0, 0.0])[:, None, None]
    one, other = (maskfeat.hog(x, (8, 8), cell=4, bins=9) for x in (images, images * factors + shifts))
    torch.testing.assert_close(one, other)
    assert torch.equal(maskfeat.hog(torch.ones(1, 3, 8, 8), (8, 8), cell=8, bins=9), torch.zeros(1, 1, 27))


def test_the_loss_agrees_with_a_loop_and_its_gradient_with_differences():
    predicted, targets = random_rows(3, 4), random_rows(3, 4, seed=1)

    def oracle(x):
        return np.mean([(a - b) ** 2 for a, b in zip(x.ravel(), targets.ravel(), strict=True)])

    value, ours = gradient(lambda x: maskfeat.hog_loss(x, torch.from_numpy(targets)), predicted)
    assert value == pytest.approx(oracle(predicted), rel=1e-12)
    for index in np.ndindex(predicted.shape):
        step = np.zeros_like(predicted)
        step[index] = 1e-6
        assert ours[index] == pytest.approx((oracle(predicted + step) - oracle(predicted - step)) / 2e-6, abs=1e-6)


def test_the_loss_is_that_of_masked_patches_image_by_image():
    method, setup, batch = make()
    step = step_of(0, setup)
    terms = []
    with torch.no_grad():
        ours = method(batch, step).value
        vit = method.backbone
        for image, generator in zip(batch.views[0], image_generators(0, batch, step), strict=True):
            mask = filled_block_masks(1, (4, 4), 6, smallest=2, generator=generator)[0]
            patches = vit.patch_embed(image[None])
            patches[0, mask] = method.mask_token
            tokens = vit.norm(vit.blocks(torch.cat([vit.cls_token, patches], 1) + vit.pos_embed))[0, 1:]
            targets = maskfeat.hog(image[None], (8, 8), cell=4, bins=9)[0]
            terms.append((method.decoder(tokens[mask]) - targets[mask]).square())
    torch.testing.assert_close(ours, torch.cat(terms).mean())


def test_masks_have_their_number_of_patches_mostly_in_rectangles():
    torch.manual_seed(0)
    masks = filled_block_masks(200, (14, 14), 78, smallest=15)
    assert (masks.sum(1) == 78).all()
    grid = masks.view(200, 14, 14)
    same = (grid[:, 1:] == grid[:, :-1]).float().mean() + (grid[:, :, 1:] == grid[:, :, :-1]).float().mean()
    assert same / 2 > 0.8  # 0.52 of single patches
    assert (filled_block_masks(20, (2, 2), 3, smallest=3).sum(1) == 3).all()  # no rectangle fits


@pytest.mark.parametrize(("backbone", "changes", "message"), [
    ("resnet18w0.125", {}, "maskfeat needs a plain vision transformer"),
    (VIT, {"cell": 3}, r"cells of 3 pixels do not cover patches of 8 x 8 pixels"),
    (VIT, {"cell": 16}, "Set method.cell=8"),
    (VIT, {"masked": 0.01}, "masks none or all of the 16 patches"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, changes, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes), backbone=backbone)
