import dataclasses
import functools

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import made, network, random_rows, setup_for, step_of
from torch import nn

from sslbench.errors import UsageError
from sslbench.methods import dino
from sslbench.methods._parts import self_distillation
from sslbench.train.method import Batch, Setup, Step

CONFIG = dino.Config(prototypes=24, hidden=(32, 32), bottleneck=16)
CROPS = (32, 32, 16, 16, 16)
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


make = functools.partial(made, dino, CONFIG, sizes=CROPS)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def oracle(student, logits, center, *, temperature, teacher_temperature):
    """Equations 1 and 3: every pair of different views, image by image."""
    terms = []
    for t in range(len(logits)):
        for v in range(len(student)):
            if v != t:
                for image in range(len(student[v])):
                    q = softmax((logits[t][image] - center) / teacher_temperature)
                    p = softmax(student[v][image] / temperature)
                    terms.append(-sum(q[k] * np.log(p[k]) for k in range(len(q))))
    return np.mean(terms)


@pytest.mark.parametrize(("views", "teachers"), [(2, 2), (5, 2), (3, 1), (4, 3), (2, 1)])
def test_the_loss_agrees_with_a_loop_over_all_pairs(views, teachers):
    student, logits, center = random_rows(views, 3, 6), random_rows(teachers, 3, 6, seed=1), random_rows(6, seed=2)
    teacher = dino.teacher_probabilities(torch.from_numpy(logits), torch.from_numpy(center), temperature=0.06)
    ours = dino.dino_loss(torch.from_numpy(student), teacher, temperature=0.2).item()
    assert ours == pytest.approx(oracle(student, logits, center, temperature=0.2, teacher_temperature=0.06), rel=1e-10)


def test_the_centre_follows_the_mean_of_the_teachers_logits_after_the_update():
    method, setup, batch = make()
    with torch.no_grad():
        views = batch.views[:2]
        method.train()
        rows = torch.cat([method.teacher_head(f)[0] for f in dino.encode(method.teacher_backbone, views)])
    method(batch, step_of(0, setup))
    assert not method.center.any(), "the loss of this update needs the centre as it was"
    method.after_update(step_of(0, setup))
    torch.testing.assert_close(method.center, 0.1 * rows.mean(0), rtol=1e-4, atol=1e-6)
    before = method.center.clone()
    method.after_update(step_of(1, setup))
    assert torch.equal(method.center, before), "no forward pass, no new logits"


def test_two_passes_for_one_update_count_as_one_batch():
    whole, setup, batch = make(backbone=VIT, sizes=(32, 32))
    halves, _, _ = make(backbone=VIT, sizes=(32, 32))
    whole(batch, step_of(0, setup))
    for part in (slice(0, 4), slice(4, 8)):
        halves(Batch(tuple(v[part] for v in batch.views), None, batch.indices[part]), step_of(0, setup))
    whole.after_update(step_of(0, setup))
    halves.after_update(step_of(0, setup))
    torch.testing.assert_close(whole.center, halves.center)


def test_the_last_layer_stands_still_during_the_first_epoch_only():
    method, setup, batch = make(steps_per_epoch=3)
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    start = method.head.last_layer.direction.clone()
    moved = []
    for index in range(5):
        optimizer.zero_grad()
        method(batch, step_of(index, setup)).value.backward()
        method.before_update(step_of(index, setup))
        optimizer.step()
        method.after_update(step_of(index, setup))
        moved.append(not torch.equal(start, method.head.last_layer.direction))
    assert moved == [False, False, False, True, True]
    assert method.head.mlp[0].weight.grad is not None


def test_the_teacher_sees_only_its_own_views():
    method, setup, batch = make()
    seen = []
    method.teacher_backbone.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    method(batch, step_of(0, setup))
    assert seen == [(16, 3, 32, 32)]


