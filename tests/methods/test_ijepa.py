import dataclasses
import functools
import random

import numpy as np
import pytest
import torch
from helpers.training_samples import gradient, made, random_rows, step_of
from torch.nn import functional

from sslbench.errors import UsageError
from sslbench.methods import ijepa
from sslbench.train.method import Step

CONFIG = ijepa.Config(predictor_dim=32, predictor_depth=1, predictor_heads=2, min_patches=2)
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"
PATCHES_ONLY = VIT + ",class_token=False,global_pool=avg,fc_norm=False"


make = functools.partial(made, ijepa, CONFIG, sizes=(32,), backbone=PATCHES_ONLY)


def test_the_loss_agrees_with_a_loop_and_its_gradient_with_differences():
    predicted, targets = random_rows(2, 3, 4) * 2, random_rows(2, 3, 4, seed=1)

    def oracle(x):
        d = np.abs(x - targets).ravel()
        return np.mean([0.5 * e * e if e < 1 else e - 0.5 for e in d])

    value, ours = gradient(lambda x: ijepa.prediction_loss(x, torch.from_numpy(targets)), predicted)
    assert value == pytest.approx(oracle(predicted), rel=1e-12)
    for index in np.ndindex(predicted.shape):
        step = np.zeros_like(predicted)
        step[index] = 1e-6
        assert ours[index] == pytest.approx((oracle(predicted + step) - oracle(predicted - step)) / 2e-6, abs=1e-6)


def blocks_of(seed, images, grid, config=None):
    """The blocks of images whose numbers follow from a seed."""
    places = [random.Random(f"{seed} {image}") for image in range(images)]
    return ijepa.draw_blocks(grid, config or ijepa.Config(), random.Random(seed), places)


def test_the_loss_is_that_of_image_by_image_predictions(monkeypatch):
    method, setup, batch = make()
    context, targets = blocks_of(1, 8, (4, 4), CONFIG)
    monkeypatch.setattr(ijepa, "draw_blocks", lambda *_: (context, targets))
    terms = []
    with torch.no_grad():
        ours = method(batch, step_of(0, setup)).value
        vit, predictor = method.backbone, method.predictor
        for image, seen, blocks in zip(batch.views[0], context, targets, strict=True):
            tokens = vit.patch_embed(image[None]) + vit.pos_embed
            wanted = functional.layer_norm(method.target_backbone.forward_features(image[None]), (48,))[0]
            narrow = predictor.embed(vit.norm(vit.blocks(tokens[:, seen]))) + predictor.positions[:, seen]
            for block in blocks:
                hidden = predictor.mask_token + predictor.positions[:, block]
                out = predictor.norm(predictor.blocks(torch.cat([narrow, hidden], 1)))[0, len(seen) :]
                terms.append(functional.smooth_l1_loss(predictor.project(out), wanted[block]))
    torch.testing.assert_close(ours, torch.stack(terms).mean(), rtol=1e-4, atol=1e-6)


def test_blocks_have_the_published_sizes_and_the_context_none_of_their_patches():
    for seed in range(20):
        context, targets = blocks_of(seed, 8, (16, 16))
        assert 0.12 * 256 < targets.shape[2] < 0.22 * 256
        assert context.shape[1] > 10
        for seen, blocks in zip(context, targets, strict=True):
            assert len(set(seen.tolist())) == context.shape[1]
            assert not set(seen.tolist()) & set(blocks.flatten().tolist())
            for block in blocks:
                rows, columns = (block // 16).unique(), (block % 16).unique()
                assert len(rows) * len(columns) == len(block)
                assert rows[-1] - rows[0] == len(rows) - 1 and columns[-1] - columns[0] == len(columns) - 1


def test_small_grids_have_a_context_too():
    for seed in range(20):
        context, targets = blocks_of(seed, 4, (3, 4))
        assert context.shape[1] > 0 and targets.shape[1:] == (4, targets.shape[2])


def test_an_image_has_the_same_blocks_in_any_batch():
    """But for the end of its context, which is as long as the shortest of the batch."""
    context, targets = blocks_of(4, 6, (14, 14))
    for half in (slice(0, 3), slice(3, 6)):
        numbers = [random.Random(f"4 {image}") for image in range(6)[half]]
        own_context, own_targets = ijepa.draw_blocks((14, 14), ijepa.Config(), random.Random(4), numbers)
        assert torch.equal(own_targets, targets[half])
        assert torch.equal(own_context[:, : context.shape[1]], context[half])


def test_the_blocks_follow_from_seed_update_and_image(monkeypatch):
    method, setup, batch = make()
    drawn, own = [], ijepa.draw_blocks
    monkeypatch.setattr(ijepa, "draw_blocks", lambda *arguments: drawn.append(own(*arguments)) or drawn[-1])
    for index in (0, 0, 1):
        method(batch, step_of(index, setup))
    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[1], strict=True))
    assert not torch.equal(drawn[0][1], drawn[2][1])


def test_the_target_network_follows_with_a_linear_momentum():
    method, _, _ = make(dataclasses.replace(CONFIG, momentum=0.5))
    before = method.target_backbone.blocks[0].mlp.fc1.weight.clone()
    with torch.no_grad():
        method.backbone.blocks[0].mlp.fc1.weight.add_(1)
    method.after_update(Step(5, 20, 10))
    torch.testing.assert_close(method.target_backbone.blocks[0].mlp.fc1.weight, before + 0.375)
    assert not method.backbone.pos_embed.requires_grad


@pytest.mark.parametrize(("backbone", "changes", "message"), [
    ("resnet18w0.125", {}, "ijepa needs a plain vision transformer"),
    (PATCHES_ONLY.replace("patch_size=8", "patch_size=16"), {}, "too few for blocks"),
    (PATCHES_ONLY, {"predictor_heads": 5}, "no multiple of predictor_heads=5"),
    (PATCHES_ONLY, {"predictor_dim": 30}, "no multiple of 4"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, changes, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes), backbone=backbone)
