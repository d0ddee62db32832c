"""`--weights` and `--backbone` to a frozen backbone: read, recognise, build, fill strictly."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from sslbench.backbones.alexnet import recognise_alexnet
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.backbones.resnet import parse, recognise_resnet
from sslbench.backbones.stems import StemRule, fit_stem, parse_rule, with_channels
from sslbench.backbones.timm_models import classifier_names
from sslbench.backbones.vit_positions import fit_positions
from sslbench.backbones.vit_preprocessing import vit_preprocessing
from sslbench.backbones.vit_recognise import recognise_vit
from sslbench.config import build as build_dataclass
from sslbench.errors import BackboneError, UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.weights import files, save
from sslbench.weights.fill import LoadReport, fill
from sslbench.weights.recognise import Recognised, recognise

Shapes = dict[str, tuple[int, ...]]
log = logging.getLogger("sslbench")

ASSUMED_CIFAR = "a 3x3 stem is taken for CIFAR's: stride 1, no max-pooling (neither shows in the tensors)"


def load_backbone(
    weights: str,
    *,
    backbone: str | None = None,
    format: str | None = None,  # the name of the command-line flag
    allow_partial: bool = False,
    trust_pickle: bool = False,
    stem: str | None = None,
    seed: int = 0,
) -> Backbone:
    """A backbone with the weights of a file, or without any.

    Args:
        weights: path of a file; 'random' for an untrained backbone; 'pixels' or 'pixels:SIZE' for the image itself.
        backbone: its name (see `build`); not needed for ResNets and ViTs, whose architecture shows in the shapes.
        format: whose key names the file has; recognised when None.
        allow_partial: load what fits of a file that does not fit entirely; the report says so.
        trust_pickle: run what a pickle in the file asks for; see `files.read`.
        stem: how a stem for another number of channels is mapped to the backbone's: 'repeat', 'average', 'sum',
            'bands=3,2,1' or 'random' (see `stems.StemRule`); None refuses it.
        seed: of the random weights, and of those that a partial file leaves as they were.

    Raises:
        WeightsError: the file cannot be read, is not recognised, or does not fit the backbone.
        BackboneError: the architecture is not recognised, or a user's module cannot be built.
        UsageError: no such backbone, or the arguments contradict each other.
    """
    rule = parse_rule(stem) if stem is not None else None
    pixels = weights.partition(":")[0] == "pixels" and not Path(weights).exists()
    if rule is not None and (weights == "random" or pixels):
        raise UsageError(f"--stem maps the stem of a weights file; '{weights}' is none", "Leave it out.")
    if weights == "random":
        if backbone is None:
            raise UsageError("random weights of which backbone?", "Name it: --backbone resnet50.")
        return build(backbone, seed=seed)
    if pixels:
        if backbone not in (None, weights):
            raise UsageError(f"the weights '{weights}' are a backbone of their own, and --backbone is {backbone}")
        return build(weights)
    file = files.read(Path(weights), trust_pickle=trust_pickle)
    return load_file(file, backbone=backbone, format=format, allow_partial=allow_partial, stem=rule, seed=seed)


def load_file(
    file: files.WeightsFile,
    *,
    backbone: str | None = None,
    format: str | None = None,
    allow_partial: bool = False,
    stem: StemRule | None = None,
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
        name = architecture(recognised, weights)
        built = build(with_channels(name, 1) if stem is not None and stem.name == "sum" else name, seed=seed)
    tensors, ignored = _tensors_for(built, recognised)
    tensors, mapped, random = fit_stem(tensors, built, stem, what=weights)
    tensors, resized = fit_positions(tensors, built.module)
    report = fill(
        built.module,
        tensors,
        what=weights,
        allow_partial=allow_partial,
        format=recognised.format,
        network=recognised.network_text,
        ignored=(*recognised.ignored, *ignored),
    )
    notes = [recognised.note] if recognised.note else []
    if backbone is None and recognised.backbone is None and _is_cifar(built):
        notes.append(ASSUMED_CIFAR)
    report = dataclasses.replace(report, casts=(*report.casts, *mapped, *resized), note="; ".join(notes))
    report = _without(report, built, random)
    preprocessing = _recorded_preprocessing(file) or vit_preprocessing(
        built, recognised.format, named=backbone is not None
    )
    preprocessing = preprocessing.for_channels(built.preprocessing.channels)
    return dataclasses.replace(built, report=report, format=recognised.format, preprocessing=preprocessing)


def _recorded_preprocessing(file: files.WeightsFile) -> Preprocessing | None:
    """The transform that `sslbench pretrain` wrote beside the weights; None where there is none."""
    metadata = file.content.get("metadata")
    own = file.content.get("format") in (save.FORMAT, save.CHECKPOINT_FORMAT)
    text = metadata.get("preprocessing") if own and metadata else None
    if text is None:
        return None
    return build_dataclass(Preprocessing, json.loads(text), f"{file.path}: metadata.preprocessing")


def mapped_stem(
    recognised: Recognised, weights: str, *, rule: str, channels: int | None, backbone: str | None
) -> tuple[Recognised, str]:
    """What is in a file with its stem mapped to another number of channels, to be written again.

    Args:
        recognised: what is in the file.
        weights: what to call the file in messages.
        rule: as `load_backbone`'s `stem`.
        channels: to which number; None: 1 for 'sum'.
        backbone: the name of the architecture in the file, where it does not show.

    Returns:
        The same with another stem, and the name of the backbone that takes it.

    Raises:
        UsageError: the rule does not lead to that number of channels.
        BackboneError: the architecture is not recognised.
    """
    stem = parse_rule(rule)
    if stem.name == "random":
        raise UsageError("--stem random: a converted file holds the numbers of another, not new ones")
    channels = 1 if stem.name == "sum" and channels is None else channels
    if channels is None:
        raise UsageError(f"--stem {rule}: for images of how many channels?", "Say it: --in-chans 4.")
    built = build(with_channels(backbone or architecture(recognised, weights), channels))
    canonical, mapped, _ = fit_stem(recognised.canonical, built, stem, what=weights)
    return dataclasses.replace(recognised, canonical=canonical, changes=mapped), built.name


def _is_cifar(built: Backbone) -> bool:
    spec = parse(built.name)
    return spec is not None and spec.stem == "cifar"


def _without(report: LoadReport, built: Backbone, random: tuple[str, ...]) -> LoadReport:
    """The report when these tensors were left random: as if they were missing, which was allowed."""
    if not random:
        return report
    sizes = {name: parameter.numel() for name, parameter in built.module.named_parameters(remove_duplicate=False)}
    less = sum(sizes[name] for name in random) / sum(sizes.values())
    return dataclasses.replace(
        report,
        loaded=report.loaded - len(random),
        parameters_loaded_fraction=report.parameters_loaded_fraction - less,
        missing=(*report.missing, *random),
        partial=True,
    )


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
    if (
        stem is not None
        and "layer1.0.conv1.weight" in recognised.canonical
        and tuple(stem.shape[2:]) not in ((7, 7), (3, 3))
    ):
        kernel = "x".join(map(str, stem.shape[2:]))
        hint = f" It looks like a ResNet with another stem: {kernel}; torchvision's is 7x7, that for CIFAR 3x3."
    raise BackboneError(
        f"{weights}: format {recognised.format} with {len(recognised.canonical)} tensors ({', '.join(shown)}, ...); "
        f"the architecture does not show in them.{hint}",
        "Name it: --backbone timm:NAME (any timm model) or --backbone module:callable (your own).",
    )
