"""Heads on a backbone: projection and prediction MLPs and linear classifiers, each a sequence of simple layers.

sslbench's own files name the layers of each head, other formats have them in their table (`head_layers`).
Heads follow each other: `head` takes the backbone's output, `predictor` that of `head`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from sslbench.errors import WeightsError
from sslbench.weights.fill import tensors_sha256
from sslbench.weights.formats import rules
from sslbench.weights.formats.recognise import Recognised
from sslbench.weights.formats.schema import HEAD_NAMES
from sslbench.weights.formats.tables import load_table
from sslbench.weights.reading.files import WeightsFile

# Key of the metadata of sslbench's own files with the layers of each head: {"head": "linear relu linear"}.
METADATA = "heads"
_MOST_LAYERS = 100
_TYPES: Mapping[type[nn.Module], str] = {
    nn.Linear: "linear",
    nn.BatchNorm1d: "batchnorm",
    nn.SyncBatchNorm: "batchnorm",
    nn.LayerNorm: "layernorm",
    nn.ReLU: "relu",
    nn.GELU: "gelu",
    nn.Tanh: "tanh",
    nn.Identity: "identity",
    nn.Dropout: "identity",  # in evaluation
}

Heads = Mapping[str, nn.Sequential]
ValueT = TypeVar("ValueT")


def layer_kinds(head: nn.Module) -> list[str]:
    """Return the kinds of a head's layers, as sslbench's own files name them.

    >>> layer_kinds(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    ['linear', 'relu', 'linear']
    """
    layers = list(head) if isinstance(head, nn.Sequential) else [head]
    kinds = [next((kind for known, kind in _TYPES.items() if isinstance(layer, known)), None) for layer in layers]
    if None in kinds:
        other = type(layers[kinds.index(None)]).__name__
        raise TypeError(f"a head has a layer {other}; known are {', '.join(sorted(set(_TYPES.values())))}")
    return [kind for kind in kinds if kind is not None]


def head_tensors(name: str, head: nn.Module, state: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Return a head's tensors under their names in files: 'head.0.weight'."""
    # A single layer is read back as a sequence of one.
    start = name if isinstance(head, nn.Sequential) else f"{name}.0"
    return {f"{start}.{key}": tensor for key, tensor in state.items()}


def build_head(kinds: Sequence[str], tensors: Mapping[str, Tensor], what: str) -> nn.Sequential:
    """Return a head with these tensors, frozen and in eval mode; sizes follow from the tensors.

    >>> build_head(["linear"], {"0.weight": torch.ones(2, 3), "0.bias": torch.zeros(2)}, "example")(torch.ones(1, 3))
    tensor([[3., 3.]])

    tensors: name of the layer's number and leaf ('0.weight') -> tensor.
    """
    if not 0 < len(kinds) <= _MOST_LAYERS:
        raise WeightsError(f"{what} has {len(kinds)} layers; a head has 1 to {_MOST_LAYERS}")
    layers: list[nn.Module] = []
    width: int | None = None
    for number, kind in enumerate(kinds):
        own = {key.partition(".")[2]: t for key, t in tensors.items() if key.partition(".")[0] == str(number)}
        layer, inputs, outputs = _layer(kind, own, f"{what}, layer {number}")
        if None not in (width, inputs) and width != inputs:
            raise WeightsError(f"{what}: layer {number} takes {inputs} numbers, the layer before returns {width}")
        width = width if outputs is None else outputs
        layers.append(layer)
    if "linear" not in kinds:
        raise WeightsError(f"{what} has no linear layer")
    head = nn.Sequential(*layers).float()
    wanted = head.state_dict()
    lacking = [name for name in wanted if name not in tensors and not name.endswith("num_batches_tracked")]
    extra = [name for name in tensors if name not in wanted]
    if lacking or extra:
        problem = f"lacks '{lacking[0]}'" if lacking else f"has no place for '{extra[0]}'"
        raise WeightsError(f"{what} {problem}")
    if bad := [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]:
        raise WeightsError(f"{what}: '{bad[0]}' has NaN or infinite values", "The training diverged.")
    with torch.no_grad():
        for name, tensor in tensors.items():
            if wanted[name].shape != tensor.shape:
                shapes = f"{tuple(tensor.shape)}, not {tuple(wanted[name].shape)}"
                raise WeightsError(f"{what}: '{name}' has shape {shapes}")
            wanted[name].copy_(tensor)
    return head.eval().requires_grad_(False)


def _layer(kind: str, tensors: Mapping[str, Tensor], what: str) -> tuple[nn.Module, int | None, int | None]:
    """Return a layer, and its widths of input and output, None if any."""
    plain = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "identity": nn.Identity}
    if kind in plain:
        return plain[kind](), None, None
    if kind not in ("linear", "batchnorm", "layernorm"):
        raise WeightsError(f"{what}: unknown kind '{kind}'", f"Known: {', '.join(sorted(set(_TYPES.values())))}.")
    first = tensors.get("running_mean" if kind == "batchnorm" else "weight")
    if first is None or first.ndim != (2 if kind == "linear" else 1) or not first.numel():
        raise WeightsError(f"{what}: a {kind} needs {'running_mean' if kind == 'batchnorm' else 'weight'}")
    width = int(first.shape[0])
    if kind == "linear":
        return nn.Linear(int(first.shape[1]), width, bias="bias" in tensors), int(first.shape[1]), width
    if kind == "layernorm":
        return nn.LayerNorm(width, bias="bias" in tensors), width, width
    return nn.BatchNorm1d(width, affine="weight" in tensors), width, width


