"""Request of a detection, and the recipe with the origin of every setting."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torchvision.models import ResNet as TorchvisionResNet

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.in_memory import users_preprocessing
from sslbench.backbones.load import load_file
from sslbench.backbones.resnet import ResNet
from sslbench.backbones.vit.of_timm import is_timm_vit
from sslbench.config import resolve
from sslbench.data.splits.objects import TrainTestObjects
from sslbench.detection.recipe import DetectionRecipe, check, resolved
from sslbench.errors import UsageError
from sslbench.evaluation.request import RunSettings
from sslbench.library.benchmarks import Benchmark
from sslbench.protocols import settings_layers
from sslbench.weights.reading.files import WeightsFile

Backend = Literal["torchvision", "detectron2"]


@dataclasses.dataclass(frozen=True)
class DetectionRequest:
    """Detection to run; the fields have the names and meaning of the flags.

    Attributes:
        recipe: of the detector and its training.
        origins: of each setting of it, for the user.
        benchmark: origin of the recipe, or None.
        baselines: 'random' for the untrained backbone, or weights: the same detector is trained from each, and its
            result stands beside.
        backend: library that trains and runs the detector.
        d2: d2.KEY=value: changes of Detectron2's configuration, without 'd2.'.
        name: of the weights in records and tables; None: that of their file.
    """

    weights: str
    data: str
    recipe: DetectionRecipe
    origins: dict[str, str]
    benchmark: Benchmark | None = None
    test_data: str | None = None
    backbone: str | None = None
    format: str | None = None
    allow_partial: bool = False
    trust_pickle: bool = False
    stem: str | None = None
    baselines: tuple[str, ...] = ()
    backend: Backend = "torchvision"
    d2: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str | None = None


@dataclasses.dataclass(frozen=True)
class PreparedDetection:
    """Detection with everything opened and checked, nothing decoded yet.

    Attributes:
        backend: name and settings of the backend, which stand beside the recipe's among the settings of the record:
            results of two backends do not share a column.
        baselines: baselines that were asked for in their place, and the backbone.
        split_seed: seed of the split, where this is one of several trainings with another seed.
    """

    request: DetectionRequest
    run: RunSettings
    backbone: Backbone
    data: TrainTestObjects
    backend: dict[str, Any]
    baselines: tuple[tuple[str, Backbone], ...] = ()
    split_seed: int | None = None

    def each_training(self) -> "list[PreparedDetection]":
        """Return the same with one training each; the parts of the data stay."""
        split = self.run.seed if self.split_seed is None else self.split_seed
        return [
            dataclasses.replace(self, run=run, split_seed=None if run.seed == split else split)
            for run in self.run.each_seed()
        ]


def make_recipe(
    overrides: Mapping[str, Any], benchmark: Benchmark | None, *, limit_iterations: int | None = None
) -> tuple[DetectionRecipe, dict[str, str], Benchmark | None]:
    """Return the recipe: the defaults, then the benchmark's, then the user's; with the origin of every setting.

    A warm-up and steps that no longer fit into fewer iterations of the user's become shorter in proportion.

    Args:
        overrides: settings by the user.
        benchmark: of detection; it comes back as modified if the user changed anything.
        limit_iterations: training ends after so many; its rates are those of the whole.

    Raises:
        UsageError: an unknown setting or a wrong value.
    """
    layers = settings_layers("detection", benchmark, None, overrides)
    recipe, origins = resolve(DetectionRecipe, layers)
    check(recipe)
    full = resolved(recipe)
    filled = [f.name for f in dataclasses.fields(full) if getattr(full, f.name) != getattr(recipe, f.name)]
    origins |= dict.fromkeys(filled, f"default of {recipe.architecture}")
    iterations = min(limit_iterations or full.iterations, full.iterations)
    shortened = iterations < full.iterations
    if shortened:
        full = dataclasses.replace(full, iterations=iterations)
        origins["iterations"] = "flag --limit-iters"
    if benchmark is not None and (overrides or shortened):
        benchmark = dataclasses.replace(benchmark, modified=True)
    return full, origins, benchmark


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
