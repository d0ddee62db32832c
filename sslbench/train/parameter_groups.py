"""Groups of parameters with the same rates: what decays, layer-wise learning rates, heads and parts of their own."""

import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.train.optimizers.optimizer import OptimizerSettings, PartSettings

log = logging.getLogger("sslbench")

_BACKBONE = "backbone."
_FIRST = re.compile(r"(?:patch_embed|pos_embed|cls_token|reg_token|dist_token|mask_token|norm_pre|conv1|bn1)(?:\.|$)")
_BLOCK = re.compile(r"(blocks\.\d+|layer\d+\.\d+)\.")


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
    norms = norm_parameters(module)
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        raise UsageError("no parameter is trainable: all of them are frozen")
    names = [name for name, _ in module.named_parameters()]
    words = {word for name in names for word in name.split(".") if not word.isdigit()}
    for key in ("no_decay", "constant_lr"):
        for entry in getattr(settings, key):
            if not any(_matches(entry, name) for name in names):  # a recipe's names need not exist in every backbone
                log.warning("optimizer.%s: no parameter is called '%s'. %s", key, entry, did_you_mean(entry, words))
    parts = parts or {}
    part_of = _parts_of([name for name, _ in trainable], parts)
    if settings.layer_decay is None:
        layers = {}
    elif layers is None:
        layers = numbered_layers(names)
    last = max(layers.values(), default=0)

    def rates_of(name: str, parameter: nn.Parameter) -> GroupRates:
        head = not name.startswith(_BACKBONE)
        layer = layers.get(name, last)
        constant = any(_matches(entry, name) for entry in settings.constant_lr)
        part = part_of.get(name, "")
        own = parts.get(part)
        own_decay = own is not None and (own.weight_decay is not None or own.own("weight_decay"))
        if constant and own and own.own("lr", "freeze_epochs", "warmup_epochs", "warmup_start"):
            raise UsageError(
                f"groups.{part}.schedule has no effect on {name}, whose rate optimizer.constant_lr keeps constant",
                "Leave one of them out.",
            )
        # A part with its own rate is not scaled a second time by the factor of the head.
        factor = settings.head_lr_factor if head and (own is None or own.lr is None) else 1.0
        return GroupRates(
            head,
            layer,
            decayed=_is_decayed(name, parameter, name in norms, settings),
            constant_lr=constant,
            part=part,
            own_weight_decay=None if own_decay or not head else settings.head_weight_decay,
            lr_factor=factor * (settings.layer_decay or 1.0) ** (last - layer),
        )

    return grouped(trainable, rates_of)


@dataclasses.dataclass(frozen=True)
class GroupRates:
    """Rates of the parameters of a group, relative to those of the schedules, in the order in which groups are sorted.

    Attributes:
        head: they lie outside the backbone.
        layer: see `parameter_groups`.
        decayed: they have weight decay.
        constant_lr: the rate stays at its peak.
        part: see `parameter_groups`.
        own_weight_decay: weight decay whatever the schedule; None: that of the schedule.
        lr_factor: factor of the learning rate.
    """

    head: bool = False
    layer: int = 0
    decayed: bool = True
    constant_lr: bool = False
    part: str = ""
    own_weight_decay: float | None = None
    lr_factor: float = 1.0


def grouped(
    named: Iterable[tuple[str, nn.Parameter]], rates_of: Callable[[str, nn.Parameter], GroupRates]
) -> list[dict[str, Any]]:
    """Return groups of the parameters with the same rates, sorted by them; within a group in the order given."""
    groups: dict[GroupRates, dict[str, nn.Parameter]] = {}
    for name, parameter in named:
        groups.setdefault(rates_of(name, parameter), {})[name] = parameter

    def order(rates: GroupRates) -> tuple[Any, ...]:  # checkpoints number the parameters in this order
        decay = rates.own_weight_decay or 0.0
        return rates.head, rates.layer, not rates.decayed, rates.constant_lr, rates.part, decay, rates.lr_factor

    return [group(groups[rates], rates) for rates in sorted(groups, key=order)]


def group(named: Mapping[str, nn.Parameter], rates: GroupRates) -> dict[str, Any]:
    """Return parameters by name as a group for `make_optimizer`."""
    return {
        "params": list(named.values()),
        "names": list(named),
        "lr_factor": rates.lr_factor,
        "weight_decay_factor": float(rates.decayed),
        "own_weight_decay": rates.own_weight_decay,
        "part": rates.part,
        "layer": rates.layer,
        "constant_lr": rates.constant_lr,
    }


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


def norm_parameters(module: nn.Module, *, largest_dim: int | None = 1) -> set[str]:
    """Return the names of parameters in normalisation layers, recognised by the name of their class.

    `largest_dim`: largest number of dimensions of a parameter; None: any.
    """
    return {
        f"{prefix}.{leaf}" if prefix else leaf
        for prefix, layer in module.named_modules()
        if "norm" in type(layer).__name__.lower()
        for leaf, parameter in layer.named_parameters(recurse=False)
        if largest_dim is None or parameter.dim() <= largest_dim
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
    # Layers by their place, not their number: names such as layer1.0 and layer2.0 start anew in each stage.
    last = len(order) + 1
    return {
        name: order[matches[name][1]] + 1 if name in matches else 0 if _FIRST.match(inner.get(name, "")) else last
        for name in names
    }
