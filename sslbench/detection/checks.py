"""Refusal of weights and data that a detector cannot be trained on, before any image is decoded."""

import logging

from sslbench.backbones.backbone import Backbone
from sslbench.data.checks.readable import narrow
from sslbench.data.objects.types import ObjectSource
from sslbench.data.wording import counted
from sslbench.detection.recipe import DetectionRecipe
from sslbench.detection.saved import check_weights as check_origin
from sslbench.errors import DataError, UsageError

log = logging.getLogger("sslbench")


def check_weights(recipe: DetectionRecipe, backbone: Backbone, weights: str) -> None:
    """Refuse a backbone that no detector takes, or whose weights were trained on other images than the recipe's.

    Args:
        recipe: of the detector.
        backbone: loaded.
        weights: as given by the user.

    Raises:
        UsageError: it has no network or not three channels, or another order of channels or place of the strides.
    """
    if backbone.kind.pixels:
        raise UsageError("a detector needs a network, and 'pixels' is none", "Give weights, or random with --backbone.")
    if backbone.preprocessing.channels != 3:
        raise UsageError(
            f"detectors take RGB images, and {backbone.name} takes {backbone.preprocessing.channels} channels",
            "Detection supports three channels only: give --backbone NAME without in_chans.",
        )
    check_origin(backbone, recipe, weights)


def check_parts(recipe: DetectionRecipe, train: ObjectSource, test: ObjectSource) -> None:
    """Refuse images and objects that do not go together with the recipe.

    Raises:
        DataError: images are too narrow, or masks, keypoints or LVIS's lists of absent classes are missing.
    """
    _refuse_narrow(train, recipe.max_size_train, "max_size_train")
    _refuse_narrow(test, recipe.max_size_test, "max_size_test")
    if recipe.metric == "lvis" and test.federated is None:
        raise DataError(
            f"metric=lvis, but {test.name} does not say which classes were looked for in each image",
            "Give LVIS's manifest, whose images have neg_category_ids, or metric=coco.",
        )
    if recipe.keypoints:
        _check_keypoints(recipe, train, test)
    for part in (train, test) if recipe.masks else ():
        if not part.has_masks:
            raise DataError(
                f"masks=true, but {part.name} has objects without a mask",
                "Set masks=false, or give data with segmentations.",
            )


def _check_keypoints(recipe: DetectionRecipe, train: ObjectSource, test: ObjectSource) -> None:
    """Refuse data whose keypoints cannot be trained on, mirrored or scored."""
    for part in (train, test):
        if part.skeleton is None:
            raise DataError(
                f"keypoints=true, but {part.name} has no keypoints",
                "Give a COCO or kwcoco manifest whose categories list the names of their 'keypoints' (of COCO "
                "person_keypoints_train2017.json), or keypoints=false.",
            )
        if not part.labelled_keypoints.any():
            raise DataError(
                f"keypoints=true, but no object of {part.name} has a labelled keypoint (visibility 1 or 2)",
                "Give data with labelled keypoints, or keypoints=false.",
            )
    names = [() if part.skeleton is None else part.skeleton.names for part in (train, test)]
    if names[0] != names[1]:
        listed = ", ".join(sorted(set(names[0]) ^ set(names[1]))) or "their order differs"
        raise DataError(f"{train.name} and {test.name} have different keypoints: {listed}")
    if recipe.flip and train.skeleton is not None:
        train.skeleton.mirrored(recipe.mirrored_keypoints)
    if test.skeleton is not None:
        used = test.skeleton.with_sigmas(recipe.oks_sigma)
        if recipe.oks_sigma and used.sigmas != (recipe.oks_sigma,) * len(used):
            log.info(f"oks_sigma={recipe.oks_sigma:g} is not used: the sigmas of the keypoints are known")


def _refuse_narrow(part: ObjectSource, longest: int, key: str) -> None:
    """Refuse images of which nothing is left when the longer side is reduced to `longest`, the setting `key`."""
    found = narrow(part, longest)
    if len(found):
        height, width = part.sizes[found[0]]
        raise DataError(
            f"{part.name}: {counted(len(found), 'image')} too narrow: with {key}={longest} nothing is left of "
            f"{part.images.path(int(found[0]))}, {width} x {height} pixels",
            f"Remove such images, or give a larger {key}.",
        )
