"""Detector trained around the backbone, scored by the average precision of its boxes."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.detection import VERSION
from sslbench.detection.detectron2 import library
from sslbench.detection.recipe import DetectionRecipe, DetectionSettings, check, complete, recorded
from sslbench.errors import DataError, UsageError
from sslbench.protocols.protocol import NeededBenchmark, OnObjects, Protocol
from sslbench.targets.objects import Boxes

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer

log = logging.getLogger("sslbench")


def check_settings(settings: DetectionSettings) -> None:
    """Refuse settings that are not possible, or are of the other backend."""
    check(settings)
    detectron2 = settings.program == "detectron2"
    if settings.d2 and not detectron2:
        raise UsageError(
            f"d2.{next(iter(settings.d2))} is a setting of Detectron2, but the backend is {settings.program}",
            "Add --backend detectron2.",
        )
    if detectron2 and (settings.metric == "lvis" or settings.repeat_threshold):
        key = "metric=lvis" if settings.metric == "lvis" else f"repeat_threshold={settings.repeat_threshold:g}"
        raise UsageError(f"{key} is a setting of the torchvision backend", "Leave out --backend detectron2.")
    if detectron2 and (settings.tensorboard or settings.wandb):
        raise UsageError("tensorboard and wandb log the torchvision backend", "Leave out --backend detectron2.")
    if detectron2:
        library.require()


@dataclasses.dataclass(frozen=True)
class Detection(OnObjects[DetectionSettings]):
    """Detector trained around the backbone."""

    def refuse_weights(self, settings: DetectionSettings, backbone: "Backbone", weights: str) -> None:
        """Refuse settings that are not possible, and weights that a detector cannot be built around."""
        from sslbench.detection import checks

        check_settings(settings)
        checks.check_weights(settings, backbone, weights)

    def refuse_parts(self, settings: DetectionSettings, train: Source, test: Source) -> None:
        """Refuse images and objects that do not go together with the recipe."""
        recipe = settings.recipe
        _refuse_narrow(train, recipe.max_size_train, "max_size_train")
        _refuse_narrow(test, recipe.max_size_test, "max_size_test")
        if recipe.metric == "lvis" and Boxes.of(test.target).federated is None:
            raise DataError(
                f"metric=lvis, but {test.name} does not say which classes were looked for in each image",
                "Give LVIS's manifest, whose images have neg_category_ids, or metric=coco.",
            )
        if recipe.keypoints:
            _check_keypoints(recipe, train, test)
        for part in (train, test) if recipe.masks else ():
            if not Boxes.of(part.target).has_masks:
                raise DataError(
                    f"masks=true, but {part.name} has objects without a mask",
                    "Set masks=false, or give data with segmentations.",
                )

    def row_names(
        self,
        protocol: str,
        backbone: "Backbone",
        layers: "Sequence[Layer]",
        train: Source,
        settings: DetectionSettings,
        *,
        seed: int,
    ) -> tuple[str, ...]:
        """Return the name of the only result; the detector is built once, to find what does not fit."""
        import torch

        from sslbench.detection import backends

        backends.try_backend(settings, backbone, torch.device("cpu"))
        return (settings.architecture,)


def _check_keypoints(recipe: DetectionRecipe, train: Source, test: Source) -> None:
    """Refuse data whose keypoints cannot be trained on, mirrored or scored."""
    skeletons = []
    for part in (train, test):
        boxes = Boxes.of(part.target)
        if boxes.skeleton is None:
            raise DataError(
                f"keypoints=true, but {part.name} has no keypoints",
                "Give a COCO or kwcoco manifest whose categories list the names of their 'keypoints' (of COCO "
                "person_keypoints_train2017.json), or keypoints=false.",
            )
        if not boxes.labelled_keypoints.any():
            raise DataError(
                f"keypoints=true, but no object of {part.name} has a labelled keypoint (visibility 1 or 2)",
                "Give data with labelled keypoints, or keypoints=false.",
            )
        skeletons.append(boxes.skeleton)
    of_train, of_test = skeletons
    if of_train.names != of_test.names:
        listed = ", ".join(sorted(set(of_train.names) ^ set(of_test.names))) or "their order differs"
        raise DataError(f"{train.name} and {test.name} have different keypoints: {listed}")
    if recipe.flip:
        of_train.mirrored(recipe.mirrored_keypoints)
    used = of_test.with_sigmas(recipe.oks_sigma)
    if recipe.oks_sigma and used.sigmas != (recipe.oks_sigma,) * len(used):
        log.info(f"oks_sigma={recipe.oks_sigma:g} is not used: the sigmas of the keypoints are known")


def _refuse_narrow(part: Source, longest: int, key: str) -> None:
    """Refuse images of which nothing is left when the longer side is reduced to `longest`, the setting `key`."""
    boxes = Boxes.of(part.target)
    found = boxes.narrow(longest)
    if len(found):
        height, width = boxes.sizes[found[0]]
        raise DataError(
            f"{part.name}: {counted(len(found), 'image')} too narrow: with {key}={longest} nothing is left of "
            f"{part.images.path(int(found[0]))}, {width} x {height} pixels",
            f"Remove such images, or give a larger {key}.",
        )


PROTOCOL = Protocol(
    version=VERSION,
    summary="Detector trained around the backbone: average precision of its boxes.",
    settings=DetectionSettings,
    kind=Detection(takes=(Boxes,)),
    check_settings=check_settings,
    complete=complete,
    recorded=recorded,
    benchmark=NeededBenchmark(
        "detection/toy",
        "kwcoco's toy shapes",
        "the training recipe",
        "detection/small suits a few hundred images on a CPU, detection/toy the toy shapes.",
    ),
)
