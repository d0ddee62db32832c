"""Recipe of finetuning from its settings, without torch: checks, learning rates, optimizer, schedule, crop."""

import dataclasses
import math
from collections.abc import Callable

from sslbench.data.views import View
from sslbench.errors import UsageError
from sslbench.protocols._parts.rates import rate_schedule
from sslbench.protocols.finetune.settings import Settings
from sslbench.targets.classes import Classes
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target
from sslbench.train.optimizers.optimizer import OptimizerSettings, find, refuse_unknown

NAME = "finetune"


@dataclasses.dataclass(frozen=True)
class Rates:
    """Learning rate and weight decay of one training."""

    lr: float
    weight_decay: float

    @property
    def text(self) -> str:
        """The rates as text: 'lr=0.1 weight_decay=0.0001'."""
        return f"lr={self.lr:g} weight_decay={self.weight_decay:g}"


def candidates(settings: Settings) -> tuple[Rates, ...]:
    """Return the candidates of the selection, every learning rate with every weight decay.

    Raises:
        UsageError: no learning rate is given, and the optimizer has no usual one.
    """
    rates = settings.lr
    if not rates:
        usual = find(settings.optimizer).finetune_lr
        if usual is None:
            raise UsageError(f"finetune: optimizer={settings.optimizer} has no usual learning rate", "Give lr=....")
        rates = (usual,)
    return tuple(Rates(lr, decay) for lr in rates for decay in settings.weight_decay)


_OF_OPTIMIZERS = ("momentum", "nesterov", "betas")
"""Settings that not every optimizer has."""


def check_settings(settings: Settings) -> None:
    """Raise an error for settings that are impossible or have no effect, for any data and backbone.

    Raises:
        UsageError: the message names the setting.
    """
    _check_numbers(settings)
    refuse_unknown(settings.optimizer)
    for name in ("lr", "weight_decay", "fractions", "images", "per_class"):
        values = getattr(settings, name)
        _check(len(set(values)) == len(values), f"{name} holds a value twice: {list(values)}")
    used_by_optimizer = find(settings.optimizer).uses
    for used, name, without in (
        (settings.augment == "crop", "size", "augment=none"),
        *((name in used_by_optimizer, name, f"optimizer={settings.optimizer}") for name in _OF_OPTIMIZERS),
        (settings.augment == "crop", "scale", "augment=none"),
        (settings.augment == "crop", "ratio", "augment=none"),
        (settings.augment == "crop", "interpolation", "augment=none"),
        (len(candidates(settings)) > 1, "holdout", "several values of lr or weight_decay"),
        (bool(settings.fractions or settings.images or settings.per_class), "draws", "fractions, images or per_class"),
    ):
        default = next(field.default for field in dataclasses.fields(Settings) if field.name == name)
        _check(
            used or getattr(settings, name) == default,
            f"{name} has no effect without {without}"
            if name in ("holdout", "draws")
            else f"{name} has no effect with {without}",
        )
    chosen = [name for name in ("fractions", "images", "per_class", "train_list") if getattr(settings, name)]
    if len(chosen) > 1:
        raise UsageError(f"finetune: {' and '.join(chosen)} exclude each other", "Give one of them.")
    for rates in candidates(settings):
        optimizer_settings(settings, rates)
    view(settings, settings.size or 1)
    schedule(settings, settings.epochs)


def check_labels(settings: Settings, labels: Target) -> None:
    """Raise an error for settings that the kind of labels rules out.

    Raises:
        UsageError: the message names the setting.
    """
    for name in ("mixup", "cutmix", "label_smoothing", "per_class"):
        _check(isinstance(labels, Classes) or not getattr(settings, name), f"{name} needs images with one class each")


