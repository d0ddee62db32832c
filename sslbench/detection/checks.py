"""Refusal of weights and data that a detector cannot be trained on; only `check_readable` decodes images."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from sslbench.backbones.backbone import Backbone
from sslbench.data.checks.objects import unusable
from sslbench.data.objects import ObjectSource
from sslbench.data.wording import counted
from sslbench.detection.recipe import DetectionSettings
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
