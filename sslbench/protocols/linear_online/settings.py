"""Settings of the linear-online protocol."""

import dataclasses
from typing import Literal

from sslbench.config import other_default, setting
from sslbench.errors import UsageError
from sslbench.protocols._parts.heads import HeadedSettings
from sslbench.train.optimizers.optimizer import OptimizerSettings, find

GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


@dataclasses.dataclass(frozen=True)
class Settings(HeadedSettings):
    """Settings of the probe on images."""

    epochs: float = other_default(HeadedSettings, "epochs", 10)
    batch_size: int = setting(
        256, "images per update over all processes; fewer where train has fewer", unit="images", within="[1, inf)"
    )
    lr: tuple[float, ...] = setting(
        GRID,
        "learning rates; a head is trained with each and the best is selected",
        within="(0, inf)",
        filled=True,
        distinct=True,
    )
    momentum: float = setting(0.9, "momentum of sgd, lars and larc")
    nesterov: bool = setting(False, "Nesterov momentum (sgd, lars, larc)")
    trust_coefficient: float = setting(1e-3, "trust coefficient: norm of a step over norm of the tensor (lars, larc)")
    betas: tuple[float, float] = setting(
        (0.9, 0.999),
        "adamw: decay rates of the averages of the gradient and of its square",
        within="[0, 1)",
        added_later=True,
    )
    weight_decay: tuple[float, ...] = setting(
        (0.0,),
        "weight decays; a head is trained with each, for every lr",
        within="[0, inf)",
        filled=True,
        distinct=True,
    )
    decay_norm: bool = setting(True, "also decay the scales of norm=affine, and with decay_bias its shifts")
    decay_bias: bool = setting(True, "decay biases")
    norm: Literal["none", "batch", "affine"] = setting(
        "batch",
        "normalisation before each head: BatchNorm without parameters (batch), with scale and shift (affine), none",
    )
    norm_eps: float = setting(1e-5, "epsilon of that BatchNorm", within="(0, inf)")
    plain_layers: tuple[str, ...] = setting((), "layers that also get heads without norm, reported in their own row")
    blocks: tuple[int, ...] = setting(
        (),
        "vision transformers, instead of --layers: concatenate the class tokens of the last n blocks; or try several n",
        within="[1, inf)",
        distinct=True,
    )
    patch_mean: tuple[bool, ...] = setting(
        (False,), "with blocks: also concatenate the mean of the last block's patch tokens", filled=True, distinct=True
    )
    init: Literal["normal", "zeros", "uniform"] = setting(
        "normal", "initial weights: standard deviation 0.01, zeros, or as torch's nn.Linear"
    )
    holdout: float = setting(0.1, "share of train held out to select a head, if there are several", within="(0, 1)")
    select_on: Literal["holdout", "test"] = setting(
        "holdout", "split on which the head is selected; test: as some publications do, and the row is marked"
    )

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        # The unbiased variance of a single image divides by 0.
        smallest = 1 if self.norm == "none" else 2
        if self.batch_size < smallest:
            raise UsageError(
                f"linear-online: batch_size should be at least {smallest} with norm={self.norm}, not {self.batch_size}"
            )
        if any(self.patch_mean) and not self.blocks:
            raise UsageError("linear-online: patch_mean has no effect without blocks")
        if self.head != "linear" and (self.blocks or self.plain_layers or self.norm == "affine"):
            name = "blocks" if self.blocks else "plain_layers" if self.plain_layers else "norm=affine"
            raise UsageError(
                f"linear-online: {name} needs head=linear, not head={self.head}",
                "Name layers with --layers; tokens are normalised by norm=batch or not at all (norm=none).",
            )
        if self.betas != type(self).betas and "betas" not in find(self.optimizer).uses:
            raise UsageError(f"linear-online: betas has no effect with optimizer={self.optimizer}")
        # Each of these refuses values that are out of its range.
        optimizer_settings(self)
        self.view(self.size or 1)
        self.rate_schedule(self.epochs)


def optimizer_settings(settings: Settings) -> OptimizerSettings:
    """Return the optimizer settings that all heads share; each head has its own learning rate and weight decay."""
    return OptimizerSettings(
        name=settings.optimizer,
        lr=1.0,
        lr_scaling=settings.lr_scaling,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=0.0,
        trust_coefficient=settings.trust_coefficient,
        betas=settings.betas,
        exclude_norm_and_bias=True,
        decay_norm=settings.decay_norm,
        decay_bias=settings.decay_bias,
    )
