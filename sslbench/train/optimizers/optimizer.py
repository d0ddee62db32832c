"""Settings of optimizers, their construction from a name, and the rates set before every update.

An optimizer is a file of this package that defines OPTIMIZER, or `my_pkg.my_optimizer` that does; `my_module:MyClass`
and `timm:NAME` are classes. torch is imported where an optimizer is built: settings are checked before that.
"""

import dataclasses
import math
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sslbench.config import refuse_outside, setting
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, find_module, find_object, modules, refuse_missing_module

if TYPE_CHECKING:
    import torch

Scaling = Literal["none", "linear", "sqrt"]

_TIMM = "timm:"


@dataclasses.dataclass(frozen=True)
class OptimizerKind:
    """Optimizer as its file defines it.

    Attributes:
        make: class, or function that returns the optimizer, of parameter groups, `lr`, `weight_decay`, the arguments
            in `uses` and `optimizer.options`; or its place, 'module:name', imported when it is built.
        uses: settings of `OptimizerSettings` that it takes, by name -> its argument.
        fused: torch has a fused step for it.
        finetune_lr: learning rate of finetuning for 256 images per update, where none is given; None: it must be given.
        finetune_head_factor: learning rate of a new head relative to that, where none is given.
    """

    make: Any
    uses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fused: bool = False
    finetune_lr: float | None = None
    finetune_head_factor: float = 1.0

    @property
    def builder(self) -> Any:
        """The class or function itself."""
        return pkgutil.resolve_name(self.make) if isinstance(self.make, str) else self.make


def find(name: str) -> OptimizerKind:
    """Return an optimizer by its name.

    >>> find("timm:lamb").make.__name__
    'Lamb'
    """
    if name.startswith(_TIMM):
        from timm import optim as package

        optim: Any = package  # its names are not exported for type checkers
        theirs = name.removeprefix(_TIMM)
        if theirs not in optim.list_optimizers():
            raise UsageError(f"timm has no optimizer called '{theirs}'", did_you_mean(theirs, optim.list_optimizers()))
        if optim.get_optimizer_info(theirs).second_order:
            raise UsageError(f"optimizer {name} needs second derivatives, which training does not compute")
        return OptimizerKind(optim.get_optimizer_class(theirs, bind_defaults=False))
    if ":" in name:
        return OptimizerKind(find_object(name))
    module = find_module("optimizer", name)
    kind = vars(module).get("OPTIMIZER")
    if not isinstance(kind, OptimizerKind):
        raise UsageError(
            f"{module.__file__} defines no optimizer",
            "Define OPTIMIZER, an OptimizerKind of sslbench.train.optimizers.optimizer.",
        )
    return kind


def code_of(name: str) -> list[Any]:
    """Return what defines an optimizer, for the digest of a user's own code: the files of its class and of its name."""
    # Not the class itself: torch wraps its `step` when the first one is built, and the digest would change.
    builder = find(name).builder
    of_class = sys.modules[builder.__module__] if isinstance(builder, type) else builder
    return [of_class, *([] if ":" in name else [find_module("optimizer", name)])]


def refuse_unknown(name: str) -> None:
    """Refuse a name that no optimizer has, without importing one."""
    if ":" in name:
        return  # of timm, or an object of the user's: seen when it is imported
    if "." in name:
        refuse_missing_module(name)
    elif name not in (known := modules("optimizer")):
        raise UsageError(
            f"there is no optimizer called '{name}'", f"{did_you_mean(name, known)} Those of timm are {_TIMM}NAME."
        )


