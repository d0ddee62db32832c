"""Detectors: their parts against slow or closed forms, what is frozen, which backbones go, and that they learn."""

import logging

import pytest
import torch
from helpers.detector_samples import (
    BASIC,
    BOTTLENECK,
    VIT,
    detector,
    losses_of,
    ruled,
    scene,
    small_detector,
    targets,
    to_detectron2,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchvision.ops import FrozenBatchNorm2d, box_iou, roi_align

from sslbench.backbones.build import build
from sslbench.detection.models import boxes as b
from sslbench.detection.models.boxes import assign_levels, pool_regions, rescale
from sslbench.detection.recipe import DetectionRecipe
from sslbench.detection.saved import from_detectron2
from sslbench.errors import DataError, UsageError, WeightsError
from sslbench.train.loop import NotFiniteError


def test_anchors_have_the_areas_and_ratios_asked_for_and_start_at_the_corner():
    cell = b.cell_anchors((32, 100), (0.5, 1, 2))
    width, height = cell[:, 2] - cell[:, 0], cell[:, 3] - cell[:, 1]
    assert torch.allclose((width * height).sqrt(), torch.tensor([32.0] * 3 + [100.0] * 3))
    assert torch.allclose(height / width, torch.tensor([0.5, 1, 2] * 2))
    assert torch.equal(cell[:, :2], -cell[:, 2:])
    grid = b.grid_anchors(cell, (2, 3), 16)
    assert torch.equal(grid[:6], cell)
    assert torch.allclose(grid[6 * 5], cell[0] + torch.tensor([32.0, 16.0, 32.0, 16.0]))  # row 1, column 2


numbers = st.floats(0, 60, width=32)
boxes = st.lists(st.tuples(numbers, numbers, st.floats(1, 30, width=32), st.floats(1, 30, width=32)), max_size=6)


def corners(drawn):
    return torch.tensor([[x, y, x + w, y + h] for x, y, w, h in drawn]).reshape(-1, 4)


@settings(max_examples=40, deadline=None)
@given(truth=boxes, candidates=boxes, keep_best=st.booleans())
def test_matching_against_loops(truth, candidates, keep_best):
    true, others = corners(truth), corners(candidates)
    found = b.match(true, others, low=0.3, high=0.7, keep_best=keep_best).tolist()
    overlaps = box_iou(true, others)
    for column in range(len(others)):
        values = [float(v) for v in overlaps[:, column]]
        best = max(range(len(values)), key=values.__getitem__) if values else None
        expected = b.BACKGROUND
        if best is not None:
            kept = keep_best and any(v == float(overlaps[row].max()) > 0 for row, v in enumerate(values))
            expected = best if values[best] >= 0.7 or kept else b.IGNORED if values[best] >= 0.3 else b.BACKGROUND
        assert found[column] == expected


@settings(max_examples=40, deadline=None)
@given(found=st.lists(st.integers(-2, 3), max_size=40), number=st.integers(1, 30), part=st.sampled_from([0.25, 0.5]))
def test_draws_hold_as_many_objects_as_allowed_and_no_ignored_box(found, number, part):
    draws = [
        b.sample(torch.tensor(found, dtype=torch.int64), number=number, positives=part, generator=g)
        for g in (torch.Generator().manual_seed(1), torch.Generator().manual_seed(1))
    ]
    objects, background = draws[0]
    assert torch.equal(objects, draws[1][0]) and torch.equal(background, draws[1][1])
    assert len(objects) == min(sum(f >= 0 for f in found), int(number * part))
    assert len(background) == min(sum(f == b.BACKGROUND for f in found), number - len(objects))
    assert all(found[i] >= 0 for i in objects) and all(found[i] == b.BACKGROUND for i in background)
    assert len({*objects.tolist(), *background.tolist()}) == len(objects) + len(background)


def test_regions_go_to_the_level_of_their_size():
    sides = torch.tensor([10.0, 111.9, 112.1, 223.9, 224.1, 447.0, 449.0, 5000.0])
    square = torch.stack((sides * 0, sides * 0, sides, sides), dim=1)
    assert assign_levels(square, (4, 8, 16, 32)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_pooling_is_aligned_with_the_pixels():
    """A region on whole pixels, pooled to as many bins, is the pixels themselves: unaligned it is half a pixel off."""
    feature = torch.rand(1, 2, 8, 8)
    pooled = pool_regions([feature], [torch.tensor([[8.0, 16.0, 24.0, 32.0]])], (4,), side=4)
    assert torch.allclose(pooled[0], feature[0, :, 4:8, 2:6], atol=1e-6)


def test_the_gradient_of_pooling_is_that_of_torchvision():
    for side, stride in ((7, 4), (2, 16), (14, 8)):
        generator = torch.Generator().manual_seed(side)
        feature = torch.randn(2, 3, 20, 33, generator=generator, requires_grad=True)
        centre, size = (torch.rand(60, 2, generator=generator) for _ in range(2))
        centre, size = centre * torch.tensor([33.0, 20]) * stride, (size * 30 + 0.01) * stride
        regions = torch.cat((torch.arange(60)[:, None] % 2, centre - size / 2, centre + size / 2), dim=1)
        regions[0, 1:] = torch.tensor([-50, -60, 999, 999])  # larger than the map
        regions[1, 1:] = torch.tensor([5, 5, 5, 5])  # without area
        regions[2, 1:] = torch.tensor([-900, 0, -800, 90])  # outside
        boxes = [regions[regions[:, 0] == image, 1:] for image in range(2)]
        weights = torch.randn(60, 3, side, side, generator=generator)
        options = {"spatial_scale": 1 / stride, "sampling_ratio": 0, "aligned": True}
        wanted = roi_align(feature, boxes, (side, side), **options)
        pooled = pool_regions([feature], boxes, (stride,), side=side)
        assert torch.equal(pooled, wanted)
        mine, theirs = (torch.autograd.grad(each, feature, weights)[0] for each in (pooled, wanted))
        assert (mine - theirs).abs().max() < 1e-5 * theirs.abs().max()
        [none] = torch.autograd.grad(
            pool_regions([feature], [torch.zeros(0, 4)] * 2, (stride,), side=side).sum(), feature
        )
        assert not none.any()


def test_a_region_takes_its_features_from_its_own_level():
    features = [torch.full((2, 1, 64 >> i, 64 >> i), float(i)) for i in range(4)]
    regions = [torch.tensor([[0.0, 0, 250, 250], [5, 5, 20, 20]]), torch.tensor([[0.0, 0, 120, 120]])]
    assert pool_regions(features, regions, (4, 8, 16, 32), side=2)[:, 0, 0, 0].tolist() == [2, 0, 1]


def test_the_coarsest_level_of_a_pyramid_is_for_proposals_only():
    features = [torch.full((1, 1, 1024 >> i, 1024 >> i), float(i)) for i in range(5)]
    huge = [torch.tensor([[0.0, 0.0, 4000.0, 4000.0]])]
    assert detector("fpn").roi_heads.pooled(features, huge, 2).unique().tolist() == [3.0]


@pytest.mark.parametrize("architecture", ["c4", "fpn", "vit_fpn"])
def test_losses_and_detections(architecture):
    model = detector(architecture, masks=True, score_threshold=0.0)
    images, truth = zip(*(scene(n) for n in range(2)), strict=True)
    losses = losses_of(model, images, truth)
    assert set(losses) == {"loss_rpn_cls", "loss_rpn_loc", "loss_cls", "loss_box_reg", "loss_mask"}
    sum(losses.values()).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []  # processes would wait for it for ever
    with torch.no_grad():
        found = model.eval()([images[0], images[1][:, :50, :37]])
    for one, (height, width) in zip(found, ((64, 64), (50, 37)), strict=True):
        assert len(one.boxes) == len(one.scores) == len(one.classes) == len(one.masks) > 0
        assert (one.boxes >= 0).all() and (one.boxes <= torch.tensor([width, height] * 2)).all()
        assert (one.scores[:-1] >= one.scores[1:]).all() and set(one.classes.tolist()) <= {0, 1}
        assert (one.masks >= 0).all() and (one.masks <= 1).all()


@pytest.mark.parametrize("architecture", ["c4", "fpn"])
def test_an_image_without_objects_has_finite_losses(architecture):
    model = detector(architecture, masks=True)
    empty = b.Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, 64, 64, dtype=torch.bool))
    losses = losses_of(model, [scene(0)[0]], [empty])
    assert all(torch.isfinite(loss) for loss in losses.values())
    assert losses["loss_rpn_loc"] == losses["loss_box_reg"] == losses["loss_mask"] == 0 < losses["loss_cls"]


