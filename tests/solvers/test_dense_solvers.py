"""Windows, heads and losses of dense tasks, against slow or closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from sslbench.solvers import dense
from sslbench.solvers.dense import heads, losses, pyramids


@settings(max_examples=60, deadline=None)
@given(length=st.integers(1, 60), window=st.integers(1, 30), stride=st.integers(1, 30))
def test_windows_cover_the_axis_and_stay_inside(length, window, stride):
    starts = heads.window_starts(length, window, stride)
    inside = min(window, length)
    covered = {pixel for start in starts for pixel in range(start, start + inside)}
    assert starts[0] == 0 and starts[-1] + inside == length and starts == sorted(set(starts))
    assert covered == set(range(length)) or stride > window


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), height=st.integers(3, 14), width=st.integers(3, 14))
def test_overlapping_logits_are_averaged(seed, height, width):
    generator = torch.Generator().manual_seed(seed)
    image = torch.rand(2, 3, height, width, generator=generator)

    def forward(x):
        return x[:, :2] - x.mean((1, 2, 3), keepdim=True)  # depends on the window

    ours = heads.sliding_logits(forward, image, window=(6, 5), stride=(4, 3))
    each = [[[] for _ in range(width)] for _ in range(height)]
    for top in heads.window_starts(height, 6, 4):
        for left in heads.window_starts(width, 5, 3):
            logits = forward(image[:, :, top : top + 6, left : left + 5])
            for y, x in np.ndindex(*logits.shape[-2:]):
                each[top + y][left + x].append(logits[:, :, y, x])
    expected = torch.stack([torch.stack([torch.stack(c).mean(0) for c in row], -1) for row in each], -2)
    torch.testing.assert_close(ours, expected)


def test_padding_can_be_cut_off():
    image = torch.rand(1, 3, 9, 11)
    padded, (rows, columns) = heads.centre_padded(image, 4)
    assert padded.shape[-2:] == (12, 12) and torch.equal(padded[..., rows, columns], image)
    assert padded.count_nonzero() == image.count_nonzero() and rows == slice(1, 10) and columns == slice(0, 11)
    assert dense.resized(image, (9, 11)) is image


def test_heads():
    generator = torch.Generator().manual_seed(0)
    head = heads.LinearHead(64, 50, dropout=0.1, generator=generator)
    again = heads.LinearHead(64, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(head.classifier.weight, again.classifier.weight) and not head.classifier.bias.any()
    assert head.classifier.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert head(torch.rand(2, 64, 4, 5)).shape == (2, 50, 4, 5)
    assert not any("norm" in name for name, _ in heads.LinearHead(8, 2, normalised=False).named_parameters())
    assert heads.layer_indices(12, "last") == [11] and heads.layer_indices(40, "last4") == [36, 37, 38, 39]


def applied(weights, prefix, x):
    """A convolution, batch normalisation of the batch and ReLU, from a state dict."""
    weight, side = weights[f"{prefix}.0.weight"], weights[f"{prefix}.0.weight"].shape[-1]
    x = functional.conv2d(x, weight, padding=side // 2)
    centred = x - x.mean((0, 2, 3), keepdim=True)
    x = centred / (x.var((0, 2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt()
    return (x * weights[f"{prefix}.1.weight"][:, None, None] + weights[f"{prefix}.1.bias"][:, None, None]).relu()


def enlarged(x, like):
    return functional.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=False)


LEVELS = [torch.rand(2, c, h, w) for c, h, w in ((3, 16, 24), (4, 8, 12), (5, 4, 6))]


def test_upernet_is_that_of_its_paper():
    head = pyramids.UPerNetHead([3, 4, 5], 2, plain=False, width=6, normalised=False)
    w, coarsest = head.state_dict(), LEVELS[-1]
    pooled = [functional.adaptive_avg_pool2d(coarsest, side) for side in (1, 2, 3, 6)]
    context = [enlarged(applied(w, f"pooled.{i}.1", x), coarsest) for i, x in enumerate(pooled)]
    top = applied(w, "context", torch.cat([coarsest, *context], 1))
    middle = applied(w, "laterals.1", LEVELS[1])
    middle = middle + enlarged(top, middle)
    finest = applied(w, "laterals.0", LEVELS[0])
    finest = finest + enlarged(middle, finest)
    levels = [applied(w, "smoothings.0", finest), applied(w, "smoothings.1", middle), top]
    fused = applied(w, "fusion", torch.cat([enlarged(x, finest) for x in levels], 1))
    expected = functional.conv2d(fused, w["classifier.classifier.weight"], w["classifier.classifier.bias"])
    torch.testing.assert_close(head(*LEVELS), expected)


def test_semantic_fpn_is_that_of_its_paper():
    head = pyramids.FPNHead([3, 4, 5], 2, plain=False, width=6, normalised=False)
    w = head.state_dict()
    lateral = [functional.conv2d(x, w[f"laterals.{i}.weight"], w[f"laterals.{i}.bias"]) for i, x in enumerate(LEVELS)]
    for i in (1, 0):
        lateral[i] = lateral[i] + lateral[i + 1].repeat_interleave(2, -1).repeat_interleave(2, -2)
    levels = [
        functional.conv2d(x, w[f"smoothings.{i}.weight"], w[f"smoothings.{i}.bias"], padding=1)
        for i, x in enumerate(lateral)
    ]
    finest = applied(w, "enlargings.0.0", levels[0])
    middle = enlarged(applied(w, "enlargings.1.0", levels[1]), finest)
    top = enlarged(applied(w, "enlargings.2.0", levels[2]), levels[1])
    top = enlarged(applied(w, "enlargings.2.1", top), finest)
    summed = finest + middle + top
    expected = functional.conv2d(summed, w["classifier.classifier.weight"], w["classifier.classifier.bias"])
    torch.testing.assert_close(head(*LEVELS), expected)


def test_a_pyramid_of_equal_maps_has_four_scales():
    maps = [torch.rand(1, 3, 7, 6) for _ in range(4)]
    scaled = pyramids.Pyramid([3] * 4, plain=True)(*maps)
    assert [tuple(x.shape[-2:]) for x in scaled] == [(28, 24), (14, 12), (7, 6), (3, 3)]
    assert torch.equal(scaled[2], maps[2]) and scaled[3].max() == maps[3][..., :6, :].max()
    one = pyramids.Pyramid([3], plain=True)(torch.rand(1, 3, 1, 1))
    assert [tuple(x.shape[-2:]) for x in one] == [(4, 4), (2, 2), (1, 1), (1, 1)], "one map at all four"


@pytest.mark.parametrize("spacing", ["uniform", "logarithmic"])
def test_bins_reach_from_the_lower_to_the_upper_limit(spacing):
    bins = dense.depth_bins(64, 0.5, 8.0, spacing=spacing)
    steps = bins.log().diff() if spacing == "logarithmic" else bins.diff()
    assert bins[[0, -1]].tolist() == pytest.approx([0.5, 8.0]) and steps.max().item() == pytest.approx(
        steps.min().item(), rel=1e-3
    )
    for how in ("linear", "softmax", "sigmoid"):
        sure = torch.full((1, 64, 1, 1), -1e4)
        sure[:, 40] = 1e4
        depth = dense.depth_from_bins(sure, bins, normalisation=how).item()
        assert depth == pytest.approx(bins[40].item(), rel=0.02), how


def test_cross_entropy_of_weighted_classes():
    generator = torch.Generator().manual_seed(1)
    logits, target = torch.randn(2, 3, 4, 5, generator=generator), torch.randint(0, 3, (2, 4, 5), generator=generator)
    target[0, :2] = 255
    weights = torch.tensor([1.0, 2.0, 0.5])
    ours = losses.pixel_cross_entropy(logits, target, ignore=255, average="scored", class_weights=weights)
    expected = torch.nn.functional.cross_entropy(logits, target, weight=weights, ignore_index=255)
    torch.testing.assert_close(ours, expected)
    per_pixel = losses.pixel_cross_entropy(logits, target, ignore=255, average="scored")
    assert losses.pixel_cross_entropy(logits, target, ignore=255, average="all") == pytest.approx(
        0.75 * per_pixel.item()
    )
    nothing = losses.pixel_cross_entropy(logits, torch.full_like(target, 255), ignore=255, average="scored")
    assert nothing == 0


def test_pixels_that_do_not_count_give_neither_loss_nor_gradient():
    generator = torch.Generator().manual_seed(2)
    target = torch.rand(1, 1, 16, 16, generator=generator) + 1
    prediction = (target * 1.1).requires_grad_()
    holes = torch.rand(target.shape, generator=generator) < 0.3
    target[holes] = math.nan
    for loss in (
        losses.sig_loss(prediction, target, ~holes),
        losses.gradient_loss(prediction, target, ~holes),
        losses.gradient_loss(prediction, target, ~holes, logarithmic=False),
    ):
        (gradient,) = torch.autograd.grad(loss, prediction)
        assert loss.isfinite() and gradient.isfinite().all() and not gradient[holes].any() and gradient.any()
    nothing = torch.zeros_like(holes)
    for loss in (losses.sig_loss(prediction, target, nothing), losses.gradient_loss(prediction, target, nothing)):
        assert loss == 0


def test_gradient_loss_by_hand():
    """A step of 1 between columns 2 and 3 of a map of 4 x 6: seen by two of the four horizontal pairs of each row."""
    target = torch.ones(1, 1, 4, 6)
    prediction = target.clone()
    prediction[..., 3:] = 2
    # Strides 1: 4 rows x 2 pairs / 24; 2: columns 0, 2, 4, one pair of 2 rows / 6; 4: 0 and 4, no pair; 6: one column.
    ours = losses.gradient_loss(prediction, target, target > 0, logarithmic=False)
    assert ours.item() == pytest.approx(4 * 2 / 24 + 2 * 1 / 6)


def test_a_perfect_prediction_has_finite_gradients():
    depths = torch.rand(1, 1, 8, 8) + 1
    prediction = depths.clone().requires_grad_()
    losses.sig_loss(prediction, depths, depths > 0).backward()
    assert prediction.grad.isfinite().all()
    normals = torch.nn.functional.normalize(torch.randn(1, 3, 4, 4), dim=1)
    found = normals.clone().requires_grad_()
    losses.angular_loss(found, normals, torch.ones(1, 1, 4, 4, dtype=torch.bool)).backward()
    assert found.grad.isfinite().all()


def test_angles_and_their_gradients_are_those_of_the_cosine_similarity():
    generator = torch.Generator().manual_seed(0)
    found = (3 * torch.randn(2, 3, 5, 6, generator=generator)).requires_grad_()
    target = torch.randn(2, 3, 5, 6, generator=generator)
    counts = torch.rand(2, 1, 5, 6, generator=generator) > 0.3
    losses.angular_loss(found, target, counts).backward()
    gradient, found.grad = found.grad, None
    cosine = torch.nn.functional.cosine_similarity(found, target, dim=1)[counts[:, 0]]
    angle = torch.acos(cosine.clamp(-0.9999, 0.9999)).mean()
    angle.backward()
    torch.testing.assert_close(losses.angular_loss(found, target, counts), angle)
    torch.testing.assert_close(gradient, found.grad, rtol=1e-4, atol=1e-6)
