"""Backbones around modules in memory: a user's own network."""

import copy
import dataclasses
import functools
import itertools
import weakref

import torch
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone, Kind, copied
from sslbench.backbones.tubelets import as_clips
from sslbench.config import build as build_dataclass
from sslbench.errors import BackboneError
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.seeds import seeded
from sslbench.weights.heads import Heads

_numbers: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
_count = itertools.count(1)


def from_module(
    name: str, module: nn.Module, preprocessing: Preprocessing, original: nn.Module | None = None
) -> Backbone:
    """Return a backbone around a module that is in memory; it has to be frozen and in eval mode.

    With an attribute `frames` above 1 it takes clips (B, C, T, H, W) of so many frames.
    """
    frames = getattr(module, "frames", 1)
    if not isinstance(frames, int) or frames < 1:
        raise BackboneError(
            f"the attribute 'frames' of {name} should be the number of frames of a clip, not {frames!r:.80}",
            "Networks of images have none.",
        )
    if frames > 1:
        module.register_forward_pre_hook(functools.partial(_with_clips, preprocessing.channels, frames))
    # Code that was typed in cannot be compared with that of another process, but an object is what it was.
    owner = module if original is None else original
    number = _numbers[owner] = _numbers.get(owner) or next(_count)
    return Backbone(
        name=name,
        kind=Kind(users=True, in_memory=True, frames=frames),
        module=module,
        preprocessing=preprocessing,
        aliases={},
        default_layer="output",
        in_process=f"module {number}",
    )


def _with_clips(channels: int, frames: int, module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    return as_clips(inputs[0], channels, frames)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the network inside the wrappers of data-parallel training and of `torch.compile`.

    >>> unwrapped(nn.DataParallel(nn.Linear(2, 3)))
    Linear(in_features=2, out_features=3, bias=True)
    """
    while isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
        module = module.module
    inner = getattr(module, "_orig_mod", None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else module


def untrained_copy(backbone: Backbone, seed: int) -> Backbone | None:
    """Return the same network with every part initialised anew by PyTorch's own rules, for modules in memory.

    -> None if there are no parameters, or one belongs to a part that cannot initialise itself: it has no
        `reset_parameters`.
    """
    # By the parts' own rules: what a constructor set beyond them (scales, biases of a last layer) is not repeated.
    module = copied(backbone.module)
    left = {id(parameter) for parameter in module.parameters()}
    if not left:
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            if callable(reset):
                reset()
                # A part answers for its own parameters only, not for those of the parts inside it.
                left -= {id(parameter) for parameter in part.parameters(recurse=False)}
    if left:
        return None
    return dataclasses.replace(
        backbone, module=module.eval().requires_grad_(False), report=None, format=None, untrained=True
    )


def untrained_heads(heads: Heads, seed: int) -> dict[str, nn.Sequential]:
    """Return heads of the same layers, initialised by PyTorch's own rules."""
    copies = {name: copy.deepcopy(head) for name, head in heads.items()}
    with seeded(seed):
        for head in copies.values():
            for layer in head:
                if isinstance(layer, nn.Linear | nn.BatchNorm1d | nn.LayerNorm):
                    layer.reset_parameters()
    return copies


def users_preprocessing(spec: str, module: nn.Module) -> Preprocessing:
    """Return the attribute 'preprocessing' of a user's module; ImageNet's defaults if it has none."""
    given = getattr(module, "preprocessing", None)
    if given is None:
        return Preprocessing(origin=f"ImageNet default ({spec} has no attribute 'preprocessing')")
    if isinstance(given, Preprocessing):
        return given
    if not isinstance(given, dict):
        raise BackboneError(
            f"the attribute 'preprocessing' of {spec} is a {type(given).__name__}",
            "Make it a dict with the keys of sslbench.preprocessing.Preprocessing.",
        )
    used = build_dataclass(Preprocessing, {"origin": f"{spec}.preprocessing", **given}, where=f"{spec}.preprocessing")
    if "resize" in given and "crop" not in given:
        used.refuse_unfilled_crop()
    return used
