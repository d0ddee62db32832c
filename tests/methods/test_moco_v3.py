import dataclasses
import math

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import (
    batch_of,
    gradient,
    network,
    random_rows,
    setup_for,
    step_of,
    unit,
)

from sslbench.errors import UsageError
from sslbench.methods import moco_v3

SMALL = {"projector": (16, 8), "predictor": (16,)}
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


def slow_contrastive(query, keys, own, temperature):
    q, k = unit(query), unit(keys)
    terms = []
    for i, row in enumerate(q):
        exponentials = [math.exp(row @ key / temperature) for key in k]
        terms.append(-math.log(exponentials[own + i] / sum(exponentials)))
    return 2 * temperature * float(np.mean(terms))


def test_equals_the_formula():
    query, key = random_rows(4, 6), random_rows(4, 6, seed=1)
    ours = moco_v3.contrastive(torch.from_numpy(query), torch.from_numpy(key), 0.2)
    assert ours.item() == pytest.approx(slow_contrastive(query, key, 0, 0.2), rel=1e-12)


def _one_of_two(rank, query, key):
    mine = slice(3 * rank, 3 * rank + 3)
    return gradient(lambda q: moco_v3.contrastive(q, torch.from_numpy(key[mine]), 0.2), query[mine])


def test_two_processes_equal_one():
    query, key = random_rows(6, 5), random_rows(6, 5, seed=1)
    value, slope = gradient(lambda q: moco_v3.contrastive(q, torch.from_numpy(key), 0.2), query)
    (first, first_slope), (second, second_slope) = two_processes.run(_one_of_two, query, key)
    assert second == pytest.approx(slow_contrastive(query[3:], key, 3, 0.2), rel=1e-12)
    assert (first + second) / 2 == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(np.concatenate([first_slope, second_slope]) / 2, slope, atol=1e-14)


def test_the_patch_projection_can_be_trained():
    setup = setup_for(network(VIT))
    method = moco_v3.Method(
        network(VIT), moco_v3.Config(freeze_patch_projection=False, positions="learnt", **SMALL), setup
    )
    assert all(p.requires_grad for p in method.backbone.parameters())


def test_both_directions_count():
    setup = setup_for(network(), images=4)
    method = moco_v3.Method(network(), moco_v3.Config(**SMALL), setup).eval()
    one, other = batch_of(setup).views
    with torch.no_grad():
        ours = method(batch_of(setup), step_of(0, setup)).value.item()
        q = [method.predictor(method.projector(method.backbone(view))).numpy() for view in (one, other)]
        k = [method.key_projector(method.key_backbone(view)).numpy() for view in (one, other)]
    wanted = slow_contrastive(q[0], k[1], 0, 1.0) + slow_contrastive(q[1], k[0], 0, 1.0)
    assert ours == pytest.approx(wanted, rel=1e-5)


def test_the_heads_are_those_of_the_paper():
    setup = setup_for(network())
    method = moco_v3.Method(network(), moco_v3.Config(**SMALL), setup)
    norms = [m for m in method.projector if isinstance(m, torch.nn.BatchNorm1d)]
    assert [norm.affine for norm in norms] == [True, False]
    assert [m.affine for m in method.predictor if isinstance(m, torch.nn.BatchNorm1d)] == [True]
    assert all(m.bias is None for m in [*method.projector, *method.predictor] if isinstance(m, torch.nn.Linear))


def test_momentum_rises_to_one():
    setup = setup_for(network())
    method = moco_v3.Method(network(), moco_v3.Config(momentum=0.5, **SMALL), setup)
    with torch.no_grad():
        for p in method.projector.parameters():
            p.add_(1)
    copy = next(method.key_projector.parameters())
    before = copy.clone()
    method.after_update(step_of(0, setup))
    torch.testing.assert_close(copy - before, torch.full_like(copy, 0.5))
    before = copy.clone()
    method.after_update(step_of(setup.steps, setup))
    assert torch.equal(copy, before)


def test_three_views_are_refused():
    backbone = network()
    with pytest.raises(UsageError, match="moco_v3 takes 2 views"):
        moco_v3.Method(backbone, moco_v3.Config(**SMALL), setup_for(backbone, sizes=(32, 32, 32)))


@pytest.mark.parametrize(("positions", "loaded"), [("sincos", False), ("sincos", True), ("learnt", False)])
def test_positions_of_a_vit_are_fixed_loaded_or_learnt(positions, loaded):
    setup = dataclasses.replace(setup_for(network(VIT)), loaded=loaded)
    vit = moco_v3.Method(network(VIT), moco_v3.Config(positions=positions, **SMALL), setup).backbone
    assert vit.pos_embed.requires_grad is (positions == "learnt")
    kept = positions == "learnt" or loaded
    assert torch.equal(vit.pos_embed, network(VIT).pos_embed) is kept
    assert torch.equal(vit.blocks[0].attn.qkv.weight, network(VIT).blocks[0].attn.qkv.weight) is loaded
    if not kept:
        torch.testing.assert_close((vit.pos_embed[0, 1:] ** 2).sum(1), torch.full((16,), 24.0))


def test_a_width_without_sines_and_cosines_is_refused():
    backbone = VIT.replace("embed_dim=48,num_heads=3", "embed_dim=42,num_heads=3")
    with pytest.raises(UsageError, match=r"no multiple of 4(.|\n)*method.positions=learnt"):
        moco_v3.Method(network(backbone), moco_v3.Config(**SMALL), setup_for(network(backbone)))
