"""Deformable DETR: against transformers' own whole model, padding, boxes, learning, resuming, refusals."""

import builtins
import copy
import dataclasses
import itertools

import pytest
import torch
from helpers.detection_recipes import load_recipe
from helpers.detector_samples import average_precision, detector, scene
from torch import nn

from sslbench.backbones.build import build
from sslbench.detection import train
from sslbench.detection.detectron2.config import detectron2_options
from sslbench.detection.models.boxes import Target
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe, check
from sslbench.detection.train import make_optimizer
from sslbench.errors import UsageError
from sslbench.train.method import Step

BASIC = "resnet_basic_1-1-1-1w0.25"
VIT = "timm:vit_tiny_patch16_224,depth=1,img_size=32"
SMALL = {"queries": 20, "encoder_layers": 1, "decoder_layers": 2, "transformer_width": 64, "transformer_mlp": 64}
EMPTY = Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))


def detr(backbone=BASIC, **changes):
    pytest.importorskip("transformers", reason="pip install 'sslbench[detr]'")
    architecture = "vit_deformable_detr" if backbone == VIT else "deformable_detr"
    usual = {"architecture": architecture, "freeze_at": 0, "norm": "frozen", "dropout": 0.0, "score_threshold": 0.0}
    return build_detector(build(backbone), DetectionRecipe(**{**usual, **SMALL, **changes}), 2)


def scenes(number):
    images, truth = zip(*(scene(n) for n in range(number)), strict=True)
    return list(images), list(truth)


def moved(model):
    """The model with weights of no special rule: boxes no longer lie at their first places."""
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return model


class Outputs(nn.Module):
    """A backbone as transformers' own models have one: from images and mask of pixels to maps and their masks."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, images, inside):
        found = []
        for one in self.backbone(images):
            rows = torch.arange(one.shape[2]) * inside.shape[1] // one.shape[2]
            columns = torch.arange(one.shape[3]) * inside.shape[2] // one.shape[3]
            found.append((one, inside[:, rows][:, :, columns].bool()))
        return found


def whole(model):
    """transformers' own model with the same weights and the backbone inside; refining layers have own classifiers."""
    import transformers

    other = transformers.DeformableDetrForObjectDetection(model.network.config)
    if model.recipe.refine_boxes:
        other.class_embed = copy.deepcopy(other.class_embed)
        for number, head in enumerate(other.class_embed):
            other.class_embed[number] = copy.deepcopy(head)
    other.model.backbone = nn.Identity()
    other.load_state_dict(model.network.state_dict())
    other.model.backbone = Outputs(model.backbone)
    return other.train(model.training)


