"""Settings of the linear-online protocol."""

import dataclasses
from typing import Any, Literal

from sslbench.config import setting

GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the linear probe on images."""

    epochs: float = setting(10, "epochs, in full batches", unit="epochs")
    updates: int | None = setting(
        None, "total number of updates, instead of epochs; parts in epochs (warm-up, milestones) keep their share"
    )
    batch_size: int = setting(256, "images per update over all processes; fewer where train has fewer", unit="images")
    lr: tuple[float, ...] = setting(GRID, "learning rates; a head is trained with each and the best is selected")
    lr_scaling: Literal["linear", "sqrt", "none"] = setting(
        "linear", "scaling of lr, given for 256 images per update, with batch_size"
    )
    optimizer: str = setting("sgd", "sgd, lars, larc, adamw, timm:NAME, or your own my_pkg.my_optimizer")
    momentum: float = setting(0.9, "momentum of sgd, lars and larc")
    nesterov: bool = setting(False, "Nesterov momentum (sgd, lars, larc)")
    trust_coefficient: float = setting(1e-3, "trust coefficient: norm of a step over norm of the tensor (lars, larc)")
    weight_decay: tuple[float, ...] = setting((0.0,), "weight decays; a head is trained with each, for every lr")
    decay_norm: bool = setting(True, "also decay the scales of norm=affine, and with decay_bias its shifts")
    decay_bias: bool = setting(True, "decay biases")
    schedule: dict[str, Any] | str = setting(
        "cosine",
        "schedule of lr: cosine or linear (to 0), constant, or a mapping of factors as in configs/schedule",
        part_of="epochs",
    )
    schedule_per: Literal["update", "epoch"] = setting("update", "interval at which the schedule changes lr")
    warmup_epochs: float = setting(0.0, "epochs of linear warm-up from 0", unit="epochs", part_of="epochs")
    augment: Literal["crop", "none"] = setting("crop", "crop: random resized crop; none: the evaluation transform")
    scale: tuple[float, float] = setting((0.08, 1.0), "range of the crop's area, as a share of the image's")
    ratio: tuple[float, float] = setting((3 / 4, 4 / 3), "range of the crop's width / height")
    interpolation: Literal["bilinear", "bicubic"] = setting("bilinear", "resampling filter of the crop")
    flip: float = setting(0.5, "probability of a horizontal flip")
    size: int | None = setting(
        None, "side of the crop in pixels; null: that of the evaluation transform", unit="pixels"
    )
    norm: Literal["none", "batch", "affine"] = setting(
        "batch",
        "normalisation before each head: BatchNorm without parameters (batch), with scale and shift (affine), none",
    )
    norm_eps: float = setting(1e-5, "epsilon of that BatchNorm")
    plain_layers: tuple[str, ...] = setting((), "layers that also get heads without norm, reported in their own row")
    blocks: tuple[int, ...] = setting(
        (),
        "vision transformers, instead of --layers: concatenate the class tokens of the last n blocks; or try several n",
    )
    patch_mean: tuple[bool, ...] = setting(
        (False,), "with blocks: also concatenate the mean of the last block's patch tokens"
    )
    init: Literal["normal", "zeros", "uniform"] = setting(
        "normal", "initial weights: standard deviation 0.01, zeros, or as torch's nn.Linear"
    )
    holdout: float = setting(0.1, "share of train held out to select a head, if there are several")
    select_on: Literal["holdout", "test"] = setting(
        "holdout",
        "split on which the head is selected; test: as some publications do, and the row is marked",
    )
