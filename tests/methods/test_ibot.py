import dataclasses
import functools

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import gradient, made, random_rows, step_of

from sslbench.errors import UsageError
from sslbench.methods import ibot
from sslbench.methods._parts.self_distillation import patch_loss
from sslbench.train.method import Batch, Step

CONFIG = ibot.Config(prototypes=24, hidden=(32,), bottleneck=16, mask_probability=0.8)
CROPS = (32, 32, 16, 16)
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


make = functools.partial(made, ibot, CONFIG, sizes=CROPS, backbone=VIT)


def log_softmax(x):
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def oracle(student, teacher, mask, temperature):
    """Equation 2: patch by patch, the mean over a view's masked patches, and over views."""
    terms, row = [], 0
    for view in mask:
        own = []
        for masked in view:
            if masked:
                own.append(-(teacher[row] * log_softmax(student[row] / temperature)).sum())
                row += 1
        terms.append(np.mean(own) if own else 0.0)
    return np.mean(terms)


def masked_rows():
    mask = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]], bool)
    teacher = np.exp(random_rows(4, 5, seed=1))
    return random_rows(4, 5), teacher / teacher.sum(1, keepdims=True), mask


def test_the_loss_of_patches_is_the_mean_over_views_of_means_over_patches():
    student, teacher, mask = masked_rows()
    ours = patch_loss(*map(torch.from_numpy, (student, teacher, mask)), temperature=0.2)
    assert ours.item() == pytest.approx(oracle(student, teacher, mask, 0.2), rel=1e-12)


def test_the_gradient_of_the_loss_of_patches_agrees_with_differences():
    student, teacher, mask = masked_rows()
    t, m = torch.from_numpy(teacher), torch.from_numpy(mask)
    _, ours = gradient(lambda x: patch_loss(x, t, m, temperature=0.2), student)
    for index in np.ndindex(student.shape):
        step = np.zeros_like(student)
        step[index] = 1e-6
        wanted = (oracle(student + step, teacher, mask, 0.2) - oracle(student - step, teacher, mask, 0.2)) / 2e-6
        assert ours[index] == pytest.approx(wanted, abs=1e-7)


def test_the_loss_agrees_with_one_that_computes_every_patch(monkeypatch):
    """The published form: heads on all patches, masks as weights."""
    method, setup, batch = make()
    mask = torch.rand(16, 16) < 0.4
    mask[3] = False
    drawn = iter(mask.view(2, 8, 16).unbind(1))  # the masks of each image's views
    monkeypatch.setattr(ibot, "draw_masks", lambda *_: next(drawn))
    with torch.no_grad():
        method.mask_token.normal_()
        method.patch_center.copy_(torch.arange(24) / 50)
    ours = method(batch, step_of(0, setup))

    images = torch.cat(batch.views[:2])
    vit = method.backbone
    patches = vit.patch_embed(images).flatten(1, 2).clone()
    patches[mask] = method.mask_token
    prefix = vit.cls_token.expand(16, -1, -1)
    tokens = vit.norm(vit.blocks(torch.cat([prefix, patches], 1) + vit.pos_embed))
    with torch.no_grad():
        targets = method.teacher_head(method.teacher_backbone.forward_features(images)[:, 1:])[0]
        targets = ((targets - method.patch_center) / 0.04).softmax(-1)
    entropies = -(targets * (method.head(tokens[:, 1:])[0] / 0.1).log_softmax(-1)).sum(-1)
    wanted = torch.stack([e[m].mean() if m.any() else e.sum() * 0 for e, m in zip(entropies, mask, strict=True)]).mean()
    torch.testing.assert_close(ours.parts["patch_loss"], wanted.detach(), rtol=1e-5, atol=1e-6)


