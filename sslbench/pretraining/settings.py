"""What a pretraining run is asked to do: the keys of configs/pretrain.yaml, and the arguments around them."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from sslbench.config import setting
from sslbench.data.loading.samplers import AskedSampler
from sslbench.data.sharded import WINDOW
from sslbench.data.views import Augment
from sslbench.errors import UsageError
from sslbench.preprocessing import MAX_PIXELS
from sslbench.runtime.device import Precision
from sslbench.runtime.workers import StartMethod
from sslbench.train.optimizers import OptimizerSettings

Spec = dict[str, Any] | float


@dataclasses.dataclass(frozen=True)
class ScheduleSettings:
    """How rates change; every schedule is a mapping with a name, or a number (see `sslbench.train.schedules`)."""

    lr: Spec = setting(1.0, "factor of the learning rate, after the warm-up")
    freeze_epochs: float = setting(0.0, "the factor is 0 during the first epochs, before the warm-up", unit="epochs")
    warmup_epochs: float = setting(0.0, "the factor rises linearly, during the first epochs after those", unit="epochs")
    warmup_start: float = setting(0.0, "factor at the very start of the warm-up")
    weight_decay: Spec | None = setting(None, "values of the weight decay; null: optimizer.weight_decay throughout")
    momentum: Spec | None = setting(None, "values of SGD's momentum; null: optimizer.momentum throughout")


@dataclasses.dataclass(frozen=True)
class PretrainSettings:
    """Everything that configs/pretrain.yaml, its groups, key=value and flags can set.

    Two runs with equal settings on equal data are the same run, but for the keys in `FREE`.
    """

    method: dict[str, Any]
    augment: Augment
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    backbone: str = setting("resnet50", "architecture: a ResNet, a timm model, module:callable")
    epochs: float = setting(100, "passes over the data", unit="epochs")
    batch_size: int = setting(256, "images per update, all processes together")
    accumulate: int = setting(1, "forward passes that an update is divided into")
    clip_norm: float | None = setting(None, "largest norm of the gradients; null does not clip")
    clip_each: bool = setting(False, "clip_norm is that of each tensor's gradient (DINO's code), not of all together")
    precision: Precision = setting("fp32", "of the forward pass (autocast)")
    sync_bn: bool = setting(False, "BatchNorm over all processes (GPU only)")
    strategy: Literal["ddp", "fsdp"] = setting("ddp", "fsdp shards parameters, gradients and optimizer state")
    zero: bool = setting(False, "divide the optimizer's state over the processes")
    channels_last: bool = setting(True, "memory layout of images and convolutions")
    compile: bool = setting(False, "torch.compile every network of the method, momentum copies too")
    activation_checkpointing: bool = setting(False, "compute activations again in the backward pass: less memory")
    freeze: dict[str, int] | None = setting(None, "prefix of a parameter's name -> updates for which it is not trained")
    ema: float | None = setting(None, "decay of a moving average of the backbone, written beside the weights")
    seed: int = setting(0, "of the initial weights, the order of the images, the views")
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps")
    workers: int | Literal["auto"] = setting("auto", "processes that decode and augment, per training process")
    prefetch: int = setting(4, "batches that every worker prepares ahead")
    start_method: StartMethod = setting("auto", "of those processes")
    decoder: tuple[str, ...] = setting((), "functions of yours that decode images: my_module.my_function")
    max_pixels: int = setting(MAX_PIXELS, "larger images count as unreadable", unit="pixels")
    sampler: AskedSampler = setting(
        "auto",
        "order of the images: shuffled; balanced shows every class equally often, stratified mixes them evenly, "
        "weighted shows several sources by their weights, shards reads from a few shards at a time; auto: weighted "
        "where the data give weights, else shuffled",
    )
    shard_window: int = setting(WINDOW, "from how many sampler=shards draws at a time", unit="shards")
    log_every: int = setting(10, "between lines of the log", unit="updates")
    save_every: str = setting("1 epoch", "between checkpoints: 'N epochs' or 'N updates'")
    keep: int = setting(2, "checkpoints that stay; older ones are removed")
    eval_every: float = setting(10, "between evaluations on --eval-data", unit="epochs")
    eval_k: int = setting(20, "neighbours of that evaluation")
    export: str = setting("auto", "which network weights.torch holds, where a method has several: student, teacher")


ROUNDING = ("device", "compile", "activation_checkpointing", "channels_last")
"""Settings that a run may be continued with other values of, although they change how sums are rounded (and the device
which random numbers a network draws on it)."""
FREE = (
    "workers",
    "prefetch",
    "start_method",
    "log_every",
    "save_every",
    "keep",
    "eval_every",
    "eval_k",
    "export",
    *ROUNDING,
)
"""Settings that a run may be continued with other values of; those that are not of `ROUNDING` change nothing at all."""


@dataclasses.dataclass(frozen=True)
class PretrainRequest:
    """One run.

    Attributes:
        settings: see there.
        data: what to train on, as `open_data` takes it: its train part, else all of it. Labels are not needed.
        out: folder of the run.
        init: a weights file to start from; None: random weights.
        init_format: whose key names that file has; None: recognised.
        stem: how a stem of that file made for another number of channels is mapped; see `load_backbone`.
        eval_data: labelled data for kNN during training; None: none.
        eval_test_data: the part to score, when `eval_data` has none inside.
        resume: 'auto' continues what lies in `out`; 'never' refuses a folder in use; else a checkpoint's path.
        limit: use only so many images.
        image_column: of a table.
        label_column: of a table.
        chosen: dotted keys of the settings that the user set; the others are a recipe's, which is adapted to images of
            other channels than three.
    """

    settings: PretrainSettings
    data: str
    out: Path
    init: str | None = None
    init_format: str | None = None
    stem: str | None = None
    eval_data: str | None = None
    eval_test_data: str | None = None
    resume: str = "auto"
    limit: int | None = None
    image_column: str | None = None
    label_column: str | None = None
    chosen: tuple[str, ...] = ()


def updates(text: str, per_epoch: int) -> int:
    """'2 epochs' or '500 updates' in updates, at least one.

    Raises:
        UsageError: it is neither.
    """
    number, _, unit = text.strip().partition(" ")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if value <= 0 or unit.rstrip("s") not in ("epoch", "update"):
        raise UsageError(f"save_every: '{text}' is no interval", "Write '1 epoch', '0.5 epochs' or '500 updates'.")
    return max(1, round(value * per_epoch if unit.startswith("epoch") else value))


def plain(settings: PretrainSettings) -> dict[str, Any]:
    """The settings as mappings, lists, numbers and text, as YAML and checkpoints hold them.

    Those that came later are left out where they are the defaults, so that runs from before can be continued.
    """
    usual = {"clip_each": False, "decoder": (), "max_pixels": MAX_PIXELS, "sampler": "auto", "shard_window": WINDOW}
    values = dataclasses.asdict(settings)
    return {key: _plain(value) for key, value in values.items() if key not in usual or value != usual[key]}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return str.__str__(value) if isinstance(value, str) else value  # a name of code from a file is a kind of text


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], *, free: Collection[str], prefix: str = ""
) -> list[str]:
    """Return where two plain settings differ: 'batch_size: 256, now 128'.

    Args:
        old: settings.
        new: others.
        free: keys that are not compared.
        prefix: of the dotted keys.
    """
    found = []
    for key in sorted({*old, *new} - set(free)):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, free=(), prefix=f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key}: {before}, now {after}")
    return found
