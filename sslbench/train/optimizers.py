"""Optimizers: settings, parameter groups, and the rates set before every update."""

import logging
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sslbench.distributed.parallel import zero_optimizer
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, find_object
from sslbench.train.lars import LARC, LARS
from sslbench.train.optimizer_settings import OF_TIMM, OptimizerSettings, PartSettings

log = logging.getLogger("sslbench")

_BACKBONE = "backbone."
_FIRST = re.compile(r"(?:patch_embed|pos_embed|cls_token|reg_token|dist_token|mask_token|norm_pre|conv1|bn1)(?:\.|$)")
_BLOCK = re.compile(r"(blocks\.\d+|layer\d+\.\d+)\.")


def scaled_lr(settings: OptimizerSettings, images_per_update: int) -> float:
    """Return the learning rate that the factors of a schedule refer to.

    It is `lr` times images_per_update / base_batch_size (linear: Goyal et al. 2017, section 2.1), or times its square
    root (sqrt: Krizhevsky 2014, section 5). Schedule and warm-up are not scaled.

    >>> scaled_lr(OptimizerSettings(lr=0.1, lr_scaling="linear", base_batch_size=256), 1024)
    0.4

    Args:
        settings: lr, lr_scaling and base_batch_size are used.
        images_per_update: images per update, over all processes and accumulated passes.
    """
    ratio = images_per_update / settings.base_batch_size
    return settings.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[settings.lr_scaling]


def parameter_groups(
    module: nn.Module,
    settings: OptimizerSettings,
    layers: Mapping[str, int] | None = None,
    parts: Mapping[str, PartSettings] | None = None,
) -> list[dict[str, Any]]:
    """Return the trainable parameters in groups with the same rates.

    A parameter has no weight decay if it is
        in a normalisation layer, or one-dimensional and no bias (LayerScale), and decay_norm is false;
        a bias, also of a normalisation layer, and decay_bias is false;
        the bias of a normalisation layer and decay_norm is false (as in VISSL, both must be true to decay it);
        named in no_decay, by its last name or by any run of names between dots ('pos_embed', 'backbone.layer1').
    With both false this is DINO's rule (position embeddings and tokens are decayed); with timm's no_weight_decay names
    in no_decay it is timm's.

    Args:
        module: module whose parameters named 'backbone.*' are the backbone, all others the head.
        settings: decay rules, factors of the head, layer decay.
        layers: name of a parameter -> its layer for layer decay, 0 for the first; None: numbered as below.
        parts: name, or part of it between dots -> own rates of the parameters that have it.

    Returns:
        Non-empty groups, from backbone to head and from first to last layer, each with
            params, names: in the module's order;
            lr_factor: factor of the learning rate (head_lr_factor, layer decay);
            weight_decay_factor: 0.0 or 1.0;
            own_weight_decay: head_weight_decay in groups of the head, else None;
            constant_lr: true if the rate stays at its peak;
            part: key of `parts` that names them, else '';
            layer: 0 for the stem, i + 1 for block i, and one more for everything after the blocks.

    Raises:
        UsageError: no parameter is trainable, layer decay needs numbered blocks and the backbone has none, or an entry
            of `parts` names no trained parameter, one of another entry too, or gives a schedule to a constant rate.
    """
    norms = _norm_parameters(module)
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        raise UsageError("no parameter is trainable: all of them are frozen")
    for key in ("no_decay", "constant_lr"):
        _check_names(key, getattr(settings, key), [name for name, _ in module.named_parameters()])
    parts = parts or {}
    part_of = _parts_of([name for name, _ in trainable], parts)
    if settings.layer_decay is None:
        layers = {}
    elif layers is None:
        layers = numbered_layers([name for name, _ in module.named_parameters()])
    last = max(layers.values(), default=0)
    groups: dict[tuple[bool, int, bool, bool, str], dict[str, Any]] = {}
    for name, parameter in trainable:
        head = not name.startswith(_BACKBONE)
        layer = layers.get(name, last)
        decayed = _is_decayed(name, parameter, name in norms, settings)
        constant = any(_matches(entry, name) for entry in settings.constant_lr)
        part = part_of.get(name, "")
        own = parts.get(part)
        own_decay = own is not None and (own.weight_decay is not None or own.own("weight_decay"))
        if constant and own and own.own("lr", "freeze_epochs", "warmup_epochs", "warmup_start"):
            raise UsageError(
                f"groups.{part}.schedule has no effect on {name}, whose rate optimizer.constant_lr keeps constant",
                "Leave one of them out.",
            )
        group = groups.setdefault(
            (head, layer, not decayed, constant, part),
            {
                "params": [],
                "names": [],
                "lr_factor": (settings.head_lr_factor if head and (own is None or own.lr is None) else 1.0)
                * (settings.layer_decay or 1.0) ** (last - layer),
                "weight_decay_factor": float(decayed),
                "own_weight_decay": None if own_decay or not head else settings.head_weight_decay,
                "part": part,
                "layer": layer,
                "constant_lr": constant,
            },
        )
        group["params"].append(parameter)
        group["names"].append(name)
    return [groups[key] for key in sorted(groups)]