@pytest.mark.parametrize(("architecture", "prefix"), [("c4", "backbone."), ("fpn", "backbone.bottom_up.")])
def test_frozen_stages_do_not_move_and_the_rest_does(architecture, prefix):
    model = detector(architecture, BOTTLENECK, freeze_at=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sum(losses_of(model, [scene(0)[0]], [scene(0)[1]]).values()).backward()
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1).step()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    frozen = tuple(f"{prefix}{part}." for part in ("conv1", "bn1", "layer1"))
    assert not [name for name in moved if name.startswith(frozen)]
    assert {f"{prefix}layer2.0.conv1.weight", f"{prefix}layer2.0.bn1.running_mean"} <= moved


def test_kinds_of_norm():
    def kinds(**changes):
        return {type(m) for m in detector("c4", **changes).modules() if "Norm" in type(m).__name__}

    assert kinds(norm="frozen") == {FrozenBatchNorm2d}
    assert kinds(norm="batch") == {nn.BatchNorm2d}
    assert kinds(norm="batch", freeze_at=1) == {nn.BatchNorm2d, FrozenBatchNorm2d}
    frozen = detector("c4", freeze_at=5)
    trained = [n for n, p in frozen.named_parameters() if p.requires_grad]
    assert not [n for n in trained if "backbone" in n]
    assert [n for n in trained if "res5" in n], "the fifth stage is the head of c4, and heads are trained"


