"""Settings of a pretraining run: the keys of configs/pretrain.yaml, and the arguments of a run."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from sslbench.config import build, refuse_outside, setting
from sslbench.data.decode.reading import check_decoder
from sslbench.data.loading.samplers import AskedSampler
from sslbench.data.sharded import WINDOW
from sslbench.data.views import Augment
from sslbench.errors import UsageError
from sslbench.names import module_file, refuse_missing_module
from sslbench.preprocessing import MAX_PIXELS
from sslbench.runtime.resources import AskedPrecision, StartMethod, refuse_unknown_device
from sslbench.text import plain_value
from sslbench.train import schedules
from sslbench.train.optimizers.optimizer import OptimizerSettings, PartSettings

Spec = dict[str, Any] | float


@dataclasses.dataclass(frozen=True)
class ScheduleSettings:
    """Schedules, each a mapping with a name, or a number (see `sslbench.train.schedules`)."""

    lr: Spec = setting(1.0, "factor of the learning rate after the warm-up")
    freeze_epochs: float = setting(
        0.0, "epochs before the warm-up during which the factor is 0", unit="epochs", within="[0, inf)"
    )
    warmup_epochs: float = setting(0.0, "epochs of linear warm-up of the factor", unit="epochs", within="[0, inf)")
    warmup_start: float = setting(0.0, "factor at the start of the warm-up")
    weight_decay: Spec | None = setting(None, "values of the weight decay; null: optimizer.weight_decay throughout")
    momentum: Spec | None = setting(None, "values of SGD's momentum; null: optimizer.momentum throughout")


@dataclasses.dataclass(frozen=True)
class PretrainSettings:
    """Settings by configs/pretrain.yaml, its groups, key=value and flags.

    Runs with equal settings, apart from `FREE`, on equal data are the same run.
    """

    method: dict[str, Any]
    augment: Augment
    optimizer: OptimizerSettings
    schedule: ScheduleSettings
    backbone: str = setting(
        "resnet50",
        "architecture: resnet50, a timm name, my_module:callable; resnet50,in_chans=13 for 13 channels",
        flag="the recipe's",
    )
    epochs: float = setting(100, "passes over the data", unit="epochs", within="(0, inf)", flag="the recipe's")
    batch_size: int = setting(256, "images per update over all processes", within="[1, inf)", flag="the recipe's")
    accumulate: int = setting(1, "forward passes per update", within="[1, inf)")
    clip_norm: float | None = setting(None, "largest norm of the gradients; null does not clip", within="[0, inf]")
    clip_each: bool = setting(False, "apply clip_norm to each tensor's gradient (DINO's code) instead of all together")
    precision: AskedPrecision = setting(
        "auto",
        "precision of the forward pass (autocast): auto (bf16 on a GPU that computes in it, else fp32), fp32, bf16, "
        "fp16",
        flag="the recipe's",
    )
    tf32: bool = setting(True, "TensorFloat-32 for what is computed in fp32, on GPUs that have it")
    cudnn_benchmark: bool = setting(True, "let cuDNN try its convolutions and take the fastest (GPU only)")
    sync_bn: bool = setting(False, "BatchNorm over all processes (GPU only)")
    sync_bn_group: int | None = setting(
        None,
        "processes in a row that share BatchNorm's statistics, such as those of a machine; null: all",
        within="[2, inf)",
        needs="sync_bn=true",
    )
    strategy: Literal["ddp", "fsdp"] = setting("ddp", "ddp, or fsdp: shard parameters, gradients and optimizer state")
    zero: bool = setting(False, "shard the optimizer state over the processes")
    colours: Literal["workers", "device"] = setting(
        "workers", "place where jitter, greyscale, blur and solarisation of views are computed"
    )
    channels_last: bool = setting(True, "memory layout of images and convolutions")
    compile: bool = setting(False, "torch.compile every network of the method, including momentum copies")
    activation_checkpointing: bool = setting(False, "recompute activations in the backward pass, to save memory")
    groups: dict[str, PartSettings] | None = setting(
        None, "own learning rate, weight decay and schedule of the parameters of a name, or part of it between dots"
    )
    freeze: dict[str, int] | None = setting(None, "frozen parameters: prefix of the name, and number of updates")
    ema: float | None = setting(
        None, "decay of a moving average of the backbone, saved as weights_ema.torch; null: none", within="[0, 1)"
    )
    seed: int = setting(
        0, "seed of the initialisation, the order of the images and the views", within="[0, 4294967295]", flag=True
    )
    device: str = setting("auto", "device: auto, cpu, cuda, cuda:1, mps", flag=True)
    workers: int | Literal["auto"] = setting(
        "auto",
        "processes that decode and augment, per training process; 0: the main process does",
        within="[0, inf)",
        flag="by the cores",
    )
    prefetch: int = setting(4, "batches prefetched by each worker", within="[1, inf)")
    start_method: StartMethod = setting("auto", "start method of the worker processes")
    batch_transform: str | None = setting(None, "function of your own that changes every batch: my_module:my_function")
    decoder: tuple[str, ...] = setting((), "decoders of your own: my_module.my_function")
    max_pixels: int = setting(MAX_PIXELS, "larger images count as unreadable", unit="pixels", within="[1, inf)")
    sampler: AskedSampler = setting(
        "auto",
        "order of the images: shuffled; balanced draws every class equally often, stratified mixes classes "
        "evenly, weighted draws several sources by their weights, shards reads from a few shards at a time; auto: "
        "weighted if the data have weights, else shuffled",
    )
    shard_window: int = setting(
        WINDOW, "number of shards from which sampler=shards draws at a time", unit="shards", within="[1, inf)"
    )
    limit_balanced: bool = setting(False, "draw as many images of every class for --limit, not by their shares")
    limit_skip: int | None = setting(
        None, "draw for --limit after so many images of a random order, whose parts are disjoint", within="[0, inf)"
    )
    limit_seed: int | None = setting(None, "seed of the images drawn for --limit; null: seed", within="[0, 4294967295]")
    log_every: int = setting(10, "interval of the log", unit="updates", within="[1, inf)")
    save_every: str = setting("1 epoch", "interval of checkpoints: 'N epochs' or 'N updates'")
    keep: int = setting(2, "checkpoints to keep; older ones are removed", within="[1, inf)")
    eval_every: float = setting(10, "interval of evaluations on --eval-data", unit="epochs")
    eval_k: int = setting(20, "neighbours of the kNN evaluation", within="[1, inf)")
    eval_linear: bool = setting(False, "train a linear head beside the network, and score it on --eval-data")
    export: str = setting("auto", "network in weights.torch, if a method has several: student, teacher")

    def check(self, *, world: int = 1) -> None:
        """Refuse values that are not possible, whatever the data, the weights and the machine."""
        name = self.method.get("name")
        if not isinstance(name, str):
            raise UsageError(
                "the settings have no method.name", "Set method.name to a name from: sslbench list methods."
            )
        built_in = module_file("method", name) is not None
        refuse_outside(self, "pretrain")
        refuse_unknown_device(self.device)
        _check_batch(self.batch_size, self.accumulate, world)
        if self.sync_bn_group and world > 1 and world % self.sync_bn_group:
            fitting = [n for n in range(2, world + 1) if world % n == 0]
            raise UsageError(
                f"sync_bn_group={self.sync_bn_group} does not divide {world} processes into equal groups",
                f"Use {' or '.join(map(str, fitting))}.",
            )
        if self.clip_each and not self.clip_norm:
            raise UsageError(
                "clip_each=true clips nothing without clip_norm", "Set clip_norm=3, or leave clip_each out."
            )
        if self.zero and self.strategy == "fsdp":
            raise UsageError(
                "zero=true and strategy=fsdp: fsdp divides the optimizer's state already", "Leave zero out."
            )
        updates(self.save_every, 1)
        if "fast" in self.decoder:
            raise UsageError(
                "decoder fast is for evaluation: the views of pretraining are cropped from the whole image",
                "Leave it out; JPEGs are decoded by libjpeg-turbo in any case.",
            )
        check_decoder(self.decoder)
        if self.batch_transform is not None:
            refuse_missing_module(self.batch_transform)
        self._check_schedules()
        if built_in:  # code of the user's own is imported when the run needs it
            # Last, since it imports torch.
            from sslbench.train.method import find_method

            method = find_method(name)
            method.check_config(method.config_of(self.method))

    def _check_schedules(self) -> None:
        """Refuse schedules, of the run and of its groups, with unknown names and keys or impossible values."""
        own = {f"groups.{name}.schedule": part.schedule for name, part in (self.groups or {}).items()}
        for where, values in {"schedule": {}, **own}.items():
            schedule = build(ScheduleSettings, {**dataclasses.asdict(self.schedule), **(values or {})}, where)
            phases = schedule.freeze_epochs, schedule.warmup_epochs
            if sum(phases) > self.epochs + 1:  # training is a whole number of updates
                schedules.check_phases(*phases, self.epochs, where=f"{where}.lr")
            for name in ("lr", "weight_decay", "momentum"):
                spec = getattr(schedule, name)
                if spec is not None and not schedules.own_names(spec):
                    schedules.build(spec, where=f"{where}.{name}", epochs=self.epochs)


def _check_batch(batch_size: int, accumulate: int, world: int) -> None:
    """Refuse images per update that cannot be divided into passes of at least two images."""
    passes = world * accumulate
    if batch_size < passes or batch_size % passes:
        raise UsageError(
            f"batch_size {batch_size} does not divide into {world} processes of {accumulate} passes",
            f"Use a multiple of {passes}.",
        )
    if batch_size // passes < 2:
        raise UsageError("a forward pass needs at least two images", f"Use batch_size={2 * passes} or more.")


ROUNDING = ("device", "compile", "activation_checkpointing", "channels_last", "colours", "tf32", "cudnn_benchmark")
"""Settings that may change when a run continues, although they change rounding (and the device random numbers)."""
FREE = (
    "workers",
    "prefetch",
    "start_method",
    "log_every",
    "save_every",
    "keep",
    "eval_every",
    "eval_k",
    "eval_linear",
    "export",
    *ROUNDING,
)
"""Settings that may change when a run continues; apart from `ROUNDING` they have no influence on the weights."""


@dataclasses.dataclass(frozen=True)
class PretrainRequest:
    """Request of a pretraining run.

    Attributes:
        settings: settings of the run.
        data: training data, as for `open_data`: the train part, else all of it. Labels are optional.
        out: folder of the run.
        init: weights file to start from; None for random weights.
        init_format: format of that file; None to recognise it.
        stem: mapping of the file's stem to another number of channels; see `load_backbone`.
        eval_data: labelled data for kNN during training; None for no evaluation.
        eval_test_data: test part, if `eval_data` has none.
        resume: 'auto' to continue the run in `out`; 'never' to refuse a folder in use; or the path of a checkpoint.
        limit: number of images to use; None for all.
        image_column: column of images in a table.
        label_column: column of labels in a table.
        chosen: dotted keys of the settings that the user set; all others are the recipe's and are adapted to the
            number of channels.
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

    def check(self, *, world: int = 1) -> None:
        """Refuse settings that are not possible or have no effect, before data and weights are opened."""
        settings = self.settings
        settings.check(world=world)
        if settings.backbone.partition(":")[0] == "pixels":
            raise UsageError(
                f"'{settings.backbone}' has no trainable parameters", "Name a network, such as backbone=resnet50."
            )
        drawn = {name: getattr(settings, name) for name in ("limit_balanced", "limit_skip", "limit_seed")}
        unused = [name for name, value in drawn.items() if value is not None and value is not False]
        if self.limit is None and unused:
            raise UsageError(f"{unused[0]} has no effect without --limit", "Give the number of images: --limit 1000.")
        if self.init is None and (self.init_format or self.stem):
            raise UsageError("--format and --stem need --init, a weights file", "Add --init, or leave them out.")
        # What follows concerns the classifier beside the training.
        if not settings.eval_linear:
            return
        if self.eval_data is None:
            raise UsageError("eval_linear=true has no effect without evaluation data", "Add --eval-data.")
        if settings.eval_every <= 0:
            raise UsageError("eval_linear=true has no effect with eval_every=0", "Set eval_every=1.")
        if settings.strategy == "fsdp":
            raise UsageError(
                "eval_linear=true needs the whole network on each process, and strategy=fsdp shards it",
                "Use strategy=ddp with zero=true, or leave eval_linear out.",
            )
        if all(view.cells > 1 for view in settings.augment.views):
            raise UsageError(
                "eval_linear=true classifies a whole view of each image, and all views are parts of a divided crop",
                "Leave it out: kNN needs no views.",
            )


