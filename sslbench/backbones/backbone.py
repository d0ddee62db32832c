"""Backbone: a frozen module with its preprocessing and the names of its layers."""

import copy
import dataclasses
import functools
import hashlib
import logging
import re
import uuid
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from sslbench import user_code
from sslbench.errors import BackboneError, UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.seeds import preserved_random_states
from sslbench.weights.fill import LoadReport, tensors_sha256
from sslbench.weights.formats.schema import InputImages
from sslbench.weights.heads import heads_sha256

log = logging.getLogger("sslbench")

PROBE_SIDE = 224  # used if the preprocessing fixes no size
_LAST_MAPS = ("last", "res5", "conv5")  # last layers with a grid, of timm's models, ResNets and AlexNets
_OF_TORCH = frozenset(vars(nn.Module()))


@dataclasses.dataclass(frozen=True)
class Kind:
    """Facts about the networks of a family that do not show in a module.

    Attributes:
        options: options that a name takes, of those that sslbench sets itself: in_chans, img_size, last_stride.
        tags: a name may have a tag of timm ('vit_base_patch16_224.augreg'), to which a preprocessing belongs.
        pixels: the images themselves: there are no weights.
        users: a module of the user's code, with its own preprocessing; known by its code, not by a library's version.
        in_memory: it was passed from Python and cannot be built again by its name.
        frames: frames of a clip that it takes at a time, one after the other in the channels; 1: it takes images.
    """

    options: frozenset[str] = frozenset()
    tags: bool = False
    pixels: bool = False
    users: bool = False
    in_memory: bool = False
    frames: int = 1


@dataclasses.dataclass(frozen=True, repr=False)
class Backbone:
    """Network that maps images to features. `module` never changes after loading.

    Attributes:
        name: name on the command line ('resnet50', 'timm:vit_small_patch14_dinov2', 'my_nets:resnet20').
        kind: facts about the networks of its family.
        module: in eval mode, without gradients, on the CPU; takes (B, 3, H, W), normalised, or as many
            channels as the preprocessing has; networks of clips that many for each frame, or an image.
        preprocessing: evaluation transform, unless the user gives another.
        aliases: name of a layer -> module path ('' is the output of the whole module).
        default_layer: layer used without --layers.
        versions: of the libraries that define the architecture.
        vissl_pools: alias -> the pool VISSL's linear benchmark uses there, for backbones it has a table for.
        classifiers: module paths of the classifiers that were left out; tensors below them in a file belong to heads.
        heads: heads of the weights file by name, in the order of the forward pass; empty unless they were asked for.
        gem_power: learnt power of GeM in the weights file; None if it has none.
        stems: module paths of the convolutions applied to the image; () is the first convolution.
        usual_input: images that such networks are usually trained on, where that is not `preprocessing`.
        report: loaded, missing and ignored tensors; None for random weights.
        format: format of the weights file; None for random weights.
        untrained: True if the parameters are as initialised.
        in_process: number of a module in memory among those of this process; '' for all others.
        builder: the user's function that built the module, if any: its file counts as well.
        calibration: preprocessed images (B, C, H, W) that decide the ranges of int8; None: not to be computed in it.
    """

    name: str
    kind: Kind
    module: nn.Module
    preprocessing: Preprocessing
    aliases: Mapping[str, str]
    default_layer: str
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    vissl_pools: Mapping[str, str] = dataclasses.field(default_factory=dict)
    classifiers: tuple[str, ...] = ()
    heads: Mapping[str, nn.Sequential] = dataclasses.field(default_factory=dict)
    gem_power: float | None = None
    stems: tuple[str, ...] = ()
    usual_input: InputImages | None = None
    report: LoadReport | None = None
    format: str | None = None
    untrained: bool = False
    in_process: str = ""
    builder: tuple[object, ...] = ()
    calibration: Tensor | None = None

    def __repr__(self) -> str:
        """Return name, parameters, layers, and the share of tensors that came from the file."""
        count = sum(parameter.numel() for parameter in self.module.parameters())
        loaded = f", loaded {self.report.loaded} of {self.report.total} tensors" if self.report is not None else ""
        layers = ", ".join(self.aliases)
        return f"Backbone {self.title}: {count:,} parameters{loaded}; layers {layers}, default {self.default_layer}"

    @property
    def title(self) -> str:
        """Name in messages, which tell the network from its untrained floor."""
        return f"{self.name} untrained" if self.untrained else self.name

    @property
    def last_map(self) -> str:
        """Name of the last layer with a map.

        Raises:
            UsageError: no layer is known to have one.
        """
        for name in _LAST_MAPS:
            if name in self.aliases:
                return name
        raise UsageError(f"{self.name} has no layer that is known to have a grid", "Name one with --layers.")

    @functools.cached_property
    def weights_sha256(self) -> str:
        """Hash of all tensors, independent of file format and order; computed on first use (0.1 s for a ResNet-50)."""
        return tensors_sha256(self.module.state_dict())

    @functools.cached_property
    def identity(self) -> dict[str, str]:
        """Identity of the forward pass besides name and tensors, with that of the heads, if there are any."""
        return {**self.own_identity, **({"heads": heads_sha256(self.heads)} if self.heads else {})}

    @functools.cached_property
    def own_identity(self) -> dict[str, str]:
        """Identity of the forward pass up to the heads: versions of libraries, digests of the user's files."""
        parts = list(self.module.modules())
        if not self.kind.users and all(map(user_code.is_library, parts)):
            return dict(self.versions)
        return {
            **user_code.library_versions(parts),
            "source": user_code.sha256([*parts, *self.builder]) or "libraries",
            "structure": _structure(self.module),
        }

    @functools.cached_property
    def process_key(self) -> str:
        """Part of the key of features that no other process may find again; '' if they are kept."""
        if not self.kind.users:
            return ""
        # Lazily: two passes, which only extraction needs.
        if reason := _irreproducible(self.module, self.preprocessing):
            log.warning(f"{self.name}: {reason}; its features are not stored")
            return uuid.uuid4().hex
        return self.in_process

    @functools.cached_property
    def calibration_sha256(self) -> str:
        """Hash of the images that decide the ranges of int8; '' without them."""
        return "" if self.calibration is None else tensors_sha256({"": self.calibration})


