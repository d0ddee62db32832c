"""Detection recipe: all settings of a detector and its training, shared by the backends.

The defaults are those of Detectron2 for Faster R-CNN with a ResNet (its `config/defaults.py`); architecture-dependent
ones are None here, and filled in by `resolved`. `benchmarks/detection/` holds the published recipes.
"""

import dataclasses
import itertools
from typing import Any, Literal, TypeVar

from sslbench.config import refuse_outside, result_settings, setting
from sslbench.errors import UsageError
from sslbench.train.optimizers.optimizer import OPTIMIZERS, refuse_unknown

Architecture = Literal["c4", "fpn", "vit_fpn", "retinanet", "fcos", "deformable_detr", "vit_deformable_detr"]
ONE_STAGE = ("retinanet", "fcos")
"""Architectures without region proposals."""
DETR = ("deformable_detr", "vit_deformable_detr")
ON_TRANSFORMERS = ("vit_fpn", "vit_deformable_detr")
"""Architectures whose backbone is a vision transformer."""
HeadNorm = Literal["none", "same", "layer", "group"]
Sizes = tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True)
class DetectionRecipe:
    """Settings of a detector, its training and its evaluation."""

    architecture: Architecture = setting(
        "c4",
        "c4: Faster R-CNN on the fourth stage, the fifth on every region; fpn: feature pyramid; "
        "vit_fpn: simple feature pyramid on a vision transformer; retinanet, fcos: one stage on a feature pyramid; "
        "deformable_detr: a transformer on the maps of a ResNet; vit_deformable_detr: on a simple feature pyramid",
    )
    masks: bool = setting(False, "also predict masks (Mask R-CNN)")
    keypoints: bool = setting(False, "also predict keypoints (Keypoint R-CNN); for architecture=fpn and vit_fpn")

    iterations: int = setting(24000, "number of training iterations", within="[1, inf)")
    batch_size: int = setting(16, "images per iteration over all processes", within="[1, inf)")
    accumulate: int = setting(
        1, "parts of each process's batch, computed in turn; their losses are averaged", within="[1, inf)"
    )
    precision: Literal["fp32", "bf16"] = setting("fp32", "precision of training; detection is always in fp32")
    optimizer: str = setting("sgd", OPTIMIZERS)
    lr: float = setting(0.02, "learning rate after warm-up", within="(0, inf)")
    steps: tuple[int, ...] = setting(
        (18000, 22000), "iterations after which the rate is multiplied by gamma", part_of="iterations"
    )
    gamma: float = setting(0.1, "factor of the rate at each step", within="[0, inf)")
    warmup_iterations: int = setting(1000, "iterations of linear warm-up", part_of="iterations", within="[0, inf)")
    warmup_factor: float = setting(0.001, "factor of the rate at the first iteration", within="[0, 1]")
    momentum: float = setting(0.9, "momentum of SGD", within="[0, inf)")
    weight_decay: float = setting(1e-4, "weight decay of all weights but those of normalisation", within="[0, inf)")
    weight_decay_norm: float = setting(0.0, "weight decay of the weights of normalisation", within="[0, inf)")
    layer_decay: float = setting(
        1.0, "factor of the learning rate from each transformer block to the one below", within="[0, 1]"
    )
    backbone_rate: float = setting(1.0, "factor of the learning rate of the backbone", within="[0, inf)")
    clip_gradients: float = setting(0.0, "largest norm of the gradient of all weights; 0: no limit", within="[0, inf]")
    precise_bn: int = setting(
        0, "batches over which BatchNorm statistics are averaged before evaluation; 0: none", within="[0, inf)"
    )

    min_sizes_train: tuple[int, ...] = setting(
        (800,), "shorter side in training, drawn per image", unit="px", within="(0, inf)"
    )
    max_size_train: int = setting(1333, "largest longer side in training", unit="px", within="[1, inf)")
    min_size_test: int = setting(800, "shorter side in evaluation", unit="px", within="[1, inf)")
    max_size_test: int = setting(1333, "largest longer side in evaluation", unit="px", within="[1, inf)")
    scale_jitter: tuple[float, ...] = setting(
        (),
        "large-scale jitter: smallest and largest factor of the size at which a training image fits a square of "
        "max_size_train, from which such a square is cut; empty: min_sizes_train",
        within="(0, inf)",
    )
    crop: float = setting(
        0.0,
        "probability of cutting a random part out of a training image, which is then resized (DETR)",
        within="[0, 1]",
    )
    crop_sizes: tuple[int, ...] = setting(
        (400, 500, 600),
        "shorter side to which an image is resized before the cut, drawn per image",
        unit="px",
        within="(0, inf)",
    )
    crop_sides: tuple[int, int] = setting(
        (384, 600), "smallest and largest side of the part", unit="px", within="[1, inf)"
    )
    flip: float = setting(0.5, "probability of a horizontal flip in training", within="[0, 1]")
    mirrored_keypoints: tuple[str, ...] = setting(
        (),
        "pairs of keypoints that change places in a mirrored image, as left_eye:right_eye; empty: those of the data, "
        "or by the words left and right in their names",
    )
    min_keypoints: int = setting(1, "images with fewer labelled keypoints are left out of training", within="[0, inf)")
    skip_empty: bool = setting(True, "leave images without objects out of training")
    repeat_threshold: float = setting(
        0.0, "images with a class in a smaller share of the images are repeated (LVIS: 0.001); 0: none", within="[0, 1]"
    )
    group_aspect_ratios: bool = setting(True, "put wide and tall images into separate batches")
    channel_order: Literal["RGB", "BGR"] = setting("RGB", "channel order of the backbone's input")
    pixel_mean: tuple[float, ...] = setting((), "mean per channel, of pixels from 0 to 1; empty: that of the weights")
    pixel_std: tuple[float, ...] = setting((), "standard deviation per channel; empty: that of the weights")

    norm: Literal["frozen", "batch", "sync"] = setting(
        "frozen", "BatchNorm of the backbone: frozen, trained, or trained with statistics over all GPUs"
    )
    freeze_at: int = setting(
        2,
        "frozen stages: 0 none, 1 stem, 2 also the first stage, ... 5 the whole backbone with BatchNorm's "
        "statistics (c4's fifth stage belongs to its head and is always trained)",
        within="[0, 5]",
    )
    stride_in_1x1: bool = setting(False, "stride in the first 1x1 convolution of a stage, as in MSRA's weights")
    extra_norm: bool = setting(False, "c4: normalise after the fifth stage (VISSL and MoCo: Res5ROIHeadsExtraNorm)")
    vit_window: int = setting(
        0,
        "vit_fpn: side of the windows of attention, but for the last block of each quarter; 0: none",
        unit="patches",
        within="[0, inf)",
    )
    vit_relative: bool = setting(False, "vit_fpn: add learnt relative positions to the attention")
    drop_path: float = setting(
        0.0, "vit_fpn: probability of skipping the last block in training; earlier ones less", within="[0, 1]"
    )
    pyramid_channels: int = setting(256, "channels of the pyramid", within="[1, inf)")
    pyramid_norm: HeadNorm | None = setting(
        None, "norm in the pyramid: none, that of the backbone, layer norm, or group norm of 32 groups"
    )
    head_norm: HeadNorm | None = setting(
        None, "norm after the convolutions of the box and mask heads, or of the heads of retinanet"
    )
    rpn_convs: int | None = setting(None, "3x3 convolutions of the region proposal network", within="[1, 100]")
    box_convs: int | None = setting(None, "3x3 convolutions of the box head", within="[0, 100]")
    box_fcs: int | None = setting(None, "fully connected layers of the box head", within="[0, 100]")
    box_channels: int = setting(1024, "width of the fully connected layers of the box head", within="[1, inf)")
    mask_convs: int | None = setting(
        None, "3x3 convolutions of the mask head before it doubles the resolution", within="[0, 100]"
    )
    keypoint_convs: int = setting(
        8, "3x3 convolutions of the keypoint head before it doubles the resolution twice", within="[0, 100]"
    )
    keypoint_channels: int = setting(512, "width of the convolutions of the keypoint head", within="[1, inf)")
    head_channels: int = setting(256, "width of the convolutions of the box and mask heads", within="[1, inf)")
    box_pool: int | None = setting(None, "side of the pooled regions for boxes", within="[1, inf)")
    mask_pool: int = setting(14, "side of the pooled regions for masks", within="[1, inf)")
    keypoint_pool: int = setting(14, "side of the pooled regions for keypoints", within="[1, inf)")

    anchor_sizes: Sizes | None = setting(None, "square roots of the anchors' areas, a list for each level", unit="px")
    anchor_ratios: tuple[float, ...] = setting((0.5, 1.0, 2.0), "height over width of the anchors", within="(0, inf)")
    rpn_pre_nms_train: int | None = setting(
        None, "proposals of each level before suppression in training", within="[1, inf)"
    )
    rpn_pre_nms_test: int | None = setting(
        None, "proposals of each level before suppression in evaluation", within="[1, inf)"
    )
    rpn_post_nms_train: int | None = setting(
        None, "proposals of an image after suppression in training", within="[1, inf)"
    )
    rpn_post_nms_test: int | None = setting(
        None, "proposals of an image after suppression in evaluation", within="[1, inf)"
    )
    rpn_nms: float = setting(0.7, "IoU above which the weaker proposal is suppressed", within="[0, 1]")
    rpn_overlaps: tuple[float, float] = setting(
        (0.3, 0.7), "IoU below which anchors are background, and from which they are objects", within="[0, 1]"
    )
    rpn_samples: int = setting(256, "anchors of an image in the loss", within="[1, inf)")
    rpn_positives: float = setting(0.5, "largest share of objects among them", within="[0, 1]")
    roi_overlap: float = setting(0.5, "IoU with an object from which regions count as objects", within="[0, 1]")
    roi_samples: int = setting(512, "regions of an image in the loss", within="[1, inf)")
    roi_positives: float = setting(0.25, "largest share of objects among them", within="[0, 1]")
    box_weights: tuple[float, float, float, float] = setting(
        (10.0, 10.0, 5.0, 5.0), "scales of the box head's targets", within="(0, inf)"
    )
    smooth_l1_beta: float = setting(
        0.0, "threshold at which box losses change from squared to absolute; 0: absolute", within="[0, inf)"
    )

    rpn_smooth_l1_beta: float | None = setting(
        None, "likewise of the region proposal network; null: smooth_l1_beta", within="[0, inf)"
    )
    keypoint_loss_weight: float = setting(1.0, "weight of the keypoints' loss", within="[0, inf)")
    keypoint_loss_over: Literal["labelled", "all"] = setting(
        "labelled", "keypoints whose number divides the loss: the labelled ones, or those that all regions could have"
    )
    queries: int = setting(
        300, "deformable_detr: object queries, the largest number of objects in an image", within="[1, inf)"
    )
    encoder_layers: int = setting(6, "deformable_detr: layers of the encoder", within="[1, 100]")
    decoder_layers: int = setting(6, "deformable_detr: layers of the decoder", within="[1, 100]")
    transformer_width: int = setting(
        256, "deformable_detr: width of the transformer, of 8 heads; a multiple of 32", within="[64, 4096]"
    )
    transformer_mlp: int = setting(
        1024, "deformable_detr: hidden width of the transformer's perceptrons", within="[1, inf)"
    )
    dropout: float = setting(0.1, "deformable_detr: dropout in the transformer", within="[0, 1]")
    refine_boxes: bool = setting(False, "deformable_detr: each layer of the decoder refines the boxes of the last")
    two_stage: bool = setting(
        False, "deformable_detr: the encoder proposes the boxes that the decoder refines; needs refine_boxes=true"
    )
    offset_rate: float = setting(
        1.0, "deformable_detr: factor of the learning rate of sampling offsets and reference points", within="[0, inf)"
    )

    score_threshold: float = setting(0.05, "smallest score of a detection", within="[0, 1]")
    nms: float = setting(0.5, "IoU above which the weaker detection of a class is suppressed", within="[0, 1]")
    detections: int = setting(100, "largest number of detections per image", within="[1, inf)")
    tta_sizes: tuple[int, ...] = setting(
        (),
        "shorter sides at which each test image is seen, joined by suppression; empty: min_size_test",
        unit="px",
        within="(0, inf)",
    )
    tta_max_size: int = setting(4000, "largest longer side of these", unit="px", within="[1, inf)")
    tta_flip: bool = setting(False, "also see test images mirrored, joined by suppression")
    oks_sigma: float = setting(
        0.0,
        "sigma of every keypoint in the similarity of poses (OKS) where neither `sigmas` of the manifest's category "
        "nor COCO's names give them; the metrics' names show it (uniform_keypoint_AP). 0: such data are refused",
        within="[0, inf)",
    )
    metric: Literal["coco", "voc07", "voc12", "lvis"] = setting(
        "coco", "average precision: COCO's, Pascal VOC's at 11 points (2007) or as the area (2012), or LVIS's"
    )