def refuse_missing_checkpoint(path: str) -> None:
    """Refuse a checkpoint of --resume-from that does not exist."""
    if not Path(path).exists():
        raise UsageError(
            f"there is no checkpoint {path}",
            "Leave out --resume-from to continue from the newest checkpoint in --out.",
        )


def updates(text: str, per_epoch: int) -> int:
    """Return an interval in updates, at least one.

    >>> updates("2 epochs", 100), updates("500 updates", 100)
    (200, 500)
    """
    number, _, unit = text.strip().partition(" ")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if value <= 0 or unit.rstrip("s") not in ("epoch", "update"):
        raise UsageError(f"save_every: '{text}' is not an interval", "Write '1 epoch', '0.5 epochs' or '500 updates'.")
    return max(1, round(value * per_epoch if unit.startswith("epoch") else value))


def plain(settings: PretrainSettings) -> dict[str, Any]:
    """Return settings as mappings, lists, numbers and text, for YAML files and checkpoints."""
    # Settings of later versions are omitted at their defaults, so that runs of earlier versions can be continued.
    defaults = {
        "clip_each": False,
        "sync_bn_group": None,
        "eval_linear": False,
        "decoder": (),
        "groups": None,
        "batch_transform": None,
        "max_pixels": MAX_PIXELS,
        "sampler": "auto",
        "limit_balanced": False,
        "limit_skip": None,
        "limit_seed": None,
        "shard_window": WINDOW,
    }
    values = dataclasses.asdict(settings)
    return {key: plain_value(value) for key, value in values.items() if key not in defaults or value != defaults[key]}


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], *, free: Collection[str], prefix: str = ""
) -> list[str]:
    """Return the differences between two plain settings.

    >>> differences({"batch_size": 256}, {"batch_size": 128}, free=())
    ['batch_size: 256, now 128']
    """
    found = []
    for key in sorted({*old, *new} - set(free)):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            # `free` holds keys of the run itself: equal names further down are other settings.
            found += differences(before, after, free=(), prefix=f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key}: {before}, now {after}")
    return found