def probe_images(preprocessing: Preprocessing, count: int = 1) -> Tensor:
    """Return noise of the size that the backbone expects, always the same: (count, its channels, H, W)."""
    size = preprocessing.crop or preprocessing.squash or preprocessing.resize
    height, width = size if isinstance(size, tuple) else (PROBE_SIDE, PROBE_SIDE)
    return torch.randn(count, preprocessing.channels, height, width, generator=torch.Generator().manual_seed(0))


def _structure(module: nn.Module) -> str:
    """Return a digest of all state outside the state dict: classes, attributes, hooks, buffers that are not saved.

    ReLU and Tanh, or two strides, have the same tensors.
    """
    lines = []
    for path, part in module.named_modules():
        state = {name: value for name, value in vars(part).items() if name not in _OF_TORCH}
        if isinstance(part, torch.jit.ScriptModule):
            state = {"graph": str(getattr(part, "inlined_graph", ""))}
        unsaved = getattr(part, "_non_persistent_buffers_set", ())
        state |= {name: buffer for name, buffer in part.named_buffers(recurse=False) if name in unsaved}
        hooks = [*part._forward_pre_hooks.values(), *part._forward_hooks.values()]
        values = [f"{name}={_text(state[name])}" for name in sorted(state)]
        lines.append(f"{path} {type(part).__module__}.{type(part).__qualname__} {values} {_text(hooks)}")
    return hashlib.sha256("\n".join(lines).encode(errors="surrogatepass")).hexdigest()[:32]


def _text(value: object) -> str:
    if isinstance(value, Tensor):
        return tensors_sha256({"": value})
    if isinstance(value, set | frozenset):
        return repr(sorted(map(repr, value)))  # their order differs between processes
    return re.sub(r" at 0x\w+", "", repr(value))


def _irreproducible(module: nn.Module, preprocessing: Preprocessing) -> str:
    """Return the reason why an image has no features of its own, '' if it has; random states stay as they are."""
    # Two images: statistics of the batch show only beside another image.
    images = probe_images(preprocessing, 2)
    try:
        with preserved_random_states(), torch.no_grad():
            network = copy.deepcopy(module).eval()
            first, again, beside = (list(_tensors(network(batch))) for batch in (images[:1], images[:1], images))
    except Exception as error:  # noqa: BLE001 - a user's forward may raise anything
        text = " ".join(str(error).split())
        return f"it fails on noise of the size of its images ({type(error).__name__}: {text})"[:300]
    if any(one.shape != two.shape or not _close(one, two) for one, two in zip(first, again, strict=False)):
        return "its features of one image change with every call"
    if any(
        one.ndim and len(one) == 1 and len(two) == 2 and one.shape[1:] == two.shape[1:] and not _close(one[0], two[0])
        for one, two in zip(first, beside, strict=False)
    ):
        return "its features of an image depend on the other images of the batch"
    return ""


def _close(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding in half precision."""
    a, b = one.to(torch.float64), other.to(torch.float64)
    return bool(((a - b).abs() <= 0.02 * a.abs().max()).all()) if a.numel() else True


def _tensors(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping | list | tuple):
        for value in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(value)


def copied(module: nn.Module, *, share: bool = False) -> nn.Module:
    """Return a deep copy; with `share` its parameters are others in the same memory, for a network that is not trained.

    >>> linear = nn.Linear(2, 2)
    >>> copied(linear, share=True).weight.data_ptr() == linear.weight.data_ptr()
    True
    """
    # deepcopy takes what the memo holds. A quantised or distributed parameter is no plain one.
    parameters = [parameter for parameter in module.parameters() if type(parameter) is nn.Parameter] if share else []
    memo = {id(parameter): nn.Parameter(parameter.detach(), parameter.requires_grad) for parameter in parameters}
    try:
        return copy.deepcopy(module, memo)
    except (RuntimeError, TypeError) as error:
        raise BackboneError(
            f"the backbone ({type(module).__name__}) cannot be copied: {error}",
            "Attributes must survive copy.deepcopy: no open files, generators or tensors computed from parameters.",
        ) from error
