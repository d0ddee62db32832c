"""Loading of a frozen backbone from `--weights` and `--backbone`: read, recognise, build, fill strictly."""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from sslbench.backbones import named
from sslbench.backbones.architectures import parse, with_strides, without_initialisation
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build, check_recorded, families
from sslbench.backbones.layer_spec import StemRule, parse_stem
from sslbench.backbones.sizes import fit_positions, fit_rotary
from sslbench.backbones.stems import fit_stem, with_channels
from sslbench.backbones.timm_models import list_pretrained, parse_options
from sslbench.backbones.videomae import OPTIONS, VideoTransformer, told_positions
from sslbench.backbones.vjepa2 import fit_frames
from sslbench.errors import BackboneError, UsageError, WeightsError
from sslbench.names import from_file
from sslbench.preprocessing import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    LARGEST_SIDE,
    LIGHTNESS_MEAN,
    LIGHTNESS_STD,
    MAX_PIXELS,
    Preprocessing,
)
from sslbench.weights import save
from sslbench.weights.fill import LoadReport, fill
from sslbench.weights.formats.recognise import Recognised, recognise, refuse_undecided
from sslbench.weights.formats.schema import InputImages, Strides
from sslbench.weights.formats.tables import load_table
from sslbench.weights.heads import load_heads
from sslbench.weights.reading import files

# Side of the crop that `Input.resize` belongs to.
_CROP = 224
# Side of the crop below which a network is one for small images, which formats say nothing about.
_SMALLEST = 64


Shapes = dict[str, tuple[int, ...]]
log = logging.getLogger("sslbench")
ASSUMED_CIFAR = "a 3x3 stem is assumed to be CIFAR's: stride 1, no max-pooling (neither is visible in the tensors)"


def trained_on(backbone: Backbone, found: Recognised, *, named: bool) -> tuple[Preprocessing, str]:
    """Return the evaluation transform of a loaded backbone, and a note for the user.

    The format's transform comes first, unless the backbone's name has a tag of timm (`vit_base_patch16_224.augreg`);
    mean and std in a configuration beside the file come before the format's.
    Second, for a backbone that was recognised and not named by the user, its family's usual input, with ImageNet's mean
    and std. Otherwise the backbone's own transform is used.
    """
    own, said = backbone.preprocessing, found.input or InputImages("any")
    if found.config.mean:
        usual = InputImages("any") if named else backbone.usual_input or InputImages("any")
        said = dataclasses.replace(
            said,
            mean=found.config.mean,
            std=found.config.std,
            resize=said.resize or usual.resize,
            interpolation=said.interpolation or usual.interpolation,
            note="",
        )
    name, _, _ = backbone.name.partition(",")
    tagged = backbone.kind.tags and "." in name and (named or found.format == "sslbench")
    if tagged or backbone.kind.users or backbone.kind.pixels:
        return own, ""
    if own.crop is not None and min(own.crop) < _SMALLEST:
        own = dataclasses.replace(own, mean=found.config.mean or own.mean, std=found.config.std or own.std)
        return own, _assumed(own, said, found) if said.note else ""
    origin = f"{found.format}{':' + found.variant if found.variant else ''}: its evaluation transform"
    origin += ", mean and std of the configuration beside the file" if found.config.mean else ""
    if said.space == "lightness":
        used = dataclasses.replace(_with_size(own, said), mean=LIGHTNESS_MEAN, std=LIGHTNESS_STD, space="lightness")
        return dataclasses.replace(used, origin=origin), said.note
    if said.mean:
        return dataclasses.replace(_with_size(own, said), mean=said.mean, std=said.std, origin=origin), said.note
    if named or backbone.usual_input is None:
        return own, _assumed(own, said, found) if said.note else ""
    default = Preprocessing(origin=f"ImageNet default (format {found.format} does not say)")
    used = dataclasses.replace(_with_size(default, backbone.usual_input, own.crop), origin=default.origin)
    return used, _assumed(used, said, found)


def _assumed(used: Preprocessing, said: InputImages, found: Recognised) -> str:
    """Return the note about mean and std that do not come from the file or its format; the format's own if they do."""
    if (used.mean, used.std) == (said.mean, said.std):
        return said.note
    mean, std = (",".join(f"{value:g}" for value in values) for values in (used.mean, used.std))
    values = f"{mean} and {std}"
    if (used.mean, used.std) == (IMAGENET_MEAN, IMAGENET_STD):
        values = "ImageNet's"
    note = f"format {found.format} does not say mean and std: {values} are assumed (--mean, --std)"
    return "; ".join(filter(None, (note, "" if said.mean else said.note)))