def inputs(model, images):
    batch, sizes = model.batched(images)
    inside = torch.stack([torch.zeros(batch.shape[2:]) for _ in images]).long()
    for mask, (height, width) in zip(inside, sizes, strict=True):
        mask[:height, :width] = 1
    return batch, inside, sizes


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("backbone", [BASIC, VIT])
def test_losses_and_detections_are_those_of_transformers(backbone, refine):
    model = moved(detr(backbone, refine_boxes=refine))
    images, truth = scenes(2)
    images[1], truth[1] = images[1][:, :50, :60], Target(truth[1].boxes.clamp(max=50), truth[1].classes)
    other, (batch, inside, sizes) = whole(model), inputs(model, images)
    labels = []
    for target, (height, width) in zip(truth, sizes, strict=True):
        x1, y1, x2, y2 = target.boxes.unbind(1)
        boxes = torch.stack(((x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height), 1)
        labels.append({"class_labels": target.classes, "boxes": boxes})
    mine, theirs = model(images, truth), other(batch, pixel_mask=inside, labels=labels).loss_dict
    costs = other.config.class_cost, other.config.bbox_cost, other.config.giou_cost
    assert costs == (2, 5, 2), "those of the paper's code"
    for name, key, weight in (("loss_cls", "ce", 2), ("loss_box_reg", "bbox", 5), ("loss_giou", "giou", 2)):
        own = weight * (theirs[f"loss_{key}"] + theirs[f"loss_{key}_0"])
        assert mine[name].item() == pytest.approx(own.item(), rel=1e-5)
    sum(mine.values()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    with torch.no_grad():
        found, outputs = model.eval()(images), other.eval()(batch, pixel_mask=inside)
    for one, logits, shares, (height, width) in zip(found, outputs.logits, outputs.pred_boxes, sizes, strict=True):
        assert len(one.scores) == 2 * model.recipe.queries
        scores = logits.sigmoid().flatten().sort(descending=True)[0]
        assert torch.allclose(one.scores, scores, atol=1e-6)
        query = int(logits.max(dim=1)[0].argmax())
        x, y, w, h = (shares[query] * torch.tensor([width, height, width, height])).tolist()
        corners = torch.tensor([x - w / 2, y - h / 2, x + w / 2, y + h / 2]).clamp(min=0)
        corners = corners.minimum(torch.tensor([width, height, width, height]))
        assert torch.allclose(one.boxes[0], corners, atol=1e-3)
        assert one.classes[0] == int(logits[query].argmax())


def test_padding_changes_nothing():
    """Maps of a batch, with anything but zero outside of each image, give for each what it gives alone.

    Group norms of the transformer's inputs are over the whole batch's size, as in the paper, and are left out; maps are
    zero outside of images, where the convolution to stride 64 sees them.
    """
    model = moved(detr(refine_boxes=True)).eval()
    for projection in model.network.model.input_proj:
        projection[1] = nn.Identity()
    sizes = [(128, 128), (64, 128), (128, 64)]
    generator = torch.Generator().manual_seed(0)
    widths = [projection[0].in_channels for projection in model.network.model.input_proj][:3]
    maps = [
        torch.randn(3, w, 128 // s, 128 // s, generator=generator) for w, s in zip(widths, (8, 16, 32), strict=True)
    ]
    for one, stride in zip(maps, (8, 16, 32), strict=True):
        for row, (height, width) in enumerate(sizes):
            one[row, :, height // stride :] = 0
            one[row, :, :, width // stride :] = 0
    with torch.no_grad():
        together = model.detections(maps, sizes)
        for row, (height, width) in enumerate(sizes):
            own = [one[row : row + 1, :, : height // s, : width // s] for one, s in zip(maps, (8, 16, 32), strict=True)]
            [alone] = model.detections(own, [(height, width)])
            assert torch.allclose(alone.scores, together[row].scores, atol=1e-5)
            assert torch.allclose(alone.boxes[:5], together[row].boxes[:5], atol=1e-2)
            assert (alone.boxes <= torch.tensor([width, height, width, height])).all()


def test_boxes_come_back_from_shares():
    """A head that always answers with one box in shares of the image gives it in pixels, whatever the padding."""
    model = detr().eval()
    share = torch.tensor([0.3, 0.6, 0.2, 0.4])
    with torch.no_grad():
        for head in model.network.bbox_embed:
            head.layers[-1].bias.copy_(torch.logit(share))
        model.network.model.reference_points.weight.zero_()  # at a half, whose logit is 0
        images = [torch.rand(3, 50, 80), torch.rand(3, 90, 40)]
        found = model(images)
    for one, (height, width) in zip(found, ((50, 80), (90, 40)), strict=True):
        wanted = torch.tensor([0.2 * width, 0.4 * height, 0.4 * width, 0.8 * height])
        assert torch.allclose(one.boxes, wanted.expand_as(one.boxes), atol=1e-3)


def test_images_without_objects_and_losses_that_are_not_finite():
    model = detr()
    images, truth = scenes(2)
    assert all(torch.isfinite(loss) for loss in model(images, [EMPTY, truth[1]]).values())
    assert all(torch.isfinite(loss) for loss in model(images, [EMPTY, EMPTY]).values())
    with torch.no_grad():
        model.network.model.level_embed += torch.nan
    assert all(torch.isnan(loss) for loss in model(images, truth).values())


def test_it_learns_two_images_by_heart():
    model = detr(refine_boxes=True)
    images, truth = scenes(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    for _ in range(40):
        loss = sum(model(images, truth).values())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    with torch.no_grad():
        found = model.eval()(images)
    assert sum(average_precision(found, truth, kind) for kind in (0, 1)) / 2 > 0.5


def test_first_weights_are_those_of_the_paper():
    """Scores of 0.01, boxes of a small share of the image around the reference points, queries of unit variance."""
    for refine in (False, True):
        model = detr(refine_boxes=refine).eval()
        with torch.no_grad():
            [found] = model([torch.rand(3, 64, 64)])
        assert 0.002 < float(found.scores.median()) < 0.05
        heads = model.network.bbox_embed
        assert heads[0].layers[-1].bias.tolist() == [0, 0, -2, -2]
        assert heads[1].layers[-1].bias.tolist() == ([0, 0, 0, 0] if refine else [0, 0, -2, -2])
        assert float(model.network.model.query_position_embeddings.weight.detach().std()) == pytest.approx(1, abs=0.1)


def test_rates_of_backbone_and_offsets():
    model = detr(backbone_rate=0.1, offset_rate=0.2, optimizer="adamw", weight_decay_norm=1e-4)
    groups = {id(p): g for g in make_optimizer(model, model.recipe).param_groups for p in g["params"]}
    factors = {name: groups[id(p)]["lr_factor"] for name, p in model.named_parameters()}
    assert {f for name, f in factors.items() if name.startswith("backbone.")} == {0.1}
    offsets = {name for name, f in factors.items() if f == 0.2}
    assert offsets and all(".sampling_offsets." in name or ".reference_points." in name for name in offsets)
    assert {g["weight_decay"] for g in groups.values()} == {1e-4}


def test_the_published_recipe():
    recipe = load_recipe("detection/coco_deformable_detr_50e")
    assert recipe.iterations == 50 * (118287 // 32) and recipe.steps == (40 * (118287 // 32),)
    assert (recipe.lr, recipe.backbone_rate, recipe.offset_rate, recipe.clip_gradients) == (2e-4, 0.1, 0.1, 0.1)
    assert (recipe.queries, recipe.encoder_layers, recipe.decoder_layers, recipe.transformer_mlp) == (300, 6, 6, 1024)
    assert (recipe.optimizer, recipe.weight_decay, recipe.weight_decay_norm) == ("adamw", 1e-4, 1e-4)


def test_settings_without_effect_are_refused():
    for kind, changes, words in (
        ("deformable_detr", {"masks": True}, "masks has no effect on architecture=deformable_detr"),
        ("deformable_detr", {"nms": 0.6}, "nms has no effect"),
        ("deformable_detr", {"pyramid_channels": 64}, "pyramid_channels has no effect"),
        ("deformable_detr", {"transformer_width": 48}, "transformer_width should be from 64 to 4096, not 48"),
        ("deformable_detr", {"transformer_width": 32}, "transformer_width should be from 64 to 4096, not 32"),
        ("vit_deformable_detr", {"freeze_at": 2}, "has no stages"),
        ("fpn", {"queries": 100, "refine_boxes": True}, "queries, refine_boxes have no effect on architecture=fpn"),
    ):
        with pytest.raises(UsageError, match=words):
            check(DetectionRecipe(architecture=kind, **changes))
    check(DetectionRecipe(architecture="deformable_detr", nms=0.6, tta_flip=True))
    with pytest.raises(UsageError, match="not with --backend detectron2"):
        detectron2_options(build("resnet50w0.125"), DetectionRecipe(architecture="deformable_detr"), 2)


def test_without_the_library_the_message_names_it(monkeypatch):
    original = builtins.__import__

    def without(name, *rest, **options):
        if name == "transformers":
            raise ImportError("No module named 'transformers'")
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"needs the package transformers(.|\n)*sslbench\[detr\]"):
        build_detector(build(BASIC), DetectionRecipe(architecture="deformable_detr"), 2)


def test_refining_layers_have_classifiers_of_their_own():
    for changes, number in (({}, 1), ({"refine_boxes": True}, 2), ({"refine_boxes": True, "two_stage": True}, 3)):
        network = detr(**changes).network
        for heads in (network.class_embed, network.bbox_embed):
            assert len({id(head.state_dict(keep_vars=True)[name]) for head in heads for name in head.state_dict()}) == (
                number * len(heads[0].state_dict())
            )
    assert network.model.decoder.class_embed is network.class_embed


def slow_loss(logits, boxes, truth):
    """Class, box and GIoU loss of the proposals of one image, by trying every assignment of its objects."""
    p = logits[:, 0].sigmoid()

    def giou(a, b):
        (ax, ay, aw, ah), (bx, by, bw, bh) = a.tolist(), b.tolist()
        lows = [max(ax - aw / 2, bx - bw / 2), max(ay - ah / 2, by - bh / 2)]
        highs = [min(ax + aw / 2, bx + bw / 2), min(ay + ah / 2, by + bh / 2)]
        common = max(highs[0] - lows[0], 0) * max(highs[1] - lows[1], 0)
        wide = max(ax + aw / 2, bx + bw / 2) - min(ax - aw / 2, bx - bw / 2)
        high = max(ay + ah / 2, by + bh / 2) - min(ay - ah / 2, by - bh / 2)
        union = aw * ah + bw * bh - common
        return common / union - (wide * high - union) / (wide * high)

    def cost(i, box):
        positive = 0.25 * (1 - p[i]) ** 2 * -torch.log(p[i] + 1e-8)
        negative = 0.75 * p[i] ** 2 * -torch.log(1 - p[i] + 1e-8)
        return float(2 * (positive - negative) + 5 * (boxes[i] - box).abs().sum()) - 2 * giou(boxes[i], box)

    costs = [[cost(i, box) for box in truth] for i in range(len(boxes))]
    _, rows = min(
        (sum(costs[i][k] for k, i in enumerate(rows)), rows)
        for rows in itertools.permutations(range(len(boxes)), len(truth))
    )
    hit = torch.zeros(len(p), dtype=torch.bool)
    hit[list(rows)] = True
    classes = torch.where(hit, 0.25 * (1 - p) ** 2 * -p.log(), 0.75 * p**2 * -(1 - p).log()).sum()
    # Other classes of a proposal are never right.
    others = logits[:, 1:].sigmoid()
    classes = classes + (0.75 * others**2 * -(1 - others).log()).sum()
    l1 = sum(float((boxes[i] - box).abs().sum()) for i, box in zip(rows, truth, strict=True))
    return float(classes), l1, sum(1 - giou(boxes[i], box) for i, box in zip(rows, truth, strict=True))


def test_the_proposals_of_two_stages_are_trained_as_one_class():
    model = moved(detr(refine_boxes=True, two_stage=True))
    images, truth = scenes(1)
    truth = [Target(truth[0].boxes[:2], truth[0].classes[:2])]
    seen = {}
    model.network.register_forward_hook(lambda _module, _inputs, outputs: seen.update(all=outputs))
    losses = model(images, truth)
    outputs = seen["all"]
    height, width = images[0].shape[1:]
    boxes = truth[0].boxes / torch.tensor([width, height, width, height])
    shares = torch.cat(((boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]), 1)
    with torch.no_grad():
        wanted = slow_loss(outputs.enc_outputs_class[0], outputs.enc_outputs_coord_logits[0].sigmoid(), shares)
    for value, (name, key, weight) in zip(
        wanted,
        (("loss_cls", "loss_ce", 2), ("loss_box_reg", "loss_bbox", 5), ("loss_giou", "loss_giou", 2)),
        strict=True,
    ):
        layers = outputs.loss_dict[key] + outputs.loss_dict[f"{key}_0"]
        assert losses[name].item() == pytest.approx(weight * (layers.item() + value / len(shares)), rel=1e-4)
    sum(losses.values()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    with torch.no_grad():  # maps of 3 x 3, 2 x 2, 1 and 1 places
        assert [len(found.scores) for found in model.eval()([torch.rand(3, 24, 24), torch.rand(3, 20, 24)])] == [30, 30]
        assert [len(found.scores) for found in model([torch.rand(3, 64, 64)])] == [40]
    with pytest.raises(UsageError, match="Give refine_boxes=true"):
        check(DetectionRecipe(architecture="deformable_detr", two_stage=True))


def test_an_update_is_divided_by_all_its_objects(monkeypatch):
    """In parts of 1 and 5 objects, and in a second process with 12 more, as in one part on one process."""
    cpu = torch.device("cpu")
    images = [torch.zeros(3, 32, 32)] * 4
    targets = [Target(torch.zeros(n, 4), torch.zeros(n, dtype=torch.int64)) for n in (1, 0, 2, 3)]
    model, other = detr(), detector("fpn")
    parts = train.weights_of_parts(model, (images, targets), 2, cpu)
    assert [float(one) for one in parts] == pytest.approx([1 / 3, 5 / 3])
    assert [float(one) for one in train.weights_of_parts(other, (images, targets), 2, cpu)] == [1, 1]
    empty = train.weights_of_parts(model, (images, [EMPTY] * 4), 2, cpu)
    assert [float(one) for one in empty] == [2, 2], "their mean is the sum, divided by 1 as in one part"
    monkeypatch.setattr(train, "sum_", lambda own: own + 12)
    monkeypatch.setattr(train, "world_size", lambda: 2)
    parts = train.weights_of_parts(model, (images, targets), 2, cpu)
    assert [float(one) for one in parts] == pytest.approx([1 / 4.5, 5 / 4.5])


def test_parts_of_an_update_have_the_gradient_of_the_whole(tmp_path):
    model = detr()
    images, truth = scenes(2)
    truth[0] = Target(truth[0].boxes[:1], truth[0].classes[:1])
    images = [image[:, :64, :64] for image in images]  # of one size: group norms are over the padded batch
    truth = [Target(t.boxes.clamp(max=64), t.classes) for t in truth]
    run = train.TrainingRun(0, torch.device("cpu"), 0, tmp_path, 1)
    gradients = []
    for parts in (1, 2):
        model.recipe = dataclasses.replace(model.recipe, accumulate=parts)
        training = train._DetectorTraining(model, run)
        model.zero_grad()
        for part in training.passes((images, truth)):
            (training.loss(part, Step(0, 1, 1)).value / parts).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(*gradients, strict=True))


def test_a_frozen_backbone_is_not_trained():
    model = detr(freeze_at=5)
    images, truth = scenes(1)
    sum(model(images, truth).values()).backward()
    assert all(p.grad is None for p in model.backbone.parameters())
    assert all(p.grad is not None for p in model.network.parameters())
