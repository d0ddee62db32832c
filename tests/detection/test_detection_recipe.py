"""Detection recipes: the published numbers, what depends on the architecture, and what is refused."""

import dataclasses

import pytest
from helpers.detection_recipes import load_recipe

from sslbench.backbones.build import build
from sslbench.detection.detectron2.config import detectron2_options
from sslbench.detection.recipe import DETR, ONE_STAGE, DetectionRecipe, check, resized, resolved
from sslbench.errors import UsageError
from sslbench.evaluation import make_task
from sslbench.library.benchmarks import load_benchmark
from sslbench.names import list_names

VOC_SIZES = tuple(range(480, 801, 32))
COCO_SIZES = tuple(range(640, 801, 32))
# iterations, steps, rate, warm-up, norm, frozen stages, extra norm, precise BatchNorm, sizes; as VISSL, MoCo and
# Detectron2 have them in their files
PUBLISHED = {
    "voc07": (12500, (9500,), 0.02, 100, "sync", 0, True, 200, VOC_SIZES),
    "voc07_pirl": (12500, (9500,), 0.002, 1000, "sync", 0, True, 200, VOC_SIZES),
    "voc07_12": (24000, (18000, 22000), 0.02, 100, "sync", 0, True, 200, VOC_SIZES),
    "voc07_12_mocov2": (24000, (18000, 22000), 0.02, 1000, "sync", 0, True, 200, VOC_SIZES),
    "voc07_12_simclr_swav": (24000, (18000, 22000), 0.1, 1000, "sync", 0, True, 200, VOC_SIZES),
    "voc07_12_iccv19": (25000, (17000,), 0.02, 100, "frozen", 2, False, 0, VOC_SIZES),
    "voc07_12_iccv19_pirl": (25000, (17000,), 0.002, 1000, "frozen", 2, False, 0, VOC_SIZES),
    "voc07_12_fpn": (18000, (12000, 16000), 0.02, 100, "sync", 0, False, 200, VOC_SIZES),
    "voc07_12_vit": (24000, (18000, 22000), 1e-4, 250, "sync", 0, False, 0, VOC_SIZES),
    "coco_c4_1x": (90000, (60000, 80000), 0.02, 1000, "sync", 0, True, 200, COCO_SIZES),
    "coco_c4_2x": (180000, (120000, 160000), 0.02, 1000, "sync", 0, True, 200, COCO_SIZES),
    "coco_fpn_1x": (90000, (60000, 80000), 0.02, 1000, "sync", 0, False, 200, COCO_SIZES),
    "lvis_fpn_1x": (180000, (120000, 160000), 0.02, 1000, "sync", 0, False, 200, COCO_SIZES),
    "coco_fpn_2x": (180000, (120000, 160000), 0.02, 1000, "sync", 0, False, 200, COCO_SIZES),
    "cityscapes_fpn": (24000, (18000,), 0.01, 1000, "sync", 0, False, 200, tuple(range(800, 1025, 32))),
    "coco_keypoint_rcnn_fpn_1x": (90000, (60000, 80000), 0.02, 1000, "frozen", 2, False, 0, COCO_SIZES),
    "coco_retinanet_1x": (90000, (60000, 80000), 0.01, 1000, "frozen", 2, False, 0, (800,)),
    "coco_fcos_1x": (90000, (60000, 80000), 0.01, 1000, "frozen", 2, False, 0, (800,)),
}
OURS = {"toy", "small", "small_retinanet", "small_fcos", "small_deformable_detr", "toy_keypoints", "small_keypoints"}
VITDET = "coco_vitdet_b"
DEFORMABLE_DETR = "coco_deformable_detr_50e"  # its numbers: test_deformable_detr


def test_the_shipped_recipes_are_the_expected_ones():
    names = {name.removeprefix("detection/") for name in list_names("benchmark") if name.startswith("detection/")}
    assert names == set(PUBLISHED) | OURS | {VITDET, DEFORMABLE_DETR}