def test_synchronised_norms_are_plain_on_the_cpu_and_that_is_said(caplog):
    with caplog.at_level(logging.INFO, logger="sslbench"):
        model = detector("fpn", norm="sync")
    assert "norm=sync needs GPUs" in caplog.text
    assert not any(isinstance(m, nn.SyncBatchNorm) for m in model.modules())
    assert all(torch.isfinite(v) for v in losses_of(model, [scene(0)[0]], [scene(0)[1]]).values())


@pytest.mark.parametrize("case", ["c4_extra_norm", "fpn_norms"])
def test_names_of_detectron2_there_and_back(case):
    model = small_detector(case)
    theirs = to_detectron2(model.state_dict())
    first = "backbone.stem" if case.startswith("c4") else "backbone.bottom_up.stem"
    named = {
        *(f"{first}.conv1.weight", f"{first}.conv1.norm.running_var", "roi_heads.box_predictor.cls_score.weight"),
        *("proposal_generator.rpn_head.anchor_deltas.bias", "roi_heads.mask_head.deconv.weight"),
    }
    named |= (
        {"roi_heads.res5.0.shortcut.norm.bias", "roi_heads.res5.norm.weight", "backbone.res4.5.conv3.weight"}
        if case.startswith("c4")
        else {"backbone.fpn_lateral2.norm.weight", "backbone.fpn_output5.weight", "roi_heads.box_head.fc1.weight"}
    )
    assert named <= set(theirs)
    beside = {"pixel_mean": torch.ones(3, 1, 1), "proposal_generator.anchor_generator.cell_anchors.0": torch.ones(3)}
    back = from_detectron2({**theirs, **beside})
    own = {n: t for n, t in model.state_dict().items() if not n.endswith("num_batches_tracked")}
    assert set(back) == set(own) and all(torch.equal(back[n], own[n]) for n in own)


