"""Description of a weights file: format, sub-network, architecture, heads, input."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from sslbench.backbones.architectures import parse
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build
from sslbench.backbones.classifier import find_classifier, has_classifier
from sslbench.backbones.load import load_file
from sslbench.backbones.resnet import recognise_resnet
from sslbench.backbones.vit_recognise import recognise_vit
from sslbench.errors import BackboneError, WeightsError
from sslbench.preprocessing import Preprocessing
from sslbench.weights.formats import rules
from sslbench.weights.formats.places import largest, tensors_at
from sslbench.weights.formats.recognise import OPTIONAL_LEAF, Recognised, recognise
from sslbench.weights.formats.tables import NOTE, FormatTable, load_table
from sslbench.weights.heads import layer_kinds, load_heads
from sslbench.weights.reading.files import WeightsFile
from sslbench.weights.reading.model_config import NO_CONFIG

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Description:
    """Description of a weights file. Fields after `problem` are empty if the format is not recognised.

    Attributes:
        size: of the file in bytes.
        stubbed: classes that a pickle names and that were not loaded.
        suspicious: functions that a pickle names without calling them.
        beside: numbers and text at the top of the file, for instance the epoch.
        where: dotted path of the tensors in the file; '' is the file itself.
        tensors: name in the file -> shape of every tensor there.
        problem: reason why the format is not recognised or the weights do not load; '' otherwise.
        network: copy of the backbone that is taken of several in the file ('query', 'teacher'); '' if there is one.
        other_networks: the others, by what --format FORMAT:NETWORK takes.
        elsewhere: networks in other places of the file, by what --format takes.
        prefix: common beginning of the backbone's keys.
        architecture: property -> value: depth, width, patch, ...
        parameters: numbers in the backbone's parameters.
        dtypes: dtype -> tensors of the backbone.
        heads: name -> shape.
        head_layers: names for --layers of the file's heads, each with the kind of the layer: {'head.0': 'linear'}.
        classifier: the file's classifier in words; '' if it has none that is known to be one.
        ignored: patterns of what is no part of the backbone.
        variant: of the format: networks that share key names with others and take other images or have other strides.
        space: of the images that the network was trained on: 'RGB', 'BGR' (which is turned to RGB on loading),
            'lightness'; '' for other numbers of channels.
        strides: of a ResNet, in words; '' for others.
        report: result of loading, in one line.
        layers: names for --layers; the first is the default.
    """

    container: str
    size: int
    sha256: str
    stubbed: tuple[str, ...]
    suspicious: tuple[str, ...]
    beside: Mapping[str, Any]
    where: str
    tensors: Shapes
    problem: str = ""
    format: str = ""
    title: str = ""
    network: str = ""
    other_networks: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    why: str = ""
    prefix: str = ""
    backbone: str = ""
    architecture: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parameters: int = 0
    dtypes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    heads: Shapes = dataclasses.field(default_factory=dict)
    head_layers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    classifier: str = ""
    ignored: tuple[str, ...] = ()
    variant: str = ""
    space: str = ""
    strides: str = ""
    preprocessing: Preprocessing | None = None
    report: str = ""
    layers: tuple[str, ...] = ()
    tensors_sha256: str = ""


def describe(file: WeightsFile, *, backbone: str | None = None, format: str | None = None) -> Description:
    """Look at a file as far as it can be understood; what stops it is in `problem`, nothing is raised for it.

    format: name of the format of its keys; recognised when None.
    """
    most = largest(file.content)
    noted = file.content.get(NOTE)  # by `sslbench convert`
    entries = {**file.content, **file.metadata, **(noted if isinstance(noted, Mapping) else {})}
    known = Description(
        container=file.container,
        size=file.size,
        sha256=file.sha256,
        stubbed=file.stubbed,
        suspicious=file.suspicious,
        beside={key: value for key, value in entries.items() if isinstance(value, str | int | float)},
        where=most.where,
        tensors=_shapes(most.tensors),
    )
    expected = _shapes(build(backbone).module.state_dict()) if backbone else None
    try:
        found = recognise(file, expected=expected, format=format)
    except WeightsError as error:
        return dataclasses.replace(known, problem=str(error))
    # The configuration may be of another network: loading checks it.
    known = _with_format(known, dataclasses.replace(found, config=NO_CONFIG), load_table(found.definition), file)
    try:
        loaded = load_file(file, backbone=backbone, format=format)
    except (WeightsError, BackboneError) as error:
        return dataclasses.replace(known, problem=str(error))
    default, images, strides = loaded.default_layer, loaded.preprocessing, ""
    if (resnet := parse(loaded.name)) is not None:
        strides = f"in the {'1x1' if resnet.stride_in_1x1 else '3x3'} convolutions"
        strides += ", 1 in the last stage" if resnet.last_stride == 1 else ""
    known = dataclasses.replace(
        known,
        backbone=loaded.name,
        parameters=sum(parameter.numel() for parameter in loaded.module.parameters()),
        space=(known.space or images.space) if images.channels == 3 or images.space != "RGB" else "",
        strides=strides,
        preprocessing=images,
        report=loaded.report.line() if loaded.report else "",
        layers=(default, *(layer for layer in loaded.aliases if layer != default)),
        tensors_sha256=loaded.weights_sha256,
    )
    if backbone is None:
        known = dataclasses.replace(known, architecture=_architecture(found))
    try:
        return _with_heads(known, file, dataclasses.replace(loaded, heads=load_heads(file, found)))
    except WeightsError:  # the backbone loads, the heads are listed by their tensors only
        return known


def _with_format(known: Description, found: Recognised, table: FormatTable, file: WeightsFile) -> Description:
    tensors = tensors_at(file.content, found.where)
    learnt = {k: t for k, t in found.canonical.items() if k.rpartition(".")[2] not in _BUFFERS}
    return dataclasses.replace(
        known,
        where=found.where,
        tensors=_shapes(tensors),
        format=found.format,
        title=table.file.title,
        network=found.network,
        other_networks=found.other_networks,
        elsewhere=found.elsewhere,
        why=_why(found, table),
        prefix=found.prefix,
        architecture=_architecture(found),
        parameters=sum(tensor.numel() for tensor in learnt.values()),
        dtypes=Counter(str(t.dtype).removeprefix("torch.") for t in found.canonical.values()),
        heads=_shapes(found.heads),
        ignored=found.ignored,
        variant=found.variant,
        space="BGR" if found.input is not None and found.input.space == "BGR" else "",
    )


_BUFFERS = (OPTIONAL_LEAF, "running_mean", "running_var")


def _with_heads(known: Description, file: WeightsFile, loaded: Backbone) -> Description:
    """Add the layers of the file's heads, and its classifier."""
    kinds = {
        f"{name}.{number}": kind for name, head in loaded.heads.items() for number, kind in enumerate(layer_kinds(head))
    }
    text = ""
    if has_classifier(file, loaded):
        classes = find_classifier(file, loaded).info.classes
        shown = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
        text = f"{len(classes):,} classes: {shown}"
    return dataclasses.replace(known, head_layers=kinds, classifier=text)


