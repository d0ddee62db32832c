"""A recipe as Detectron2 wants it: keys of its configuration. Nothing of Detectron2 is needed here."""

from collections.abc import Mapping
from typing import Any

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.resnet import DEPTHS, ResNet
from sslbench.detection.recipe import DetectionRecipe, check, resolved
from sslbench.errors import UsageError

_NORMS = {"frozen": "FrozenBN", "batch": "BN", "sync": "SyncBN", "none": "", "layer": "LN"}
_DEPTHS = (18, 34, 50, 101, 152)


def detectron2_options(backbone: Backbone, recipe: DetectionRecipe, n_classes: int) -> dict[str, Any]:
    """Key -> value for Detectron2's `get_cfg()`: the same detector, trained in the same way.

    What is not in them: data sets, files, device. 'Res5ROIHeadsExtraNorm' is a class that the caller has to register:
    Res5ROIHeads whose fifth stage ends with a module `norm`.

    Raises:
        UsageError: Detectron2 has no such network.
    """
    check(recipe)
    full = resolved(recipe)
    if full.optimizer != "sgd":
        raise UsageError(
            f"optimizer={full.optimizer}: Detectron2's trainer has only SGD", "Take --backend torchvision."
        )
    return {
        **_backbone(backbone, full),
        **_regions(full, n_classes),
        **_heads(full),
        **_training(full),
        **_images(backbone, full),
    }


def _backbone(backbone: Backbone, recipe: DetectionRecipe) -> dict[str, Any]:
    network = backbone.module
    if recipe.architecture == "vit_fpn" or not isinstance(network, ResNet):
        raise UsageError(f"Detectron2's configuration has no network such as {backbone.name}; it has ResNets")
    spec = network.spec
    depth = next((int(d) for d, value in DEPTHS.items() if value == (spec.block, spec.layers)), 0)
    if depth not in _DEPTHS or spec.stem != "imagenet":
        raise UsageError(f"Detectron2 has no {backbone.name}", f"It has depths {', '.join(map(str, _DEPTHS))}.")
    bottleneck = spec.block == "bottleneck"
    if not bottleneck and spec.width != 64:
        raise UsageError(
            f"Detectron2 has no {backbone.name}: its resnet18 and resnet34 have 64 channels after the stem",
            "Take --backend torchvision, or a resnet50 of that width.",
        )
    if recipe.architecture == "c4" and not bottleneck:
        raise UsageError(f"architecture=c4 does not go with {backbone.name}", "Take architecture=fpn.")
    pyramid = recipe.architecture == "fpn"
    stages = ["res2", "res3", "res4", "res5"] if pyramid else ["res4"]
    options = {
        "MODEL.BACKBONE.NAME": "build_resnet_fpn_backbone" if pyramid else "build_resnet_backbone",
        "MODEL.BACKBONE.FREEZE_AT": recipe.freeze_at,
        "MODEL.RESNETS.DEPTH": depth,
        "MODEL.RESNETS.NUM_GROUPS": spec.groups,
        "MODEL.RESNETS.WIDTH_PER_GROUP": spec.inner(0) // spec.groups,
        "MODEL.RESNETS.RES2_OUT_CHANNELS": spec.width * (4 if bottleneck else 1),
        "MODEL.RESNETS.STEM_OUT_CHANNELS": spec.width,
        "MODEL.RESNETS.STRIDE_IN_1X1": recipe.stride_in_1x1,
        "MODEL.RESNETS.NORM": _NORMS[recipe.norm],
        "MODEL.RESNETS.OUT_FEATURES": stages,
    }
    if pyramid:
        options["MODEL.FPN.IN_FEATURES"] = stages
        options["MODEL.FPN.OUT_CHANNELS"] = recipe.pyramid_channels
        options["MODEL.FPN.NORM"] = _norm(recipe.pyramid_norm, recipe)
    return options


def _norm(kind: str | None, recipe: DetectionRecipe) -> str:
    return _NORMS[recipe.norm if kind == "same" else kind or "none"]


