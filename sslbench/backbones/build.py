"""Backbones with random weights by name: ResNets, AlexNets, timm models, a user's own module, raw pixels."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.family import family_of
from sslbench.errors import BackboneError, UsageError
from sslbench.runtime.seeds import seeded

_MUCH_LARGER = 8
_ALWAYS_BUILT = 50_000_000
"""Numbers in a network of usual size, which any machine can hold."""


def build(name: str, *, seed: int = 0) -> Backbone:
    """Return a backbone with random weights, frozen and in eval mode; nothing is downloaded.

    Args:
        name: 'resnet50', 'resnext50_32x4d', 'resnet50w2', 'resnet18_cifar', 'alexnet_bvlc', ...; a timm name, as it is
            or after 'timm:'; the user's 'module:callable'; 'pixels', 'pixels:SIZE' or 'pixels:native'. ResNets and
            timm's models take images of another number of channels: 'resnet50,in_chans=13'. ResNets besides:
            'resnet50,zero_init_residual=true'.
        seed: of the random weights; the global random state is restored.

    Raises:
        UsageError: no such name or option; the message gives the nearest names.
        BackboneError: the user's callable fails or returns something else than a module.
    """
    family = family_of(name)
    with seeded(seed):
        backbone = family.build(name)
    backbone.module.eval().requires_grad_(False)
    return backbone


class _WithoutInitialValues(TorchFunctionMode):
    """Steps in which initial values are computed; without memory they change nothing, and take PyTorch long."""

    steps = frozenset(
        getattr(torch.Tensor, name) for name in ("uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_")
    )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Leave a tensor without memory as it is; run everything else."""
        return args[0] if func in self.steps and args[0].is_meta else func(*args, **(kwargs or {}))


@contextlib.contextmanager
def laid_out() -> Iterator[None]:
    """Build networks without memory for their values and without initial ones, for their names and shapes.

    Example:
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

    Args:
        name: as the file has it, or as its tensors show.
        where: the file and its key.
        numbers: number of values in the file's tensors.

    Raises:
        BackboneError: the name stands for Python code, has an option that is not taken from files, is unknown, or is
            that of a network much larger than the file.
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
    """Refuse a network laid out on the meta device that is much larger than the file whose numbers would fill it.

    Raises:
        BackboneError: the network is much larger.
    """
    needed = sum(tensor.numel() for tensor in module.state_dict().values())
    if needed > _MUCH_LARGER * numbers + _ALWAYS_BUILT:
        raise BackboneError(
            f"{what} has {needed:,} parameters, but the file holds {numbers:,}",
            "If the network is right and most of it should stay untrained, give --backbone NAME --allow-partial.",
        )