# Description of the settings that name an optimizer.
OPTIMIZERS = (
    "sgd, adamw, lars, larc (sgd with layer-wise rates as in apex), timm:NAME, or your own my_module:MyClass or "
    "my_pkg.my_optimizer"
)


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """Settings of the optimizer of a pretraining run."""

    name: str = setting(
        "sgd",
        OPTIMIZERS,
    )
    lr: float = setting(0.1, "learning rate at base_batch_size images per update, after the warm-up", within="[0, inf)")
    lr_scaling: Scaling = setting("linear", "scaling of lr with the images per update: none, linear, sqrt")
    base_batch_size: int = setting(256, "images per update for which lr is given", unit="images", within="[1, inf)")
    momentum: float = setting(0.9, "momentum of sgd, lars and larc", within="[0, 1)")
    nesterov: bool = setting(False, "Nesterov momentum (sgd, lars, larc)")
    betas: tuple[float, float] = setting(
        (0.9, 0.999), "adamw: decay rates of the averages of the gradient and of its square", within="[0, 1)"
    )
    eps: float = setting(1e-8, "added to the denominator (adamw, larc)", within="[0, inf)")
    weight_decay: float = setting(1e-4, "weight decay; a schedule replaces it", within="[0, inf)")
    trust_coefficient: float = setting(
        1e-3, "trust coefficient: norm of a step over norm of the tensor (lars, larc)", within="(0, inf)"
    )
    clip: bool = setting(False, "larc: the layer-wise rate is at most lr")
    exclude_norm_and_bias: bool = setting(False, "lars, larc: tensors of one dimension keep the plain rate")
    decay_norm: bool = setting(True, "also decay weights of normalisation layers, and with decay_bias their biases")
    decay_bias: bool = setting(True, "decay biases")
    no_decay: tuple[str, ...] = setting((), "names, or parts of them between dots, of parameters without decay")
    head_lr_factor: float = setting(
        1.0, "learning rate of parameters outside the backbone, relative to lr", within="[0, inf)"
    )
    head_weight_decay: float | None = setting(
        None, "weight decay of parameters outside the backbone; null: the same", within="[0, inf)"
    )
    constant_lr: tuple[str, ...] = setting((), "names, or parts of them between dots, whose rate has no schedule")
    layer_decay: float | None = setting(
        None, "learning rate of each block of the backbone relative to the next; null: 1", within="(0, inf)"
    )
    options: dict[str, Any] | None = setting(
        None, "further arguments of an optimizer of timm or your own, which takes lr, weight_decay and these"
    )

    def __post_init__(self) -> None:
        refuse_outside(self, "optimizer")
        if self.nesterov and self.momentum == 0:
            raise UsageError("optimizer.nesterov needs optimizer.momentum above 0")
        refuse_unknown(self.name)
        own = {field.name for field in dataclasses.fields(self)}
        if ":" not in self.name and (named := sorted(own & (self.options or {}).keys())):
            raise UsageError(
                f"optimizer.options has no effect on {self.name} for {', '.join(named)}, which are settings themselves",
                f"Give them as {', '.join(f'optimizer.{name}' for name in named)}.",
            )


@dataclasses.dataclass(frozen=True)
class PartSettings:
    """Rates of the parameters of some names, in place of the run's."""

    lr: float | None = setting(
        None, "learning rate, scaled as optimizer.lr; null: that, times head_lr_factor", within="[0, inf)"
    )
    weight_decay: float | None = setting(None, "weight decay throughout; null: that of the run", within="[0, inf)")
    schedule: dict[str, Any] | None = setting(None, "keys of schedule that differ from the run's")

    def __post_init__(self) -> None:
        refuse_outside(self, "groups")
        if self.lr is None and self.weight_decay is None and not self.schedule:
            raise UsageError("groups: an entry without settings has no effect", "Give lr, weight_decay or schedule.")
        if self.weight_decay is not None and self.own("weight_decay"):
            raise UsageError("groups: weight_decay has no effect beside schedule.weight_decay", "Give one of them.")

    def own(self, *keys: str) -> bool:
        """Return whether the part's own schedule has one of the keys."""
        return any((self.schedule or {}).get(key) is not None for key in keys)