def load_heads(file: WeightsFile, found: Recognised) -> dict[str, nn.Sequential]:
    """Return the heads of a file in the order of the forward pass; {} if it has none of known layers."""
    described = _own_heads(file, found) or _heads_of_format(file, found)
    heads: dict[str, nn.Sequential] = {}
    width: int | None = None
    for name in HEAD_NAMES:
        if name not in described:
            break  # a predictor takes the output of the projection head
        kinds, tensors = described[name]
        what = f"{file.path}: head '{name}'"
        heads[name] = build_head(kinds, tensors, what)
        inputs, outputs = widths(heads[name])
        if width is not None and inputs != width:
            raise WeightsError(f"{what} takes {inputs} numbers, the head before returns {width}")
        width = outputs
    return heads


def widths(head: nn.Sequential) -> tuple[int, int]:
    """Return the dimensions of a head's input and output.

    >>> widths(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
    (4, 2)
    """
    linear = [layer for layer in head if isinstance(layer, nn.Linear)]
    return linear[0].in_features, linear[-1].out_features


def heads_sha256(heads: Heads) -> str:
    """Return the SHA-256 of the layers and tensors of heads."""
    digest = hashlib.sha256()
    for name, head in heads.items():
        digest.update(f"{name} {' '.join(layer_kinds(head))} {tensors_sha256(head.state_dict())}".encode())
    return digest.hexdigest()


_Described = dict[str, tuple[list[str], dict[str, Tensor]]]


def _own_heads(file: WeightsFile, found: Recognised) -> _Described:
    """Return the layers of each head in sslbench's own files, which name them; {} for other files."""
    metadata = file.content.get("metadata")
    kinds = metadata.get(METADATA) if isinstance(metadata, Mapping) and found.backbone else None
    if kinds is None:
        return {}
    if not isinstance(kinds, Mapping) or not all(isinstance(each, str) for each in kinds.values()):
        raise WeightsError(f"{file.path}: metadata.{METADATA} should list the layers of each head, separated by spaces")
    described = {}
    for name in (name for name in HEAD_NAMES if name in kinds):
        start = f"heads.{name}."
        tensors = {key.removeprefix(start): tensor for key, tensor in found.heads.items() if key.startswith(start)}
        described[name] = kinds[name].split(), tensors
    return described


def _heads_of_format(file: WeightsFile, found: Recognised) -> _Described:
    """Return the layers of each head by the table of the file's format."""
    tensors = {**found.keys, **found.heads}
    described: _Described = {}
    for name, head in load_table(found.definition).file.head_layers.items():
        here = head.network in ("", found.network) and not _matching(head.absent, tensors)
        layers = _matching(head.keys, tensors) if here else {}
        if layers:
            described[name] = _sequence(layers, head.activation)
    return described


_Layers = dict[tuple[int, ...], dict[str, Tensor]]


def _matching(texts: Sequence[str], tensors: Mapping[str, Tensor]) -> _Layers:
    """Return position -> leaf -> tensor of the layers whose keys match the first pattern that matches any."""
    for text in texts:
        pattern, layers = rules.parse_pattern(text), _Layers()
        for key, tensor in tensors.items():
            holes = pattern.match(key)
            numbers = [value for hole, value in (holes or {}).items() if hole != "leaf"]
            if holes is not None and all(number.isdecimal() for number in numbers):
                layers.setdefault(tuple(map(int, numbers)), {})[holes["leaf"]] = tensor
        if layers:
            return layers
    return {}


def _sequence(layers: _Layers, activation: str) -> tuple[list[str], dict[str, Tensor]]:
    """Return kinds and tensors of all layers of a head, those without tensors included.

    Before each further linear layer there is an activation; other gaps in the numbers are layers without effect on
    evaluation, such as dropout. Numbers stay as they are in the file, so far as it numbers the layers.
    """
    kinds: list[str] = []
    tensors: dict[str, Tensor] = {}
    for position in sorted(layers):
        own = layers[position]
        gap = position[0] - len(kinds) if len(position) == 1 else 0
        weight = own.get("weight")
        matrix = weight is not None and weight.ndim == 2
        kind = "batchnorm" if "running_mean" in own else "linear" if matrix else "layernorm"
        if kind == "linear" and "linear" in kinds:
            kinds.append(activation)
            gap -= 1
        kinds += ["identity"] * gap
        tensors |= {f"{len(kinds)}.{leaf}": tensor for leaf, tensor in own.items()}
        kinds.append(kind)
    return kinds, tensors