_PYRAMID: dict[str, Any] = {
    "anchor_sizes": ((32.0,), (64.0,), (128.0,), (256.0,), (512.0,)),
    "rpn_pre_nms_train": 2000,
    "rpn_pre_nms_test": 1000,
    "rpn_post_nms_train": 1000,
    "rpn_post_nms_test": 1000,
    "box_pool": 7,
    "mask_convs": 4,
}
_USUAL: dict[str, dict[str, Any]] = {
    "c4": {
        "pyramid_norm": "none",
        "head_norm": "none",
        "rpn_convs": 1,
        "box_convs": 0,
        "box_fcs": 0,
        "mask_convs": 0,
        "box_pool": 14,
        "anchor_sizes": ((32.0, 64.0, 128.0, 256.0, 512.0),),
        "rpn_pre_nms_train": 12000,
        "rpn_pre_nms_test": 6000,
        "rpn_post_nms_train": 2000,
        "rpn_post_nms_test": 1000,
    },
    "fpn": {**_PYRAMID, "pyramid_norm": "none", "head_norm": "none", "rpn_convs": 1, "box_convs": 0, "box_fcs": 2},
    # Lin et al. 2017 (arXiv 1708.02002), section 4: three sizes in each octave
    "retinanet": {
        "pyramid_norm": "none",
        "head_norm": "none",
        "anchor_sizes": tuple(
            tuple(side * 2 ** (i / 3) for i in range(3)) for side in (32.0, 64.0, 128.0, 256.0, 512.0)
        ),
    },
    "fcos": {"pyramid_norm": "none"},
    "deformable_detr": {},
    "vit_deformable_detr": {"pyramid_norm": "layer"},
    # Li et al. 2022 (ViTDet, arXiv 2203.16527), appendix A.2
    "vit_fpn": {
        **_PYRAMID,
        "pyramid_norm": "layer",
        "head_norm": "layer",
        "rpn_convs": 2,
        "box_convs": 4,
        "box_fcs": 1,
    },
}