def _with_size(own: Preprocessing, said: InputImages, crop: tuple[int, int] | None = None) -> Preprocessing:
    """Return a transform with the resize that the format says, in proportion to the crop of the backbone."""
    crop = crop or own.crop
    if not said.resize or crop is None or crop[0] != crop[1]:
        return dataclasses.replace(own, interpolation=said.interpolation or own.interpolation)
    resize = round(crop[0] * said.resize / _CROP)
    return dataclasses.replace(
        own, resize=resize, squash=None, crop=crop, interpolation=said.interpolation or own.interpolation
    )


def load_backbone(  # noqa: PLR0913  the options of the command
    weights: str,
    *,
    backbone: str | None = None,
    format: str | None = None,  # the name of the command-line flag
    allow_partial: bool = False,
    trust_pickle: bool = False,
    stem: str | None = None,
    seed: int = 0,
    as_stored: bool = False,
    heads: bool = False,
) -> Backbone:
    """Return a backbone with the weights of a file, or with random weights.

    Args:
        weights: path of a file, or its name or address (see `named.fetch`); 'random' for an untrained backbone;
            'pixels' or 'pixels:SIZE' for the image itself.
        backbone: its name (see `build`); not needed for ResNets and ViTs, whose architecture shows in the shapes.
        format: format of the file; None recognises it.
        allow_partial: load what fits of a file that does not fit entirely; the report says so.
        trust_pickle: run what a pickle in the file asks for; see `files.read`.
        stem: rule that maps a stem for another number of channels to the backbone's: 'repeat', 'average', 'sum',
            'bands=3,2,1' or 'random' (see `stems.StemRule`); None refuses it.
        seed: of the random weights, and of those that a partial file leaves as they were.
        as_stored: accept a file that does not determine colour order or strides; the caller (a detector's recipe) does.
        heads: load the file's projection and prediction heads too, for layers such as 'head.0'.

    Raises:
        WeightsError: the file cannot be read, is not recognised, does not fit the backbone, or does not tell which
            images or strides its network has.
        BackboneError: the architecture is not recognised, or a user's module cannot be built.
        UsageError: no such backbone, or the arguments contradict each other.

    Example:
        >>> import torch
        >>> backbone = load_backbone("random", backbone="resnet18w0.25")
        >>> backbone.name, backbone.default_layer, list(backbone.module(torch.zeros(1, 3, 64, 64)).shape)
        ('resnet18w0.25', 'res5avg', [1, 128])
    """
    rule = parse_stem(stem) if stem is not None else None
    pixels = named.is_pixels(weights)
    if rule is not None and (weights == "random" or pixels):
        raise UsageError(f"--stem maps the stem of a weights file, which '{weights}' is not", "Leave it out.")
    if weights == "random":
        return dataclasses.replace(build(named.random_backbone(backbone), seed=seed), untrained=True)
    if pixels:
        return build(named.pixels_backbone(weights, backbone))
    return load_file(
        read_weights(weights, trust_pickle=trust_pickle),
        backbone=named.backbone_of(weights, backbone),
        format=format,
        allow_partial=allow_partial,
        stem=rule,
        seed=seed,
        as_stored=as_stored,
        heads=heads,
    )


def read_weights(weights: str, *, trust_pickle: bool = False) -> files.WeightsFile:
    """Read a weights file by its path, name or address; errors as for `named.fetch` and `files.read`."""
    path = named.local(weights).path if named.is_named(weights) else Path(weights)
    return files.read(path, trust_pickle=trust_pickle)


