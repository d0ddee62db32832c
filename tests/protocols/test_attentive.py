"""Heads that attend to tokens: their mathematics beside keys and values computed per token, training, refusals."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from helpers.online_samples import PLAIN, pictures, small
from timm.layers import AttentionPoolLatent
from torch import nn
from torch.nn import functional

from sslbench.backbones.attention import Attention
from sslbench.backbones.build import build
from sslbench.backbones.classifier import ClassifierHead
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.data.loading.probing import EpochBatches
from sslbench.data.views import View
from sslbench.errors import UsageError
from sslbench.features.array import ExtractSettings
from sslbench.protocols import ImageInputs, finetune, linear_online
from sslbench.protocols.linear_online.heads import AttentiveBank, Head, first_weights

B, N, D, H = 3, 11, 32, 4


def randomised(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    return module


def attended(pool, tokens, queries):
    """Keys and values of every token, and torch's own attention."""
    keys, values = pool.key(tokens), pool.value(tokens)
    q = queries.expand(len(tokens), -1, -1)
    parts = [each.unflatten(2, (pool.heads, -1)).transpose(1, 2) for each in (q, keys, values)]
    return functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("queries", [1, 3])
def test_attention_equals_keys_and_values_of_every_token(queries):
    torch.manual_seed(0)
    pool, tokens = randomised(Attention("attentive", queries, H).pool(D)), torch.randn(B, N, D)
    wanted = attended(pool, tokens, pool.queries).mean(1)
    torch.testing.assert_close(pool(tokens), wanted, rtol=1e-5, atol=1e-5)
    functional.mse_loss(pool(tokens), torch.zeros(B, D)).backward()
    gradient = pool.key.weight.grad.clone()
    pool.zero_grad()
    functional.mse_loss(attended(pool, tokens, pool.queries).mean(1), torch.zeros(B, D)).backward()
    torch.testing.assert_close(gradient, pool.key.weight.grad, rtol=1e-4, atol=1e-6)


