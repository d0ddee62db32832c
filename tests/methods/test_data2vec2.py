import dataclasses
import functools

import numpy as np
import pytest
import torch
from helpers.training_samples import gradient, made, random_rows, step_of

from sslbench.errors import UsageError
from sslbench.methods import data2vec2
from sslbench.train.method import Step

CONFIG = data2vec2.Config(
    masks=2, target_layers=2, decoder_dim=32, decoder_layers=2, decoder_groups=4, masked=0.5, block=2
)
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


make = functools.partial(made, data2vec2, CONFIG, sizes=(32,), backbone=VIT)


def test_the_loss_agrees_with_a_loop_and_its_gradient_with_differences():
    predicted, targets = random_rows(3, 4), random_rows(3, 4, seed=1)

    def oracle(x):
        return np.mean(
            [sum((a - b) ** 2 for a, b in zip(p, t, strict=True)) / 2 for p, t in zip(x, targets, strict=True)]
        )

    value, ours = gradient(lambda x: data2vec2.regression_loss(x, torch.from_numpy(targets)), predicted)
    assert value == pytest.approx(oracle(predicted), rel=1e-12)
    for index in np.ndindex(predicted.shape):
        step = np.zeros_like(predicted)
        step[index] = 1e-6
        assert ours[index] == pytest.approx((oracle(predicted + step) - oracle(predicted - step)) / 2e-6, abs=1e-6)


def test_targets_are_means_of_layers_normalised_over_patches_and_then_over_channels():
    outputs = random_rows(3, 2, 5, 4) * 3 + 1
    wanted = np.zeros((2, 5, 4))
    for image in range(2):
        for layer in outputs[:, image]:
            wanted[image] += (layer - layer.mean(0)) / np.sqrt(layer.var(0) + 1e-5) / 3
        rows = wanted[image]
        wanted[image] = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(data2vec2.averaged_targets(torch.from_numpy(outputs)).numpy(), wanted, rtol=1e-9)


def test_visible_patches_lie_in_blocks_and_are_equally_many():
    torch.manual_seed(0)
    (visible,) = data2vec2.draw_visible(500, (14, 14), data2vec2.Config())
    assert visible.shape == (500, 39)
    assert (visible.diff(dim=1) > 0).all()
    seen = torch.zeros(500, 196).scatter_(1, visible, 1.0).view(500, 1, 14, 14)
    neighbours = torch.nn.functional.conv2d(seen, torch.ones(1, 1, 3, 3), padding=1)[seen > 0] - 1
    assert neighbours.mean() > 3.5  # 1.6 for patches drawn one by one
    assert len({tuple(row) for row in visible.tolist()}) == 500


def test_visible_patches_with_equal_numbers_are_equally_many_and_in_order(monkeypatch):
    draw = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: (draw(*shape, **options) * 4).floor() / 4)
    generators = [torch.Generator().manual_seed(seed) for seed in range(20)]
    visible = data2vec2.draw_visible(2, (14, 14), data2vec2.Config(), generators)
    assert visible.shape == (20, 2, 39) and (visible.diff(dim=2) > 0).all()


def test_the_loss_is_that_of_mask_by_mask_predictions(monkeypatch):
    method, setup, batch = make(dataclasses.replace(CONFIG, noise=0.0))
    torch.manual_seed(1)
    (visible,) = data2vec2.draw_visible(16, (4, 4), CONFIG)
    monkeypatch.setattr(data2vec2, "draw_visible", lambda *_: visible.view(8, 2, -1))  # the masks of each image
    vit, terms, classes = method.backbone, [], []
    with torch.no_grad():
        ours = method(batch, step_of(0, setup))
        outputs = []
        for block in method.teacher_backbone.blocks:
            block.mlp.register_forward_hook(lambda _, __, output: outputs.append(output[:, 1:]))
        method.teacher_backbone(batch.views[0])
        targets = data2vec2.averaged_targets(torch.stack(outputs))
        for image in range(8):
            tokens = torch.cat([vit.cls_token, vit.patch_embed(batch.views[0][image : image + 1])], 1) + vit.pos_embed
            for seen in visible[2 * image : 2 * image + 2]:
                encoded = vit.norm(vit.blocks(torch.cat([tokens[:, :1], tokens[:, 1:][:, seen]], 1)))
                filled = torch.zeros(1, 16, 48)
                filled[:, seen] = encoded[:, 1:]
                hidden = [i for i in range(16) if i not in seen.tolist()]
                errors = (method.decoder(filled)[0] - targets[image])[hidden]
                terms.append(errors.square().sum(1) / 48**0.5)
                classes.append((encoded[0, 0] - targets[image].mean(0)).square().sum() / 48**0.5)
    torch.testing.assert_close(ours.parts["patch_loss"], torch.cat(terms).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.parts["class_loss"], torch.stack(classes).mean(), rtol=1e-4, atol=1e-5)


def test_the_decay_rises_and_stays():
    method, _, _ = make(dataclasses.replace(CONFIG, momentum=0.0, final_momentum=0.5, momentum_rise=0.5))
    weight, own = method.teacher_backbone.blocks[0].mlp.fc1.weight, method.backbone.blocks[0].mlp.fc1.weight
    with torch.no_grad():
        own.zero_()
        for index, decay in ((0, 0.0), (5, 0.25), (10, 0.5), (19, 0.5)):
            weight.fill_(1.0)
            method.after_update(Step(index, 20, 10))
            torch.testing.assert_close(weight, torch.full_like(weight, decay))


@pytest.mark.parametrize(("backbone", "changes", "message"), [
    ("resnet18w0.125", {}, "data2vec2 needs a plain vision transformer"),
    (VIT, {"decoder_groups": 5}, "no multiple of method.decoder_groups=5"),
    (VIT, {"decoder_kernel": 4}, "must be odd"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, changes, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes), backbone=backbone)
