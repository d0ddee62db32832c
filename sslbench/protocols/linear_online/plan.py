"""Plan of the online linear probe from its settings: inputs, heads, batches, learning rates."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.data.decode.handlers import Reading, picture_decoder
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.decode.transforms import output_size
from sslbench.data.groups import source_groups
from sslbench.data.loading import loader
from sslbench.data.loading.probing import EpochBatches, evaluation_view
from sslbench.data.source import Source
from sslbench.data.views import View
from sslbench.distributed import this_process
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.selection import holdout_rows, no_holdout
from sslbench.protocols.linear_online.heads import Bank, Head, Heads, Norm
from sslbench.protocols.linear_online.inputs import Input, block_inputs, layer_inputs
from sslbench.protocols.linear_online.settings import Settings
from sslbench.runtime.workers import StartMethod
from sslbench.train import schedules
from sslbench.train.optimizers import OptimizerSettings

_SCHEDULES: dict[str, dict[str, Any]] = {
    "cosine": {"name": "cosine", "start": 1.0, "end": 0.0},
    "linear": {"name": "linear", "start": 1.0, "end": 0.0},
    "constant": {"name": "constant", "value": 1.0},
}


@dataclasses.dataclass(frozen=True)
class BankPlan:
    """Bank of heads to train: its input, the normalisation, and its row of results."""

    input: Input
    norm: Norm
    row: str


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data and the backbone.

    Raises:
        UsageError: they are.
    """
    for name in ("lr", "weight_decay", "patch_mean"):
        if not getattr(settings, name):
            raise UsageError(f"linear-online: {name} has no value", f"Give one or several values: {name}=[...].")
    _check(all(math.isfinite(lr) and lr > 0 for lr in settings.lr), f"lr should be above 0, not {list(settings.lr)}")
    decays = settings.weight_decay
    _check(all(math.isfinite(wd) and wd >= 0 for wd in decays), f"weight_decay should be 0 or more, not {list(decays)}")
    for name in ("lr", "weight_decay", "blocks", "patch_mean"):
        values = getattr(settings, name)
        _check(len(set(values)) == len(values), f"{name} holds a value twice: {list(values)}")
    _check(settings.epochs > 0 and math.isfinite(settings.epochs), f"epochs should be above 0, not {settings.epochs}")
    _check(settings.updates is None or settings.updates >= 1, f"updates should be at least 1, not {settings.updates}")
    smallest = 1 if settings.norm == "none" else 2
    _check(
        settings.batch_size >= smallest,
        f"batch_size should be at least {smallest} with norm={settings.norm}, not {settings.batch_size}",
    )
    _check(all(n >= 1 for n in settings.blocks), f"blocks should be 1 or more, not {list(settings.blocks)}")
    _check(not any(settings.patch_mean) or bool(settings.blocks), "patch_mean has no effect without blocks")
    _check(0 < settings.holdout < 1, f"holdout should lie between 0 and 1, not {settings.holdout}")
    _check(settings.norm_eps > 0, f"norm_eps should be above 0, not {settings.norm_eps}")
    _check(settings.size is None or settings.augment == "crop", "size has no effect with augment=none")
    optimizer_settings(settings)
    view(settings, settings.size or 1)
    schedule(settings, settings.epochs)


def _check(right: bool, message: str) -> None:
    if not right:
        raise UsageError(f"linear-online: {message}")


def optimizer_settings(settings: Settings) -> OptimizerSettings:
    """Return the optimizer settings that all heads share; each head has its own learning rate and weight decay.

    Raises:
        UsageError: values that are not possible.
    """
    return OptimizerSettings(
        name=settings.optimizer,
        lr=1.0,
        lr_scaling=settings.lr_scaling,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=0.0,
        trust_coefficient=settings.trust_coefficient,
        exclude_norm_and_bias=True,
        decay_norm=settings.decay_norm,
        decay_bias=settings.decay_bias,
    )


def schedule(settings: Settings, epochs: float) -> schedules.Schedule:
    """Return the schedule: from the position in [0, 1] to the factor of the learning rates.

    Args:
        settings: schedule, schedule_per and warmup_epochs are used.
        epochs: of the whole training.

    Raises:
        UsageError: no such schedule, or the warm-up is longer than training.
    """
    spec: Any = settings.schedule
    if isinstance(spec, str):
        if spec not in _SCHEDULES:
            raise UsageError(f"linear-online: there is no schedule '{spec}'", did_you_mean(spec, _SCHEDULES))
        spec = _SCHEDULES[spec]
    factor = schedules.build_with_warmup(
        spec, warmup_epochs=settings.warmup_epochs, warmup_start=0.0, where="schedule", epochs=epochs
    )
    if settings.schedule_per == "update":
        return factor
    return lambda progress: factor(math.floor(progress * epochs + 1e-6) / epochs)


def view(settings: Settings, size: int) -> View:
    """Return the recipe of the augmented view of an image.

    Raises:
        UsageError: values that are not possible.
    """
    return View(
        size=size, scale=settings.scale, ratio=settings.ratio, interpolation=settings.interpolation, flip=settings.flip
    )


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
        UsageError: a batch is larger than the source, views would not be square, or have other channels than RGB.
    """
    if preprocessing.channels not in (1, 3):
        raise UsageError(
            f"linear-online augments RGB images, and the backbone takes {preprocessing.channels} channels",
            "Use a protocol on features, such as linear.",
        )
    size = settings.size or evaluation_side(source, preprocessing)
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


def evaluation_side(source: Source, preprocessing: Preprocessing) -> int:
    """Return the side of the evaluation pictures; where they keep their own size, of the first one.

    Raises:
        UsageError: they are not square.
    """
    size = output_size(preprocessing)
    height, width = _first(source, preprocessing) if size is None else size
    if height != width:
        raise UsageError(
            f"linear-online needs square images, but the evaluation transform gives {height} x {width} pixels",
            "Give --crop, or --resize to a square.",
        )
    return int(height)


def _first(source: Source, preprocessing: Preprocessing) -> tuple[int, int]:
    """Return (height, width) of the first image.

    Raises:
        DataError: it cannot be read.
    """
    try:
        image = loader.read(source.images, 0, picture_decoder(preprocessing, source.images)).image
    except UnreadableImage as error:
        raise DataError(
            f"the first image of {source.name}, whose size fixes that of all, cannot be read: {error.path}"
        ) from error
    return int(image.shape[1]), int(image.shape[2])


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
    parts = holdout_rows(train.labels, settings.holdout, seed, groups)
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
) -> Heads:
    """Return new heads: one per bank, learning rate and weight decay.

    Args:
        plans: from `planned`.
        widths: name of an input -> (features, channels).
        classes: C.
        settings: of the protocol.
        seed: of the first weights.
        device: where they are trained.
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
        )
        banks.append(bank)
    return Heads(banks).to(device)
