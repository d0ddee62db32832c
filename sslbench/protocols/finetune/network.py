"""Network to finetune: a backbone with a classifier on the features of one layer, and its loss."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from timm.layers.drop import DropPath
from timm.models import group_parameters
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms import v2

from sslbench.arrays import IntArray
from sslbench.backbones.backbone import Backbone, copied
from sslbench.backbones.build import build
from sslbench.backbones.classifier import ClassifierHead
from sslbench.backbones.layers import Layer, forward_layers
from sslbench.distributed.collectives import sum_, world_size
from sslbench.errors import UsageError
from sslbench.protocols._parts.attention import attention_of
from sslbench.protocols.finetune.settings import Settings
from sslbench.runtime.seeds import seeded
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.target import OfClasses, Target
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step
from sslbench.train.parameter_groups import numbered_layers
from sslbench.train.views import make_mix
from sslbench.weights.fill import fill

_STAGE = re.compile(r"layer(\d+)\.")
_STEM = ("conv1.", "bn1.")
_CLASSIFIER = "fc."


@dataclasses.dataclass(frozen=True)
class Targets:
    """Training targets.

    Attributes:
        kind: kind of the labels.
        values: single: int64 (N,); multi: float32 (N, C) of 1, 0 and -1 (ignored); value: float32 (N, C), standardised.
        shift: (C,), mean of the numbers; 0 for classes.
        scale: (C,), standard deviation of the numbers; 1 for classes.
        classes: (C,) class numbers in the order in which they get initial weights.
    """

    kind: type[Target]
    values: Tensor
    shift: Tensor
    scale: Tensor
    classes: IntArray

    @classmethod
    def of(cls, labels: Target) -> "Targets":
        """Return the targets of labels; numbers are standardised."""
        n = len(labels.classes)
        classes = labels.by_first_sample() if isinstance(labels, OfClasses) else np.arange(n)
        if isinstance(labels, Classes):
            values = torch.from_numpy(labels.values.astype(np.int64))
            return cls(type(labels), values, torch.zeros(n), torch.ones(n), classes)
        values = torch.from_numpy(labels.values.astype(np.float32))
        if isinstance(labels, MultiLabel):
            return cls(type(labels), values, torch.zeros(n), torch.ones(n), classes)
        shift = torch.from_numpy(labels.values.mean(axis=0)).float()
        spread = torch.from_numpy(labels.values.std(axis=0)).float()
        scale = torch.where(spread > 0, spread, torch.ones(n))
        return cls(type(labels), (values - shift) / scale, shift, scale, classes)


class FinetunedNetwork(method.Method[Settings]):
    """Backbone with a classifier, trained together.

    Attributes:
        head: classifier on the pooled features.
        probe_updates: number of updates at the start in which the backbone is frozen.
    """

    config_type = Settings

    def __init__(
        self, backbone: nn.Module, layer: Layer, targets: Targets, settings: Settings, setup: Setup, *, probe: int
    ) -> None:
        super().__init__(backbone, settings, setup)
        self.layer, self.kind, self.probe_updates = layer, targets.kind, probe
        attention = attention_of(settings, setup.feature_dim)
        self.head = ClassifierHead(setup.feature_dim, len(targets.shift), settings.norm, attention)
        linear = self.head.head
        if settings.init == "zeros":
            nn.init.zeros_(linear.weight)
        elif settings.init == "normal":
            nn.init.normal_(linear.weight, std=0.01)
        if settings.init != "uniform":
            nn.init.zeros_(linear.bias)
        # Weights are drawn for classes by their first sample, so that names and numbers of classes change no result.
        order = torch.from_numpy(np.argsort(targets.classes))
        with torch.no_grad():
            for values in (linear.weight, linear.bias):
                values.copy_(values[order])
        # A buffer moves with the network to its device; the labels are those of the data, so no checkpoint holds them.
        self.register_buffer("targets", targets.values, persistent=False)
        self.targets: Tensor
        self._mix = make_mix(settings.mixup, settings.cutmix, len(targets.shift))
        self._erase = v2.RandomErasing(settings.erasing, value="random", inplace=True) if settings.erasing else None
        self.train()

    def averaged(self) -> nn.Module:
        """Return the whole network."""
        return self

    def train(self, mode: bool = True) -> "FinetunedNetwork":
        """Set the mode; BatchNorm layers with frozen statistics or parameters stay in evaluation mode."""
        super().train(mode)
        for part in self.backbone.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                # Without trained parameters it would still move its running statistics in training mode.
                trained = [each.requires_grad for each in part.parameters()]
                if self.config.batch_norm == "frozen" or (trained and not any(trained)):
                    part.eval()
        return self

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return cross entropy (single), binary cross entropy of the known labels (multi) or squared error (value)."""
        if step.index < self.probe_updates:
            # While the head alone is trained, statistics of BatchNorm must not move and dropout must not act.
            self.backbone.eval()
        elif self.training and not self.backbone.training:
            self.train()
        images, targets = batch.views[0], self.targets[batch.indices.to(self.targets.device)]
        if self._erase is not None:
            # Each image has a rectangle of its own; of a batch torchvision would erase one rectangle in all images.
            for image in images:
                self._erase(image)
        if self._mix is not None:
            images, targets = self._mix(images, targets)
        features = forward_layers(self.backbone, images, (self.layer,))[self.layer.text]
        scores = self.head(features).float()
        parts = {}
        if issubclass(self.kind, Classes):
            value = functional.cross_entropy(scores, targets, label_smoothing=self.config.label_smoothing)
            # The targets of mixed images are shares of classes, which no prediction equals.
            if self._mix is None:
                parts["top1"] = (scores.detach().argmax(dim=1) == targets).float().mean() * 100
        elif issubclass(self.kind, MultiLabel):
            known = targets >= 0
            # Unknown labels are -1, for which the loss is not defined; `known` leaves them out.
            every = functional.binary_cross_entropy_with_logits(scores, targets.clamp(min=0), reduction="none")
            # The known labels of all processes count alike, however they are divided among them.
            each_process = sum_(known.sum().float()) / world_size()
            value = (every * known).sum() / each_process.clamp(min=1)
        else:
            value = functional.mse_loss(scores, targets)
        shown = features.detach().float()
        return Loss(value, shown.mean(1) if shown.ndim == 3 else shown, parts)


