"""Detection that is opened and checked, and backbones in memory for it."""

import dataclasses
from pathlib import Path

from torch import nn
from torchvision.models import ResNet as TorchvisionResNet

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.in_memory import users_preprocessing
from sslbench.backbones.load import load_file
from sslbench.backbones.resnet import ResNet
from sslbench.backbones.vit.of_timm import is_timm_vit
from sslbench.data.splits.objects import TrainTestObjects
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import UsageError
from sslbench.evaluation.request import Request, RunSettings, Task
from sslbench.weights.reading.files import WeightsFile


@dataclasses.dataclass(frozen=True)
class PreparedDetection:
    """Detection with everything opened and checked, nothing decoded yet.

    Attributes:
        task: of the request, the only one, with the settings of the backend as it takes them.
        baselines: baselines that were asked for in their place, and the backbone.
        split_seed: seed of the split, where this is one of several trainings with another seed.
    """

    request: Request
    run: RunSettings
    backbone: Backbone
    data: TrainTestObjects
    task: Task
    baselines: tuple[tuple[str, Backbone], ...] = ()
    split_seed: int | None = None

    @property
    def recipe(self) -> DetectionRecipe:
        """Recipe of the detector."""
        recipe: DetectionRecipe = self.task.settings.recipe
        return recipe

    def each_training(self) -> "list[PreparedDetection]":
        """Return the same with one training each; the parts of the data stay."""
        split = self.run.seed if self.split_seed is None else self.split_seed
        return [
            dataclasses.replace(self, run=run, split_seed=None if run.seed == split else split)
            for run in self.run.each_seed()
        ]


def from_user(module: nn.Module, name: str | None = None) -> Backbone:
    """Return a backbone with a copy of the module's tensors, recognised like those of a file.

    Args:
        module: a ResNet of sslbench or torchvision, or a vision transformer of timm; its classifier is left out.
        name: of the architecture, where the tensors do not show it.

    Raises:
        UsageError: it is something else: a detector takes the network apart, so it has to know its parts.
        WeightsError: the tensors do not fit the architecture.
    """
    if not (isinstance(module, ResNet | TorchvisionResNet) or is_timm_vit(module)):
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
