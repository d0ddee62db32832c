"""Variants of Barlow Twins, DINO and MAE that contracts/test_contract_methods.py does not have, on tiny networks."""

import dataclasses
import io

import pytest
import torch
from helpers.training_samples import batch_of, network, setup_for, step_of

from sslbench.errors import UsageError
from sslbench.methods import barlow_twins, byol, dino, mae, simsiam, vicreg

RESNET = "resnet18w0.125"
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"
TWO = (32, 32)
CROPS = (32, 32, 16, 16)
HEAD = dino.Config(prototypes=24, hidden=(32, 32), bottleneck=16, frozen_epochs=0)
OTHER_HEAD = dataclasses.replace(HEAD, head_norm=True, normalize_last_layer=False)
CASES = {
    "byol": (byol, byol.Config(projector=(32, 16), predictor=(32,)), TWO, RESNET),
    "simsiam": (simsiam, simsiam.Config(projector=(32, 32, 16), predictor=(8,)), TWO, RESNET),
    "barlow_twins": (barlow_twins, barlow_twins.Config(projector=(32, 32, 16)), TWO, RESNET),
    "barlow_twins_vissl": (
        barlow_twins,
        barlow_twins.Config(projector=(32, 16), normalisation="vissl", scale=1),
        TWO,
        RESNET,
    ),
    "vicreg": (vicreg, vicreg.Config(projector=(32, 32, 16)), TWO, RESNET),
    "dino": (dino, HEAD, CROPS, RESNET),
    "dino_other_head": (dino, OTHER_HEAD, CROPS, RESNET),
    "mae_learnt": (
        mae,
        mae.Config(decoder_dim=32, decoder_depth=1, decoder_heads=4, positions="learnt", normalize_targets=False),
        TWO,
        VIT,
    ),
}

every_variant = pytest.mark.parametrize("name", ["barlow_twins_vissl", "dino", "dino_other_head", "mae_learnt"])


def build(name, *, seed=0):
    """A method, its setup and a batch."""
    module, config, sizes, backbone = CASES[name]
    backbone = network(backbone, seed=seed)
    setup = setup_for(backbone, sizes=sizes)
    torch.manual_seed(seed)
    return module.Method(backbone, config, setup), setup, batch_of(setup)


def train(method, setup, batch, updates, *, lr=1e-3):
    """The loss of every update; AdamW, as transformers want it."""
    optimizer = torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=lr)
    losses = []
    for index in updates:
        optimizer.zero_grad()
        loss = method(batch, step_of(index, setup))
        loss.value.backward()
        method.before_update(step_of(index, setup))
        optimizer.step()
        method.after_update(step_of(index, setup))
        losses.append(loss.value.item())
    return losses


@every_variant
def test_twenty_updates_on_one_batch_lower_the_loss(name):
    method, setup, batch = build(name)
    if name.startswith("dino"):
        # A centre that moves changes the task: the loss of a network that starts almost collapsed then has to rise.
        method.config = dataclasses.replace(method.config, center_momentum=1.0)
    losses = train(method, setup, batch, range(20))
    assert all(torch.isfinite(torch.tensor(losses)))
    assert sum(losses[-5:]) < sum(losses[:5]), losses


@every_variant
def test_every_trainable_parameter_takes_part_and_nothing_else_gets_a_gradient(name):
    method, setup, batch = build(name)
    loss = method(batch, step_of(0, setup))
    loss.value.backward()
    assert [n for n, p in method.named_parameters() if p.requires_grad and p.grad is None] == []
    assert [n for n, p in method.named_parameters() if not p.requires_grad and p.grad is not None] == []
    assert loss.value.dim() == 0
    assert loss.embeddings.dim() == 2
    assert len(loss.embeddings) % len(batch.indices) == 0
    assert not loss.embeddings.requires_grad
    assert not any(part.requires_grad or part.dim() for part in loss.parts.values())


@every_variant
def test_a_saved_method_goes_on_exactly_as_the_one_that_was_not_stopped(name):
    method, setup, batch = build(name)
    train(method, setup, batch, range(2))
    file = io.BytesIO()
    torch.save(method.state_dict(), file)
    file.seek(0)
    other, _, _ = build(name, seed=1)
    other.load_state_dict(torch.load(file, weights_only=True))
    results = []
    for one in (method, other):
        torch.manual_seed(7)
        results.append(train(one, setup, batch, (2, 3)))
    assert results[0] == results[1]
    ours, theirs = method.state_dict(), other.state_dict()
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())
    assert method.local_state() == {}


@every_variant
def test_what_may_be_exported_loads_strictly_into_a_new_backbone(name):
    _, _, _, backbone = CASES[name]
    method, setup, batch = build(name)
    train(method, setup, batch, range(1))
    exported = method.exports()
    assert exported
    for module in exported.values():
        assert not any(network(backbone).load_state_dict(module.state_dict()))


@every_variant
def test_half_precision_networks_do_not_lower_the_precision_of_the_loss(name):
    method, setup, batch = build(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = method(batch, step_of(0, setup))
    loss.value.backward()
    assert loss.value.dtype == torch.float32
    assert torch.isfinite(loss.value)


@pytest.mark.parametrize("name", ["byol", "barlow_twins", "vicreg"])
def test_methods_for_two_views_refuse_other_numbers_and_single_images(name):
    module, config, _, _ = CASES[name]
    backbone = network()
    with pytest.raises(UsageError, match=f"{name} takes 2 views of every image, the augmentation makes 1"):
        module.Method(backbone, config, setup_for(backbone, sizes=(32,)))
    with pytest.raises(UsageError, match="batch_size"):
        module.Method(backbone, config, setup_for(backbone, images=1))


@pytest.mark.parametrize(("name", "copies"), [("byol", "target_"), ("dino", "teacher_")])
def test_momentum_copies_follow_and_are_left_alone_by_the_optimizer(name, copies):
    method, setup, batch = build(name)
    pairs = [(n.removeprefix(copies), p) for n, p in method.named_parameters() if n.startswith(copies)]
    assert pairs
    assert not any(p.requires_grad for _, p in pairs)
    online = dict(method.named_parameters())
    before = {n: p.clone() for n, p in pairs}
    assert all(torch.equal(before[n], online[n]) for n in before)
    train(method, setup, batch, range(1), lr=0.1)
    for n, p in pairs:
        torch.testing.assert_close(p, 0.996 * before[n] + 0.004 * online[n], rtol=1e-5, atol=1e-6)
    assert any(not torch.equal(p, before[n]) for n, p in pairs)
    assert list(method.exports()) == (["student", "teacher"] if name == "byol" else ["teacher", "student"])
