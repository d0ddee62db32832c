"""Networks that the first process builds; the others get their structure, on torch's meta device.

`parallel.wrap` with 'fsdp' then gives every process the values that belong to it. A large network is so whole in the
main memory of one process only.
"""

import io
import logging
import pickle
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, distributed, nn

from sslbench.distributed.collectives import broadcast_, from_first, rank, world_size
from sslbench.names import search_current_folder

T = TypeVar("T")
log = logging.getLogger("sslbench")


def structure_from_first(build: Callable[[], T]) -> T:
    """Return what a function builds on the first process; every process calls this.

    On the other processes it is the same, with each module's parameters and buffers on the meta device: with shapes,
    without values. Parameters that modules share stay shared. What cannot be pickled is built by every process.

    Args:
        build: function without collective operations, whose result has modules in it.

    Raises:
        SslbenchError: the function failed on the first process.
    """
    if world_size() == 1:
        return build()
    built: list[T] = []

    def pickled() -> bool:
        built.append(build())
        try:
            _Pickler(structure).dump(built[0])
        except Exception as error:  # noqa: BLE001  a class of the user or of a library may raise anything
            log.warning(f"every process builds the whole network: its structure cannot be sent ({error})")
            return False
        return True

    structure = io.BytesIO()
    if not from_first(pickled):
        return built[0] if built else build()
    content: list[Any] = [structure.getvalue()]
    distributed.broadcast_object_list(content, src=0)  # not gathered: a copy for each process would be large
    if rank() == 0:
        return built[0]
    search_current_folder()  # a class of the user's, which this process has not imported yet
    return cast(T, pickle.loads(content[0]))  # noqa: S301  from this run's first process


class _Pickler(pickle.Pickler):
    """Pickler that leaves out the values of parameters and buffers."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._buffers: set[int] = set()

    def reducer_override(self, value: Any) -> Any:
        """Reduce a tensor of a module to its properties."""
        if isinstance(value, nn.Module):
            self._buffers |= {id(buffer) for buffer in value._buffers.values() if buffer is not None}
        if isinstance(value, types.MethodType):  # usually by name, which is wrong for one that was given to an object
            return _bound, (value.__func__, value.__self__)
        if isinstance(value, nn.Parameter):
            return _parameter, (value.detach().to("meta"), value.requires_grad, vars(value))
        if id(value) in self._buffers:
            return _buffer, (value.to("meta"), vars(value))
        return NotImplemented


def _bound(function: Callable[..., Any], owner: Any) -> types.MethodType:
    return types.MethodType(function, owner)


def _parameter(value: Tensor, gradient: bool, attributes: dict[str, Any]) -> nn.Parameter:
    """Return a parameter with the attributes that code gave it, such as marks for its weight decay."""
    parameter = nn.Parameter(value, requires_grad=gradient)
    vars(parameter).update(attributes)
    return parameter


def _buffer(value: Tensor, attributes: dict[str, Any]) -> Tensor:
    vars(value).update(attributes)
    return value


@torch.no_grad()
def values_from_first(module: nn.Module, device: torch.device, done: set[nn.Module]) -> None:
    """Move parameters and buffers to a device, with the values of the first process; every process calls this.

    Args:
        module: module of the same structure on all processes, on the meta device on some.
        device: device of this process.
        done: modules whose values are there already; those of this call are added.
    """
    found: dict[Tensor, Tensor] = {}  # a tensor that several modules share is sent once, and stays shared
    for owner in module.modules():
        if owner in done:
            continue
        done.add(owner)
        own: tuple[dict[str, Any], ...] = (owner._parameters, owner._buffers)
        for tensors in own:  # assigned here, since setattr changes the order
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = found[tensor] = found[tensor] if tensor in found else _received(tensor, device)


def _received(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device with the values of the first process; only one on the meta device is replaced."""
    value = tensor.detach()
    value = torch.empty_like(value, device=device) if value.is_meta else value.to(device)
    value = value.contiguous()
    if value.numel():
        broadcast_(value.view(-1).view(torch.uint8))  # not every backend sends every type
    if not tensor.is_meta:
        tensor.data = value
        return tensor
    if isinstance(tensor, nn.Parameter):
        return _parameter(value, tensor.requires_grad, vars(tensor))
    return _buffer(value, vars(tensor))
