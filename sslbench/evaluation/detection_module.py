"""A network that is in memory already as the backbone of a detector."""

import dataclasses
from pathlib import Path

from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torchvision.models import ResNet as TorchvisionResNet

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import users_preprocessing
from sslbench.backbones.load import load_file
from sslbench.backbones.resnet import ResNet
from sslbench.errors import UsageError
from sslbench.weights.files import WeightsFile


def from_user(module: nn.Module, name: str | None = None) -> Backbone:
    """A backbone with a copy of the module's tensors, which are recognised as those of a file are.

    Args:
        module: a ResNet of sslbench or torchvision, or a vision transformer of timm; its classifier is left out.
        name: of the architecture, where the tensors do not show it.

    Raises:
        UsageError: it is something else: a detector takes the network apart, so it has to know its parts.
        WeightsError: the tensors do not fit the architecture.
    """
    if not isinstance(module, ResNet | TorchvisionResNet | VisionTransformer):
        raise UsageError(
            f"a detector cannot be built around a {type(module).__name__}",
            "Give a ResNet of sslbench or torchvision, a vision transformer of timm, or a weights file.",
        )
    tensors = {key: tensor.detach().cpu().clone() for key, tensor in module.state_dict().items()}
    file = WeightsFile(Path(type(module).__name__), "", tensors, "torch zip")
    backbone = load_file(file, backbone=module.spec.name if isinstance(module, ResNet) else name)
    if getattr(module, "preprocessing", None) is None:
        return backbone
    return dataclasses.replace(backbone, preprocessing=users_preprocessing(backbone.name, module))