def test_the_centres_follow_the_means_of_all_logits():
    method, setup, batch = make()
    with torch.no_grad():
        tokens = method.teacher_backbone.forward_features(torch.cat(batch.views[:2]))
        logits = method.teacher_head(tokens)[0]
    for view in range(2):  # two passes for one update
        part = Batch(tuple(v[4 * view : 4 * view + 4] for v in batch.views), None, batch.indices[:4])
        method(part, step_of(0, setup))
    assert not method.center.any() and not method.patch_center.any()
    method.after_update(step_of(0, setup))
    torch.testing.assert_close(method.center, 0.1 * logits[:, 0].mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(method.patch_center, 0.1 * logits[:, 1:].mean((0, 1)), rtol=1e-4, atol=1e-6)


def test_the_student_sees_masks_and_the_teacher_does_not():
    method, setup, batch = make()
    method.mask_token.requires_grad_(False).fill_(1e6)
    seen = {}
    for name in ("backbone", "teacher_backbone"):
        block = getattr(method, name).blocks[0]
        block.register_forward_pre_hook(lambda _, x, name=name: seen.setdefault(name, []).append(x[0].abs().amax(-1)))
    method(batch, step_of(0, setup))
    (teacher,), (large, small) = seen["teacher_backbone"], seen["backbone"]
    assert teacher.shape == large.shape == (16, 17) and small.shape == (16, 5)
    assert teacher.max() < 1e3 and small.max() < 1e3
    assert (large > 1e5).any() and not (large[:, 0] > 1e5).any()


def test_masks_have_the_shares_of_the_settings():
    torch.manual_seed(0)
    config = ibot.Config(mask_probability=0.5, mask_ratio=(0.1, 0.5))
    for shape in ("blocks", "random"):
        share = ibot.draw_masks(2000, (14, 14), dataclasses.replace(config, mask_shape=shape)).float().mean(1)
        assert (share == 0).float().mean() == pytest.approx(0.5, abs=0.05)
        assert share.max() <= 0.5
        assert share[share > 0].mean() == pytest.approx(0.3, abs=0.02)


def test_the_last_layers_stand_still_at_first():
    method, setup, batch = make(dataclasses.replace(CONFIG, patch_prototypes=12, normalize_last_layer=False))
    method(batch, step_of(0, setup)).value.backward()
    method.before_update(step_of(0, setup))
    frozen = [n for n, p in method.named_parameters() if p.requires_grad and p.grad is None]
    assert frozen == [f"{n}.{leaf}" for n in ("head.last_layer", "patch_layer") for leaf in ("direction", "length")]


def test_temperatures_rise_by_epoch():
    config = ibot.Config(temperature_epochs=3, patch_temperature=0.06)
    found = [ibot.teacher_temperatures(config, Step(index, 100, 10)) for index in (0, 9, 10, 20, 99)]
    np.testing.assert_allclose(found, [[0.04, 0.04], [0.04, 0.04], [0.055, 0.05], [0.07, 0.06], [0.07, 0.06]])


@pytest.mark.parametrize(("backbone", "sizes", "changes", "message"), [
    ("resnet18w0.125", CROPS, {}, "ibot needs a plain vision transformer"),
    (VIT + ",global_pool=avg", CROPS, {}, "compares class tokens"),
    (VIT, (32,), {}, "views of 32 pixels"),
    (VIT, (32, 16), {}, "views of 32, 16 pixels"),
    (VIT, CROPS, {"mask_ratio": (0.5, 0.1)}, "masks no part"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, sizes, changes, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes), backbone=backbone, sizes=sizes)


def run_method(rank, images):
    """Loss, averaged gradients and the centres after an update, with masks by position."""
    from sslbench.distributed.collectives import sum_, world_size

    world = world_size()
    mine = [torch.from_numpy(v)[rank * 4 // world : (rank + 1) * 4 // world].float() for v in images]
    method, setup, _ = make(images_per_update=4, batch_size=len(mine[0]), world=world)
    method.double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ibot, "draw_masks", lambda views, *_: (torch.arange(16) % 3 == 0).expand(views, -1))
        loss = method(Batch(tuple(v.double() for v in mine), None, torch.arange(len(mine[0]))), step_of(0, setup))
    loss.value.backward()
    method.after_update(step_of(0, setup))
    gradients = [sum_(p.grad) / world for p in method.parameters() if p.requires_grad]
    value = sum_(loss.value.detach().clone()) / world
    return [value.numpy(), method.center.numpy(), method.patch_center.numpy(), *(g.numpy() for g in gradients)]


def test_two_processes_do_what_one_does_with_both_their_batches():
    images = [random_rows(4, 3, size, size, seed=size) for size in CROPS]
    two_processes.check_equal_to_one(run_method, images, rtol=1e-5, atol=1e-7)
