"""Detectron2's complete configuration: its defaults, then the recipe, then the user's d2.KEY=value."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sslbench.backbones.architectures import DEPTHS
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.resnet import ResNet
from sslbench.detection.detectron2.library import load
from sslbench.detection.recipe import DETR, ONE_STAGE, DetectionRecipe, check, resolved
from sslbench.errors import UsageError
from sslbench.metrics.detection.keypoints import Skeleton
from sslbench.names import did_you_mean

_NORMS = {"frozen": "FrozenBN", "batch": "BN", "sync": "SyncBN", "none": "", "layer": "LN", "group": "GN"}
_DEPTHS = (18, 34, 50, 101, 152)


_OTHERWISE = {
    "precision": "Give d2.SOLVER.AMP.ENABLED=true, or use --backend torchvision.",
    "accumulate": "Give a smaller batch_size, or use --backend torchvision.",
    "crop": "Use --backend torchvision.",
    "tta_sizes": "Use --backend torchvision.",
    "tta_flip": "Use --backend torchvision.",
}
"""Settings that Detectron2 does not have, or has by a key of its own; and the remedy."""


def detectron2_options(
    backbone: Backbone, recipe: DetectionRecipe, n_classes: int, skeleton: Skeleton | None = None
) -> dict[str, Any]:
    """Return key -> value for Detectron2's `get_cfg()`, for the same detector and training.

    Data sets, files and device are left out. The caller registers 'Res5ROIHeadsExtraNorm': Res5ROIHeads whose fifth
    stage ends with a module `norm`.
    """
    check(recipe)
    full = resolved(recipe)
    if full.optimizer != "sgd":
        raise UsageError(f"optimizer={full.optimizer}: Detectron2's trainer has only SGD", "Use --backend torchvision.")
    for name, instead in _OTHERWISE.items():
        if getattr(full, name) != getattr(DetectionRecipe(), name):
            raise UsageError(f"{name}={getattr(full, name)}: not with --backend detectron2", instead)
    if full.architecture in DETR:
        raise UsageError(
            f"architecture={full.architecture}: not with --backend detectron2", "Use --backend torchvision."
        )
    if full.architecture in ONE_STAGE:
        raise UsageError(
            f"architecture={full.architecture} is torchvision's, and Detectron2's differs in its losses",
            "Use --backend torchvision, or architecture=fpn or c4.",
        )
    return {
        **_backbone(backbone, full),
        **_regions(full, n_classes),
        **_heads(full),
        **(_keypoints(full, skeleton) if full.keypoints else {}),
        **_training(full),
        **_images(backbone, full),
    }


def _backbone(backbone: Backbone, recipe: DetectionRecipe) -> dict[str, Any]:
    network = backbone.module
    if recipe.architecture == "vit_fpn" or not isinstance(network, ResNet):
        raise UsageError(f"Detectron2 has no network such as {backbone.name}, only ResNets")
    spec = network.spec
    # Detectron2 knows ResNets by their depth alone.
    depth = next((int(d) for d, value in DEPTHS.items() if value == (spec.block, spec.layers)), 0)
    if depth not in _DEPTHS or spec.stem != "imagenet" or spec.norm_groups or spec.sk_ratio:
        raise UsageError(f"Detectron2 has no {backbone.name}", f"It has depths {', '.join(map(str, _DEPTHS))}.")
    bottleneck = spec.block == "bottleneck"
    if not bottleneck and spec.width != 64:
        raise UsageError(
            f"Detectron2 has no {backbone.name}: its resnet18 and resnet34 have 64 channels after the stem",
            "Use --backend torchvision, or a resnet50 of that width.",
        )
    if recipe.architecture == "c4" and not bottleneck:
        raise UsageError(f"architecture=c4 does not go with {backbone.name}", "Use architecture=fpn.")
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
        "MODEL.RPN.SMOOTH_L1_BETA": recipe.rpn_smooth_l1_beta,
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


def _keypoints(recipe: DetectionRecipe, skeleton: Skeleton | None) -> dict[str, Any]:
    skeleton = skeleton or Skeleton(("keypoint",), sigmas=(1.0,))  # before the data are known
    return {
        "MODEL.KEYPOINT_ON": True,
        "MODEL.ROI_KEYPOINT_HEAD.CONV_DIMS": (recipe.keypoint_channels,) * recipe.keypoint_convs,
        "MODEL.ROI_KEYPOINT_HEAD.NUM_KEYPOINTS": len(skeleton),
        "MODEL.ROI_KEYPOINT_HEAD.POOLER_RESOLUTION": recipe.keypoint_pool,
        "MODEL.ROI_KEYPOINT_HEAD.LOSS_WEIGHT": recipe.keypoint_loss_weight,
        "MODEL.ROI_KEYPOINT_HEAD.NORMALIZE_LOSS_BY_VISIBLE_KEYPOINTS": recipe.keypoint_loss_over == "labelled",
        "MODEL.ROI_KEYPOINT_HEAD.MIN_KEYPOINTS_PER_IMAGE": recipe.min_keypoints,
        "TEST.KEYPOINT_OKS_SIGMAS": list(skeleton.sigmas),
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


log = logging.getLogger("sslbench")

_EXTRA_NORM = "Res5ROIHeadsExtraNorm"
_OURS = {
    "MODEL.WEIGHTS": "the weights are given with --weights",
    "MODEL.DEVICE": "the device is given with --device",
    "MODEL.ROI_HEADS.NUM_CLASSES": "the number of classes follows from the data",
    "MODEL.LOAD_PROPOSALS": "precomputed proposals are not supported",
    "MODEL.KEYPOINT_ON": "keypoints are switched on by keypoints=true, a setting of the recipe",
    "MODEL.ROI_KEYPOINT_HEAD.NUM_KEYPOINTS": "the number of keypoints follows from the data",
    "INPUT.FORMAT": "the order of the channels is channel_order=BGR, a setting of the recipe",
    "DATASETS": "the data are given with --data and --test-data",
    "DATALOADER.NUM_WORKERS": "processes that decode are given with --workers",
    "OUTPUT_DIR": "the folder is given with --out",
    "SEED": "the seed is given with --seed",
    "SOLVER.REFERENCE_WORLD_SIZE": "the recipe's batch and rate hold for any number of processes",
    "SOLVER.CHECKPOINT_PERIOD": "checkpoints are written as the torchvision backend does",
    "TEST.EVAL_PERIOD": "the detector is evaluated once, when it is trained",
    "TEST.EXPECTED_RESULTS": "results are compared by sslbench leaderboard",
    "TEST.AUG": "images are not augmented in evaluation",
}
"""Keys (or prefixes) that d2.KEY=value cannot set -> reason, or the option to use instead."""

# Errors of Detectron2 about a wrong configuration: failed assertions and look-ups.
_REFUSALS = (AssertionError, KeyError, ValueError, TypeError, AttributeError, IndexError, NotImplementedError)


@dataclasses.dataclass(frozen=True)
class Configured:
    """Configuration of Detectron2, and the user's part in it.

    Attributes:
        cfg: Detectron2's CfgNode, frozen.
        given: the user's keys, with their values as parsed by Detectron2.
        notes: settings of the recipe that they replace, and other differences from it.
    """

    cfg: Any
    given: dict[str, Any]
    notes: tuple[str, ...]


def configured(
    backbone: Backbone,
    recipe: DetectionRecipe,
    n_classes: int,
    given: Mapping[str, Any],
    *,
    device: torch.device,
    processes: int = 1,
    skeleton: Skeleton | None = None,
) -> Configured:
    """Return Detectron2's configuration.

    `skeleton`: keypoints of the data, with sigmas; None without, or if they are not known yet.
    """
    options = detectron2_options(backbone, recipe, n_classes, skeleton)
    if device.type == "cpu" and "SyncBN" in options.values():
        # SyncBN needs GPUs; Detectron2's naive variant works everywhere.
        other = "BN" if processes == 1 else "naiveSyncBN"
        why = "the same for a single process" if processes == 1 else "Detectron2's own, also over all processes"
        log.info(f"norm=sync needs GPUs; on the CPU Detectron2's {other} is used, {why}")
        options = {key: other if value == "SyncBN" else value for key, value in options.items()}
    cfg = load("config").get_cfg()
    _merge(cfg, options, "the recipe")
    cfg.MODEL.DEVICE = str(device)
    # Detectron2 loads no file here: the backbone's tensors are put in, and compared.
    cfg.MODEL.WEIGHTS = ""
    cfg.DATALOADER.NUM_WORKERS = 0
    keys = set(_keys(cfg))
    for key in given:
        taken = next((ours for ours in _OURS if key == ours or key.startswith(f"{ours}.")), None)
        if taken is not None:
            raise UsageError(f"d2.{key} cannot be given here", f"{_OURS[taken][0].upper()}{_OURS[taken][1:]}.")
        if key not in keys:
            raise UsageError(f"Detectron2 has no key '{key}' (d2.{key})", did_you_mean(key, keys))
    before = {key: _value(cfg, key) for key in given}
    _merge(cfg, given, "d2.")
    if cfg.SOLVER.AMP.ENABLED and device.type == "cpu":
        raise UsageError("d2.SOLVER.AMP.ENABLED=true: Detectron2's mixed precision needs a GPU", "Leave it out.")
    understood = {key: _value(cfg, key) for key in given}
    # A key of the user that says what the recipe says needs no note.
    replaced = [key for key in given if key in options and understood[key] != before[key]]
    notes = [f"d2.{key}={understood[key]} replaces the recipe's {before[key]}." for key in replaced]
    cfg.freeze()
    return Configured(cfg, understood, tuple(notes))


def changed(cfg: Any, values: Mapping[str, Any]) -> Any:
    """Return a frozen copy of a configuration with other values of some dotted keys."""
    copy = cfg.clone()
    copy.defrost()
    for key, value in values.items():
        *path, name = key.split(".")
        setattr(functools.reduce(getattr, path, copy), name, value)
    copy.freeze()
    return copy


def _keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Iterate over all dotted keys with a value."""
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _value(cfg: Any, key: str) -> Any:
    for part in key.split("."):
        cfg = cfg[part]
    return cfg