def test_the_state_loads_strictly_into_another_one():
    one, other = (detector("fpn", masks=True) for _ in range(2))
    other.load_state_dict(ruled(one).state_dict())
    images = [scene(0)[0]]
    with torch.no_grad():
        a, c = one.eval()(images)[0], other.eval()(images)[0]
    assert torch.equal(a.boxes, c.boxes) and torch.equal(a.masks, c.masks)
    with pytest.raises(WeightsError, match="its own differs"):
        to_detectron2(detector("vit_fpn").state_dict())


def test_backbones_that_do_not_go_are_refused():
    for architecture, backbone, message in (
        ("c4", "resnet18w0.125", "architecture=c4 does not go with resnet18w0.125.*\nUse architecture=fpn"),
        ("c4", "resnet50w0.125_cifar", "stem for small images"),
        ("fpn", VIT, "needs a ResNet of sslbench.*\n.*use architecture=vit_fpn"),
        ("vit_fpn", BOTTLENECK, "needs a vision transformer.*\n.*For ResNets use architecture=fpn or c4"),
        ("fpn", "pixels", "needs a ResNet"),
    ):
        with pytest.raises(UsageError, match=message):
            detector(architecture, backbone)


def test_basic_blocks_have_no_1x1_convolution():
    with pytest.raises(UsageError, match="have no 1x1 convolution"):
        detector("fpn", stride_in_1x1=True)


def test_building_leaves_the_backbone_and_the_random_state_alone():
    backbone = build(BASIC)
    before, state = backbone.weights_sha256, torch.random.get_rng_state()
    one, two = detector("fpn", backbone), detector("fpn", backbone)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, c) for a, c in zip(one.parameters(), two.parameters(), strict=True))
    sum(losses_of(one, [scene(0)[0]], [scene(0)[1]]).values()).backward()
    torch.optim.SGD(one.parameters(), lr=1.0).step()
    again = build(BASIC).weights_sha256
    assert before == again and not any(p.requires_grad for p in backbone.module.parameters())
    assert all(torch.equal(v, build(BASIC).module.state_dict()[n]) for n, v in backbone.module.state_dict().items())