def _parts_of(names: list[str], parts: Mapping[str, PartSettings]) -> dict[str, str]:
    """Return the entry of `parts` that names each parameter."""
    found: dict[str, str] = {}
    for entry in parts:
        matching = [name for name in names if _matches(entry, name)]
        if not matching:
            known = {part for name in names for part in name.split(".") if not part.isdigit()}
            raise UsageError(f"groups: no trained parameter is called '{entry}'", did_you_mean(entry, known))
        for name in matching:
            if name in found:
                raise UsageError(
                    f"groups: {name} belongs to '{found[name]}' and to '{entry}'", "Name each parameter once."
                )
            found[name] = entry
    return found


def _norm_parameters(module: nn.Module) -> set[str]:
    """Return the names of weights and biases in normalisation layers, recognised by the name of their class."""
    return {
        f"{prefix}.{leaf}" if prefix else leaf
        for prefix, layer in module.named_modules()
        if "norm" in type(layer).__name__.lower()
        for leaf, parameter in layer.named_parameters(recurse=False)
        if parameter.dim() <= 1
    }


def _is_decayed(name: str, parameter: nn.Parameter, in_norm: bool, settings: OptimizerSettings) -> bool:
    """Apply the decay rules of `parameter_groups` to a parameter."""
    bias = name.endswith("bias") and parameter.dim() <= 1
    scale = in_norm or (parameter.dim() <= 1 and not bias)
    if (scale and not settings.decay_norm) or (bias and not settings.decay_bias):
        return False
    return not any(_matches(entry, name) for entry in settings.no_decay)


def _matches(entry: str, name: str) -> bool:
    """Return whether an entry is a run of names in a dotted name."""
    return f".{entry}." in f".{name}."


def _check_names(key: str, entries: tuple[str, ...], names: list[str]) -> None:
    """Warn about entries that name no parameter: a recipe's names need not exist in every backbone."""
    parts = {part for name in names for part in name.split(".") if not part.isdigit()}
    for entry in entries:
        if not any(_matches(entry, name) for name in names):
            log.warning("optimizer.%s: no parameter is called '%s'. %s", key, entry, did_you_mean(entry, parts))


def numbered_layers(names: list[str]) -> dict[str, int]:
    """Return the layer of each parameter, by name (Clark et al. 2020, ELECTRA; numbered as in BEiT)."""
    inner = {name: name.removeprefix(_BACKBONE) for name in names if name.startswith(_BACKBONE)}
    matches = {name: match for name, rest in inner.items() if (match := _BLOCK.match(rest))}
    order = {block: i for i, block in enumerate(dict.fromkeys(match[1] for match in matches.values()))}
    if not order:
        raise UsageError(
            "optimizer.layer_decay needs a backbone of numbered blocks: a ResNet or one of timm's vision transformers",
            "Set optimizer.layer_decay=null.",
        )
    last = len(order) + 1
    return {
        name: order[matches[name][1]] + 1 if name in matches else 0 if _FIRST.match(inner.get(name, "")) else last
        for name in names
    }


def make_optimizer(
    groups: list[dict[str, Any]], settings: OptimizerSettings, *, zero: bool = False
) -> torch.optim.Optimizer:
    """Return an optimizer with the unscaled rates of the settings; see `set_rates`.

    Args:
        groups: groups from `parameter_groups`; their keys are kept in `param_groups` and in the state_dict.
        settings: name and options.
        zero: shard the optimizer state over the processes (Rajbhandari et al. 2020, ZeRO, stage 1); every process
            calls this.

    Raises:
        UsageError: timm has no such optimizer, your class cannot be imported, or it does not take the options.
    """
    options = _options(settings)
    kind = class_of(settings.name)
    if zero:
        optimizer = zero_optimizer(kind, groups, **options)
    else:
        if settings.name in ("sgd", "adamw"):
            options["fused"] = all(_may_fuse(p) for group in groups for p in group["params"])
        optimizer = _built(kind, groups, options, settings)
        optimizer.register_load_state_dict_post_hook(_match_strides)
        if settings.name == "sgd" and settings.momentum:
            _start_momentum(optimizer)
    set_rates(optimizer, lr=settings.lr, weight_decay=settings.weight_decay)
    return optimizer


