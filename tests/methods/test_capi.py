import dataclasses
import functools

import pytest
import torch
from helpers.training_samples import made, step_of

from sslbench.errors import UsageError
from sslbench.methods import capi
from sslbench.methods._parts.masks import image_generators
from sslbench.train.method import Step

CONFIG = capi.Config(prototypes=12, predictor_depth=2, predictor_heads=3, predicted=0.3, drop_path=0.0)
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"
REGISTERS = f"{VIT},class_token=False,reg_tokens=4,global_pool=avg,fc_norm=False"


make = functools.partial(made, capi, CONFIG, sizes=(32,), backbone=REGISTERS)


def assigned(logits):
    """Assignments of the images at one position (B, K): plain Sinkhorn iterations."""
    q = (logits.double() / 0.06).exp()
    for _ in range(3):
        q = q / q.sum(0)
        q = q / q.sum(1, keepdim=True)
    return q


def turned(vector, row, column):
    """A vector of a head (16,) with its rotary position, by pairs of entries."""
    waves = [7 * (7 / 7e-4) ** -(i / 3) for i in range(4)]
    angles = 2 * torch.pi * torch.tensor([row * w for w in waves * 2] + [column * w for w in waves * 2])
    out = torch.empty(16)
    for i in range(8):
        out[i] = vector[i] * angles[i].cos() - vector[i + 8] * angles[i].sin()
        out[i + 8] = vector[i + 8] * angles[i + 8].cos() + vector[i] * angles[i + 8].sin()
    return out


def predicted_by_loops(predictor, tokens, token_places, place):
    """The prediction of one patch from the tokens (n, 48) of an image."""
    x = predictor.mask_token[0, 0]
    for block in predictor.blocks:
        query = block.query(block.norm1(x)).view(3, 16)
        keys, values = block.key_value(tokens).view(len(tokens), 2, 3, 16).unbind(1)
        heads = []
        for head in range(3):
            turned_query = turned(query[head], *place)
            scores = [turned_query @ turned(k, *p) / 4 for k, p in zip(keys[:, head], token_places, strict=True)]
            heads.append(torch.stack(scores).softmax(0) @ values[:, head])
        x = x + block.project(torch.cat(heads))
        x = x + block.mlp(block.norm2(x))
    return x / (x.square().mean() + 1e-5).sqrt()


def test_the_loss_is_that_of_predictions_patch_by_patch():
    method, setup, batch = make()
    step, edges = step_of(0, setup), [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]
    with torch.no_grad():
        ours = method(batch, step)
        teacher = method._tokens(method.teacher_backbone, batch.views[0])[:, 4:]
        logits = method.clusters(teacher / teacher.norm(dim=-1, keepdim=True))
        targets = torch.stack([assigned(logits[:, position]) for position in range(16)], 1)
        of_clusters = -(targets * (logits.double() / 0.12).log_softmax(-1)).sum(-1).mean()
        errors = []
        directions = method.prototypes.direction / method.prototypes.direction.norm(dim=1, keepdim=True)
        for i, generator in enumerate(image_generators(0, batch, step)):
            visible, wanted = (part[0].tolist() for part in method._draw(1, generator))
            assert len(visible) == 6 and len(wanted) == 3 and not set(visible) & set(wanted)
            tokens = method._tokens(method.backbone, batch.views[0][i : i + 1], torch.tensor([visible]))[0]
            seen = [(p // 4 / 3, p % 4 / 3) for p in visible]
            (top, left), (bottom, right) = (tuple(map(pick, zip(*seen, strict=True))) for pick in (min, max))
            corners = [(top + a * (bottom - top), left + b * (right - left)) for a, b in edges]
            for patch in wanted:
                x = predicted_by_loops(method.predictor, tokens, corners + seen, (patch // 4 / 3, patch % 4 / 3))
                scores = method.prototypes.length[:, 0] * (directions @ (x / x.norm())) / 0.12
                errors.append(-(targets[i, patch] * scores.log_softmax(0)).sum())
    torch.testing.assert_close(ours.parts["cluster_loss"].double(), of_clusters, rtol=1e-4, atol=0)
    torch.testing.assert_close(ours.parts["patch_loss"].double(), torch.stack(errors).mean(), rtol=1e-4, atol=0)
    assert float(ours.value) == pytest.approx(float(of_clusters + torch.stack(errors).mean()), rel=1e-4)


def test_targets_get_no_gradient_from_the_prediction_and_clusters_none_from_the_encoder():
    method, setup, batch = make()
    loss = method(batch, step_of(0, setup))
    loss.value.backward()
    alone = method.clusters.weight.grad.clone()
    method.zero_grad()
    with torch.no_grad():
        for parameter in method.predictor.parameters():
            parameter.mul_(1.5)
    method(batch, step_of(0, setup)).value.backward()
    torch.testing.assert_close(method.clusters.weight.grad, alone)
    assert all(parameter.grad is None for parameter in method.teacher_backbone.parameters())


def test_the_teacher_stands_still_at_first_and_at_most_moves_by_its_momentum():
    method, _, _ = make(dataclasses.replace(CONFIG, momentum=0.5))
    found = []
    for index in (0, 5, 10, 55, 99):
        weight = method.teacher_backbone.blocks[0].mlp.fc1.weight
        before = weight.clone()
        with torch.no_grad():
            method.backbone.blocks[0].mlp.fc1.weight.copy_(before + 1)
        method.after_update(Step(index, 100, 10))
        found.append(float((weight - before).mean()))
    assert found[:3] == pytest.approx([0.0, 0.25, 0.5], abs=1e-5)
    assert found[3] == pytest.approx(0.25 * (1 + 0.30902), abs=1e-4)  # cos(0.4 pi)
    assert 0.047 < found[4] < 0.06  # not 0: the wave stops at 0.8


@pytest.mark.parametrize(("backbone", "changes", "message"), [
    ("resnet18w0.125", {}, "capi needs a plain vision transformer"),
    (VIT, {"predictor_heads": 16}, "Set method.predictor_heads=4"),
    (VIT, {"masked": 0.01}, "masks none or all of the 16 patches"),
    (f"{VIT},drop_path_rate=0.1", {"drop_path": 0.1}, "replaces the stochastic depth"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, changes, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes), backbone=backbone)
