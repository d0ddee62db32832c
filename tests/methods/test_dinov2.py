import dataclasses
import functools

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import gradient, made, network, random_rows, step_of

from sslbench.errors import UsageError
from sslbench.methods import dinov2
from sslbench.methods._parts.losses import sinkhorn
from sslbench.methods._parts.masks import inverse_block_masks
from sslbench.train.method import Batch, Step

CONFIG = dinov2.Config(
    prototypes=24, hidden=(32,), bottleneck=16, patch_prototypes=12, patch_bottleneck=8, frozen_epochs=0, drop_path=0.0
)
CROPS = (32, 32, 16, 16)
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


make = functools.partial(made, dinov2, CONFIG, sizes=CROPS, backbone=VIT)


def oracle_koleo(rows):
    """Row by row, the distance to every other one."""
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    nearest = [min(np.linalg.norm(a - b) for j, b in enumerate(rows) if i != j) for i, a in enumerate(rows)]
    return -np.mean(np.log(nearest))


def differences(loss, rows):
    """Gradient by central differences."""
    found = np.zeros_like(rows)
    for index in np.ndindex(rows.shape):
        step = np.zeros_like(rows)
        step[index] = 1e-6
        found[index] = (loss(rows + step) - loss(rows - step)) / 2e-6
    return found


def test_koleo_agrees_with_a_loop_and_its_gradient_with_differences():
    rows = random_rows(6, 4)
    value, ours = gradient(dinov2.koleo, rows)
    assert value == pytest.approx(oracle_koleo(rows), rel=1e-6)
    np.testing.assert_allclose(ours, differences(oracle_koleo, rows), atol=1e-6)


def oracle_gram(student, teacher):
    """View by view and pair by pair, the difference of cosines."""
    terms = []
    for s, t in zip(student, teacher, strict=True):
        for i in range(len(s)):
            for j in range(len(s)):
                cosines = [a[i] @ a[j] / np.linalg.norm(a[i]) / np.linalg.norm(a[j]) for a in (s, t)]
                terms.append((cosines[0] - cosines[1]) ** 2)
    return np.mean(terms)


def test_gram_anchoring_agrees_with_a_loop_and_its_gradient_with_differences():
    student, teacher = random_rows(2, 3, 4), random_rows(2, 3, 5, seed=1)
    value, ours = gradient(lambda x: dinov2.gram_loss(x, torch.from_numpy(teacher)), student)
    assert value == pytest.approx(oracle_gram(student, teacher), rel=1e-9)
    np.testing.assert_allclose(ours, differences(lambda x: oracle_gram(x, teacher), student), atol=1e-7)


def test_the_loss_is_that_of_separate_forward_passes(monkeypatch):
    """View by view, with targets balanced over the batch."""
    method, setup, batch = make()
    mask = torch.rand(16, 16) < 0.4
    mask[3] = False
    monkeypatch.setattr(dinov2, "draw_masks", lambda *_: mask)
    with torch.no_grad():
        method.mask_token.normal_()
        ours = method(batch, step_of(0, setup))

        vit, large = method.backbone, torch.cat(batch.views[:2])
        patches = vit.patch_embed(large).flatten(1, 2).clone()
        patches[mask] = method.mask_token
        tokens = vit.norm(vit.blocks(torch.cat([vit.cls_token.expand(16, -1, -1), patches], 1) + vit.pos_embed))
        targets = method.teacher_backbone.forward_features(large)
        classes = sinkhorn(method.teacher_head(targets[:, 0])[0], epsilon=0.04, iterations=3).view(2, 8, -1)
        rows = sinkhorn(method.teacher_patch_head(targets[:, 1:][mask])[0], epsilon=0.04, iterations=3)
        views = [*tokens[:, 0].chunk(2), *(vit.forward_features(view)[:, 0] for view in batch.views[2:])]
        logs = [(method.head(view)[0] / 0.1).log_softmax(-1) for view in views]
        pairs = [-(classes[t] * logs[v]).sum(-1).mean() for t in range(2) for v in range(4) if t != v]
        entropies = torch.zeros(16, 16)
        entropies[mask] = -(rows * (method.patch_head(tokens[:, 1:][mask])[0] / 0.1).log_softmax(-1)).sum(-1)
        of_patches = (entropies.sum(1) / mask.sum(1).clamp(min=1)).mean()
        spread = sum(dinov2.koleo(view) for view in views[:2])
    wanted = {"class_loss": torch.stack(pairs).mean(), "patch_loss": of_patches, "koleo": spread}
    for name, value in wanted.items():
        torch.testing.assert_close(ours.parts[name], value, rtol=1e-4, atol=1e-6, msg=name)
    torch.testing.assert_close(ours.value, sum(wanted.values()) - 0.9 * spread, rtol=1e-4, atol=1e-6)


