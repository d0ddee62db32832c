"""Settings of the finetune protocol."""

import dataclasses
from typing import Literal

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.protocols._parts.heads import HeadedSettings
from sslbench.targets.classes import Classes
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target
from sslbench.train.optimizers.optimizer import OptimizerSettings, find, refuse_unknown


@dataclasses.dataclass(frozen=True)
class Settings(HeadedSettings):
    """Settings of finetuning."""

    batch_size: int = setting(
        128, "images per update over all processes; fewer where train has fewer", unit="images", within="[2, inf)"
    )
    accumulate: int = setting(1, "forward passes per update", within="[1, inf)")
    lr: tuple[float, ...] = setting(
        (),
        "learning rate; of several the best on held-out samples is selected. []: 0.05 for sgd, 0.0005 for adamw",
        distinct=True,
    )
    head_lr_factor: float | None = setting(
        None, "learning rate of the head relative to lr; null: 10 for sgd on classes, else 1", within="(0, inf)"
    )
    layer_decay: float | None = setting(
        None, "learning rate of each block of the backbone (ResNet: stage) relative to the next; null: 1"
    )
    momentum: float = setting(0.9, "momentum of sgd")
    nesterov: bool = setting(True, "Nesterov momentum of sgd")
    betas: tuple[float, float] = setting(
        (0.9, 0.999), "adamw: decay rates of the averages of the gradient and of its square"
    )
    weight_decay: tuple[float, ...] = setting(
        (0.0001,), "weight decay; several are tried with every lr", filled=True, distinct=True
    )
    decay_norm: bool = setting(False, "also decay weights of normalisation layers, and with decay_bias their biases")
    decay_bias: bool = setting(False, "decay biases")
    no_decay: tuple[str, ...] = setting((), "names, or parts of them between dots, of parameters without decay")
    probe_epochs: float = setting(
        0.0, "first epochs, in which only the head is trained", unit="epochs", part_of="epochs", within="[0, inf)"
    )
    train_blocks: int | None = setting(
        None,
        "train only the last n blocks of the backbone (ResNet: stages) and what follows them; null: all",
        within="[0, inf)",
    )
    batch_norm: Literal["train", "frozen"] = setting(
        "train", "statistics of the backbone's BatchNorm: of each batch (train), or the pretrained ones (frozen)"
    )
    clip_norm: float | None = setting(None, "largest norm of the gradients; null does not clip", within="(0, inf]")
    ema: float | None = setting(
        None, "decay of a moving average of the network, which is evaluated; null: none", within="(0, 1)"
    )
    drop_path: float = setting(0.0, "stochastic depth: rate of the last block (models of timm)", within="[0, 1)")
    scale: tuple[float, float] = setting(
        (0.08, 1.0), "range of the crop's area, as a share of the image's", needs="augment=crop"
    )
    ratio: tuple[float, float] = setting((3 / 4, 4 / 3), "range of the crop's width / height", needs="augment=crop")
    interpolation: Literal["bilinear", "bicubic"] = setting(
        "bilinear", "resampling filter of the crop", needs="augment=crop"
    )
    randaugment: tuple[float, ...] = setting(
        (), "RandAugment: number of operations, and their magnitude from 0 to 10; []: none"
    )
    erasing: float = setting(0.0, "probability of random erasing: a rectangle becomes noise", within="[0, 1]")
    mixup: float = setting(0.0, "alpha of mixup; 0: none", within="[0, inf)")
    cutmix: float = setting(
        0.0, "alpha of CutMix; 0: none. With mixup too, each batch has one of them", within="[0, inf)"
    )
    label_smoothing: float = setting(0.0, "fraction of the target spread over all classes", within="[0, 1)")
    sampler: Literal["shuffled", "balanced", "stratified"] = setting(
        "shuffled", "order of the images; balanced draws every class equally often, stratified mixes classes evenly"
    )
    norm: Literal["none", "batch", "layer"] = setting("none", "normalisation between the features and the head")
    init: Literal["normal", "zeros", "uniform"] = setting(
        "normal", "initial weights of the head: standard deviation 0.01, zeros, or as torch's nn.Linear"
    )
    fractions: tuple[float, ...] = setting(
        (), "train on these shares of train, a result each, such as [0.01,0.1]", within="(0, 1]", distinct=True
    )
    images: tuple[int, ...] = setting(
        (), "train on so many images of train, a result each, such as [1000]", within="[1, inf)", distinct=True
    )
    per_class: tuple[int, ...] = setting(
        (), "train on so many images of every class, a result each, such as [1,5,10]", within="[1, inf)", distinct=True
    )
    train_list: str | None = setting(
        None, "train on the images listed in this file, one name per line, as in train", by_content=True
    )
    draws: int = setting(
        1, "independent draws of fractions, images and per_class; the result is their mean", within="[1, inf)"
    )
    holdout: float = setting(
        0.1, "share of train held out to select lr and weight_decay, if there are several", within="(0, 1)"
    )
    strategy: Literal["ddp", "fsdp"] = setting(
        "ddp", "several processes: ddp, or fsdp: shard parameters, gradients and optimizer state", changes_result=False
    )
    tensorboard: bool = setting(False, "write scalars for TensorBoard beside the record", changes_result=False)
    histograms: bool = setting(
        False, "with tensorboard or wandb: histograms of parameters and gradients each epoch", changes_result=False
    )
    wandb: str | None = setting(None, "Weights & Biases project to log to", changes_result=False)

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        refuse_unknown(self.optimizer)
        unused = {
            name: f"optimizer={self.optimizer}" for name in _OF_OPTIMIZERS if name not in find(self.optimizer).uses
        }
        if len(candidates(self)) == 1:
            unused["holdout"] = "one value of lr and weight_decay"
        if not (self.fractions or self.images or self.per_class):
            unused["draws"] = "all of train: give fractions, images or per_class"
        for name, reason in unused.items():
            _check(getattr(self, name) == getattr(type(self), name), f"{name} has no effect with {reason}")
        chosen = [name for name in ("fractions", "images", "per_class", "train_list") if getattr(self, name)]
        if len(chosen) > 1:
            raise UsageError(f"finetune: {' and '.join(chosen)} exclude each other", "Give one of them.")
        lasting = f"probe_epochs={self.probe_epochs:g} leaves nothing of epochs={self.epochs:g}"
        _check(self.probe_epochs < self.epochs, lasting)
        if self.randaugment:
            number, magnitude = (*self.randaugment, -1.0)[:2]
            _check(
                len(self.randaugment) == 2 and number >= 1 and number == int(number) and 0 <= magnitude <= 10,
                f"randaugment should be a number of operations and a magnitude up to 10, not {list(self.randaugment)}",
            )
        # Each of these refuses values that are out of its range.
        for rates in candidates(self):
            optimizer_settings(self, rates)
        self.view(self.size or 1)
        self.rate_schedule(self.epochs)


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
    """Return the candidates of the selection, every learning rate with every weight decay."""
    rates = settings.lr
    if not rates:
        usual = find(settings.optimizer).finetune_lr
        if usual is None:
            raise UsageError(f"finetune: optimizer={settings.optimizer} has no usual learning rate", "Give lr=....")
        rates = (usual,)
    return tuple(Rates(lr, decay) for lr in rates for decay in settings.weight_decay)


# Settings that not every optimizer has.
_OF_OPTIMIZERS = ("momentum", "nesterov", "betas")


def check_labels(settings: Settings, labels: Target) -> None:
    """Raise an error for settings that the kind of labels rules out."""
    for name in ("mixup", "cutmix", "label_smoothing", "per_class"):
        _check(isinstance(labels, Classes) or not getattr(settings, name), f"{name} needs images with one class each")


def _check(right: bool, message: str) -> None:
    if not right:
        raise UsageError(f"finetune: {message}")


def optimizer_settings(settings: Settings, rates: Rates, kind: type[Target] = Classes) -> OptimizerSettings:
    """Return the settings of the optimizer."""
    usual = 1.0 if issubclass(kind, Numbers) else find(settings.optimizer).finetune_head_factor
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