def _check_numbers(settings: Settings) -> None:
    for name in ("epochs", "batch_size", "accumulate", "head_lr_factor", "draws"):
        value = getattr(settings, name)
        _check(value is None or (math.isfinite(value) and value > 0), f"{name} should be above 0, not {value}")
    for name in ("probe_epochs", "mixup", "cutmix"):
        value = getattr(settings, name)
        _check(math.isfinite(value) and value >= 0, f"{name} should be 0 or more, not {value}")
    for name in ("drop_path", "label_smoothing", "erasing"):
        value = getattr(settings, name)
        _check(0 <= value < 1 or (name == "erasing" and value == 1), f"{name} should lie between 0 and 1, not {value}")
    _check(bool(settings.weight_decay), "weight_decay has no value")
    _check(settings.batch_size >= 2, f"batch_size should be at least 2, not {settings.batch_size}")
    _check(settings.updates is None or settings.updates >= 1, f"updates should be at least 1, not {settings.updates}")
    _check(settings.train_blocks is None or settings.train_blocks >= 0, "train_blocks should be 0 or more")
    _check(
        settings.clip_norm is None or settings.clip_norm > 0, f"clip_norm should be above 0, not {settings.clip_norm}"
    )
    _check(settings.ema is None or 0 < settings.ema < 1, f"ema should lie between 0 and 1, not {settings.ema}")
    _check(0 < settings.holdout < 1, f"holdout should lie between 0 and 1, not {settings.holdout}")
    _check(
        all(0 < f <= 1 for f in settings.fractions), f"fractions should lie in (0, 1], not {list(settings.fractions)}"
    )
    for name in ("images", "per_class"):
        values = getattr(settings, name)
        _check(all(value >= 1 for value in values), f"{name} should be 1 or more, not {list(values)}")
    _check(
        settings.probe_epochs < settings.epochs,
        f"probe_epochs={settings.probe_epochs:g} leaves nothing of epochs={settings.epochs:g}",
    )
    if settings.randaugment:
        _check(
            len(settings.randaugment) == 2
            and settings.randaugment[0] >= 1
            and settings.randaugment[0] == int(settings.randaugment[0])
            and 0 <= settings.randaugment[1] <= 10,
            f"randaugment should be a number of operations and a magnitude from 0 to 10, not "
            f"{list(settings.randaugment)}",
        )


def _check(right: bool, message: str) -> None:
    if not right:
        raise UsageError(f"finetune: {message}")


def optimizer_settings(settings: Settings, rates: Rates, kind: type[Target] = Classes) -> OptimizerSettings:
    """Return the settings of the optimizer.

    Args:
        settings: of the protocol.
        rates: learning rate and weight decay.
        kind: of the labels. The squared error of numbers grows without bound where a head learns too fast, so there the
            head learns as fast as the rest by default.

    Raises:
        UsageError: a value is out of range.
    """
    usual = 1.0 if kind is Numbers else find(settings.optimizer).finetune_head_factor
    return OptimizerSettings(
        name=settings.optimizer,
        lr=rates.lr,
        lr_scaling=settings.lr_scaling,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        betas=settings.betas,
        weight_decay=rates.weight_decay,
        decay_norm=settings.decay_norm,
        decay_bias=settings.decay_bias,
        no_decay=settings.no_decay,
        head_lr_factor=settings.head_lr_factor or usual,
        layer_decay=settings.layer_decay,
    )


def schedule(settings: Settings, passes: float) -> Callable[[float], float]:
    """Return the factor of the learning rates as a function of the progress in [0, 1].

    Args:
        settings: schedule, schedule_per and warmup_epochs are used; with `updates`, parts keep their share of `epochs`.
        passes: over the data in the training.

    Raises:
        UsageError: there is no such schedule, or the warm-up is longer than the training.
    """
    return rate_schedule(
        settings.schedule,
        per=settings.schedule_per,
        warmup_epochs=settings.warmup_epochs,
        epochs=passes if settings.updates is None else settings.epochs,
        passes=passes,
        protocol=NAME,
    )


def view(settings: Settings, size: int) -> View:
    """Return the recipe of the random crop.

    Raises:
        UsageError: a value is out of range.
    """
    return View(
        size=size, scale=settings.scale, ratio=settings.ratio, interpolation=settings.interpolation, flip=settings.flip
    )