R = TypeVar("R", bound=DetectionRecipe)


def resolved(recipe: R) -> R:
    """Return the recipe with the architecture-dependent defaults filled in."""
    usual = dict(_USUAL[recipe.architecture])
    if recipe.architecture not in (*ONE_STAGE, *DETR):
        usual["rpn_smooth_l1_beta"] = recipe.smooth_l1_beta
    return dataclasses.replace(
        recipe, **{name: value for name, value in usual.items() if getattr(recipe, name) is None}
    )


_TWO_STAGE = ("c4", "fpn", "vit_fpn")
_OF_REGIONS = (
    *("masks", "rpn_convs", "box_channels", "mask_convs", "head_channels", "box_pool", "mask_pool"),
    *("rpn_pre_nms_train", "rpn_pre_nms_test", "rpn_post_nms_train", "rpn_post_nms_test", "rpn_nms", "rpn_overlaps"),
    *("rpn_samples", "rpn_positives", "roi_overlap", "roi_samples", "roi_positives", "box_weights", "smooth_l1_beta"),
    "rpn_smooth_l1_beta",
)
_OF_DETR = (
    *("queries", "encoder_layers", "decoder_layers", "transformer_width", "transformer_mlp", "dropout"),
    *("refine_boxes", "two_stage", "offset_rate"),
)
_OF_KEYPOINTS = (
    *("mirrored_keypoints", "min_keypoints", "keypoint_convs", "keypoint_channels", "keypoint_pool", "oks_sigma"),
    *("keypoint_loss_weight", "keypoint_loss_over"),
)
_ONLY: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (_OF_REGIONS, _TWO_STAGE),
    (("box_convs", "box_fcs"), ("fpn", "vit_fpn")),
    (("extra_norm",), ("c4",)),
    # FCOS has no anchors, and its head always has group norm.
    (("anchor_sizes", "anchor_ratios", "head_norm"), (*_TWO_STAGE, "retinanet")),
    (("pyramid_norm",), ("fpn", *ONE_STAGE, *ON_TRANSFORMERS)),
    (("pyramid_channels",), ("c4", "fpn", *ONE_STAGE, *ON_TRANSFORMERS)),
    (("vit_window", "vit_relative", "drop_path"), ON_TRANSFORMERS),
    (_OF_DETR, DETR),
)
"""Settings, and the architectures that they have an effect on."""