@pytest.mark.parametrize("normalised", [True, False])
def test_rows_of_the_last_layer_are_directions(normalised):
    layer = self_distillation.UnitLinear(16, 24, fixed_length=normalised)
    x = torch.randn(4, 16)
    before = layer(x)
    with torch.no_grad():
        layer.direction.mul_(3)
    torch.testing.assert_close(layer(x), before)
    wanted = torch.nn.utils.parametrizations.weight_norm(nn.Linear(16, 24, bias=False))
    wanted.parametrizations.weight.original1.data.copy_(layer.direction)
    wanted.parametrizations.weight.original0.data.fill_(1)
    torch.testing.assert_close(layer(x), wanted(x))
    assert layer.length.requires_grad is not normalised


def test_teacher_temperatures_rise_by_epoch_or_by_update_and_stay():
    config = dataclasses.replace(CONFIG, temperature_epochs=3)
    by_epoch = [dino.teacher_temperature(config, Step(index, 100, 10)) for index in (0, 9, 10, 20, 29, 30, 99)]
    assert by_epoch == pytest.approx([0.04, 0.04, 0.055, 0.07, 0.07, 0.07, 0.07])
    by_update = dataclasses.replace(config, temperature_steps="update")
    every = [dino.teacher_temperature(by_update, Step(index, 100, 10)) for index in range(100)]
    assert every == pytest.approx([*np.linspace(0.04, 0.07, 30), *[0.07] * 70])
    none = dataclasses.replace(config, temperature_epochs=0)
    assert dino.teacher_temperature(none, Step(0, 100, 10)) == 0.07


def test_a_vision_transformer_takes_small_views_and_keeps_its_tensors():
    wanted = {name: p.shape for name, p in network(VIT).named_parameters()}
    method, setup, batch = make(backbone=VIT, sizes=(32, 32, 16, 16))
    method(batch, step_of(0, setup)).value.backward()
    for module in method.exports().values():
        assert {name: p.shape for name, p in module.named_parameters()} == wanted


def test_the_large_views_are_encoded_as_without_small_ones():
    images = torch.randn(2, 3, 32, 32)
    plain = network(VIT).eval()
    method, _, _ = make(backbone=VIT, sizes=(32, 32, 16, 16))
    with torch.no_grad():
        torch.testing.assert_close(method.backbone.eval()(images), plain(images))


def test_a_single_view_is_refused_before_training():
    module = network("resnet18w0.125")
    with pytest.raises(UsageError, match="makes 1 in all"):
        dino.Method(module, CONFIG, setup_for(module, sizes=(32,)))


def test_more_teacher_views_than_views_are_refused():
    with pytest.raises(UsageError, match="3 teacher views"):
        make(dataclasses.replace(CONFIG, teacher_views=3), sizes=(32, 32))


def test_stochastic_depth_is_for_the_student_alone():
    method, _, batch = make(backbone=VIT + ",drop_path_rate=0.5", sizes=(32, 32))
    view = batch.views[0]
    with torch.no_grad():
        assert not torch.equal(method.backbone(view), method.backbone(view))
        assert torch.equal(method.teacher_backbone(view), method.teacher_backbone(view))


def run_method(rank, images):
    """Loss, averaged gradients and the centre after an update."""
    from sslbench.distributed.collectives import sum_, world_size

    torch.manual_seed(0)
    world = world_size()
    mine = torch.from_numpy(images)[:, rank * 8 // world : (rank + 1) * 8 // world]
    setup = Setup(12, (2, 2, 2), mine.shape[1], 8, world, 8, 0, 10, 5, "flatten")
    config = dino.Config(prototypes=6, hidden=(8,), bottleneck=4)
    method = dino.Method(nn.Flatten(), config, setup).double()
    with torch.no_grad():
        method.center.copy_(torch.arange(6) / 10)
    loss = method(Batch(tuple(mine), None, torch.arange(mine.shape[1])), Step(0, 10, 5))
    loss.value.backward()
    method.after_update(Step(0, 10, 5))
    gradients = [sum_(p.grad) / world for p in method.parameters() if p.requires_grad]
    value = sum_(loss.value.detach().clone()) / world
    return [value.numpy(), method.center.numpy(), *(g.numpy() for g in gradients)]


def test_two_processes_do_what_one_does_with_both_their_batches():
    images = random_rows(3, 8, 3, 2, 2, seed=3)
    two_processes.check_equal_to_one(run_method, images, rtol=1e-6, atol=1e-9)