def _merge(cfg: Any, values: Mapping[str, Any], origin: str) -> None:
    """Apply the user's keys one by one, so that the message names the wrong one."""
    for key, value in values.items():
        try:
            cfg.merge_from_list([key, value])
        except (AssertionError, KeyError, ValueError) as error:
            name = f"d2.{key}={value}" if origin == "d2." else f"{key}={value} ({origin})"
            now = _value(cfg, key)
            raise UsageError(
                f"{name}: Detectron2 does not take this value, a {type(value).__name__}",
                f"By default it is {now!r}, a {type(now).__name__}.",
            ) from error


@contextlib.contextmanager
def refusals(given: Mapping[str, Any]) -> Iterator[None]:
    """Turn errors of Detectron2 inside the block into a UsageError if the user changed its configuration."""
    try:
        yield
    except _REFUSALS as error:
        if not given:
            raise
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        keys = ", ".join(f"d2.{key}={value}" for key, value in given.items())
        raise UsageError(f"Detectron2 cannot work with {keys} ({words})", "Leave out the unknown keys.") from error


def build_model(configuration: Configured) -> Any:
    """Build Detectron2's model, on its device, with random weights."""
    _register_extra_norm()
    with refusals(configuration.given):
        return load("modeling").build_model(configuration.cfg)


def _register_extra_norm() -> None:
    """Register 'Res5ROIHeadsExtraNorm' of VISSL and MoCo: Res5ROIHeads with a norm at the end of the fifth stage."""
    heads, layers = load("modeling.roi_heads"), load("layers")
    if _EXTRA_NORM in heads.ROI_HEADS_REGISTRY:
        return

    class Res5ROIHeadsExtraNorm(heads.Res5ROIHeads):  # type: ignore[misc,name-defined]
        @classmethod
        def _build_res5_block(cls, cfg: Any) -> tuple[Any, int]:
            blocks, channels = super()._build_res5_block(cfg)
            norm = layers.get_norm(cfg.MODEL.RESNETS.NORM, channels)
            if norm is not None:
                blocks.add_module("norm", norm)
            return blocks, channels

    heads.ROI_HEADS_REGISTRY.register(Res5ROIHeadsExtraNorm)
