import dataclasses
import functools

import pytest
import torch
from helpers.training_samples import made, network, setup_for, step_of, train
from torch import nn
from torch.nn import functional

from sslbench.errors import UsageError, WeightsError
from sslbench.methods import beitv2
from sslbench.methods._parts.masks import filled_block_masks, image_generators
from sslbench.methods._parts.tokenizers import read_tokenizer

VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=3,embed_dim=64,num_heads=1,init_values=0.1"
CONFIG = beitv2.Config(tokenizer="random", smallest_block=2, early_blocks=1, head_blocks=2)

make = functools.partial(made, beitv2, CONFIG, sizes=(32,), backbone=VIT)


def attention(x, state, block):
    """One head, in the form of the authors' Attention: biases of queries and values only."""
    bias = torch.cat([state[f"{block}q_bias"], torch.zeros(64), state[f"{block}v_bias"]])
    q, k, v = functional.linear(x, state[f"{block}qkv.weight"], bias).chunk(3, dim=-1)
    weights = (q * 64**-0.5 @ k.mT).softmax(-1)
    return functional.linear(weights @ v, state[f"{block}proj.weight"], state[f"{block}proj.bias"])


def codes_by_hand(images, state):
    """The codes of images in [0, 1] by the tensors of a file, as modeling_vqkd.py computes them."""

    def linear(x, name):
        return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(x, name):
        return functional.layer_norm(x, (64,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-6)

    x = images * 255 / 127.5 - 1
    weight, bias = (state[f"encoder.patch_embed.proj.{leaf}"] for leaf in ("weight", "bias"))
    patches = functional.conv2d(x, weight, bias, stride=8).flatten(2).mT
    x = torch.cat([state["encoder.cls_token"].expand(len(x), -1, -1), patches], 1) + state["encoder.pos_embed"]
    for i in range(2):
        block = f"encoder.blocks.{i}."
        x = x + attention(norm(x, f"{block}norm1"), state, f"{block}attn.")
        x = x + linear(functional.gelu(linear(norm(x, f"{block}norm2"), f"{block}mlp.fc1")), f"{block}mlp.fc2")
    tokens = norm(x, "encoder.fc_norm")[:, 1:]
    rows = functional.normalize(
        linear(torch.tanh(linear(tokens, "encode_task_layer.0")), "encode_task_layer.2"), dim=-1
    )
    codes = state["quantize.embedding.weight"]
    return (rows[:, :, None] - codes).square().sum(-1).argmin(-1)


def published(side=32):
    """Random tensors under the names of vqkd_encoder_base_decoder_3x768x12_clip, of a small network."""
    torch.manual_seed(0)
    state = {"cls_token": torch.randn(1, 1, 64), "pos_embed": torch.randn(1, (side // 8) ** 2 + 1, 64)}
    shapes = {"patch_embed.proj": (64, 3, 8, 8), "fc_norm": (64,)}
    for i in range(2):
        shapes |= {f"blocks.{i}.{name}": (64,) for name in ("norm1", "norm2")}
        shapes |= {f"blocks.{i}.attn.proj": (64, 64), f"blocks.{i}.mlp.fc1": (256, 64)}
        shapes[f"blocks.{i}.mlp.fc2"] = (64, 256)
        state |= {f"blocks.{i}.attn.{name}": torch.randn(64) for name in ("q_bias", "v_bias")}
        state[f"blocks.{i}.attn.qkv.weight"] = torch.randn(192, 64) / 8
    state = {f"encoder.{key}": tensor for key, tensor in state.items()}
    shapes = {f"encoder.{name}": shape for name, shape in shapes.items()}
    for name, shape in {**shapes, "encode_task_layer.0": (64, 64), "encode_task_layer.2": (8, 64)}.items():
        state |= {
            f"{name}.weight": torch.randn(shape) / 8 + ("norm" in name),
            f"{name}.bias": torch.randn(shape[0]) / 8,
        }
    codes = functional.normalize(torch.randn(24, 8), dim=1)
    others = {"decoder.cls_token": torch.randn(1, 1, 64), "quantize.embedding.cluster_size": torch.zeros(24)}
    return {**state, "quantize.embedding.weight": codes, **others}


@pytest.fixture
def vqkd(tmp_path):
    torch.save({"model": published(), "epoch": 99}, tmp_path / "vqkd.pth")
    return str(tmp_path / "vqkd.pth")


def test_the_authors_tokenizer_gives_the_codes_of_their_forward_pass(vqkd):
    method, setup, batch = make(dataclasses.replace(CONFIG, tokenizer=vqkd))
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (setup.normalisation.mean, setup.normalisation.std))
    images = torch.cat([batch.views[0], torch.rand(40, 3, 32, 32) * 2 - 1])
    ours = method.tokenizer(beitv2.renormalise(images, setup.normalisation, method.tokenizer.preprocessing))
    wanted = codes_by_hand(images * std + mean, published())
    # Two codes may be equally near up to rounding.
    assert (ours == wanted).float().mean() > 0.99 and len(wanted.unique()) > 8


def test_the_loss_is_that_of_the_codes_of_masked_patches_twice():
    method, setup, batch = make()
    step, vit = step_of(0, setup), method.backbone
    first, second = [], []
    with torch.no_grad():
        ours = method(batch, step)
        for image, generator in zip(batch.views[0], image_generators(0, batch, step), strict=True):
            mask = filled_block_masks(1, (4, 4), 6, smallest=2, generator=generator)[0]
            codes = method.tokenizer(image[None])[0, mask]
            patches = vit.patch_embed(image[None])
            patches[0, mask] = method.mask_token
            early = vit.blocks[0](torch.cat([vit.cls_token, patches], 1) + vit.pos_embed)
            last = vit.blocks[2](vit.blocks[1](early))
            of_head = method.class_blocks(torch.cat([last[:, :1], early[:, 1:]], 1))
            for terms, tokens in ((first, last), (second, of_head)):
                logits = method.classifier(vit.norm(tokens)[0, 1:][mask])
                terms.append(functional.cross_entropy(logits, codes, reduction="none"))
    torch.testing.assert_close(ours.value, torch.cat(first).mean() + torch.cat(second).mean())
    torch.testing.assert_close(ours.parts["patch_loss"], torch.cat(first).mean())


def test_without_a_head_of_the_class_token_it_is_beit():
    method, setup, batch = make(dataclasses.replace(CONFIG, head_blocks=0))
    with torch.no_grad():
        loss = method(batch, step_of(0, setup))
    assert set(loss.parts) == {"accuracy"} and not list(method.class_blocks.parameters())


def test_random_codes_are_the_nearest_of_projected_pixels():
    method, _, batch = make()
    tokenizer = method.tokenizer
    codes = tokenizer(batch.views[0])
    image, patch = batch.views[0][0], 5  # in row 1 and column 1
    pixels = image[:, 8:16, 8:16].flatten()
    row = tokenizer.projection.flatten(1) @ pixels
    assert codes[0, patch] == functional.cosine_similarity(row[None], tokenizer.codes).argmax()
    assert codes.dtype == torch.int64 and len(codes.unique()) > 20


def test_the_codes_of_a_view_are_learnt_and_the_tokenizer_stays():
    method, setup, batch = make()
    before = {name: tensor.clone() for name, tensor in method.tokenizer.state_dict().items()}
    losses = train(method, batch, setup, 15)
    assert losses[-1] < 0.8 * losses[0]
    assert all(torch.equal(before[name], tensor) for name, tensor in method.tokenizer.state_dict().items())


def test_branches_start_smaller_in_later_blocks_unless_weights_were_loaded():
    method, _, _ = make()
    net = network(VIT)
    loaded = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    stds = [block.mlp.fc2.weight.detach().std() for block in (*method.backbone.blocks, *method.class_blocks)]
    assert [float(std / stds[0]) for std in stds] == pytest.approx([1, 0.707, 0.577, 0.707, 0.577], rel=0.05)
    beitv2.Method(net, CONFIG, setup_for(net, sizes=(32,), backbone=VIT, loaded=True))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize(("backbone", "changes", "message"), [
    ("resnet18w0.125", {}, "beitv2 needs a plain vision transformer"),
    (VIT, {"early_blocks": 2}, r"early_blocks=2 and head_blocks=2 are more than the 3 blocks"),
    (f"{VIT},class_token=False,global_pool=avg", {}, "has no class token, which the head of the class token needs"),
    (VIT, {"masked": 0.01}, "masks none or all of the 16 patches"),
    (VIT, {"tokenizer": "none.pth"}, "none.pth"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, changes, message):
    with pytest.raises((UsageError, WeightsError), match=message):
        make(dataclasses.replace(CONFIG, **changes), backbone=backbone)


@pytest.mark.parametrize(("change", "message"), [
    (lambda state: state, "has 8 x 8 patches of images of 64 pixels, the backbone 4 x 4 of views of 32"),
    (lambda state: {k: v for k, v in state.items() if "v_bias" not in k}, "without its v_bias"),
    (lambda state: {k: v for k, v in state.items() if k != "encode_task_layer.2.bias"}, "both layers of encode_task"),
    (lambda state: {k: v for k, v in state.items() if "fc_norm" not in k}, "fc_norm|norm.weight"),
])  # fmt: skip
def test_a_tokenizer_that_does_not_fit_is_told(tmp_path, change, message):
    torch.save({"model": change(published(64))}, tmp_path / "vqkd.pth")
    net = network(VIT)
    with pytest.raises((UsageError, WeightsError), match=message):
        read_tokenizer(str(tmp_path / "vqkd.pth"), net, setup_for(net, sizes=(32,), backbone=VIT), method="beitv2")


@pytest.mark.parametrize("codes", [torch.ones(24, 7), torch.full((24, 8), torch.nan), torch.ones(8), torch.ones(1, 8)])
def test_codes_that_do_not_fit_are_told(tmp_path, codes):
    torch.save({"model": {**published(), "quantize.embedding.weight": codes}}, tmp_path / "vqkd.pth")
    net = network(VIT)
    with pytest.raises(WeightsError, match="is no tokenizer: encoder, projection and codes"):
        read_tokenizer(str(tmp_path / "vqkd.pth"), net, setup_for(net, sizes=(32,), backbone=VIT), method="beitv2")


def test_weights_without_a_tokenizer_are_told(tmp_path):
    torch.save(nn.Linear(3, 3).state_dict(), tmp_path / "w.pth")
    net = network(VIT)
    with pytest.raises(WeightsError):
        read_tokenizer(str(tmp_path / "w.pth"), net, setup_for(net, sizes=(32,), backbone=VIT), method="beitv2")