def test_published_numbers():
    for name in sorted(PUBLISHED):
        recipe = load_recipe(f"detection/{name}")
        assert PUBLISHED[name] == (
            *(recipe.iterations, recipe.steps, recipe.lr, recipe.warmup_iterations, recipe.norm, recipe.freeze_at),
            *(recipe.extra_norm, recipe.precise_bn, recipe.min_sizes_train),
        )
        in_cities = name.startswith("cityscapes")
        sizes = recipe.batch_size, recipe.min_size_test, recipe.max_size_train, recipe.max_size_test
        assert sizes == ((8, 1024, 2048, 2048) if in_cities else (16, 800, 1333, 1333))
        assert recipe.keypoints == ("keypoint" in name)
        with_masks = not name.startswith("voc") and recipe.architecture not in ONE_STAGE and not recipe.keypoints
        assert recipe.masks == with_masks
        assert recipe.metric == {"coco": "coco", "city": "coco", "lvis": "lvis"}.get(name[:4], "voc07")
        of_lvis = (recipe.detections, recipe.score_threshold, recipe.repeat_threshold)
        assert of_lvis == ((300, 1e-4, 1e-3) if name.startswith("lvis") else (100, 0.05, 0.0))
        assert (recipe.stride_in_1x1, recipe.channel_order, recipe.pixel_mean) == (False, "RGB", ())


def test_the_recipe_of_vitdet():
    """Li et al. 2022, appendix A.2: 100 epochs of 64 images, layer-wise decay, jitter in a square of 1024 pixels."""
    recipe = resolved(load_recipe(f"detection/{VITDET}"))
    assert recipe.iterations * recipe.batch_size == pytest.approx(100 * 118287, rel=0.005)
    assert [step / recipe.iterations for step in recipe.steps] == pytest.approx([0.889, 0.963], abs=1e-3)
    assert (recipe.lr, recipe.weight_decay, recipe.layer_decay, recipe.drop_path) == (1e-4, 0.1, 0.7, 0.1)
    assert (recipe.scale_jitter, recipe.max_size_train, recipe.vit_window) == ((0.1, 2.0), 1024, 14)
    assert recipe.masks and recipe.vit_relative and recipe.optimizer == "adamw"


def test_recipes_for_a_processor_are_small():
    for name in sorted(OURS):
        recipe = resolved(load_recipe(f"detection/{name}"))
        assert recipe.max_size_train <= 480 and recipe.iterations * recipe.batch_size <= 4000
        assert (recipe.roi_samples <= 128 or recipe.architecture in (*ONE_STAGE, *DETR)) and recipe.norm == "batch"


def test_recipes_for_a_processor_train_on_features_of_any_scale():
    for name in sorted(OURS):
        recipe = load_recipe(f"detection/{name}")
        assert 0 < recipe.clip_gradients <= 10
        normed = recipe.pyramid_norm == "layer" or recipe.head_norm == "group" or recipe.architecture in ("fcos", *DETR)
        assert normed, f"{name}: nothing normalises frozen features"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"iterations": 15}, (1, (12,))),
        ({"iterations": 60}, (20, (48,))),
        ({"iterations": 15, "warmup_iterations": 40, "steps": [99]}, (40, (99,))),
        ({"iterations": 1}, (0, (1,))),
    ],
)
def test_a_warm_up_and_steps_that_no_longer_fit_are_shortened(given, expected):
    task = make_task("detection", given, load_benchmark("detection/toy"))
    recipe, origins = task.settings, task.origins
    assert (recipe.warmup_iterations, recipe.steps) == expected
    changed = origins["steps"] == "in proportion to the shorter training"
    assert changed == ("steps" not in given)


def test_what_the_architecture_decides():
    c4, fpn = (resolved(DetectionRecipe(architecture=a)) for a in ("c4", "fpn"))
    limits = ("rpn_pre_nms_train", "rpn_pre_nms_test", "rpn_post_nms_train", "rpn_post_nms_test", "box_pool")
    assert [getattr(c4, name) for name in limits] == [12000, 6000, 2000, 1000, 14]
    assert [getattr(fpn, name) for name in limits] == [2000, 1000, 1000, 1000, 7]
    assert c4.anchor_sizes == ((32, 64, 128, 256, 512),) and fpn.anchor_sizes == ((32,), (64,), (128,), (256,), (512,))
    for recipe in (c4, fpn, resolved(DetectionRecipe(architecture="vit_fpn"))):
        assert all(getattr(recipe, field.name) is not None for field in dataclasses.fields(recipe))
    assert resolved(DetectionRecipe(architecture="fpn", rpn_pre_nms_test=7)).rpn_pre_nms_test == 7