def check(recipe: DetectionRecipe) -> None:
    """Raise on impossible settings, before anything is built or decoded."""
    full = resolved(recipe)
    refuse_outside(full, "detection")
    refuse_unknown(full.optimizer)
    _refuse_without_effect(full)
    _check_order(full)
    if full.batch_size % full.accumulate:
        raise UsageError(f"batch_size={full.batch_size} cannot be divided into accumulate={full.accumulate} parts")
    if full.crop and full.scale_jitter:
        raise UsageError("crop and scale_jitter both cut training images", "Leave out one of them.")
    if len(full.pixel_mean) != len(full.pixel_std):
        raise UsageError(
            f"pixel_mean has {len(full.pixel_mean)} values and pixel_std {len(full.pixel_std)}", "Give both or none."
        )
    if full.architecture in ON_TRANSFORMERS and full.freeze_at not in (0, 5):
        raise UsageError(
            f"freeze_at={full.freeze_at}: a vision transformer has no stages", "Give 0, or 5 for the whole backbone."
        )
    if full.two_stage and not full.refine_boxes:
        raise UsageError("two_stage=true refines boxes from layer to layer", "Give refine_boxes=true as well.")
    if full.keypoints:
        _check_keypoints(full)
    _check_widths(full)
    if full.architecture not in ("fcos", *DETR):
        levels = 1 if full.architecture == "c4" else 5
        sizes = full.anchor_sizes or ()
        if len(sizes) != levels or len({len(level) for level in sizes}) != 1 or not sizes[0]:
            what = "one list" if levels == 1 else f"{levels} lists of the same length, one for each level"
            raise UsageError(f"anchor_sizes of {full.architecture} should be {what}, not {[list(s) for s in sizes]}")