def load_file(
    file: files.WeightsFile,
    *,
    backbone: str | None = None,
    format: str | None = None,
    allow_partial: bool = False,
    stem: StemRule | None = None,
    seed: int = 0,
    as_stored: bool = False,
    heads: bool = False,
) -> Backbone:
    """Return a backbone with the weights of a file in memory; arguments and errors as for `load_backbone`."""
    weights = str(file.path)
    # What the file lacks keeps its random weights, and so may a stem.
    new = functools.partial(build, seed=seed, to_be_filled=not allow_partial and stem is None)
    if backbone is None and file.config.backbone:
        backbone = _of_config(file)
    if backbone is not None:
        if (plain := without_initialisation(backbone)) != backbone:
            raise UsageError(
                f"zero_init_residual sets random initial weights, but {weights} holds trained ones",
                f"Leave it out: --backbone {plain}.",
            )
        built = new(backbone)
        if built.kind.pixels:
            raise UsageError(f"the backbone '{backbone}' has no weights", f"Leave the file out: --weights {backbone}.")
        recognised = recognise(file, expected=_shapes(built.module.state_dict()), format=format)
        built = _with_trained_strides(built, backbone, recognised, weights, new)
    else:
        recognised = recognise(file, format=format)
        name = architecture(recognised, weights)
        name = with_channels(name, 1) if stem is not None and stem.name == "sum" else name
        where = f"{weights}: backbone" if recognised.backbone else weights
        # A few bytes in a file could name a network that no memory holds.
        check_recorded(name, where, numbers=sum(tensor.numel() for tensor in recognised.canonical.values()))
        built = new(name)
    if not as_stored:
        refuse_undecided(recognised, weights)
    if stem is not None and recognised.input is not None and recognised.input.space == "lightness":
        raise UsageError(
            f"--stem {stem.name}: {weights} is a network for lightness (L of CIE Lab), whose channel is not a colour",
            "Leave it out: RGB images are converted to lightness.",
        )
    tensors, ignored = _tensors_for(built, recognised)
    tensors, frames = fit_frames(tensors, built.module, weights)
    tensors, mapped, random = fit_stem(tensors, built, stem, what=weights)
    tensors, rotary = fit_rotary(tensors, built.module)
    tensors, resized = fit_positions(tensors, built.module)
    positions = _computed_positions(built, recognised, weights)
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
    notes += _shown_beside(recognised, weights, built) if backbone is not None else []
    if backbone is None and recognised.backbone is None and (spec := parse(built.name)) and spec.stem == "cifar":
        notes.append(ASSUMED_CIFAR)
    report = dataclasses.replace(
        report, casts=(*report.casts, *frames, *mapped, *rotary, *resized, *positions), note="; ".join(notes)
    )
    report = _without(report, built, random)
    preprocessing, told = recorded_preprocessing(file), ""
    if preprocessing is None:
        preprocessing, told = trained_on(built, recognised, named=backbone is not None)
    preprocessing = preprocessing.for_channels(built.preprocessing.channels)
    report = dataclasses.replace(report, note="; ".join(filter(None, (report.note, told))))
    built = dataclasses.replace(
        built,
        report=report,
        format=recognised.format,
        preprocessing=preprocessing,
        gem_power=_learnt_gem_power(recognised, weights),
    )
    return dataclasses.replace(built, heads=load_heads(file, recognised)) if heads else built


def _computed_positions(built: Backbone, recognised: Recognised, weights: str) -> tuple[str, ...]:
    """Return a note if VideoMAE's positions are others than in training, as file and configuration show the network."""
    if not isinstance(built.module, VideoTransformer):
        return ()
    try:
        trained = OPTIONS | parse_options(architecture(recognised, weights))[1]
    except BackboneError:  # it is why the user names the network; the published ones are all of these clips
        trained = dict(OPTIONS)
    return told_positions(built.module, trained["frames"], trained["img_size"])


def _shown_beside(recognised: Recognised, weights: str, named: Backbone) -> list[str]:
    """Return a note if the configuration beside a file shows another network than the user named."""
    try:
        shown = architecture(recognised, weights) if recognised.config.fields else named.name
    except BackboneError:  # it is why the user names one
        return []
    if _without_size(shown) == _without_size(named.name):
        return []
    path = recognised.config.path
    return [f"{path.name if path else 'the configuration'} shows another network: --backbone {shown}"]


def _without_size(name: str) -> list[str]:
    """Return the parts of a backbone's name without timm's tag and the size of the images or clips."""
    architecture, *options = name.removeprefix("timm:").split(",")
    sizes = ("img_size=", "dynamic_img_size=", "frames=")
    return [architecture.partition(".")[0], *sorted(option for option in options if not option.startswith(sizes))]


