"""Backbones with random weights by name; families of architectures are the files of `backbones.families`."""

import contextlib
import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sslbench.backbones.architectures import no_backbone
from sslbench.backbones.backbone import Backbone
from sslbench.errors import BackboneError, UsageError
from sslbench.runtime.seeds import seeded
from sslbench.weights.reading.model_config import ModelConfig

_PACKAGE = "sslbench.backbones.families"


_MUCH_LARGER = 8
# Numbers in a network of usual size, which any machine can hold.
_ALWAYS_BUILT = 50_000_000


@dataclasses.dataclass(frozen=True)
class Family:
    """Architectures that share naming, layers and defaults; a module of `families` defines one as FAMILY.

    Attributes:
        takes: name of a backbone -> True if it is of this family.
        build: name -> backbone with random weights, layers, preprocessing and the names of its heads.
        check_recorded: (name, where) -> None; refuses a name from a file, as a BackboneError or UsageError.
        recognise: (canonical name -> shape, format, file for messages, configuration beside it) -> name of the backbone
            with these tensors.
        last_resort: asked after the other families.
        users: networks of the user's own code, of whose construction nothing is left out.
    """

    takes: Callable[[str], bool]
    build: Callable[[str], Backbone]
    check_recorded: Callable[[str, str], None] = lambda name, where: None
    recognise: Callable[[Mapping[str, tuple[int, ...]], str, str, ModelConfig], str | None] = lambda *_: None
    last_resort: bool = False
    users: bool = False


@functools.cache
def families() -> tuple[Family, ...]:
    """Return all families, those of last resort at the end."""
    package = importlib.import_module(_PACKAGE)
    modules = [
        importlib.import_module(f"{_PACKAGE}.{module.name}") for module in pkgutil.iter_modules(package.__path__)
    ]
    found: list[Family] = [module.FAMILY for module in modules]
    return tuple(sorted(found, key=lambda family: family.last_resort))


def family_of(name: str) -> Family:
    """Return the family of a backbone's name."""
    for family in families():
        if family.takes(name):
            return family
    raise no_backbone(name)


def build(name: str, *, seed: int = 0, to_be_filled: bool = False) -> Backbone:
    """Return a backbone with random weights, frozen and in eval mode; nothing is downloaded.

    Args:
        name: 'resnet50', 'resnext50_32x4d', 'resnet50w2', 'resnet18_cifar', 'alexnet_bvlc', ...; a timm name, as it is
            or after 'timm:'; the user's 'module:callable'; 'pixels', 'pixels:SIZE' or 'pixels:native'. ResNets and
            timm's models take images of another number of channels: 'resnet50,in_chans=13'. ResNets besides:
            'resnet50,zero_init_residual=true'.
        seed: of the random weights.
        to_be_filled: leave parameters as memory holds them where this saves time, since all will be replaced.
    """
    family = family_of(name)
    with seeded(seed), _WithoutInitialValues() if to_be_filled and not family.users else contextlib.nullcontext():
        backbone = family.build(name)
    backbone.module.eval().requires_grad_(False)
    return backbone


class _WithoutInitialValues(TorchFunctionMode):
    """Steps in which initial values are computed, left out for parameters, and for tensors without memory.

    Without memory they change nothing, and take PyTorch long.
    """

    steps = frozenset(
        (
            *(getattr(torch.Tensor, name) for name in ("uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_")),
            *(nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_),
        )
    )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Leave out a step of initial values; run everything else."""
        if func in self.steps:
            tensor = args[0] if args else (kwargs or {})["tensor"]
            if tensor.is_meta or isinstance(tensor, nn.Parameter):
                return tensor
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def laid_out() -> Iterator[None]:
    """Build networks without memory for their values and without initial ones, for their names and shapes.

    >>> with laid_out():
    ...     network = build("resnet18").module
    >>> network.conv1.weight.is_meta
    True
    """
    with torch.device("meta"), _WithoutInitialValues():
        yield


def check_recorded(name: str, where: str, *, numbers: int) -> None:
    """Refuse a backbone that a weights file names unless it is one of sslbench's or timm's that the file could fill.

    A network is laid out without memory for its values before one is built.
    """
    try:
        family = family_of(name)
        family.check_recorded(name, where)
        with laid_out():
            module = family.build(name).module
    except BackboneError:
        raise
    except UsageError as error:
        raise BackboneError(f"{where}: {error.message}", error.remedy) from error
    except Exception as error:  # incompatible sizes fail anywhere in timm
        raise BackboneError(f"{where}: {name} cannot be built: {type(error).__name__}: {error}") from error
    check_size(module, f"{where}: {name}", numbers=numbers)


def check_size(module: nn.Module, what: str, *, numbers: int) -> None:
    """Refuse a network laid out on the meta device that is much larger than the file whose numbers would fill it."""
    needed = sum(tensor.numel() for tensor in module.state_dict().values())
    if needed > _MUCH_LARGER * numbers + _ALWAYS_BUILT:
        raise BackboneError(
            f"{what} has {needed:,} parameters, but the file holds {numbers:,}",
            "If the network is right and most of it should stay untrained, give --backbone NAME --allow-partial.",
        )
