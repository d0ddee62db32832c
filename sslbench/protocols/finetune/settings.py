"""Settings of the finetune protocol."""

import dataclasses
from typing import Any, Literal

from sslbench.config import setting


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of finetuning."""

    epochs: float = setting(30, "epochs, in full batches", unit="epochs")
    updates: int | None = setting(
        None, "total number of updates, instead of epochs; parts in epochs (warm-up, milestones) keep their share"
    )
    batch_size: int = setting(128, "images per update over all processes; fewer where train has fewer", unit="images")
    accumulate: int = setting(1, "forward passes per update")
    optimizer: str = setting("sgd", "sgd, adamw, lars, larc, timm:NAME, or your own my_pkg.my_optimizer")
    lr: tuple[float, ...] = setting(
        (), "learning rate; of several the best on held-out samples is selected. []: 0.05 for sgd, 0.0005 for adamw"
    )
    lr_scaling: Literal["linear", "sqrt", "none"] = setting(
        "linear", "scaling of lr, given for 256 images per update, with batch_size"
    )
    head_lr_factor: float | None = setting(
        None, "learning rate of the head relative to lr; null: 10 for sgd on classes, else 1"
    )
    layer_decay: float | None = setting(
        None, "learning rate of each block of the backbone (ResNet: stage) relative to the next; null: 1"
    )
    momentum: float = setting(0.9, "momentum of sgd")
    nesterov: bool = setting(True, "Nesterov momentum of sgd")
    betas: tuple[float, float] = setting(
        (0.9, 0.999), "adamw: decay rates of the averages of the gradient and of its square"
    )
    weight_decay: tuple[float, ...] = setting((0.0001,), "weight decay; several are tried with every lr")
    decay_norm: bool = setting(False, "also decay weights of normalisation layers, and with decay_bias their biases")
    decay_bias: bool = setting(False, "decay biases")
    no_decay: tuple[str, ...] = setting((), "names, or parts of them between dots, of parameters without decay")
    schedule: dict[str, Any] | str = setting(
        "cosine",
        "schedule of lr: cosine or linear (to 0), constant, or a mapping of factors as in configs/schedule",
        part_of="epochs",
    )
    schedule_per: Literal["update", "epoch"] = setting("update", "interval at which the schedule changes lr")
    warmup_epochs: float = setting(0.0, "epochs of linear warm-up from 0", unit="epochs", part_of="epochs")
    probe_epochs: float = setting(
        0.0, "first epochs, in which only the head is trained", unit="epochs", part_of="epochs"
    )
    train_blocks: int | None = setting(
        None, "train only the last n blocks of the backbone (ResNet: stages) and what follows them; null: all"
    )
    batch_norm: Literal["train", "frozen"] = setting(
        "train", "statistics of the backbone's BatchNorm: of each batch (train), or the pretrained ones (frozen)"
    )
    clip_norm: float | None = setting(None, "largest norm of the gradients; null does not clip")
    ema: float | None = setting(None, "decay of a moving average of the network, which is evaluated; null: none")
    drop_path: float = setting(0.0, "stochastic depth: rate of the last block (models of timm)")
    augment: Literal["crop", "none"] = setting("crop", "crop: random resized crop; none: the evaluation transform")
    scale: tuple[float, float] = setting((0.08, 1.0), "range of the crop's area, as a share of the image's")
    ratio: tuple[float, float] = setting((3 / 4, 4 / 3), "range of the crop's width / height")
    interpolation: Literal["bilinear", "bicubic"] = setting("bilinear", "resampling filter of the crop")
    flip: float = setting(0.5, "probability of a horizontal flip")
    size: int | None = setting(
        None, "side of the crop in pixels; null: that of the evaluation transform", unit="pixels"
    )
    randaugment: tuple[float, ...] = setting(
        (), "RandAugment: number of operations, and their magnitude from 0 to 10; []: none"
    )
    erasing: float = setting(0.0, "probability of random erasing: a rectangle becomes noise")
    mixup: float = setting(0.0, "alpha of mixup; 0: none")
    cutmix: float = setting(0.0, "alpha of CutMix; 0: none. With mixup too, each batch has one of them")
    label_smoothing: float = setting(0.0, "fraction of the target spread over all classes")
    sampler: Literal["shuffled", "balanced", "stratified"] = setting(
        "shuffled", "order of the images; balanced draws every class equally often, stratified mixes classes evenly"
    )
    norm: Literal["none", "batch", "layer"] = setting("none", "normalisation between the features and the head")
    init: Literal["normal", "zeros", "uniform"] = setting(
        "normal", "initial weights of the head: standard deviation 0.01, zeros, or as torch's nn.Linear"
    )
    fractions: tuple[float, ...] = setting((), "train on these shares of train, a result each, such as [0.01,0.1]")
    images: tuple[int, ...] = setting((), "train on so many images of train, a result each, such as [1000]")
    per_class: tuple[int, ...] = setting((), "train on so many images of every class, a result each, such as [1,5,10]")
    train_list: str | None = setting(
        None, "train on the images listed in this file, one name per line, as in train", by_content=True
    )
    draws: int = setting(1, "independent draws of fractions, images and per_class; the result is their mean")
    holdout: float = setting(0.1, "share of train held out to select lr and weight_decay, if there are several")
    strategy: Literal["ddp", "fsdp"] = setting(
        "ddp", "several processes: ddp, or fsdp: shard parameters, gradients and optimizer state", changes_result=False
    )
    tensorboard: bool = setting(False, "write scalars for TensorBoard beside the record", changes_result=False)
    histograms: bool = setting(
        False, "with tensorboard: histograms of parameters and gradients each epoch", changes_result=False
    )
    wandb: str | None = setting(None, "Weights & Biases project to log to", changes_result=False)