def test_a_fixed_share_of_the_views_is_masked_with_shares_spread_over_the_range():
    torch.manual_seed(0)
    config = dataclasses.replace(CONFIG, mask_probability=0.5, mask_ratio=(0.1, 0.5))
    for _ in range(20):
        share = dinov2.draw_masks(64, (16, 16), config).float().mean(1).sort().values
        assert (share[:32] == 0).all() and (share[33:] > 0.05).all()
        assert share[-1] <= 0.5 and share[32:].mean() == pytest.approx(0.3, abs=0.03)


def test_a_network_that_is_its_own_gram_teacher_differs_by_its_masks_only(tmp_path):
    from sslbench.weights.save import save

    module = network(VIT)
    path = tmp_path / "anchor.torch"
    save(path, module.state_dict(), backbone=VIT, metadata={})
    config = dataclasses.replace(CONFIG, gram_teacher=str(path), gram_interval=2, momentum=0.0)
    method, setup, batch = make(config)
    dinov2_masks = dinov2.draw_masks
    assert torch.equal(method.gram_backbone.pos_embed, module.pos_embed)
    assert method(batch, step_of(0, setup)).parts["gram_loss"] > 0
    dinov2.draw_masks = lambda views, *_: torch.zeros(views, 16, dtype=torch.bool)
    try:
        assert float(method(batch, step_of(0, setup)).parts["gram_loss"]) == pytest.approx(0, abs=1e-9)
    finally:
        dinov2.draw_masks = dinov2_masks
    with torch.no_grad():
        method.backbone.pos_embed.add_(1)
    method.after_update(step_of(0, setup))
    assert torch.equal(method.gram_backbone.pos_embed, module.pos_embed)
    method.after_update(Step(1, 20, 10))
    assert torch.equal(method.gram_backbone.pos_embed, method.backbone.pos_embed)


def test_stochastic_depth_is_for_the_student_alone():
    method, _, batch = make(dataclasses.replace(CONFIG, drop_path=0.5))
    view = batch.views[0]
    with torch.no_grad():
        outputs = [method._tokens(method.backbone, view, drop_path=0.5) for _ in range(2)]
        assert not torch.equal(*outputs)
        assert torch.equal(
            method._tokens(method.teacher_backbone, view), method.teacher_backbone.forward_features(view)
        )


def test_activation_checkpointing_changes_nothing():
    gradients = []
    for checkpointing in (False, True):
        method, setup, batch = make(dataclasses.replace(CONFIG, drop_path=0.4))
        method.backbone.set_grad_checkpointing(checkpointing)
        torch.manual_seed(3)
        method(batch, step_of(0, setup)).value.backward()
        gradients.append(method.backbone.blocks[0].attn.qkv.weight.grad)
    torch.testing.assert_close(*gradients)


def test_temperatures_rise_by_update():
    config = dataclasses.replace(CONFIG, temperature_epochs=3)
    every = [dinov2.teacher_temperature(config, Step(index, 100, 10)) for index in range(100)]
    np.testing.assert_allclose(every, [*np.linspace(0.04, 0.07, 30), *[0.07] * 70])


