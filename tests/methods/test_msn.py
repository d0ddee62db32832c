import dataclasses
import functools

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import (
    gradient,
    made,
    random_rows,
    step_of,
    unit,
)

from sslbench.errors import UsageError
from sslbench.methods import msn

CONFIG = msn.Config(prototypes=12, projector=(32, 16))
CROPS = (32, 32, 16, 16)
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


make = functools.partial(made, msn, CONFIG, sizes=CROPS, backbone=VIT)


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def oracle(anchors, targets, prototypes, *, iterations=3, weight=1.0, power=0.0):
    """Powers and divisions as in the paper: sharpen, balance, compare, and the divergence of the mean."""
    p = softmax(unit(anchors) @ unit(prototypes).T / 0.1)
    t = softmax(unit(targets) @ unit(prototypes).T / 0.1) ** 4
    t /= t.sum(1, keepdims=True)
    for _ in range(iterations):
        t /= t.sum(0) * len(prototypes)
        t /= t.sum(1, keepdims=True)
    t = np.concatenate([t] * (len(anchors) // len(targets)))
    mean = p.mean(0)
    wanted = np.array([(k + 1) ** -power for k in range(len(prototypes))])
    divergence = (mean * np.log(mean / (wanted / wanted.sum()))).sum()
    return -(t * np.log(p)).sum(1).mean() + weight * divergence


@pytest.mark.parametrize(
    ("iterations", "weight", "power"), [(3, 1.0, 0.0), (0, 1.0, 0.0), (3, 0.0, 0.0), (3, 0.5, 0.25), (0, 1.0, 2.0)]
)
def test_the_loss_agrees_with_powers_and_divisions_and_its_gradient_with_differences(iterations, weight, power):
    anchors, targets, prototypes = random_rows(6, 4), random_rows(3, 4, seed=1), random_rows(5, 4, seed=2)
    options = {"iterations": iterations, "entropy_weight": weight, "power_law": power}
    slow = {"iterations": iterations, "weight": weight, "power": power}
    t, p = torch.from_numpy(targets), torch.from_numpy(prototypes)
    value, ours = gradient(lambda x: msn.msn_loss(x, t, p, **options), anchors)
    assert value == pytest.approx(oracle(anchors, targets, prototypes, **slow), rel=1e-9)
    for index in np.ndindex(anchors.shape):
        step = np.zeros_like(anchors)
        step[index] = 1e-6
        up, down = (oracle(anchors + sign * step, targets, prototypes, **slow) for sign in (1, -1))
        assert ours[index] == pytest.approx((up - down) / 2e-6, abs=1e-6)


def test_the_large_anchors_lose_patches_and_the_small_ones_and_the_target_none():
    method, setup, batch = make(dataclasses.replace(CONFIG, masked=0.5))
    seen = []
    for network_ in (method.target_backbone, method.backbone):
        network_.blocks[0].register_forward_pre_hook(lambda _, x: seen.append(tuple(x[0].shape)))
    method(batch, step_of(0, setup))
    assert seen == [(8, 17, 48), (8, 9, 48), (16, 5, 48)]


@pytest.mark.parametrize(("backbone", "sizes", "changes", "setup", "message"), [
    ("resnet18w0.125", CROPS, {}, {}, "msn needs a plain vision transformer"),
    (VIT + ",class_token=False,global_pool=avg", CROPS, {}, {}, "compares class tokens"),
    (VIT, (32,), {}, {}, "makes 1 in all"),
    (VIT, CROPS, {}, {"batch_size": 1}, "one image"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, sizes, changes, setup, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes), backbone=backbone, sizes=sizes, **setup)


def run_loss(rank, anchors, targets, prototypes):
    """Loss and averaged gradients: each process has half of the images, of both views."""
    from sslbench.distributed.collectives import sum_, world_size

    world = world_size()
    share = slice(rank * 4 // world, (rank + 1) * 4 // world)
    x = torch.from_numpy(anchors.copy()).requires_grad_()
    p = torch.from_numpy(prototypes.copy()).requires_grad_()
    value = msn.msn_loss(x[:, share].flatten(0, 1), torch.from_numpy(targets)[share], p)
    value.backward()
    return [part.numpy() / world for part in (sum_(value.detach().clone()), sum_(x.grad), sum_(p.grad))]


def test_two_processes_do_what_one_does_with_both_their_batches():
    rows = random_rows(2, 4, 6), random_rows(4, 6, seed=1), random_rows(5, 6, seed=2)
    alone = run_loss(0, *rows)
    for results in two_processes.run(run_loss, *rows):
        for ours, wanted in zip(results, alone, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-12)
