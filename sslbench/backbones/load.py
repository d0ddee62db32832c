"""`--weights` and `--backbone` to a frozen backbone: read, recognise, build, fill strictly."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.backbones.resnet import recognise_resnet
from sslbench.backbones.timm_models import classifier_names
from sslbench.errors import BackboneError, UsageError
from sslbench.weights import files
from sslbench.weights.fill import fill
from sslbench.weights.recognise import Recognised, recognise

Shapes = dict[str, tuple[int, ...]]


def load_backbone(
    weights: str,
    *,
    backbone: str | None = None,
    format: str | None = None,  # the name of the command-line flag
    allow_partial: bool = False,
    seed: int = 0,
) -> Backbone:
    """A backbone with the weights of a file, or without any.

    Args:
        weights: path of a file; 'random' for an untrained backbone; 'pixels' or 'pixels:SIZE' for the image itself.
        backbone: its name (see `build`); not needed for ResNets, whose architecture shows in the shapes.
        format: whose key names the file has; recognised when None.
        allow_partial: load what fits of a file that does not fit entirely; the report says so.
        seed: of the random weights, and of those that a partial file leaves as they were.

    Raises:
        WeightsError: the file cannot be read, is not recognised, or does not fit the backbone.
        BackboneError: the architecture is not recognised, or a user's module cannot be built.
        UsageError: no such backbone, or the arguments contradict each other.
    """
    if weights == "random":
        if backbone is None:
            raise UsageError("random weights of which backbone?", "Name it: --backbone resnet50.")
        return build(backbone, seed=seed)
    if weights.partition(":")[0] == "pixels" and not Path(weights).exists():
        if backbone not in (None, weights):
            raise UsageError(f"the weights '{weights}' are a backbone of their own, and --backbone is {backbone}")
        return build(weights)
    file = files.read(Path(weights))
    if backbone is not None:
        built = build(backbone, seed=seed)
        if built.builder == "pixels":
            raise UsageError(f"the backbone '{backbone}' has no weights", f"Leave the file out: --weights {backbone}.")
        recognised = recognise(file, expected=_shapes(built.module.state_dict()), format=format)
    else:
        recognised = recognise(file, format=format)
        built = build(_architecture(recognised, weights), seed=seed)
    tensors, ignored = _tensors_for(built, recognised)
    report = fill(
        built.module,
        tensors,
        what=weights,
        allow_partial=allow_partial,
        format=recognised.format,
        ignored=(*recognised.ignored, *ignored),
    )
    return dataclasses.replace(built, report=report, format=recognised.format)


def _shapes(tensors: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _tensors_for(built: Backbone, recognised: Recognised) -> tuple[dict[str, Tensor], list[str]]:
    """What belongs into the module, and what was left out: the classifier of a timm model, whatever its name is."""
    expected = built.module.state_dict()
    heads = classifier_names(built.module) if built.builder == "timm" else ()
    tensors, ignored = {}, dict[str, None]()
    for name, tensor in recognised.canonical.items():
        head = next((head for head in heads if name.startswith(f"{head}.")), None)
        if head is not None and name not in expected:
            ignored[f"{head}.*"] = None
        else:
            tensors[name] = tensor
    return tensors, list(ignored)


def _architecture(recognised: Recognised, weights: str) -> str:
    name = recognised.backbone or recognise_resnet(_shapes(recognised.canonical))
    if name is not None:
        return name
    shown = [f"{key} {'x'.join(map(str, t.shape))}" for key, t in list(recognised.canonical.items())[:3]]
    stem = recognised.canonical.get("conv1.weight")
    hint = ""
    if stem is not None and "layer1.0.conv1.weight" in recognised.canonical and tuple(stem.shape[1:]) != (3, 7, 7):
        hint = (
            f" It looks like a ResNet with another stem: {'x'.join(map(str, stem.shape[1:]))}, torchvision's is 3x7x7."
        )
    raise BackboneError(
        f"{weights}: format {recognised.format} with {len(recognised.canonical)} tensors ({', '.join(shown)}, ...); "
        f"the architecture does not show in them.{hint}",
        "Name it: --backbone timm:NAME (any timm model) or --backbone module:callable (your own).",
    )