@pytest.mark.parametrize(("backbone", "sizes", "changes", "setup", "message"), [
    ("resnet18w0.125", CROPS, {}, {}, "dinov2 needs a plain vision transformer"),
    (VIT + ",class_token=False,global_pool=avg", CROPS, {}, {}, "compares class tokens"),
    (VIT, (32,), {}, {}, "views of 32 pixels"),
    (VIT, CROPS, {"mask_ratio": (0.0, 0.0)}, {}, "masks no part"),
    (VIT + ",drop_path_rate=0.1", CROPS, {"drop_path": 0.3}, {}, "replaces the stochastic depth"),
    (VIT, CROPS, {}, {"batch_size": 1}, "one image"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(backbone, sizes, changes, setup, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes), backbone=backbone, sizes=sizes, **setup)


def run_method(rank, images, centering):
    """Loss, averaged gradients and the teacher after an update, without KoLeo, and with masks by image."""
    from sslbench.distributed.collectives import sum_, world_size

    world = world_size()
    mine = [torch.from_numpy(v)[rank * 4 // world : (rank + 1) * 4 // world] for v in images]
    config = dataclasses.replace(CONFIG, koleo_weight=0.0, centering=centering, momentum=0.5)
    method, setup, _ = make(config, images_per_update=4, batch_size=len(mine[0]), world=world)
    method.double()
    # The first half of the images is masked: the second process has no masked patch.
    masked = (torch.arange(4) < 2)[rank * 4 // world : (rank + 1) * 4 // world].repeat(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dinov2, "draw_masks", lambda *_: masked[:, None] & (torch.arange(16) % 3 == 0))
        loss = method(Batch(tuple(mine), None, torch.arange(len(mine[0]))), step_of(0, setup))
    loss.value.backward()
    method.after_update(step_of(0, setup))
    gradients = [sum_(p.grad) / world for p in method.parameters() if p.requires_grad]
    centers = [method.center.numpy(), method.patch_center.numpy()] if centering == "center" else []
    return [(sum_(loss.value.detach().clone()) / world).numpy(), *centers, *(g.numpy() for g in gradients)]


@pytest.mark.parametrize("centering", ["sinkhorn", "center"])
def test_two_processes_do_what_one_does_with_both_their_batches(centering):
    images = [random_rows(4, 3, size, size, seed=size) for size in CROPS]
    two_processes.check_equal_to_one(run_method, images, centering, rtol=1e-6, atol=1e-8)


def test_nested_heads_add_the_losses_of_heads_of_parts_of_the_dimension(monkeypatch):
    """Each head by itself, with targets that are balanced by plain Sinkhorn iterations."""
    method, _, batch = make(dataclasses.replace(CONFIG, nested=(0.25, 1.0), koleo_weight=0.0))
    assert [level.last_layer.direction.shape for level in method.head] == [(6, 16), (24, 16)]
    assert [level.mlp[0].out_features for level in method.patch_head] == [12, 48]
    mask = torch.rand(16, 16) < 0.4
    mask[3] = False
    monkeypatch.setattr(dinov2, "draw_masks", lambda *_: mask)

    def balanced(logits):
        q = (logits.double() / 0.04).exp()
        for _ in range(3):
            q = q / q.sum(0) / q.shape[1]
            q = q / q.sum(1, keepdim=True) / len(q)
        return q * len(q)

    def logits(level, features):
        rows = level.last_layer.direction / level.last_layer.direction.norm(dim=1, keepdim=True)
        return level.mlp(features) @ (rows * level.last_layer.length).T

    with torch.no_grad():
        for level in [*method.head, *method.patch_head, *method.teacher_head, *method.teacher_patch_head]:
            level.mlp[0].weight.mul_(30)
        ours = method(batch, Step(0, 20, 10)).value
        large = torch.cat(batch.views[:2])
        student, teacher = method._tokens(method.backbone, large, mask), method._tokens(method.teacher_backbone, large)
        small = method._tokens(method.backbone, torch.cat(batch.views[2:]))[:, 0]
        wanted = 0.0
        for level, target in zip(method.head, method.teacher_head, strict=True):
            views = logits(level, torch.cat([student[:, 0], small])).div(0.1).log_softmax(1).view(4, 8, -1)
            aims = balanced(logits(target, teacher[:, 0])).view(2, 8, -1)
            pairs = [(v, t) for v in range(4) for t in range(2) if v != t]
            wanted += sum(-(aims[t] * views[v]).sum(1).mean() for v, t in pairs) / len(pairs)
        for level, target in zip(method.patch_head, method.teacher_patch_head, strict=True):
            errors = torch.zeros(16, 16, dtype=torch.float64)
            scores = logits(level, student[:, 1:][mask]).div(0.1).log_softmax(1)
            errors[mask] = -(balanced(logits(target, teacher[:, 1:][mask])) * scores).sum(1)
            wanted += (errors.sum(1) / mask.sum(1).clamp(min=1)).mean()
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-6)


def test_inverse_masks_leave_a_rectangle_that_may_wrap_around_the_edges():
    torch.manual_seed(0)
    for mask in inverse_block_masks((14, 14), [127] * 50, aspect=0.5).view(50, 14, 14):
        seen = ~mask
        assert seen.sum() == 69
        shifts = [torch.roll(seen, (a, b), (0, 1)) for a in range(14) for b in range(14)]
        whole = [each for each in shifts if (box := each.nonzero()).min() == 0 and len(box) > 0]
        heights = [(int(each.any(1).nonzero().max()) + 1, int(each.any(0).nonzero().max()) + 1) for each in whole]
        height, width = min(heights, key=lambda sides: sides[0] * sides[1])
        assert 69 <= height * width < 69 + width and 0.4 < height / width < 2.5


@pytest.mark.parametrize(("changes", "message"), [
    ({"nested": (1.0, 0.5)}, "no ascending shares of 48 dimensions"),
    ({"nested": (0.01, 1.0)}, "no ascending shares of 48 dimensions"),
    ({"nested": (0.5, 1.0), "centering": "center"}, "nested heads have no moving centre"),
])  # fmt: skip
def test_nested_heads_that_cannot_be_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes))
