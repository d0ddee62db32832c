import dataclasses
import functools

import numpy as np
import pytest
import torch
from helpers.training_samples import made, network, random_rows, setup_for, step_of
from hypothesis import given
from hypothesis import strategies as st

from sslbench.errors import UsageError
from sslbench.methods import mae
from sslbench.methods._parts.masks import image_generators

CONFIG = mae.Config(decoder_dim=32, decoder_depth=1, decoder_heads=4)
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


make = functools.partial(made, mae, CONFIG, sizes=(32,), backbone=VIT)


def test_patches_are_cut_in_rows_from_the_top_left():
    images = random_rows(2, 3, 4, 6)
    ours = mae.patchify(torch.from_numpy(images), (2, 3)).numpy()
    assert ours.shape == (2, 4, 18)
    for b in range(2):
        for row in range(2):
            for column in range(2):
                patch = images[b, :, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
                np.testing.assert_array_equal(ours[b, 2 * row + column], patch.transpose(1, 2, 0).ravel())


@pytest.mark.parametrize("normalize", [True, False])
def test_the_loss_agrees_with_a_loop_over_patches_and_pixels(normalize):
    predicted, patches = random_rows(2, 3, 8, seed=1), random_rows(2, 3, 8, seed=2) * 4 + 1
    total = []
    for p, t in zip(predicted.reshape(-1, 8), patches.reshape(-1, 8), strict=True):
        mean = sum(t) / 8
        variance = sum((v - mean) ** 2 for v in t) / 7
        wanted = [(v - mean) / np.sqrt(variance + 1e-6) for v in t] if normalize else t
        total += [(a - b) ** 2 for a, b in zip(p, wanted, strict=True)]
    ours = mae.reconstruction_loss(torch.from_numpy(predicted), torch.from_numpy(patches), normalize=normalize)
    assert ours.item() == pytest.approx(np.mean(total), rel=1e-12)


@given(patches=st.integers(2, 40), seed=st.integers(0, 1000), data=st.data())
def test_masking_is_a_permutation_that_can_be_undone(patches, seed, data):
    visible = data.draw(st.integers(1, patches - 1))
    torch.manual_seed(seed)
    order, restore = mae.random_masking(3, patches, visible)
    numbers = torch.arange(patches).expand(3, -1)
    assert torch.equal(order.sort(dim=1).values, numbers)
    assert torch.equal(order.gather(1, restore), numbers)


def test_masks_differ_between_images_and_hit_every_patch_alike():
    torch.manual_seed(0)
    order, _ = mae.random_masking(4000, 16, 4)
    assert len({tuple(row) for row in order[:50].tolist()}) == 50
    share = torch.bincount(order[:, :4].flatten(), minlength=16) / 4000
    assert share.min() > 0.22
    assert share.max() < 0.28


def test_the_encoder_sees_a_quarter_of_the_patches():
    method, setup, batch = make()
    seen = []
    method.backbone.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    method.decoder.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    method(batch, step_of(0, setup))
    assert seen == [(8, 1 + 4, 48), (8, 1 + 16, 32)]  # a class token, 4 of 16 patches; then all


def test_with_every_patch_visible_the_encoder_gives_what_the_backbone_gives():
    method, _, batch = make()
    method.eval()
    images = batch.views[0]
    every = torch.stack([torch.randperm(16) for _ in images])
    with torch.no_grad():
        tokens = method._encode(images, every)
        wanted = method.backbone.forward_features(images)
    torch.testing.assert_close(tokens[:, 1:], mae.take(wanted[:, 1:], every), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tokens[:, 0], wanted[:, 0], rtol=1e-4, atol=1e-5)


def test_the_decoder_puts_tokens_back_where_their_patches_were():
    method, _, _ = make()
    decoder = method.decoder
    decoder.blocks, decoder.norm, decoder.pixels = (torch.nn.Identity() for _ in range(3))
    decoder.embed = torch.nn.Linear(48, 32, bias=False)
    with torch.no_grad():
        decoder.embed.weight.copy_(torch.eye(32, 48))
        decoder.mask_token.fill_(-1)
    order, restore = mae.random_masking(2, 16, 4)
    # The token of patch i is the number i + 1 throughout.
    tokens = torch.cat([torch.zeros(2, 1, 48), (order[:, :4, None] + 1.0).expand(-1, -1, 48)], dim=1)
    every = torch.arange(16).expand(2, -1)
    values = (decoder(tokens, restore, every) - decoder.positions).round()
    for image in range(2):
        seen = set(order[image, :4].tolist())
        wanted = [i + 1.0 if i in seen else -1.0 for i in range(16)]
        assert values[image, :, 0].tolist() == wanted
        assert values[image, :, -1].tolist() == wanted


def test_only_masked_patches_are_compared(monkeypatch):
    method, setup, batch = make()
    compared = []
    monkeypatch.setattr(mae, "reconstruction_loss", lambda p, t, normalize: compared.append(t) or p.mean())
    method(batch, step_of(0, setup))
    generators = image_generators(0, batch, step_of(0, setup))
    order = torch.cat([mae.random_masking(1, 16, 4, each)[0] for each in generators])
    patches = mae.patchify(batch.views[0], (8, 8))
    assert compared[0].shape == (8, 12, 192)
    torch.testing.assert_close(compared[0], mae.take(patches, order[:, 4:]))


def test_positions_are_fixed_sines_and_cosines_or_those_of_the_backbone():
    fixed, _, _ = make()
    assert not fixed.backbone.pos_embed.requires_grad
    assert not fixed.backbone.pos_embed[0, 0].any()
    # The first pair of patches differs along x only: half of the dimensions are the same.
    a, b = fixed.backbone.pos_embed[0, 1], fixed.backbone.pos_embed[0, 2]
    assert (a == b).sum() >= 24
    assert not torch.equal(a, b)
    torch.testing.assert_close((fixed.backbone.pos_embed[0, 1:] ** 2).sum(1), torch.full((16,), 24.0))
    learnt, _, _ = make(dataclasses.replace(CONFIG, positions="learnt"))
    assert learnt.backbone.pos_embed.requires_grad
    assert torch.equal(learnt.backbone.pos_embed, network(VIT).pos_embed)


def test_position_embeddings_that_were_loaded_stay():
    for positions, trained in (("sincos", False), ("learnt", True)):
        loaded, _, _ = make(dataclasses.replace(CONFIG, positions=positions), loaded=True)
        assert torch.equal(loaded.backbone.pos_embed, network(VIT).pos_embed)
        assert loaded.backbone.pos_embed.requires_grad is trained


@pytest.mark.parametrize("options", [",reg_tokens=2", ",class_token=False,global_pool=avg", ",no_embed_class=True",
                                     ",global_pool=avg", ",pre_norm=True", ",dynamic_img_size=True"])  # fmt: skip
def test_other_vision_transformers_train_all_their_parameters(options):
    method, setup, batch = make(backbone=VIT + options)
    method(batch, step_of(0, setup)).value.backward()
    assert [n for n, p in method.named_parameters() if p.requires_grad and p.grad is None] == []


def test_activation_checkpointing_changes_nothing():
    results = []
    for checkpointing in (False, True):
        method, setup, batch = make()
        method.backbone.set_grad_checkpointing(checkpointing)
        torch.manual_seed(3)
        method(batch, step_of(0, setup)).value.backward()
        results.append(method.backbone.blocks[0].attn.qkv.weight.grad)
    assert torch.equal(*results)


@pytest.mark.parametrize(("backbone", "sizes", "message"), [
    ("resnet18w0.125", (32,), "mae needs a plain vision transformer, which resnet18w0.125 is not"),
    ("timm:xcit_nano_12_p16_224,img_size=32", (32,), "plain vision transformer"),
    (VIT + ",global_pool=map,class_token=False", (32,), "plain vision transformer"),
])  # fmt: skip
def test_other_networks_are_refused_with_a_remedy(backbone, sizes, message):
    with pytest.raises(UsageError, match=message) as error:
        make(backbone=backbone, sizes=sizes)
    assert "timm:vit_base_patch16_224" in str(error.value)


def test_views_of_another_size_are_refused_with_a_remedy():
    module = network(VIT)
    setup = dataclasses.replace(setup_for(module, sizes=(32,)), backbone="timm:vit_x,img_size=32", sizes=(48,))
    with pytest.raises(UsageError, match="48 pixels a side") as error:
        mae.Method(module, CONFIG, setup)
    assert "timm:vit_x,img_size=48" in str(error.value)


@pytest.mark.parametrize(("changes", "message"), [
    ({"masked": 0.99}, "0 of 16 patches are visible"),
    ({"masked": 0.0}, "16 of 16"),
    ({"decoder_heads": 5}, "no multiple of decoder_heads=5"),
    ({"decoder_dim": 30, "decoder_heads": 5}, "method.decoder_dim is 30, no multiple of 4"),
])  # fmt: skip
def test_settings_that_cannot_be_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes))