def class_of(name: str) -> Any:
    """Return the class of an optimizer, or a function that builds it.

    >>> class_of("timm:lamb").__name__
    'Lamb'

    Raises:
        UsageError: there is none of this name, or it needs more than a gradient per update.
    """
    if name in _CLASSES:
        return _CLASSES[name]
    if not name.startswith(OF_TIMM):
        return find_object(name)
    from timm import optim as package

    optim: Any = package  # its names are not exported for type checkers
    own = name.removeprefix(OF_TIMM)
    if own not in optim.list_optimizers():
        raise UsageError(f"timm has no optimizer called '{own}'", did_you_mean(own, optim.list_optimizers()))
    if optim.get_optimizer_info(own).second_order:
        raise UsageError(f"optimizer {name} needs second derivatives, which training does not compute")
    return optim.get_optimizer_class(own, bind_defaults=False)


def _built(
    kind: Any, groups: list[dict[str, Any]], options: dict[str, Any], settings: OptimizerSettings
) -> torch.optim.Optimizer:
    """Return the optimizer.

    Raises:
        UsageError: a class of timm or the user's does not take these arguments, or builds no optimizer.
    """
    if settings.name in _CLASSES:
        return kind(groups, **options)  # type: ignore[no-any-return]
    try:
        optimizer = kind(groups, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimizer {settings.name} does not take {options}: {error}") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"{settings.name} gives a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    return optimizer


_CLASSES: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "lars": LARS, "larc": LARC}


def _options(settings: OptimizerSettings) -> dict[str, Any]:
    """Return the arguments of the optimizer's class; `set_rates` sets the weight decay of each group."""
    options: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.name not in _CLASSES:
        return options | (settings.options or {})
    if settings.name == "adamw":
        return options | {"betas": settings.betas, "eps": settings.eps}
    options |= {"momentum": settings.momentum, "nesterov": settings.nesterov}
    if settings.name == "sgd":
        return options
    options |= {"trust_coefficient": settings.trust_coefficient, "exclude_1d": settings.exclude_norm_and_bias}
    return options if settings.name == "lars" else options | {"eps": settings.eps, "clip": settings.clip}


def _may_fuse(parameter: nn.Parameter) -> bool:
    """Return whether torch has a fused step for a parameter: on these devices, if it is not sharded."""
    return parameter.device.type in ("cpu", "cuda") and not hasattr(parameter, "device_mesh")


def _start_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Initialise all momentum buffers to 0, which is equivalent to missing buffers.

    torch's fused SGD fails if some tensors have a buffer and others, frozen until now, have none.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _match_strides(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded state the memory layout of its parameter.

    Fused steps ignore strides: a channels-last weight with state in another layout would be updated with the values
    of other elements.
    """
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def set_rates(
    optimizer: torch.optim.Optimizer,
    *,
    lr: float,
    peak_lr: float | None = None,
    weight_decay: float | None = None,
    momentum: float | None = None,
    part: str | None = None,
) -> None:
    """Set the rates of the next update.

    Args:
        optimizer: optimizer from `make_optimizer`.
        lr: learning rate, multiplied by each group's lr_factor.
        peak_lr: learning rate of groups with a constant rate; None for lr.
        weight_decay: weight decay of decayed groups without their own; None keeps it.
        momentum: momentum, or AdamW's first beta; None keeps it.
        part: groups with this `part` only; None: all.
    """
    for group in optimizer.param_groups:
        if part is not None and group.get("part", "") != part:  # checkpoints of earlier versions have none
            continue
        rate = peak_lr if group["constant_lr"] and peak_lr is not None else lr
        group["lr"] = rate * group["lr_factor"]
        if weight_decay is not None:
            own = group["own_weight_decay"]
            group["weight_decay"] = (weight_decay if own is None else own) * group["weight_decay_factor"]
        if momentum is not None and "betas" in group:
            group["betas"] = (momentum, group["betas"][1])
        elif momentum is not None:
            group["momentum"] = momentum
