"""Settings of optimizers, without torch."""

import dataclasses
import math
import typing
from typing import Any, Literal

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.names import did_you_mean

Builtin = Literal["sgd", "adamw", "lars", "larc"]
Scaling = Literal["none", "linear", "sqrt"]

OF_TIMM = "timm:"
"""Beginning of the name of an optimizer that timm builds."""

_BUILTIN = typing.get_args(Builtin)


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """Settings of the optimizer of a pretraining run."""

    name: Builtin | str = setting(
        "sgd", "sgd, adamw, lars, larc (sgd with layer-wise rates as in apex), timm:NAME, or your own my_module:MyClass"
    )
    lr: float = setting(0.1, "learning rate at base_batch_size images per update, after the warm-up")
    lr_scaling: Scaling = setting("linear", "scaling of lr with the images per update: none, linear, sqrt")
    base_batch_size: int = setting(256, "images per update for which lr is given", unit="images")
    momentum: float = setting(0.9, "momentum of sgd, lars and larc")
    nesterov: bool = setting(False, "Nesterov momentum (sgd, lars, larc)")
    betas: tuple[float, float] = setting(
        (0.9, 0.999), "adamw: decay rates of the averages of the gradient and of its square"
    )
    eps: float = setting(1e-8, "added to the denominator (adamw, larc)")
    weight_decay: float = setting(1e-4, "weight decay; a schedule replaces it")
    trust_coefficient: float = setting(1e-3, "trust coefficient: norm of a step over norm of the tensor (lars, larc)")
    clip: bool = setting(False, "larc: the layer-wise rate is at most lr")
    exclude_norm_and_bias: bool = setting(False, "lars, larc: tensors of one dimension keep the plain rate")
    decay_norm: bool = setting(True, "also decay weights of normalisation layers, and with decay_bias their biases")
    decay_bias: bool = setting(True, "decay biases")
    no_decay: tuple[str, ...] = setting((), "names, or parts of them between dots, of parameters without decay")
    head_lr_factor: float = setting(1.0, "learning rate of parameters outside the backbone, relative to lr")
    head_weight_decay: float | None = setting(None, "weight decay of parameters outside the backbone; null: the same")
    constant_lr: tuple[str, ...] = setting((), "names, or parts of them between dots, whose rate has no schedule")
    layer_decay: float | None = setting(
        None, "learning rate of each block of the backbone relative to the next; null: 1"
    )
    options: dict[str, Any] | None = setting(
        None, "further arguments of an optimizer of timm or your own, which takes lr, weight_decay and these"
    )

    def __post_init__(self) -> None:
        not_negative = ("lr", "weight_decay", "head_lr_factor", "head_weight_decay", "eps")
        above_zero = ("base_batch_size", "trust_coefficient", "layer_decay")
        for name in (*not_negative, *above_zero):
            value = getattr(self, name)
            if value is None:
                continue
            if not math.isfinite(value) or value < 0 or (value == 0 and name in above_zero):
                raise UsageError(
                    f"optimizer.{name} must be {'above 0' if name in above_zero else '0 or more'}, not {value}"
                )
        for name, values in (("momentum", (self.momentum,)), ("betas", self.betas)):
            if not all(0 <= value < 1 for value in values):
                raise UsageError(f"optimizer.{name} must be from 0 to below 1, not {', '.join(map(str, values))}")
        if self.nesterov and self.name != "adamw" and self.momentum == 0:
            raise UsageError("optimizer.nesterov needs optimizer.momentum above 0")
        if self.options and self.name in _BUILTIN:
            raise UsageError(
                f"optimizer.options has no effect on {self.name}, whose settings have names of their own",
                "Give them as optimizer.momentum, optimizer.betas, optimizer.eps.",
            )
        if self.name not in _BUILTIN and ":" not in self.name:
            known = [*_BUILTIN, f"{OF_TIMM}{self.name}"]
            raise UsageError(f"there is no optimizer called '{self.name}'", did_you_mean(self.name, known))


@dataclasses.dataclass(frozen=True)
class PartSettings:
    """Rates of the parameters of some names, in place of the run's."""

    lr: float | None = setting(None, "learning rate, scaled as optimizer.lr; null: that, times head_lr_factor")
    weight_decay: float | None = setting(None, "weight decay throughout; null: that of the run")
    schedule: dict[str, Any] | None = setting(None, "keys of schedule that differ from the run's")

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UsageError(f"groups: {name} must be 0 or more, not {value}")
        if self.lr is None and self.weight_decay is None and not self.schedule:
            raise UsageError("groups: an entry without settings has no effect", "Give lr, weight_decay or schedule.")
        if self.weight_decay is not None and self.own("weight_decay"):
            raise UsageError("groups: weight_decay has no effect beside schedule.weight_decay", "Give one of them.")

    def own(self, *keys: str) -> bool:
        """Return whether the part's own schedule has one of the keys."""
        return any((self.schedule or {}).get(key) is not None for key in keys)