def _refuse_without_effect(full: DetectionRecipe) -> None:
    """Refuse settings that differ from the defaults of the architecture, and that this recipe does not use."""
    usual = resolved(DetectionRecipe(architecture=full.architecture))
    on = f"on architecture={full.architecture}"
    frozen = full.freeze_at == 5
    joins_views = full.architecture not in DETR or full.tta_sizes or full.tta_flip
    unused: list[tuple[tuple[str, ...], str, str]] = [
        *((names, on, f"They are for {', '.join(of)}.") for names, of in _ONLY if full.architecture not in of),
        (() if joins_views else ("nms",), on, "Leave it out: only views of an image are joined by suppression."),
        (() if full.tta_sizes else ("tta_max_size",), "without tta_sizes", "Leave it out."),
        (() if full.crop else ("crop_sizes", "crop_sides"), "with crop=0, which cuts no image", "Give crop=0.5."),
        (("min_sizes_train",) if full.scale_jitter else (), "with scale_jitter", "Leave out one of them."),
        (() if full.keypoints else _OF_KEYPOINTS, "without keypoints", "Give keypoints=true as well."),
        (() if full.flip else ("mirrored_keypoints",), "with flip=0", "Leave it out."),
        (
            ("vit_relative", "drop_path", "layer_decay", "backbone_rate") if frozen else (),
            "with freeze_at=5, which freezes the backbone",
            "Give their defaults, such as layer_decay=1 and drop_path=0, or freeze_at=0.",
        ),
    ]
    for names, reason, remedy in unused:
        given = [name for name in names if getattr(full, name) != getattr(usual, name)]
        if given:
            have = "have" if len(given) > 1 else "has"
            raise UsageError(f"{', '.join(given)} {have} no effect {reason}", remedy)


