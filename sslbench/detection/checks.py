"""Refusal of weights and data that a detector cannot be trained on; only `check_readable` decodes images."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from sslbench.backbones.backbone import Backbone
from sslbench.data.checks.objects import narrow, unusable
from sslbench.data.objects import ObjectSource
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.detection.recipe import DetectionRecipe, DetectionSettings
from sslbench.distributed.collectives import gather_objects, rank, world_size
from sslbench.errors import DataError, UsageError
from sslbench.runtime.progress import Progress
from sslbench.train.observers.always import requested
from sslbench.weights.formats.tables import load_table
from sslbench.weights.reading import files

log = logging.getLogger("sslbench")


# Files of these formats may hold a network for BGR with its strides in the 1x1 convolutions (MSRA's ResNets).
_EITHER = ("torchvision", "plain", "module", "timm", "detectron2", "detectron2_c4", "mmpretrain")
_STRIDES = (*_EITHER, "caffe2_resnet", "caffe2_resnet_jigsaw", "detectron2_caffe2")
_DETECTRON2 = ("detectron2", "detectron2_c4")


def check_weights(settings: DetectionSettings, backbone: Backbone, weights: str) -> None:
    """Refuse a backbone that no detector takes, or whose weights were trained on other images than the recipe's."""
    recipe = settings.recipe
    requested(settings, Path(), {})  # refuses what is not installed
    if backbone.kind.pixels:
        raise UsageError("a detector needs a network, and 'pixels' is none", "Give weights, or random with --backbone.")
    if backbone.preprocessing.channels != 3:
        raise UsageError(
            f"detectors take RGB images, and {backbone.name} takes {backbone.preprocessing.channels} channels",
            "Detection supports three channels only: give --backbone NAME without in_chans.",
        )
    format = backbone.format
    if format is None:  # untrained weights work with any order
        return
    order = None
    if format in _DETECTRON2:
        content = files.read(Path(weights)).content
        mean = content.get("model", content).get("pixel_mean")
        if isinstance(mean, Tensor) and mean.numel() == 3:
            first, _, last = mean.flatten().tolist()  # the means of ImageNet fall from red to blue
            order = None if first == last else "RGB" if first > last else "BGR"
    if recipe.channel_order == "BGR" and format not in _EITHER:
        flips = any("flip_channels" in rule.operations for rule in load_table(format).rules)
        converted = ", whose first convolution is converted from BGR on loading" if flips else ""
        raise UsageError(
            f"channel_order=BGR, but weights of format {format} take RGB{converted} ({weights})",
            "Give channel_order=RGB.",
        )
    if order is not None and order != recipe.channel_order:
        raise UsageError(
            f"channel_order={recipe.channel_order}, but the pixel_mean in {weights} is in the order {order}",
            f"Give channel_order={order}, and the pixel_mean and pixel_std of the file.",
        )
    if recipe.stride_in_1x1 and format not in _STRIDES:
        raise UsageError(
            f"stride_in_1x1=true is for MSRA's weights, but {weights} is of format {format}, with "
            "strides in the 3x3 convolutions",
            "Give stride_in_1x1=false.",
        )


def check_parts(recipe: DetectionRecipe, train_part: Source, test_part: Source) -> None:
    """Refuse images and objects that do not go together with the recipe."""
    train, test = ObjectSource.of(train_part), ObjectSource.of(test_part)
    _refuse_narrow(train, recipe.max_size_train, "max_size_train")
    _refuse_narrow(test, recipe.max_size_test, "max_size_test")
    if recipe.metric == "lvis" and test.target.federated is None:
        raise DataError(
            f"metric=lvis, but {test.name} does not say which classes were looked for in each image",
            "Give LVIS's manifest, whose images have neg_category_ids, or metric=coco.",
        )
    if recipe.keypoints:
        _check_keypoints(recipe, train, test)
    for part in (train, test) if recipe.masks else ():
        if not part.target.has_masks:
            raise DataError(
                f"masks=true, but {part.name} has objects without a mask",
                "Set masks=false, or give data with segmentations.",
            )


def _check_keypoints(recipe: DetectionRecipe, train: ObjectSource, test: ObjectSource) -> None:
    """Refuse data whose keypoints cannot be trained on, mirrored or scored."""
    for part in (train, test):
        if part.target.skeleton is None:
            raise DataError(
                f"keypoints=true, but {part.name} has no keypoints",
                "Give a COCO or kwcoco manifest whose categories list the names of their 'keypoints' (of COCO "
                "person_keypoints_train2017.json), or keypoints=false.",
            )
        if not part.target.labelled_keypoints.any():
            raise DataError(
                f"keypoints=true, but no object of {part.name} has a labelled keypoint (visibility 1 or 2)",
                "Give data with labelled keypoints, or keypoints=false.",
            )
    names = [() if part.target.skeleton is None else part.target.skeleton.names for part in (train, test)]
    if names[0] != names[1]:
        listed = ", ".join(sorted(set(names[0]) ^ set(names[1]))) or "their order differs"
        raise DataError(f"{train.name} and {test.name} have different keypoints: {listed}")
    if recipe.flip and train.target.skeleton is not None:
        train.target.skeleton.mirrored(recipe.mirrored_keypoints)
    if test.target.skeleton is not None:
        used = test.target.skeleton.with_sigmas(recipe.oks_sigma)
        if recipe.oks_sigma and used.sigmas != (recipe.oks_sigma,) * len(used):
            log.info(f"oks_sigma={recipe.oks_sigma:g} is not used: the sigmas of the keypoints are known")


def _refuse_narrow(part: ObjectSource, longest: int, key: str) -> None:
    """Refuse images of which nothing is left when the longer side is reduced to `longest`, the setting `key`."""
    found = narrow(part, longest)
    if len(found):
        height, width = part.target.sizes[found[0]]
        raise DataError(
            f"{part.name}: {counted(len(found), 'image')} too narrow: with {key}={longest} nothing is left of "
            f"{part.images.path(int(found[0]))}, {width} x {height} pixels",
            f"Remove such images, or give a larger {key}.",
        )


_SHOWN = 20
_REMEDY = "Replace them, or remove them and their objects: scores on fewer images would not be comparable."


def check_readable(parts: Sequence[ObjectSource], *, workers: int = 0, progress: Progress | None = None) -> None:
    """Read every image once; every process calls this and reads its share."""
    # Training reads each image many times, so the relative cost is small.
    messages = []
    for part in parts:
        own = np.arange(rank(), len(part), world_size())

        def tell(done: int, part: ObjectSource = part) -> None:
            if progress is not None:
                progress(f"reading the images of {part.name}", min(done * world_size(), len(part)), len(part))

        found = [line for _, line in unusable(part, own, workers=workers, progress=tell)]
        # Gathered, so that all processes refuse with the same list.
        everywhere = sorted(line for lines in gather_objects(found) for line in lines)
        if everywhere:
            shown = everywhere[:_SHOWN]
            shown += [f"... and {len(everywhere) - _SHOWN} more"] if len(everywhere) > _SHOWN else []
            head = f"{part.name}: {len(everywhere)} of {counted(len(part), 'image')} cannot be used:"
            messages.append("\n".join([head, *(f"  {line}" for line in shown)]))
    if messages:
        raise DataError("\n".join(messages), _REMEDY)