def check_backbone(backbone: Backbone, settings: Settings) -> None:
    """Raise an error if the settings do not fit the backbone."""
    if not any(True for _ in backbone.module.parameters()):
        raise UsageError(f"finetune: {backbone.name} has no trainable parameters", "Name a network with --backbone.")
    if settings.drop_path:
        trainable_backbone(backbone, settings)
    if settings.layer_decay is not None or settings.train_blocks is not None:
        layers = layer_numbers(backbone)
        if settings.train_blocks is not None and settings.train_blocks >= layers.head:
            raise UsageError(
                f"train_blocks={settings.train_blocks}: {backbone.name} has {layers.head - 1} blocks or stages",
                "Leave it out to train everything.",
            )


def trainable_backbone(backbone: Backbone, settings: Settings) -> nn.Module:
    """Return a copy of the backbone's module, with stochastic depth if `drop_path` is set."""
    if not settings.drop_path:
        return copied(backbone.module)
    unsupported = UsageError(f"finetune: {backbone.name} has no stochastic depth", "Leave out drop_path=.")
    if not backbone.kind.tags or backbone.kind.in_memory:  # models of timm have tags
        raise unsupported
    module = build(f"{backbone.name},drop_path_rate={settings.drop_path:g}").module
    if not any(isinstance(part, DropPath) and part.drop_prob for part in module.modules()):
        raise unsupported
    fill(module, backbone.module.state_dict(), what=backbone.name)
    return module


def feature_width(module: nn.Module, layer: Layer, sides: Sequence[int], channels: int, *, name: str) -> int:
    """Return the dimension of the layer's features, which must be equal for training views and test images.

    `sides`: sides of the views and of the test images, in pixels.
    """
    widths = {}
    # In training mode these zeros would move the statistics of BatchNorm.
    mode = module.training
    module.eval()
    for side in dict.fromkeys(sides):
        with torch.no_grad():
            features = forward_layers(module, torch.zeros(1, channels, side, side), (layer,))
        widths[side] = int(features[layer.text].shape[-1])
    module.train(mode)
    if len(set(widths.values())) > 1:
        text = " and ".join(f"{width:,} for {side} pixels" for side, width in widths.items())
        raise UsageError(
            f"finetune: layer '{layer.text}' of {name} has features of different lengths: {text}",
            "Leave out size=, or pool the layer to a fixed size: LAYER:avg, LAYER:adaptive(2,2).",
        )
    return next(iter(widths.values()))