def test_map_is_the_pool_that_siglip_has_in_timm():
    torch.manual_seed(0)
    theirs = randomised(AttentionPoolLatent(D, num_heads=H, norm_layer=partial(nn.LayerNorm, eps=1e-6)))
    pool, tokens = Attention("map", heads=H).pool(D), torch.randn(B, N, D)
    named = {"q": "query", "proj": "output", "norm": "norm", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
    for name, own in named.items():
        pool.get_submodule(own).load_state_dict(theirs.get_submodule(name).state_dict())
    with torch.no_grad():
        pool.queries.copy_(theirs.latent[0])
        pool.key.weight.copy_(theirs.kv.weight[:D])
        pool.value.weight.copy_(theirs.kv.weight[D:])
        pool.value.bias.copy_(theirs.kv.bias[D:])
    torch.testing.assert_close(pool(tokens), theirs(tokens), rtol=1e-5, atol=1e-5)


def test_block_is_a_transformer_block_of_the_queries_after_blocks_of_the_tokens():
    torch.manual_seed(0)
    pool, tokens = randomised(Attention("block", 2, H, depth=3).pool(D)).double(), torch.randn(B, N, D).double()
    x = tokens
    for block in pool.blocks:
        qkv = block.attn.qkv(block.norm1(x)).unflatten(2, (3, H, -1)).permute(2, 0, 3, 1, 4)
        scores = (qkv[0] @ qkv[1].transpose(2, 3) / (D / H) ** 0.5).softmax(3)
        x = x + block.attn.proj((scores @ qkv[2]).transpose(1, 2).flatten(2))
        x = x + block.mlp.fc2(functional.gelu(block.mlp.fc1(block.norm2(x))))
    y = pool.queries + attended(pool, pool.norm1(x), pool.query(pool.queries))
    y = y + pool.mlp.fc2(functional.gelu(pool.mlp.fc1(pool.norm2(y))))
    torch.testing.assert_close(pool(tokens), y.mean(1))
    with torch.no_grad():  # without activations computed again
        torch.testing.assert_close(pool(tokens), y.mean(1))


class Marked(nn.Module):
    """A map (B, 12, 8, 8) before ReLU and average."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 12, 3)
        self.bn = nn.BatchNorm2d(12)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x))).mean((2, 3))


QUICK = linear_online.Settings(
    epochs=6, batch_size=8, lr=(0.01,), lr_scaling="none", flip=0.0, optimizer="adamw", head="attentive"
)


def online(folder, *, train=None, test=None, layers=("bn",), seed=0, backbone=None, **changes):
    backbone = small(Marked()) if backbone is None else backbone
    return linear_online.run_on_images(
        ImageInputs(
            dataclasses.replace(QUICK, **changes),
            seed,
            pictures(48, 1) if train is None else train,
            pictures(48, 2) if test is None else test,
            backbone,
            resolve_layers(backbone, layers),
            ExtractSettings(torch.device("cpu"), batch_size=8, workers=0),
            folder,
            None,
        )
    )


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_each_head_equals_a_plain_loop_of_torch(tmp_path, norm):
    """The slow oracle: keys and values of every token, one optimizer per head, on the same batches."""
    changes = {"lr": (0.001, 0.03), "weight_decay": (0.0, 0.5), "betas": (0.8, 0.9), "decay_bias": False}
    settings = {"epochs": 3, "norm": norm, "select_on": "test", "queries": 2, "attention_heads": 3, **changes}
    (outcome,) = online(tmp_path, **settings).values()
    found = {
        f"lr={lr:g} weight_decay={decay:g}": plain_loop(lr, decay, norm) for lr in (0.001, 0.03) for decay in (0.0, 0.5)
    }
    choice = f"lr={outcome.selected['lr']:g} weight_decay={outcome.selected['weight_decay']:g}"
    scores = found.pop(choice)
    np.testing.assert_allclose(outcome.scores, scores, atol=1e-4 * np.abs(scores).max(), rtol=0)
    truth = pictures(48, 2).target.values
    assert {name: value["top1"] for name, value in outcome.variants.items()} == {
        name: pytest.approx(np.mean(each.argmax(1) == truth), abs=1e-6) for name, each in found.items()
    }


def plain_loop(lr, decay, norm):
    module, train, test = Marked().eval(), pictures(48, 1), pictures(48, 2)
    data = EpochBatches(train, View(size=10, flip=0.0), size=10, batch_size=8, piece=100, seed=0)
    bank = AttentiveBank(
        "x", [Head(lr)], Attention("attentive", 2, 3), width=12, first=first_weights("normal", 4, 12, seed=0), seed=0
    )
    head = bank.each[0]
    standardise = nn.BatchNorm1d(12, affine=False) if norm == "batch" else nn.Identity()
    biases = [parameter for name, parameter in head.named_parameters() if name.endswith("bias")]
    others = [parameter for name, parameter in head.named_parameters() if not name.endswith("bias")]
    groups = [{"params": others, "weight_decay": decay}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.8, 0.9))

    def scores(images):
        with torch.no_grad():
            tokens = module.bn(module.conv((images.float() / 255 - 0.5) / 0.25)).flatten(2)
        pool = head.pool
        return head.head(attended(pool, standardise(tokens).transpose(1, 2), pool.queries).mean(1))

    for index, (piece,) in enumerate(data.batches(0, 18)):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 + np.cos(np.pi * index / 18)) / 2
        loss = functional.cross_entropy(scores(piece.views[0]), piece.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    standardise.eval()
    images = torch.stack([torch.from_numpy(test.images.read(i)) for i in range(len(test))]).permute(0, 3, 1, 2)
    return scores(images).detach().numpy()


@pytest.mark.parametrize("head", ["attentive", "map", "block"])
def test_a_mark_at_any_place_is_found(tmp_path, head):
    """The class is the colour of one place of an image full of the other colours, which a mean hardly shows."""
    train, test = marked(128, 1), marked(96, 2)
    settings = {"head": head, "epochs": 15, "batch_size": 16, "lr": (0.02,), "depth": 2 if head == "block" else 1}
    (outcome,) = online(tmp_path / "a", train=train, test=test, **settings).values()
    value, low, high = outcome.metrics["top1"]
    assert value > 0.7 and low <= value <= high


def test_nothing_is_learned_from_shuffled_labels(tmp_path):
    train = marked(128, 1)
    mixed = np.random.default_rng(0).permutation(train.target.values)
    train = dataclasses.replace(train, target=train.target.changed(values=mixed))
    (chance,) = online(tmp_path, train=train, test=marked(96, 2), epochs=2).values()
    assert 0.02 < chance.metrics["top1"][0] < 0.55


def marked(n, seed):
    source = pictures(n, seed, noise=0)
    colours = np.stack([source.images.read(i)[0, 0] for i in range(4)])
    rng = np.random.default_rng(seed)
    array = rng.integers(100, 150, (n, 10, 10, 3)).astype(np.uint8)
    for i, (y, x) in enumerate(rng.integers(0, 7, (n, 2))):
        array[i, y : y + 3, x : x + 3] = colours[source.target.values[i]]
    images = type(source.images)(array, f"marks {seed}")
    return dataclasses.replace(source, images=images)


def test_resnets_attend_to_the_places_of_the_last_map_and_finetune_trains_through_them(tmp_path):
    backbone = dataclasses.replace(build("resnet_basic_1-1-1-1w0.125_cifar"), preprocessing=PLAIN)
    (row,) = online(tmp_path, backbone=backbone, layers=(), epochs=1)
    assert row == "res5:patches"
    settings = finetune.Settings(updates=2, batch_size=16, head="map", lr=(0.01,), norm="batch")
    layers = resolve_layers(backbone, ())
    engine = ExtractSettings(torch.device("cpu"), batch_size=8, workers=0)
    inputs = ImageInputs(settings, 0, pictures(32, 1), pictures(16, 2), backbone, layers, engine, tmp_path, None)
    (outcome,) = finetune.run_on_images(inputs).values()
    tensors = outcome.weights.heads
    assert {"pool.queries", "pool.mlp.fc1.weight", "norm.running_mean", "head.weight"} <= set(tensors)


def test_patches_leave_out_class_and_register_tokens():
    backbone = build("timm:vit_tiny_patch16_224")
    head = ClassifierHead(192, 5, "layer", Attention("attentive", heads=3))
    found = {}
    for pool in ("tokens", "patches"):
        (layer,) = resolve_layers(backbone, (f"blocks.11:{pool}",), tokens=True)
        features = forward_layers(backbone.module.eval(), torch.zeros(1, 3, 224, 224), (layer,))[layer.text]
        found[pool] = tuple(features.shape)
        assert head(features).shape == (1, 5)
    assert found == {"tokens": (1, 197, 192), "patches": (1, 196, 192)}
    with pytest.raises(UsageError, match=r"(?s)keeps a vector per token.*head=attentive"):
        resolve_layers(backbone, ("blocks.11:patches",))


@pytest.mark.parametrize(
    ("protocol", "values", "words"),
    [
        (linear_online, {"queries": 2}, "linear-online: queries has no effect with head=linear"),
        (linear_online, {"head": "attentive", "mlp_ratio": 2.0}, "mlp_ratio has no effect.*\n.*head=map or head=block"),
        (linear_online, {"head": "map", "depth": 2}, "depth has no effect with head=map"),
        (linear_online, {"head": "map", "queries": 0}, "queries should be 1 or more, not 0"),
        (linear_online, {"head": "map", "norm": "affine"}, "norm=affine needs head=linear"),
        (linear_online, {"head": "map", "blocks": (1,)}, "blocks needs head=linear"),
        (linear_online, {"betas": (0.9, 0.95)}, "betas has no effect with optimizer=sgd"),
        (finetune, {"tokens": "all"}, "finetune: tokens has no effect with head=linear"),
    ],
)
def test_settings_without_effect_are_refused(protocol, values, words):
    with pytest.raises(UsageError, match=words):
        protocol.Settings(**values)


@pytest.mark.parametrize(
    ("layers", "changes", "words"),
    [
        (("bn:max",), {}, "attends to the tokens.*'bn:max' has one vector.*\n.*without a pool: bn"),
        ((), {}, "no layer that is known to have a grid"),
        (("bn",), {"attention_heads": 5}, "attention_heads=5 do not divide the 12 features"),
    ],
)
def test_layers_that_have_no_tokens_are_refused(tmp_path, layers, changes, words):
    with pytest.raises(UsageError, match=words):
        online(tmp_path, layers=layers, **changes)