def _check_order(full: DetectionRecipe) -> None:
    """Refuse ranges and lists that are empty or do not ascend."""
    if any(a >= b for a, b in itertools.pairwise(full.steps)):
        raise UsageError(f"steps should ascend, not {list(full.steps)}")
    for name in ("rpn_overlaps", "crop_sides", "scale_jitter"):
        values = getattr(full, name)
        if values and (len(values) != 2 or values[0] > values[1]):
            raise UsageError(f"{name} should be two ascending numbers, not {list(values)}")
    for name in ("min_sizes_train", "anchor_ratios", "crop_sizes"):
        if not getattr(full, name):
            raise UsageError(f"{name}=[]: should be numbers above 0")


def _check_keypoints(full: DetectionRecipe) -> None:
    if full.architecture not in ("fpn", "vit_fpn"):
        raise UsageError(
            f"keypoints=true: architecture={full.architecture} has no keypoint head", "Use architecture=fpn or vit_fpn."
        )
    if full.tta_sizes or full.tta_flip:
        raise UsageError(
            "keypoints=true: test-time augmentation joins boxes and masks, not keypoints",
            "Leave out tta_sizes and tta_flip.",
        )
    if full.metric == "lvis":
        raise UsageError("keypoints=true: LVIS has no keypoints", "Give metric=coco.")


def _check_widths(full: DetectionRecipe) -> None:
    """Refuse numbers of channels that the 32 groups of a norm do not divide; a group of one has no variance."""
    grouped = "group" in (full.pyramid_norm, full.head_norm)
    widths = {"pyramid_channels": full.pyramid_channels} if grouped or full.architecture == "fcos" else {}
    if full.head_norm == "group" and full.architecture not in ONE_STAGE:
        widths["head_channels"] = full.head_channels
    if full.architecture in DETR:
        widths["transformer_width"] = full.transformer_width
    for name, width in widths.items():
        if width % 32 or width == 32:
            raise UsageError(
                f"{name}={width}: its channels are normalised in 32 groups", "Give a multiple of 32, 64 or more."
            )


def changed_network(recipe: DetectionRecipe) -> bool:
    """Return whether a detector's backbone computes something else than the network of its name."""
    return recipe.stride_in_1x1 or recipe.vit_window > 0 or recipe.vit_relative


def resized(height: int, width: int, *, shorter: int, longest: int) -> tuple[int, int]:
    """Return height and width after resizing the shorter side to `shorter`, or the longer one to at most `longest`."""
    # Rounded to the nearest pixel, halves up, as Detectron2's ResizeShortestEdge does.
    scale = shorter / min(height, width)
    sides = (float(shorter), scale * width) if height < width else (scale * height, float(shorter))
    if max(sides) > longest:
        factor = longest / max(sides)
        sides = (sides[0] * factor, sides[1] * factor)
    return int(sides[0] + 0.5), int(sides[1] + 0.5)