def test_settings_that_cannot_work_are_refused():
    for settings, message in (
        ({"lr": 0}, "lr should be above 0, not 0"),
        ({"batch_size": 0}, "batch_size should be 1 or more, not 0"),
        ({"rpn_nms": 1.5}, "rpn_nms should be from 0 to 1, not 1.5"),
        ({"freeze_at": 6}, "freeze_at should be from 0 to 5, not 6"),
        ({"min_sizes_train": ()}, "min_sizes_train"),
        ({"steps": (20, 10)}, "steps should ascend"),
        ({"rpn_overlaps": (0.7, 0.3)}, "rpn_overlaps should be two ascending numbers"),
        ({"pixel_mean": (0.5,)}, "Give both or none"),
        ({"architecture": "fpn", "extra_norm": True}, "extra_norm has no effect on architecture=fpn\\nThey are for c4"),
        ({"architecture": "fpn", "anchor_sizes": ((32.0,),)}, "should be 5 lists"),
        ({"architecture": "c4", "box_fcs": 2}, "box_fcs has no effect on architecture=c4"),
        ({"architecture": "vit_fpn", "freeze_at": 2}, "has no stages"),
        ({"freeze_at": 5, "backbone_rate": 0.1}, "backbone_rate has no effect with freeze_at=5"),
    ):
        with pytest.raises(UsageError, match=message):
            check(DetectionRecipe(**settings))


def test_a_wrong_key_in_a_recipe_names_the_nearest(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: detection/_c4_voc\ntitle: mine\nsettings: {extra_nrom: true}\n")
    with pytest.raises(UsageError, match="unknown key 'extra_nrom'\nDid you mean 'extra_norm'"):
        load_recipe(str(file))


def test_sizes_of_images():
    for size, limits, expected in (
        ((480, 640), (800, 1333), (800, 1067)),  # 1066.67 rounded
        ((640, 480), (800, 1333), (1067, 800)),
        ((300, 1000), (800, 1333), (400, 1333)),  # the longer side decides
        ((100, 100), (50, 1333), (50, 50)),
        ((2, 5), (3, 100), (3, 8)),  # 7.5: halves go up
    ):
        assert resized(*size, shorter=limits[0], longest=limits[1]) == expected


def test_the_same_recipe_for_detectron2():
    recipe = load_recipe("detection/voc07_12")
    options = detectron2_options(build("resnet50"), recipe, 20)
    expected = {
        "MODEL.ROI_HEADS.NAME": "Res5ROIHeadsExtraNorm",
        "MODEL.RESNETS.NORM": "SyncBN",
        "MODEL.BACKBONE.FREEZE_AT": 0,
        "MODEL.RESNETS.STRIDE_IN_1X1": False,
        "INPUT.FORMAT": "RGB",
        "SOLVER.STEPS": (18000, 22000),
        "SOLVER.MAX_ITER": 24000,
        "TEST.PRECISE_BN.ENABLED": True,
        "MODEL.RPN.PRE_NMS_TOPK_TEST": 6000,
        "INPUT.MIN_SIZE_TRAIN": VOC_SIZES,
    }
    assert {key: options[key] for key in expected} == expected
    assert options["MODEL.PIXEL_MEAN"] == pytest.approx([123.675, 116.28, 103.53])
    assert options["MODEL.PIXEL_STD"] == pytest.approx([58.395, 57.12, 57.375])


def test_wide_networks_for_detectron2():
    for name, numbers in (
        ("resnet50w2", (512, 128, 128)),
        ("resnet50w0.125", (32, 8, 8)),
        ("resnet101", (256, 64, 64)),
    ):
        options = detectron2_options(build(name), load_recipe("detection/voc07"), 20)
        keys = ("RES2_OUT_CHANNELS", "WIDTH_PER_GROUP", "STEM_OUT_CHANNELS")
        assert tuple(options[f"MODEL.RESNETS.{key}"] for key in keys) == numbers


def test_what_detectron2_does_not_have_is_refused():
    for backbone, settings, message in (
        ("resnet18", {"architecture": "c4"}, "c4 does not go with resnet18"),
        ("resnet_bottleneck_1-1-1-1", {"architecture": "fpn"}, "Detectron2 has no resnet_bottleneck"),
        ("timm:vit_tiny_patch16_224,depth=1", {"architecture": "vit_fpn", "freeze_at": 0}, "no network such as"),
        ("resnet50w0.125", {"optimizer": "adamw"}, "only SGD"),
        ("resnet50w0.125", {"flip": 0.3}, "flips half"),
    ):
        with pytest.raises(UsageError, match=message):
            detectron2_options(build(backbone), DetectionRecipe(**settings), 3)