def scaled_lr(settings: OptimizerSettings, images_per_update: int) -> float:
    """Return the learning rate that the factors of a schedule refer to.

    It is `lr` times images_per_update / base_batch_size (linear: Goyal et al. 2017, section 2.1), or times its square
    root (sqrt: Krizhevsky 2014, section 5). Schedule and warm-up are not scaled.

    >>> scaled_lr(OptimizerSettings(lr=0.1, lr_scaling="linear", base_batch_size=256), 1024)
    0.4
    """
    ratio = images_per_update / settings.base_batch_size
    return settings.lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[settings.lr_scaling]


def make_optimizer(
    groups: Sequence[dict[str, Any]],
    settings: OptimizerSettings,
    *,
    sharded: "Callable[..., torch.optim.Optimizer] | None" = None,
    fused: bool = True,
) -> "torch.optim.Optimizer":
    """Return an optimizer with the unscaled rates of the settings; see `set_rates`.

    Args:
        groups: groups from `train.parameter_groups`; their keys are kept in `param_groups` and in the state_dict.
        settings: name and options.
        sharded: builder of an optimizer whose state is sharded over the processes, from a class, groups and options,
            such as `distributed.parallel.zero_optimizer`; every process calls this.
        fused: use torch's fused step where there is one; it rounds otherwise than the plain one.

    Raises:
        UsageError: there is no such optimizer, it cannot be imported, or it does not take the options.
    """
    import torch

    kind = find(settings.name)
    options = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    options |= {argument: getattr(settings, name) for name, argument in kind.uses.items()} | (settings.options or {})
    if sharded is not None:
        optimizer = sharded(kind.builder, list(groups), **options)
    else:
        fused &= kind.fused
        if fused:
            # torch's fused steps are for these devices, and not for sharded parameters.
            every = [parameter for group in groups for parameter in group["params"]]
            options["fused"] = all(p.device.type in ("cpu", "cuda") and not hasattr(p, "device_mesh") for p in every)
        try:
            optimizer = kind.builder(groups, **options)
        except (TypeError, ValueError) as error:
            raise UsageError(f"optimizer {settings.name} does not take {options}: {error}") from error
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(f"{settings.name} gives a {type(optimizer).__name__}, not a torch.optim.Optimizer")
        optimizer.register_load_state_dict_post_hook(_match_strides)
        # Momentum buffers of 0 are the same as none, but torch's fused SGD fails if some tensors have one and others,
        # frozen until now, have none.
        for group in optimizer.param_groups if fused and options.get("momentum") else ():
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    set_rates(optimizer, lr=settings.lr, weight_decay=settings.weight_decay)
    return optimizer


def _match_strides(optimizer: "torch.optim.Optimizer") -> None:
    """Give loaded state the memory layout of its parameter."""
    # Fused steps ignore strides: a channels-last weight with state in another layout would be updated with the values
    # of other elements.
    import torch

    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def set_rates(
    optimizer: "torch.optim.Optimizer",
    *,
    lr: float,
    peak_lr: float | None = None,
    weight_decay: float | None = None,
    momentum: float | None = None,
    part: str | None = None,
) -> None:
    """Set the rates of the next update.

    Args:
        optimizer: optimizer from `make_optimizer`.
        lr: learning rate, multiplied by each group's lr_factor.
        peak_lr: learning rate of groups with a constant rate; None for lr.
        weight_decay: weight decay of decayed groups without their own; None keeps it.
        momentum: momentum, or AdamW's first beta; None keeps it.
        part: groups with this `part` only; None: all.
    """
    for group in optimizer.param_groups:
        if part is not None and group.get("part", "") != part:  # checkpoints of earlier versions have none
            continue
        rate = peak_lr if group["constant_lr"] and peak_lr is not None else lr
        group["lr"] = rate * group["lr_factor"]
        if weight_decay is not None:
            own = group["own_weight_decay"]
            group["weight_decay"] = (weight_decay if own is None else own) * group["weight_decay_factor"]
        if momentum is not None and "betas" in group:
            group["betas"] = (momentum, group["betas"][1])
        elif momentum is not None:
            group["momentum"] = momentum