def test_pixels_are_normalised_as_the_weights_say_and_padded_with_zeros():
    model = detector("fpn")
    image = (scene(0)[0] * 255).to(torch.uint8)
    batch, sizes = model.batched([image[:, :50], image[:, :, :30]])
    assert batch.shape == (2, 3, 64, 64) and sizes == [(50, 64), (64, 30)]
    expected = (image.float() / 255 - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(3, 1, 1)
    assert torch.allclose(batch[1, :, :, :30], expected[:, :, :30], atol=1e-6)
    assert (batch[1, :, :, 30:] == 0).all() and (batch[0, :, 50:] == 0).all()
    assert torch.allclose(model.batched([image])[0], model.batched([image.float() / 255])[0], atol=1e-6)
    turned, _ = detector("fpn", channel_order="BGR").batched([image])
    assert torch.allclose(turned.flip(1), model.batched([image])[0])
    own, _ = detector("fpn", pixel_mean=(0.0, 0.0, 0.0), pixel_std=(1.0, 1.0, 1.0)).batched([image])
    assert own.max() <= 1 and own.min() >= 0


def test_other_numbers_of_channels():
    model = detector("fpn", f"{BASIC},in_chans=5")
    assert torch.isfinite(losses_of(model, [torch.rand(5, 64, 64)], [scene(0)[1]])["loss_cls"])
    with pytest.raises(DataError, match="an image has 3 channels; the backbone takes 5"):
        model([torch.rand(3, 64, 64)], [scene(0)[1]])
    with pytest.raises(UsageError, match="pixel_mean has 3 values"):
        detector("fpn", f"{BASIC},in_chans=5", pixel_mean=(0.0,) * 3, pixel_std=(1.0,) * 3)


def test_masks_that_are_missing_are_named():
    image, truth = scene(0)
    with pytest.raises(DataError, match="masks=true, but an image has none"):
        detector("fpn", masks=True)([image], [b.Target(truth.boxes, truth.classes)])


def test_divergence_stops_with_a_lower_rate_as_the_remedy():
    model = detector("fpn")
    nn.init.constant_(model.proposal_generator.rpn_head.anchor_deltas.bias, float("nan"))
    with pytest.raises(NotFiniteError, match="the training diverged\nTry a lower rate"):
        losses_of(model, [scene(0)[0]], [scene(0)[1]])


def test_patches_of_other_sizes_are_resampled_to_sixteen(caplog):
    with caplog.at_level(logging.WARNING, logger="sslbench"):
        model = detector("vit_fpn", "timm:vit_tiny_patch16_224,depth=1,patch_size=14,img_size=28")
    assert "patches of 14 pixels are resampled to 16" in caplog.text
    assert [f.shape[-1] for f in model.backbone(torch.rand(1, 3, 64, 96))] == [24, 12, 6, 3, 2]
    fine = detector("vit_fpn", "timm:vit_tiny_patch16_224,depth=1,patch_size=8,img_size=32")
    assert [f.shape[-1] for f in fine.backbone(torch.rand(1, 3, 64, 96))] == [24, 12, 6, 3, 2]


def test_a_transformer_gives_the_pyramid_the_features_it_was_loaded_with():
    """At its own image size nothing is resampled: the map is that of the backbone before its last norm."""
    backbone = build(VIT, seed=5)
    net = detector("vit_fpn", backbone).backbone.net.eval()
    image = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        own = backbone.module.forward_intermediates(image, indices=1, intermediates_only=True)[0]
        mine = net.forward_intermediates(image, indices=1, intermediates_only=True)[0]
    assert torch.allclose(own, mine, atol=1e-6)


def test_detections_in_pixels_of_the_image():
    inside = torch.zeros(2, 4, 4)
    inside[0] = 1
    found = b.InstancePredictions(
        torch.tensor([[10.0, 20.0, 30.0, 40.0], [48.0, 0.0, 49.0, 50.0]]),
        torch.tensor([0.9, 0.8]),
        torch.tensor([1, 0]),
        inside,
    )
    big = rescale(found, seen=(50, 50), size=(100, 200))
    assert big.boxes[0].tolist() == [40, 40, 120, 80]
    rows, columns = torch.where(big.masks[0])
    assert (columns.min(), rows.min(), columns.max(), rows.max()) == (40, 40, 119, 79) and big.masks[0].all(
        dim=0
    ).sum() == 0
    assert big.masks.shape == (2, 100, 200) and not big.masks[1].any()
    outside = b.InstancePredictions(
        torch.tensor([[60.0, 0.0, 70.0, 5.0]]), torch.ones(1), torch.zeros(1, dtype=torch.int64), inside[:1]
    )
    assert len(rescale(outside, seen=(50, 50), size=(100, 100)).boxes) == 0
    assert rescale(outside, seen=(50, 50), size=(100, 100)).masks.shape == (0, 100, 100)


def test_mask_targets_are_the_masks_inside_the_regions():
    """A head whose every logit is large has no loss where the whole region is object, and a large one elsewhere."""
    from sslbench.detection.models.heads import MaskHead, Regions

    head = MaskHead(DetectionRecipe(architecture="fpn", mask_convs=0, head_channels=4), 4, 2, "none")
    nn.init.zeros_(head.predictor.weight)
    nn.init.constant_(head.predictor.bias, 20.0)
    mask = targets()[0].masks[1:2]
    for region, expected in (((60.0, 40.0, 80.0, 60.0), 0.0), ((0.0, 0.0, 20.0, 15.0), 20.0)):
        one = Regions(torch.tensor([region]), torch.tensor([1]), torch.zeros(1, 4), torch.tensor([0]), mask)
        assert head.losses(torch.rand(1, 4, 14, 14), [one])["loss_mask"].item() == pytest.approx(expected, abs=1e-4)
