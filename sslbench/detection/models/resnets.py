"""ResNet as the trunk of a detector: split into stages, with the recipe's norms and frozen stages."""

from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone, copied
from sslbench.backbones.resnet import ResNet
from sslbench.backbones.resnet_spec import ResNetSpec
from sslbench.detection.models.layers import freeze, freeze_norms
from sslbench.detection.recipe import DETR, DetectionRecipe
from sslbench.errors import UsageError

STAGES = ("layer1", "layer2", "layer3", "layer4")


class Trunk(nn.Module):
    """First stages of a ResNet under their canonical names."""

    def __init__(self, network: ResNet, stages: int) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu, self.maxpool = network.conv1, network.bn1, network.relu, network.maxpool
        self.stages = STAGES[:stages]
        for name in self.stages:
            setattr(self, name, network.get_submodule(name))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the map of each stage, of strides 4, 8, 16, 32, of images (B, channels, H, W)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps = []
        for name in self.stages:
            x = self.get_submodule(name)(x)
            maps.append(x)
        return maps


def prepared(backbone: Backbone, recipe: DetectionRecipe) -> ResNet:
    """Return a copy of the backbone's network, trainable except for the frozen stages.

    Raises:
        UsageError: the network is no ResNet, or one for small images.
    """
    network = copied(backbone.module)
    if not isinstance(network, ResNet):
        vit = "vit_deformable_detr" if recipe.architecture in DETR else "vit_fpn"
        other = f"For a vision transformer of timm use architecture={vit}." if backbone.kind.tags else ""
        raise UsageError(
            f"architecture={recipe.architecture} needs a ResNet of sslbench, but the backbone is {backbone.name}",
            f"Use resnet18 to resnet200, wide or grouped. {other}".strip(),
        )
    if network.spec.stem != "imagenet":
        raise UsageError(
            f"{backbone.name} has the stem for small images, whose maps are too fine for a detector",
            "Use a backbone with the usual stem.",
        )
    if (network.spec.last_stride, network.spec.third_stride, network.spec.output_stride) != (2, 2, 32):
        raise UsageError(
            f"{backbone.name} has finer maps, but a detector needs those of stride 4, 8, 16 and 32",
            "Use a backbone without last_stride=1, third_stride=1 and output_stride.",
        )
    network.requires_grad_(True)
    if recipe.norm == "frozen":
        freeze_norms(network)
    if recipe.stride_in_1x1 and not network.spec.stride_in_1x1:
        _move_strides(network)
    # The fifth stage of c4 is no part of its backbone but of its head, as in Detectron2 and in Goyal et al. 2019, where
    # detection on a frozen backbone trains it.
    stages = STAGES[:3] if recipe.architecture == "c4" else STAGES
    for index, names in enumerate((("conv1", "bn1"), *((stage,) for stage in stages)), start=1):
        if recipe.freeze_at >= index:
            for name in names:
                setattr(network, name, freeze(network.get_submodule(name)))
    return network


def channels(spec: ResNetSpec, stage: int) -> int:
    """Return the output channels of a stage (0 to 3)."""
    return spec.width * (1 << stage) * (4 if spec.block == "bottleneck" else 1)


def _move_strides(network: ResNet) -> None:
    """Move the stride of each stage from its first 3x3 to its first 1x1 convolution; the shapes do not show it."""
    if network.spec.block != "bottleneck":
        raise UsageError(f"stride_in_1x1: the blocks of {network.spec.name} have no 1x1 convolution")
    for name in STAGES[1:]:
        first = network.get_submodule(f"{name}.0")
        for conv, stride in (("conv1", (2, 2)), ("conv2", (1, 1))):
            first.get_submodule(conv).stride = stride  # type: ignore[assignment]
