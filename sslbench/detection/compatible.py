"""Whether a recipe takes images and strides as the weights do: neither shows in the tensors."""

from pathlib import Path

from torch import Tensor

from sslbench.backbones.backbone import Backbone
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import UsageError
from sslbench.weights import files
from sslbench.weights.tables import load_table

# Files of these formats may hold a network for BGR with its strides in the 1x1 convolutions (MSRA's ResNets).
_EITHER = ("torchvision", "plain", "module", "timm", "detectron2", "detectron2_c4", "mmpretrain")
_STRIDES = (*_EITHER, "caffe2_resnet", "caffe2_resnet_jigsaw")
_DETECTRON2 = ("detectron2", "detectron2_c4")


def check_weights(backbone: Backbone, recipe: DetectionRecipe, weights: str) -> None:
    """Refuses an order of the channels or a place of the strides that the weights were not made for.

    Args:
        backbone: as loaded.
        recipe: its channel_order and stride_in_1x1 count.
        weights: as the user gave them.

    Raises:
        UsageError: they contradict what is known of the weights.
    """
    format = backbone.format
    if format is None:  # untrained: it takes what it gets
        return
    said = _said_by_file(weights) if format in _DETECTRON2 else None
    if recipe.channel_order == "BGR" and format not in _EITHER:
        turned = ", whose first convolution is turned from BGR on loading" if _turns(format) else ""
        raise UsageError(
            f"channel_order=BGR, but weights of format {format} take RGB{turned} ({weights})", "Give channel_order=RGB."
        )
    if said is not None and said != recipe.channel_order:
        raise UsageError(
            f"channel_order={recipe.channel_order}, but the pixel_mean in {weights} is in the order {said}",
            f"Give channel_order={said}, and the pixel_mean and pixel_std of the file.",
        )
    if recipe.stride_in_1x1 and format not in _STRIDES:
        raise UsageError(
            f"stride_in_1x1=true is for weights of MSRA, and {weights} is of format {format}, with its strides in the "
            "3x3 convolutions",
            "Give stride_in_1x1=false.",
        )


def _turns(format: str) -> bool:
    return any("flip_channels" in rule.operations for rule in load_table(format).rules)


def _said_by_file(weights: str) -> str | None:
    """The order that a file of Detectron2's says by its means: those of ImageNet fall from red to blue."""
    content = files.read(Path(weights)).content
    mean = content.get("model", content).get("pixel_mean")
    if not isinstance(mean, Tensor) or mean.numel() != 3:
        return None
    first, _, last = mean.flatten().tolist()
    return None if first == last else "RGB" if first > last else "BGR"