def _of_config(file: files.WeightsFile) -> str:
    """Return the backbone that timm's configuration beside a file names; a tag that timm does not have is left out."""
    name, comma, options = file.config.backbone.partition(",")
    architecture = name.partition(".")[0]
    numbers = sum(value.numel() for value in file.content.values() if isinstance(value, Tensor))
    check_recorded(f"{architecture}{comma}{options}", str(file.config.path), numbers=numbers)
    tagged = name.removeprefix("timm:") in list_pretrained(architecture.removeprefix("timm:"))
    return f"{name if tagged else architecture}{comma}{options}"


def _learnt_gem_power(recognised: Recognised, weights: str) -> float | None:
    """Return the power of GeM that was learnt with the network, to six digits; None if the file has none."""
    key = load_table(recognised.definition).file.gem_power
    tensor = recognised.heads.get(key)
    if tensor is None:
        return None
    power = float(tensor) if tensor.numel() == 1 else math.nan
    if not 0 < power < math.inf:
        raise WeightsError(f"{weights}: '{key}', the power of GeM, should be one positive number")
    return float(f"{power:g}")  # as the pool's name in results shows it


def _with_trained_strides(
    built: Backbone, named: str, recognised: Recognised, weights: str, new: Callable[[str], Backbone]
) -> Backbone:
    """Return the backbone that was named with the strides that the format's networks were trained with.

    A stride that the name states ('resnet50,last_stride=2') stays.
    """
    strides = recognised.strides or Strides()
    name = with_strides(named, last=strides.last, in_1x1=strides.bottleneck == "1x1")
    if "last_stride" in built.kind.options and name != built.name:
        return new(name)
    if strides != Strides() and built.kind.tags:
        raise BackboneError(
            f"{weights}: the network was trained with its strides in the {strides.bottleneck} convolutions and stride "
            f"{strides.last} in the last stage, which {built.name} does not have",
            "Leave --backbone out, or name a ResNet of sslbench: --backbone resnet50.",
        )
    return built


def recorded_preprocessing(file: files.WeightsFile) -> Preprocessing | None:
    """Return the transform that `sslbench pretrain` stored with the weights, or None."""
    found = save.entry(file, "preprocessing", Preprocessing)
    return None if found is None else check_recorded_preprocessing(found, f"{file.path}: metadata.preprocessing")


def check_recorded_preprocessing(found: Preprocessing, where: str) -> Preprocessing:
    """Refuse a transform from a file that no network has; return it with its decoders marked as a file's."""
    if not all(0 < size <= LARGEST_SIDE for size in found.sizes) or not 0 < found.max_pixels <= MAX_PIXELS * 100:
        raise WeightsError(f"{where}: sizes should be from 1 to {LARGEST_SIDE:,} pixels, not {found.sizes}")
    numbers = (*found.mean, *found.std)
    if (
        len(found.mean) != len(found.std)
        or not found.mean
        or not all(map(math.isfinite, numbers))
        or min(found.std) <= 0
    ):
        raise WeightsError(f"{where}: mean and std should be one finite number per channel, std positive")
    return dataclasses.replace(found, decoder=tuple(from_file(found.decoder, f"{where}.decoder", "--decoder {}")))


def _without(report: LoadReport, built: Backbone, random: tuple[str, ...]) -> LoadReport:
    """Return the report with these tensors, left random, counted as missing."""
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
    """Return the tensors for the module, and patterns of those left out: a timm model's classifier."""
    expected = built.module.state_dict()
    tensors, ignored = {}, dict[str, None]()
    for name, tensor in recognised.canonical.items():
        head = next((head for head in built.classifiers if name.startswith(f"{head}.")), None)
        if head is not None and name not in expected:
            ignored[f"{head}.*"] = None
        else:
            tensors[name] = tensor
    return tensors, list(ignored)


def architecture(recognised: Recognised, weights: str) -> str:
    """Return the name, for `build`, of the backbone with these tensors."""
    shapes = _shapes(recognised.canonical)
    recognisers = (family.recognise(shapes, recognised.format, weights, recognised.config) for family in families())
    name = recognised.backbone or next((found for found in recognisers if found is not None), None)
    if name is not None:
        strides = recognised.strides or Strides()
        return with_strides(name, last=strides.last, in_1x1=strides.bottleneck == "1x1")
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
        f"the architecture cannot be recognised.{hint}",
        "Name it: --backbone timm:NAME (any timm model) or --backbone module:callable (your own).",
    )