def freeze_unused(module: nn.Module, layer: Layer, side: int, channels: int) -> None:
    """Freeze the parameters that do not influence the layer; DistributedDataParallel fails on unused ones."""
    mode = module.training
    module.eval().requires_grad_(True)
    features = forward_layers(module, torch.zeros(1, channels, side, side), (layer,))[layer.text]
    parameters = list(module.parameters())
    gradients = torch.autograd.grad(features.sum(), parameters, allow_unused=True) if features.requires_grad else ()
    for parameter, gradient in zip(parameters, gradients or [None] * len(parameters), strict=True):
        parameter.requires_grad_(gradient is not None)
    module.train(mode)


@dataclasses.dataclass(frozen=True)
class LayerNumbers:
    """Depths of the parameters, for layer-wise learning rates.

    Attributes:
        backbone: name of a parameter of the backbone -> 0 for the stem, 1, 2, ... for blocks or stages.
        head: depth of the head and of the other layers after the blocks.
    """

    backbone: Mapping[str, int]
    head: int


def layer_numbers(backbone: Backbone) -> LayerNumbers:
    """Return the depths of the parameters of a backbone.

    Vision transformers are numbered by blocks (as in BEiT and MAE), ResNets by stages (as in VISSL), other models of
    timm as timm does.
    """
    module = backbone.module
    names = [name for name, _ in module.named_parameters()]
    matcher = getattr(module, "group_matcher", None)  # of models of timm only
    # EfficientNets of timm have blocks too, after a stem that only timm numbers.
    is_transformer = any(name.startswith("patch_embed.") for name in names)
    if any(name.startswith("blocks.") for name in names) and (is_transformer or not callable(matcher)):
        found = numbered_layers([f"backbone.{name}" for name in names])
        return LayerNumbers({name: found[f"backbone.{name}"] for name in names}, max(found.values()))
    stages = {name: int(match[1]) for name in names if (match := _STAGE.match(name))}
    # HRNets have a layer1 too, and stages of their own after it.
    is_resnet = all(name in stages or name.startswith((*_STEM, _CLASSIFIER)) for name in names)
    if stages and (is_resnet or not callable(matcher)):
        last = max(stages.values()) + 1
        return LayerNumbers({name: stages.get(name, 0 if name.startswith(_STEM) else last) for name in names}, last)
    if callable(matcher):
        patterns = matcher(coarse=False)
        found = group_parameters(module, patterns, reverse=True)
        last = max(found.values())
        # A pattern of timm is an expression, or a list of (expression, number).
        expressions = [
            expression
            for entry in patterns.values()
            for expression in ([entry] if isinstance(entry, str) else [first for first, _ in entry])
        ]
        # timm gives what no pattern matches, such as its classifier, a number after all others.
        unmatched = any(not any(re.match(expression, name) for expression in expressions) for name in names)
        return LayerNumbers(found, last if unmatched else last + 1)
    raise UsageError(
        f"finetune: {backbone.name} has no numbered blocks or stages for layer_decay and train_blocks",
        "Leave them out, or use a ResNet or a model of timm.",
    )


def make_network(
    backbone: Backbone,
    layer: Layer,
    targets: Targets,
    settings: Settings,
    setup: Setup,
    *,
    probe: int,
    side: int,
    seed: int,
) -> FinetunedNetwork:
    """Return the network to train, on the CPU.

    `backbone`: pretrained network; a copy of it is trained; `side`: side of the views in pixels.
    """
    module = trainable_backbone(backbone, settings)
    freeze_unused(module, layer, side, backbone.preprocessing.channels)
    if settings.train_blocks is not None:
        layers = layer_numbers(backbone)
        for key, parameter in module.named_parameters():
            if layers.backbone[key] < layers.head - settings.train_blocks:
                parameter.requires_grad_(False)
    with seeded(seed + 1):  # a random stream apart from that of an untrained backbone's weights
        return FinetunedNetwork(module, layer, targets, settings, setup, probe=probe)