def _architecture(found: Recognised) -> dict[str, Any]:
    """Return the architecture's parameters; {} if the shapes do not determine it."""
    shapes = _shapes(found.canonical)
    if (spec := parse(recognise_resnet(shapes) or "")) is not None:
        depth = 2 + sum(spec.layers) * (3 if spec.block == "bottleneck" else 2)
        numbers = {"kind": f"ResNet of {spec.block} blocks", "depth": depth, "blocks": list(spec.layers)}
        numbers |= {"width": spec.width, "groups": spec.groups}
        return {**numbers, "stem": spec.stem, "input_channels": spec.channels}
    if (vit := recognise_vit(shapes, format=found.format, config=found.config)) is not None:
        return {"kind": vit.describe(), **dataclasses.asdict(vit)}
    return {}


def _why(found: Recognised, table: FormatTable) -> str:
    """Return the evidence for the format."""
    if table.file.marker:
        return "declared in the file: " + ", ".join(f"{key}: {value}" for key, value in table.file.marker.items())
    fits = f"each of the {len(found.keys)} keys" + (f" behind '{found.wrapper}'" if found.wrapper else "")
    fits += " matches one rule, head or declared drop of its table"
    for way in table.file.detect:
        patterns = [rules.parse_pattern(text) for text in way.present]
        shown = [next((key for key in found.keys if pattern.match(key) is not None), "") for pattern in patterns]
        if shown and all(shown):
            return f"{fits}; typical is '{found.wrapper}{found.originals.get(shown[0], shown[0])}'"
    return fits + (f"; all begin with '{found.prefix}'" if found.prefix else "")


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
