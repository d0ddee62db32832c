"""RetinaNet and FCOS: against torchvision's whole detectors, learning, refusals."""

import pytest
import torch
from helpers.detector_samples import scene
from torch import nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.retinanet import RetinaNet
from torchvision.ops import box_iou

from sslbench.backbones.build import build
from sslbench.detection.detectron2.config import detectron2_options
from sslbench.detection.models.boxes import Target
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe, check
from sslbench.errors import UsageError

KINDS = ("retinanet", "fcos")
BASIC = "resnet_basic_1-1-1-1w0.25"
SIDE = 128


def one_stage(kind, **changes):
    settings = {"architecture": kind, "freeze_at": 0, "norm": "batch", "pyramid_channels": 64, **changes}
    return build_detector(build(BASIC), DetectionRecipe(**settings), 2)


def scenes(number):
    """Images of 128 x 128 pixels with their objects."""
    images, truth = zip(*(scene(n) for n in range(number)), strict=True)
    large = [nn.functional.interpolate(image[None], scale_factor=2)[0] for image in images]
    return large, [Target(target.boxes * 2, target.classes) for target in truth]


class Anchors(nn.Module):
    """Generator of torchvision's detectors with given anchors."""

    def __init__(self, model):
        super().__init__()
        self.model = [model]

    def forward(self, images, maps):
        anchors = torch.cat(self.model[0]._anchors([one.shape[-2:] for one in maps]))
        return [anchors] * len(images.image_sizes)


class Maps(nn.Module):
    """Backbone of torchvision's detectors: named maps."""

    def __init__(self, model):
        super().__init__()
        self.pyramid, self.out_channels = model.backbone, model.recipe.pyramid_channels

    def forward(self, images):
        return {str(i): feature for i, feature in enumerate(self.pyramid(images))}


def whole(model):
    """torchvision's own detector with the same weights, for images of 128 x 128 pixels."""
    options = {
        **{"min_size": SIDE, "max_size": SIDE, "score_thresh": model.recipe.score_threshold, "size_divisible": SIDE},
        **{"image_mean": model.pixel_mean.flatten().tolist(), "image_std": model.pixel_std.flatten().tolist()},
        **{"nms_thresh": model.recipe.nms, "detections_per_img": model.recipe.detections},
    }
    if model.recipe.architecture == "fcos":
        other = FCOS(Maps(model), 2, **options)
    else:
        generator = AnchorGenerator(model.recipe.anchor_sizes, ((0.5, 1.0, 2.0),) * 5)
        other = RetinaNet(Maps(model), 2, anchor_generator=generator, **options)
    other.anchor_generator = Anchors(model)  # torchvision's own are rounded, or at the corners of cells
    other.head.load_state_dict(model.network.head.state_dict())
    return other


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_detections_are_those_of_torchvision(kind):
    model = one_stage(kind, score_threshold=0.0)
    other, (images, truth) = whole(model), scenes(2)
    mine = model(images, truth)
    theirs = other(images, [{"boxes": t.boxes, "labels": t.classes} for t in truth])
    names = {"loss_cls": "classification", "loss_box_reg": "bbox_regression", "loss_ctrness": "bbox_ctrness"}
    assert {names[name]: value.item() for name, value in mine.items()} == pytest.approx(
        {name: value.item() for name, value in theirs.items()}, rel=1e-5
    )
    sum(mine.values()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []
    with torch.no_grad():
        mine, theirs = model.eval()(images), other.eval()(images)
    for found, wanted in zip(mine, theirs, strict=True):
        assert len(found.boxes) == model.recipe.detections
        assert torch.allclose(found.scores, wanted["scores"], atol=1e-6)
        assert (found.boxes >= 0).all() and (found.boxes <= SIDE).all()
        gaps = (found.boxes[:, None] - wanted["boxes"][None]).abs().amax(dim=2)
        gaps[found.classes[:, None] != wanted["labels"][None]] = torch.inf
        assert gaps.min(dim=1)[0][:5].max() < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_images_of_any_size_and_without_objects(kind):
    model = one_stage(kind, score_threshold=0.0)
    empty = Target(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    images, truth = scenes(1)
    losses = model([images[0][:, :90, :70], images[0]], [empty, truth[0]])
    assert all(torch.isfinite(loss) for loss in losses.values())
    with torch.no_grad():
        [found] = model.eval()([images[0][:, :90, :70]])
    assert (found.boxes <= torch.tensor([70, 90, 70, 90])).all()


@pytest.mark.parametrize(("kind", "rate"), [("retinanet", 0.02), ("fcos", 0.01)])
def test_it_learns_two_images_by_heart(kind, rate):
    sizes = ((12.0, 16.0), (24.0, 32.0), (48.0, 64.0), (96.0, 128.0), (192.0, 256.0))
    model = one_stage(kind, norm="frozen", **({"anchor_sizes": sizes} if kind == "retinanet" else {}))
    images, truth = scenes(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate / 10)
    for _ in range(40):
        loss = sum(model(images, truth).values())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
    with torch.no_grad():
        found = model.eval()(images)
    for one, target in zip(found, truth, strict=True):
        for box, label in zip(target.boxes, target.classes, strict=True):
            best = one.classes[box_iou(box[None], one.boxes)[0] > 0.5]
            assert len(best) and best[0] == label


def test_the_heads_of_retinanet_may_have_a_norm():
    sizes = ((12.0,), (24.0,), (48.0,), (96.0,), (192.0,))
    plain, normed = (one_stage("retinanet", anchor_sizes=sizes, head_norm=norm) for norm in ("none", "group"))
    counts = [sum(isinstance(part, nn.GroupNorm) for part in model.modules()) for model in (plain, normed)]
    assert counts == [0, 8], "four convolutions in each of two heads"


def test_settings_without_effect_are_refused():
    for kind, changes, words in (
        ("retinanet", {"masks": True}, "masks has no effect"),
        ("fcos", {"roi_samples": 64, "rpn_samples": 32}, "rpn_samples, roi_samples have no effect"),
        ("fcos", {"anchor_ratios": (1.0,)}, "anchor_ratios has no effect"),
        ("fcos", {"head_norm": "layer"}, "head_norm has no effect"),
        ("fcos", {"pyramid_channels": 48}, "pyramid_channels=48: its channels are normalised in 32 groups"),
        (
            "retinanet",
            {"head_norm": "group", "pyramid_channels": 32},
            "pyramid_channels=32: its channels are normalised in 32",
        ),
    ):
        with pytest.raises(UsageError, match=words):
            check(DetectionRecipe(architecture=kind, **changes))
    with pytest.raises(UsageError, match="head_channels=80: its channels"):
        check(DetectionRecipe(architecture="fpn", head_norm="group", head_channels=80))
    with pytest.raises(UsageError, match="5 lists of the same length"):
        check(DetectionRecipe(architecture="retinanet", anchor_sizes=((32.0,),)))


def test_the_other_backend_refuses_it():
    for kind in KINDS:
        with pytest.raises(UsageError, match=f"architecture={kind} is torchvision's"):
            detectron2_options(build("resnet50w0.125"), DetectionRecipe(architecture=kind), 2)
