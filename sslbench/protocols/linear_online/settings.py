"""Settings of the linear-online protocol."""

import dataclasses
from typing import Any, Literal

from sslbench.config import setting

GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the linear probe on images."""

    epochs: float = setting(10, "passes over train, of full batches", unit="epochs")
    updates: int | None = setting(None, "updates in all, in place of epochs")
    batch_size: int = setting(256, "images per update, all processes together", unit="images")
    lr: tuple[float, ...] = setting(GRID, "learning rates; a head is trained with each and the best is chosen")
    lr_scaling: Literal["linear", "sqrt", "none"] = setting(
        "linear", "how lr, which is meant for 256 images per update, follows batch_size"
    )
    optimizer: Literal["sgd", "lars", "larc", "adamw"] = setting("sgd", "sgd, lars, larc or adamw")
    momentum: float = setting(0.9, "of sgd, lars and larc")
    nesterov: bool = setting(False, "look ahead by one step of momentum (sgd, lars, larc)")
    trust_coefficient: float = setting(1e-3, "length of a step over length of the tensor (lars, larc)")
    weight_decay: tuple[float, ...] = setting((0.0,), "a head is trained with each, for every lr")
    decay_norm: bool = setting(True, "decay the scales of norm=affine, and its shifts if decay_bias too")
    decay_bias: bool = setting(True, "decay biases")
    schedule: dict[str, Any] | str = setting(
        "cosine", "of lr: cosine or linear (to 0), constant, or a mapping as in configs/schedule, of factors"
    )
    schedule_per: Literal["update", "epoch"] = setting("update", "how often the schedule is read")
    warmup_epochs: float = setting(0.0, "lr rises linearly from 0 during the first epochs", unit="epochs")
    augment: Literal["crop", "none"] = setting("crop", "crop: random resized crop; none: the evaluation transform")
    scale: tuple[float, float] = setting((0.08, 1.0), "part of the image's area that is cropped")
    ratio: tuple[float, float] = setting((3 / 4, 4 / 3), "width / height of the crop")
    interpolation: Literal["bilinear", "bicubic"] = setting("bilinear", "filter of the crop's resize")
    flip: float = setting(0.5, "probability of a horizontal flip")
    size: int | None = setting(None, "side of the crop; null: that of the evaluation transform", unit="pixels")
    norm: Literal["none", "batch", "affine"] = setting(
        "batch", "before each head: BatchNorm without parameters (batch), with scale and shift (affine), none"
    )
    norm_eps: float = setting(1e-5, "of that BatchNorm")
    plain_layers: tuple[str, ...] = setting((), "layers that get a second head without norm, in a row of its own")
    blocks: tuple[int, ...] = setting(
        (),
        "vision transformers, in place of --layers: join the class tokens of the last so many blocks, or try several",
    )
    patch_mean: tuple[bool, ...] = setting((False,), "with blocks: join the mean of the last block's patches too")
    init: Literal["normal", "zeros", "uniform"] = setting(
        "normal", "of the weights: standard deviation 0.01, zeros, or torch's nn.Linear"
    )
    holdout: float = setting(0.1, "share of train that is held out to choose a head on, where there is a choice")
    select_on: Literal["holdout", "test"] = setting(
        "holdout", "test chooses on the samples that are reported, as some publications do; it marks the row"
    )
