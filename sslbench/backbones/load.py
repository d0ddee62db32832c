"""`--weights` and `--backbone` to a frozen backbone: read, recognise, build, fill strictly."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from sslbench.backbones.alexnet import recognise_alexnet
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.backbones.resnet import recognise_resnet
from sslbench.backbones.timm_models import classifier_names
from sslbench.backbones.vit_positions import fit_positions
from sslbench.backbones.vit_preprocessing import vit_preprocessing
from sslbench.backbones.vit_recognise import recognise_vit
from sslbench.errors import BackboneError, UsageError
from sslbench.weights import files
from sslbench.weights.fill import fill
from sslbench.weights.recognise import Recognised, recognise

Shapes = dict[str, tuple[int, ...]]
log = logging.getLogger("sslbench")


def load_backbone(
    weights: str,
    *,
    backbone: str | None = None,
    format: str | None = None,  # the name of the command-line flag
    allow_partial: bool = False,
    trust_pickle: bool = False,
    seed: int = 0,
) -> Backbone:
    """A backbone with the weights of a file, or without any.

    Args:
        weights: path of a file; 'random' for an untrained backbone; 'pixels' or 'pixels:SIZE' for the image itself.
        backbone: its name (see `build`); not needed for ResNets and ViTs, whose architecture shows in the shapes.
        format: whose key names the file has; recognised when None.
        allow_partial: load what fits of a file that does not fit entirely; the report says so.
        trust_pickle: run what a pickle in the file asks for; see `files.read`.
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
    file = files.read(Path(weights), trust_pickle=trust_pickle)
    return load_file(file, backbone=backbone, format=format, allow_partial=allow_partial, seed=seed)


def load_file(
    file: files.WeightsFile,
    *,
    backbone: str | None = None,
    format: str | None = None,
    allow_partial: bool = False,
    seed: int = 0,
) -> Backbone:
    """A backbone with the weights of a file that has been read; arguments and errors as for `load_backbone`."""
    weights = str(file.path)
    if backbone is not None:
        built = build(backbone, seed=seed)
        if built.builder == "pixels":
            raise UsageError(f"the backbone '{backbone}' has no weights", f"Leave the file out: --weights {backbone}.")
        recognised = recognise(file, expected=_shapes(built.module.state_dict()), format=format)
    else:
        recognised = recognise(file, format=format)
        built = build(architecture(recognised, weights), seed=seed)
    tensors, ignored = _tensors_for(built, recognised)
    tensors, changes = fit_positions(tensors, built.module)
    report = fill(
        built.module,
        tensors,
        what=weights,
        allow_partial=allow_partial,
        format=recognised.format,
        network=recognised.network_text,
        ignored=(*recognised.ignored, *ignored),
    )
    report = dataclasses.replace(report, casts=(*report.casts, *changes), note=recognised.note)
    preprocessing = vit_preprocessing(built, recognised.format, named=backbone is not None)
    return dataclasses.replace(built, report=report, format=recognised.format, preprocessing=preprocessing)


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


def architecture(recognised: Recognised, weights: str) -> str:
    """The name of the backbone whose tensors these are; what `build` takes.

    Args:
        recognised: what is in the file.
        weights: what to call the file in the message.

    Raises:
        BackboneError: it does not show in the tensors.
    """
    shapes = _shapes(recognised.canonical)
    name = recognised.backbone or recognise_resnet(shapes) or recognise_alexnet(shapes)
    if name is not None:
        return name
    if vit := recognise_vit(_shapes(recognised.canonical), format=recognised.format):
        if not vit.heads_known:
            raise BackboneError(
                f"{weights}: {vit.describe()}? The number of heads does not show in the tensors, and for this "
                "size it is not the same everywhere",
                f"Give the right number: --backbone {vit.name}",
            )
        for note in vit.notes:
            log.info(f"{weights}: {note}")
        return vit.name
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
