import numpy as np
import pytest
import torch
from helpers.training_samples import batch_of, network, setup_for, step_of, train
from torch.nn import functional

from sslbench.errors import UsageError
from sslbench.methods import pirl
from sslbench.methods._parts.masks import image_generators
from sslbench.methods._parts.patches import concatenated, reorder

SIZES = (32, *[16] * 9)
SMALL = {"negatives": 32, "projector": (8,)}


def test_every_image_has_its_own_order_of_patches():
    patches = [torch.full((2, 1, 4, 4), float(number)) + torch.tensor([0, 100]).view(2, 1, 1, 1) for number in range(9)]
    order = torch.tensor([[8, 7, 6, 5, 4, 3, 2, 1, 0], [1, 0, 2, 3, 4, 5, 6, 8, 7]])
    found = reorder(patches, order)[:, 0, 0, 0].view(2, 9)
    assert found.tolist() == [order[0].tolist(), (order[1] + 100).tolist()]


def test_outputs_of_an_images_patches_stand_side_by_side():
    patches = torch.arange(18.0).view(18, 1)
    assert concatenated(lambda x: torch.cat([x, -x], dim=1), patches)[1].tolist()[:4] == [9, -9, 10, -10]


def slow_contrast(row, memory, own, negatives, temperature):
    scores = [row @ memory[j] / temperature for j in [own, *negatives]]
    return -np.log(np.exp(scores[0]) / np.exp(scores).sum())


@pytest.mark.parametrize("weight", [0.5, 0.2])
def test_the_loss_is_that_of_patches_and_image_against_the_memory_from_before(weight):
    setup = setup_for(network(), sizes=SIZES, images=4)
    method = pirl.Method(network(), pirl.Config(contrast="info_nce", patches_weight=weight, **SMALL), setup).eval()
    batch, memory = batch_of(setup), method.memory.vectors.clone().numpy()
    with torch.no_grad():
        found = method(batch, step_of(0, setup))
        generators = image_generators(0, batch, step_of(0, setup))
        order = torch.stack([torch.rand(9, generator=each) for each in generators]).argsort(dim=1)
        negatives = [method.memory.draw(32, generators).numpy() for _ in range(2)]
        image = functional.normalize(method.head(method.backbone(batch.views[0])), dim=1).numpy()
        total = 0.0
        for i in range(4):
            pieces = [method.patch_head(method.backbone(batch.views[1 + k][i : i + 1])) for k in order[i].tolist()]
            patches = functional.normalize(method.joint_head(torch.cat(pieces, dim=1)), dim=1)[0].numpy()
            total += weight * slow_contrast(patches, memory, i, negatives[0][i], 0.07)
            total += (1 - weight) * slow_contrast(image[i], memory, i, negatives[1][i], 0.07)
    assert found.value.item() == pytest.approx(total / 4, rel=1e-4)


def test_the_image_alone_moves_the_memory():
    setup = setup_for(network(), sizes=SIZES, images=4)
    method = pirl.Method(network(), pirl.Config(**SMALL), setup).eval()
    batch, before = batch_of(setup), method.memory.vectors.clone()
    image = functional.normalize(method.head(method.backbone(batch.views[0])), dim=1)
    method(batch, step_of(0, setup))
    method.after_update(step_of(0, setup))
    moved = functional.normalize(0.5 * before[:4] + 0.5 * image, dim=1)
    torch.testing.assert_close(method.memory.vectors[:4], moved)
    assert torch.equal(method.memory.vectors[4:], before[4:])


def test_accumulated_passes_update_the_memory_together():
    setup = setup_for(network(), sizes=SIZES, images=4, images_per_update=8)
    method = pirl.Method(network(), pirl.Config(**SMALL), setup).train()
    train(method, batch_of(setup), setup, 2, passes=2)
    assert method.memory._new == []


def test_the_mlp_heads_are_vissls():
    setup = setup_for(network(), sizes=SIZES)
    method = pirl.Method(network(), pirl.Config(projector=(16, 8)), setup)
    assert [type(layer).__name__ for layer in method.patch_head] == ["Linear", "ReLU", "Linear", "ReLU"]
    assert [type(layer).__name__ for layer in method.head] == ["Linear", "ReLU", "Linear"]
    assert method.joint_head.in_features == 72


@pytest.mark.parametrize("sizes", [(32, 32), (32, *[16] * 8), (32, *[16] * 8, 8), (16,) * 9])
def test_other_views_are_refused(sizes):
    with pytest.raises(UsageError, match="pirl takes 1 view and the 9 patches of a 3 x 3 grid"):
        pirl.Method(network(), pirl.Config(), setup_for(network(), sizes=sizes))