def view_sizes(height: int, width: int, recipe: DetectionRecipe) -> list[tuple[int, int]]:
    """Return the heights and widths at which a test image is seen."""
    if not recipe.tta_sizes:
        return [resized(height, width, shorter=recipe.min_size_test, longest=recipe.max_size_test)]
    return [resized(height, width, shorter=side, longest=recipe.tta_max_size) for side in recipe.tta_sizes]


def what_is_trained(recipe: DetectionRecipe) -> str:
    """Return the trained parts of a detector with a frozen backbone, in words."""
    if recipe.architecture in ONE_STAGE:
        return "the pyramid and the head (boxes, classes)"
    if recipe.architecture in DETR:
        return "the transformer" if recipe.architecture == "deformable_detr" else "the pyramid and the transformer"
    first = "the fifth stage (on the regions, in the head)" if recipe.architecture == "c4" else "the pyramid"
    further = (", masks" if recipe.masks else "") + (", keypoints" if recipe.keypoints else "")
    return f"{first}, the region proposals and the heads (boxes, classes{further})"


def after_divergence(recipe: DetectionRecipe) -> str:
    """Return advice after a loss that is not finite: a lower rate and a longer warm-up than the recipe's."""
    warmup = max(2 * recipe.warmup_iterations, 100)
    return (
        f"Try a lower rate (lr={recipe.lr / 10:.3g}; it is {recipe.lr:g}) or a longer warm-up "
        f"(warmup_iterations={warmup}; it is {recipe.warmup_iterations}); or are these the weights that you meant?"
    )


@dataclasses.dataclass(frozen=True)
class DetectionSettings(DetectionRecipe):
    """Recipe of the detector, and the settings of the program that trains it."""

    limit_iters: int | None = setting(
        None,
        "largest number of iterations, to shorten a recipe; rates, steps and warm-up stay those of the whole",
        within="[1, inf)",
        changes_result=False,  # `iterations` is what is measured
    )
    program: Literal["torchvision", "detectron2"] = setting(
        "torchvision",
        "library that trains the detector (--backend)",
        changes_result=False,  # a benchmark is not modified by it; `recorded` has it
    )
    tensorboard: bool = setting(
        False, "write scalars for TensorBoard beside the record", changes_result=False, added_later=True
    )
    wandb: str | None = setting(None, "Weights & Biases project to log to", changes_result=False, added_later=True)
    d2: dict[str, Any] | None = setting(None, "d2.KEY=value: changes of Detectron2's own configuration")

    @property
    def recipe(self) -> DetectionRecipe:
        """Recipe alone, as files of detectors hold it."""
        names = (field.name for field in dataclasses.fields(DetectionRecipe))
        return DetectionRecipe(**{name: getattr(self, name) for name in names})


def complete(settings: DetectionSettings) -> tuple[DetectionSettings, dict[str, str]]:
    """Return the settings with the defaults of the architecture, and at most `limit_iters` iterations."""
    full = resolved(settings)
    names = (field.name for field in dataclasses.fields(full))
    origins = {
        name: f"default of {full.architecture}" for name in names if getattr(full, name) != getattr(settings, name)
    }
    if settings.limit_iters is None or settings.limit_iters >= full.iterations:
        return full, origins
    return dataclasses.replace(full, iterations=settings.limit_iters), origins | {"iterations": "flag --limit-iters"}


def recorded(settings: DetectionSettings) -> dict[str, Any]:
    """Return the settings as records hold them: results of two backends do not share a column."""
    of_backend = {"d2": settings.d2 or {}} if settings.program == "detectron2" else {}
    return {**result_settings(settings.recipe), "backend": settings.program, **of_backend}
