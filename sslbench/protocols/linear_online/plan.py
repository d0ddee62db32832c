"""Plan of the online linear probe from its settings: inputs, heads, batches, learning rates."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sslbench.arrays import IntArray
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.data.decode.handlers import Reading
from sslbench.data.groups import source_groups
from sslbench.data.loading.probing import EpochBatches, evaluation_view
from sslbench.data.source import Source
from sslbench.data.views import View
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.images import evaluation_side
from sslbench.protocols._parts.selection import holdout_rows, no_holdout
from sslbench.protocols.linear_online.heads import Bank, Head, Heads, Norm
from sslbench.protocols.linear_online.inputs import Input, block_inputs, layer_inputs
from sslbench.protocols.linear_online.recipe import view
from sslbench.protocols.linear_online.settings import Settings
from sslbench.runtime.resources import StartMethod


@dataclasses.dataclass(frozen=True)
class BankPlan:
    """Bank of heads to train: its input, the normalisation, and its row of results."""

    input: Input
    norm: Norm
    row: str


def make_batches(
    source: Source,
    preprocessing: Preprocessing,
    settings: Settings,
    *,
    seed: int,
    piece: int,
    workers: int = 0,
    start_method: StartMethod = "auto",
) -> EpochBatches:
    """Return this process's training batches.

    Args:
        source: the part of train that is trained on.
        preprocessing: the evaluation transform: says how large views are.
        settings: of the protocol.
        seed: of order and augmentation.
        piece: images per forward pass.
        workers: processes that decode and augment.
        start_method: of those.

    Raises:
        UsageError: views would not be square, or have other channels than RGB.
    """
    if preprocessing.channels not in (1, 3):
        raise UsageError(
            f"linear-online augments RGB images, and the backbone takes {preprocessing.channels} channels",
            "Use a protocol on features, such as linear.",
        )
    size = settings.size or evaluation_side(source, preprocessing, "linear-online")
    transform: View | Callable[[Tensor], Tensor] = view(settings, size)
    if settings.augment == "none":
        transform = evaluation_view(preprocessing, settings.flip)
    process = this_process()
    return EpochBatches(
        source,
        transform,
        size=size,
        batch_size=settings.batch_size,
        piece=piece,
        seed=seed,
        share=(process.rank, process.world),
        workers=workers,
        reading=Reading(preprocessing.decoder, preprocessing.max_pixels, start_method),
    )


def planned(backbone: Backbone, layers: Sequence[Layer], settings: Settings) -> tuple[BankPlan, ...]:
    """Return the banks of heads, in the order of the results.

    Raises:
        UsageError: blocks or plain_layers do not fit the backbone or the layers.
    """
    texts = [layer.text for layer in layers]
    if settings.blocks and texts != [backbone.default_layer]:
        raise UsageError(
            f"blocks={list(settings.blocks)} and the layers {', '.join(texts)} exclude each other",
            "Give --layers or blocks=..., not both.",
        )
    found = block_inputs(backbone, settings.blocks, settings.patch_mean) if settings.blocks else layer_inputs(layers)
    for name in settings.plain_layers:
        if name not in texts or settings.blocks:
            raise UsageError(f"plain_layers: '{name}' is not an evaluated layer", did_you_mean(name, texts))
    plans = []
    for each in found:
        plans.append(BankPlan(each, settings.norm, each.row))
        if each.name in settings.plain_layers and settings.norm != "none":
            plans.append(BankPlan(each, "none", f"{each.row}, no norm"))
    return tuple(plans)


def has_choice(plans: Sequence[BankPlan], settings: Settings) -> bool:
    """Return True if a row has several heads, of which one must be chosen."""
    return len(settings.lr) * len(settings.weight_decay) > 1 or len({plan.row for plan in plans}) < len(plans)


def split(train: Source, plans: Sequence[BankPlan], settings: Settings, seed: int) -> tuple[Source, Source | None]:
    """Return the training part and the part held out for the choice; None where nothing is chosen on train."""
    if settings.select_on == "test" or not has_choice(plans, settings):
        return train, None
    groups = source_groups(train)
    parts = holdout_rows(train.target, settings.holdout, seed, groups)
    if parts is None:
        raise UsageError(
            f"{train.name}: {no_holdout(groups)[0].lower()}{no_holdout(groups)[1:]} for the selection of a head",
            f"Give one learning rate, such as lr={settings.lr[len(settings.lr) // 2]:g}.",
        )
    return train.select(parts[0]), train.select(parts[1])


def make_heads(
    plans: Sequence[BankPlan],
    widths: dict[str, tuple[int, int]],
    classes: int,
    settings: Settings,
    *,
    seed: int,
    device: torch.device,
    order: IntArray | None = None,
) -> Heads:
    """Return new heads: one per bank, learning rate and weight decay.

    Args:
        plans: from `planned`.
        widths: name of an input -> (features, channels).
        classes: C.
        settings: of the protocol.
        seed: of the first weights.
        device: device of the training.
        order: (C,) class numbers in the order in which they get their first weights; None: ascending.
    """
    grid = [Head(lr, decay) for lr in settings.lr for decay in settings.weight_decay]
    banks = []
    for plan in plans:
        bank = Bank(
            plan.input.name,
            grid,
            widths=widths[plan.input.name],
            classes=classes,
            norm=plan.norm,
            eps=settings.norm_eps,
            init=settings.init,
            seed=seed,
            order=order,
        )
        banks.append(bank)
    return Heads(banks).to(device)