def _regions(recipe: DetectionRecipe, n_classes: int) -> dict[str, Any]:
    pyramid = recipe.architecture == "fpn"
    c4_heads = "Res5ROIHeadsExtraNorm" if recipe.extra_norm else "Res5ROIHeads"
    return {
        "MODEL.ANCHOR_GENERATOR.SIZES": [list(sizes) for sizes in recipe.anchor_sizes or ()],
        "MODEL.ANCHOR_GENERATOR.ASPECT_RATIOS": [list(recipe.anchor_ratios)],
        "MODEL.RPN.IN_FEATURES": ["p2", "p3", "p4", "p5", "p6"] if pyramid else ["res4"],
        "MODEL.RPN.IOU_THRESHOLDS": list(recipe.rpn_overlaps),
        "MODEL.RPN.BATCH_SIZE_PER_IMAGE": recipe.rpn_samples,
        "MODEL.RPN.POSITIVE_FRACTION": recipe.rpn_positives,
        "MODEL.RPN.SMOOTH_L1_BETA": recipe.smooth_l1_beta,
        "MODEL.RPN.PRE_NMS_TOPK_TRAIN": recipe.rpn_pre_nms_train,
        "MODEL.RPN.PRE_NMS_TOPK_TEST": recipe.rpn_pre_nms_test,
        "MODEL.RPN.POST_NMS_TOPK_TRAIN": recipe.rpn_post_nms_train,
        "MODEL.RPN.POST_NMS_TOPK_TEST": recipe.rpn_post_nms_test,
        "MODEL.RPN.NMS_THRESH": recipe.rpn_nms,
        "MODEL.RPN.CONV_DIMS": [-1] * (recipe.rpn_convs or 1),
        "MODEL.ROI_HEADS.NAME": "StandardROIHeads" if pyramid else c4_heads,
        "MODEL.ROI_HEADS.IN_FEATURES": ["p2", "p3", "p4", "p5"] if pyramid else ["res4"],
        "MODEL.ROI_HEADS.NUM_CLASSES": n_classes,
        "MODEL.ROI_HEADS.IOU_THRESHOLDS": [recipe.roi_overlap],
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE": recipe.roi_samples,
        "MODEL.ROI_HEADS.POSITIVE_FRACTION": recipe.roi_positives,
        "MODEL.ROI_HEADS.SCORE_THRESH_TEST": recipe.score_threshold,
        "MODEL.ROI_HEADS.NMS_THRESH_TEST": recipe.nms,
        "TEST.DETECTIONS_PER_IMAGE": recipe.detections,
    }


def _heads(recipe: DetectionRecipe) -> dict[str, Any]:
    norm = _norm(recipe.head_norm, recipe)
    return {
        "MODEL.ROI_BOX_HEAD.NAME": "FastRCNNConvFCHead" if recipe.architecture == "fpn" else "",
        "MODEL.ROI_BOX_HEAD.NUM_CONV": recipe.box_convs,
        "MODEL.ROI_BOX_HEAD.CONV_DIM": recipe.head_channels,
        "MODEL.ROI_BOX_HEAD.NUM_FC": recipe.box_fcs,
        "MODEL.ROI_BOX_HEAD.FC_DIM": recipe.box_channels,
        "MODEL.ROI_BOX_HEAD.NORM": norm,
        "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": recipe.box_pool,
        "MODEL.ROI_BOX_HEAD.BBOX_REG_WEIGHTS": recipe.box_weights,
        "MODEL.ROI_BOX_HEAD.SMOOTH_L1_BETA": recipe.smooth_l1_beta,
        "MODEL.MASK_ON": recipe.masks,
        "MODEL.ROI_MASK_HEAD.NUM_CONV": recipe.mask_convs,
        "MODEL.ROI_MASK_HEAD.CONV_DIM": recipe.head_channels,
        "MODEL.ROI_MASK_HEAD.NORM": norm,
        "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION": recipe.mask_pool,
        "INPUT.MASK_FORMAT": "bitmask",
    }


def _training(recipe: DetectionRecipe) -> dict[str, Any]:
    return {
        "SOLVER.MAX_ITER": recipe.iterations,
        "SOLVER.IMS_PER_BATCH": recipe.batch_size,
        "SOLVER.BASE_LR": recipe.lr,
        "SOLVER.STEPS": tuple(step for step in recipe.steps if step < recipe.iterations),
        "SOLVER.GAMMA": recipe.gamma,
        "SOLVER.WARMUP_ITERS": recipe.warmup_iterations,
        "SOLVER.WARMUP_FACTOR": recipe.warmup_factor,
        "SOLVER.MOMENTUM": recipe.momentum,
        "SOLVER.WEIGHT_DECAY": recipe.weight_decay,
        "SOLVER.WEIGHT_DECAY_NORM": recipe.weight_decay_norm,
        "TEST.PRECISE_BN.ENABLED": recipe.precise_bn > 0,
        "TEST.PRECISE_BN.NUM_ITER": max(recipe.precise_bn, 1),
        "DATALOADER.FILTER_EMPTY_ANNOTATIONS": recipe.skip_empty,
        "DATALOADER.ASPECT_RATIO_GROUPING": recipe.group_aspect_ratios,
    }


def _images(backbone: Backbone, recipe: DetectionRecipe) -> dict[str, Any]:
    if recipe.flip not in (0, 0.5):
        raise UsageError(f"flip={recipe.flip}: Detectron2 flips half of the images or none")
    step = -1 if recipe.channel_order == "BGR" else 1
    given: Mapping[str, tuple[float, ...]] = {
        "MODEL.PIXEL_MEAN": recipe.pixel_mean or backbone.preprocessing.mean[::step],
        "MODEL.PIXEL_STD": recipe.pixel_std or backbone.preprocessing.std[::step],
    }
    return {
        **{key: [255 * value for value in values] for key, values in given.items()},
        "INPUT.FORMAT": recipe.channel_order,
        "INPUT.MIN_SIZE_TRAIN": recipe.min_sizes_train,
        "INPUT.MAX_SIZE_TRAIN": recipe.max_size_train,
        "INPUT.MIN_SIZE_TEST": recipe.min_size_test,
        "INPUT.MAX_SIZE_TEST": recipe.max_size_test,
        "INPUT.RANDOM_FLIP": "horizontal" if recipe.flip else "none",
    }
