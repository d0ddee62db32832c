"""The trained detector as a file: read again it finds the same, and its backbone is one of weights' files."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.drawn_rectangles import recipe, source
from PIL import Image

from sslbench.backbones.build import build
from sslbench.backbones.load import load_backbone
from sslbench.detection import VERSION
from sslbench.detection.evaluate import detect, load_detector
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe
from sslbench.detection.saved import DetectorDescription, about_of, save_detector
from sslbench.errors import WeightsError
from sslbench.train import checkpoints
from sslbench.weights.reading import files

VIT = "timm:vit_tiny_patch16_224,depth=1,img_size=32"
NARROW = "resnet_bottleneck_1-1-1-1w0.125"
TWO_STAGES = ("box_channels", "rpn_samples", "roi_samples", "rpn_post_nms_train", "rpn_post_nms_test")
ONE_STAGE = {name: getattr(DetectionRecipe(), name) for name in (*TWO_STAGES, "anchor_sizes")}
DETR = {**ONE_STAGE, "queries": 10, "encoder_layers": 1, "decoder_layers": 2, "transformer_width": 64}
DETR |= {"pyramid_channels": DetectionRecipe().pyramid_channels}
CASES = {
    "fpn": ("resnet_basic_1-1-1-1w0.125", {}),
    "fpn_frozen_norm": (NARROW, {"norm": "frozen", "freeze_at": 2, "masks": True, "head_channels": 8}),
    "fpn_bgr": (NARROW, {"channel_order": "BGR", "pixel_mean": (0.4, 0.45, 0.5), "pixel_std": (0.2, 0.3, 0.4)}),
    "fpn_stride_in_1x1": (NARROW, {"stride_in_1x1": True}),
    "c4": (NARROW, {"architecture": "c4", "anchor_sizes": ((16.0, 32.0),), "extra_norm": True, "box_pool": 4}),
    "retinanet": (NARROW, {"architecture": "retinanet", **ONE_STAGE}),
    "fcos": (NARROW, {"architecture": "fcos", "pyramid_channels": 64, **ONE_STAGE}),
    "deformable_detr": ("resnet_basic_1-1-1-1w0.125", {"architecture": "deformable_detr", **DETR}),
    "vit_deformable_detr": (
        VIT,
        {"architecture": "vit_deformable_detr", **DETR, "pyramid_channels": 8, "refine_boxes": True},
    ),
    "vit_windows": (
        VIT,
        {
            **{"architecture": "vit_fpn", "pyramid_norm": "layer", "head_norm": "layer"},
            **{"vit_window": 2, "vit_relative": True},
        },
    ),
    "vit_fpn": (VIT, {"architecture": "vit_fpn", "pyramid_norm": "layer", "head_norm": "layer"}),
}


def saved(tmp_path, case, version=VERSION):
    name, changes = CASES[case]
    if "deformable_detr" in case:
        pytest.importorskip("transformers", reason="pip install 'sslbench[detr]'")
    backbone = build(name)
    model = build_detector(backbone, recipe(score_threshold=0.0, **changes), 2).eval()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):  # no longer what the seed gives
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    about = DetectorDescription(
        model.recipe,
        ("wide", "tall"),
        name,
        backbone.preprocessing,
        "w.pth",
        "squares",
        "detection/x",
        "0123",
        (),
        version,
    )
    path = save_detector(tmp_path / "x.detector.torch", model.state_dict(), about, command="sslbench ...")
    return model, about, path


@pytest.mark.parametrize("case", CASES)
def test_what_is_read_again_finds_the_same(tmp_path, case):
    model, about, path = saved(tmp_path, case)
    again = load_detector(path)
    assert again.classes == ("wide", "tall") and again.backbone == about.backbone and again.recipe == model.recipe
    state = again.detector.state_dict()
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model.pixel_mean, again.detector.pixel_mean)
    assert torch.equal(model.pixel_std, again.detector.pixel_std)
    assert about_of(files.read(path)) == about


def test_images_go_in_as_files_arrays_or_pictures_and_come_out_as_in_evaluation(tmp_path):
    model, _, path = saved(tmp_path, "fpn_frozen_norm")
    data = source(2, height=48, width=44)
    expected = detect(model, data)
    pictures = [np.asarray(data.images.read(i)) for i in range(2)]
    Image.fromarray(pictures[0]).save(tmp_path / "a.png")
    detector = load_detector(str(path))
    results = detector.predict([str(tmp_path / "a.png"), pictures[1], Image.fromarray(pictures[1])])
    for result, image in zip(results, (0, 1, 1), strict=True):
        rows = expected.images == image
        assert np.array_equal(result.boxes, expected.boxes[rows])
        assert np.array_equal(result.scores, expected.scores[rows])
        assert list(result.labels) == [("wide", "tall")[label] for label in expected.labels[rows]]
        assert result.masks.shape == (rows.sum(), 48, 44)
    (tmp_path / "b.png").write_bytes(b"no picture")
    for image, words in ((tmp_path / "b.png", "cannot be read"), (tmp_path / "c.png", "cannot read .*c.png")):
        with pytest.raises(Exception, match=words):
            detector.predict([image])


@pytest.mark.parametrize("case", ["fpn", "fpn_frozen_norm", "fpn_bgr", "c4", "deformable_detr"])
def test_the_backbone_in_it_is_read_as_any_other(tmp_path, case):
    model, about, path = saved(tmp_path, case)
    backbone = load_backbone(str(path))
    assert backbone.name == about.backbone and backbone.report.loaded == backbone.report.total
    state = model.state_dict()
    last = "roi_heads.res5.0.conv1.weight" if case == "c4" else "backbone.bottom_up.layer4.0.conv1.weight"
    assert torch.equal(backbone.module.state_dict()["layer4.0.conv1.weight"], state[last])
    first = state["backbone.conv1.weight" if case == "c4" else "backbone.bottom_up.conv1.weight"]
    # For the rest of sslbench images are red, green, blue.
    bgr = case == "fpn_bgr"
    assert torch.equal(backbone.module.state_dict()["conv1.weight"], first.flip(1) if bgr else first)
    assert backbone.preprocessing.mean == ((0.5, 0.45, 0.4) if bgr else about.preprocessing.mean)


@pytest.mark.parametrize("case", ["fpn_stride_in_1x1", "vit_fpn"])
def test_a_backbone_that_is_another_network_now_is_refused(tmp_path, case):
    """Strides elsewhere; a transformer whose last norm a detector does not use."""
    _, _, path = saved(tmp_path, case)
    with pytest.raises(WeightsError, match=r"norm\.weight|conv1\.weight"):
        load_backbone(str(path))


@pytest.mark.parametrize("case", ["retinanet", "fcos"])
def test_detectors_with_earlier_anchors_are_refused(tmp_path, case):
    _, about, path = saved(tmp_path, case, version=0)
    with pytest.raises(WeightsError, match=f"the anchors of {case} have changed"):
        load_detector(path)
    assert load_backbone(str(path)).name == about.backbone


def test_other_files_are_no_detectors(tmp_path):
    torch.save(build("resnet_basic_1-1-1-1w0.125").module.state_dict(), tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"w\.pth does not hold a detector\nsslbench eval detection writes"):
        load_detector(tmp_path / "w.pth")
    _, about, _ = saved(tmp_path, "fpn")
    path = checkpoints.write(tmp_path / "c", 3, {"detector": {}, "about": about.text()}, keep=1)
    with pytest.raises(WeightsError, match="is a training checkpoint"):
        load_detector(path)
    newer = dataclasses.replace(about, classes=()).text().replace('"architecture"', '"architektur"')
    path = checkpoints.write(tmp_path / "d", 3, {"detector": {}, "about": newer}, keep=1)
    with pytest.raises(WeightsError, match=r"architektur.*\n.*\n?It may have been written by another version"):
        about_of(files.read(path))
