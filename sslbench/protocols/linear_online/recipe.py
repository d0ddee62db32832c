"""Recipe of the online linear probe from its settings, without torch: checks, optimizer, schedule, crop."""

import math

from sslbench.data.views import View
from sslbench.errors import UsageError
from sslbench.protocols._parts.rates import rate_schedule
from sslbench.protocols.linear_online.settings import Settings
from sslbench.train import schedules
from sslbench.train.optimizers.optimizer import OptimizerSettings


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data and the backbone.

    Raises:
        UsageError: a setting is not possible.
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


def schedule(settings: Settings, passes: float) -> schedules.Schedule:
    """Return the schedule: from the position in [0, 1] to the factor of the learning rates.

    Args:
        settings: schedule, schedule_per and warmup_epochs are used; with `updates`, parts keep their share of `epochs`.
        passes: over the data in the training.

    Raises:
        UsageError: no such schedule, or the warm-up is longer than training.
    """
    return rate_schedule(
        settings.schedule,
        per=settings.schedule_per,
        warmup_epochs=settings.warmup_epochs,
        epochs=passes if settings.updates is None else settings.epochs,
        passes=passes,
        protocol="linear-online",
    )


def view(settings: Settings, size: int) -> View:
    """Return the recipe of the augmented view of an image.

    Raises:
        UsageError: values that are not possible.
    """
    return View(
        size=size, scale=settings.scale, ratio=settings.ratio, interpolation=settings.interpolation, flip=settings.flip
    )
