"""A module and its optimizer over several processes: torch's DDP, FSDP2 and ZeRO optimizer, and their whole state."""

import contextlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from sslbench.distributed.collectives import broadcast_, rank, world_size

Strategy = Literal["ddp", "fsdp"]


def wrap(module: nn.Module, device: torch.device, strategy: Strategy) -> nn.Module:
    """What to call in place of the module so that gradients are those of all processes' images together.

    Args:
        module: on its device; with 'fsdp' its parameters are sharded in place.
        device: of this process.
        strategy: 'ddp' keeps everything on every process; 'fsdp' shards parameters, gradients and optimizer state.
    """
    if world_size() == 1:
        return module
    if strategy == "fsdp":
        return fully_shard(module, mesh=init_device_mesh(device.type, (world_size(),)))  # type: ignore[return-value]
    ids = [device.index] if device.type == "cuda" else None
    # Buffers that matter (queues, centres) are the same everywhere by construction; statistics of BatchNorm are the
    # first process's in the end, so sending all of them around in every forward pass would be for nothing.
    accepted = inspect.signature(DistributedDataParallel.__init__).parameters
    switch = "forward_sync_buffers" if "forward_sync_buffers" in accepted else "broadcast_buffers"  # before torch 2.15
    options: dict[str, Any] = {"device_ids": ids, "gradient_as_bucket_view": True, switch: False}
    return DistributedDataParallel(module, **options)


def without_synchronisation(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """A context in which backward passes only accumulate: the last pass of an update synchronises."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


def zero_optimizer(
    kind: type[torch.optim.Optimizer], groups: list[dict[str, Any]], **options: Any
) -> torch.optim.Optimizer:
    """The optimizer with its state divided over the processes (ZeRO stage 1); the plain one when there is only one."""
    if world_size() == 1:
        return kind(groups, **options)
    return ZeroRedundancyOptimizer(groups, optimizer_class=kind, **options)


def broadcast_buffers(module: nn.Module) -> None:
    """The first process's buffers on all (statistics of BatchNorm differ between processes until then)."""
    for buffer in module.buffers():
        broadcast_(buffer)


def is_sharded(module: nn.Module) -> bool:
    """Whether `wrap` sharded it."""
    return any(hasattr(p, "device_mesh") for p in module.parameters())


def module_state(module: nn.Module) -> dict[str, Tensor]:
    """The whole state on the CPU, under the module's own names; every process has to call this."""
    if is_sharded(module):
        whole = sharded.get_model_state_dict(module, options=sharded.StateDictOptions(full_state_dict=True))
        return {name: value.cpu() for name, value in whole.items() if isinstance(value, Tensor)}
    return {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}


def load_module_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Fills the module strictly."""
    if is_sharded(module):
        options = sharded.StateDictOptions(full_state_dict=True, strict=True)
        sharded.set_model_state_dict(module, dict(state), options=options)
    else:
        module.load_state_dict(dict(state))


def optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The whole state of the optimizer; complete on the first process only."""
    if is_sharded(module):
        options = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True)
        return sharded.get_optimizer_state_dict(module, optimizer, options=options)
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.consolidate_state_dict(to=0)
        return optimizer.state_dict() if rank() == 0 else {}
    return optimizer.state_dict()


def load_optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Puts back what `optimizer_state` gave on the first process."""
    if is_sharded(module):
        options = sharded.StateDictOptions(full_state_dict=True)
        sharded.set_optimizer_state_dict(module, optimizer, state, options=options)
    else:
        optimizer.load_state_dict(state)


def clip_gradients(parameters: Iterable[nn.Parameter], largest: float, *, each: bool = False) -> Tensor:
    """Scale gradients so that their norm is at most `largest`, and return the norm of all of them before that.

    Args:
        parameters: those without a gradient are passed over.
        largest: of all gradients together, or of each tensor's with `each`.
        each: clip every tensor by itself, as DINO's code does (utils.py, clip_gradients).
    """
    if not each:
        return _whole(nn.utils.clip_grad_norm_(list(parameters), largest))
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms: list[Tensor] = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    for gradient, norm in zip(gradients, norms, strict=True):
        gradient.mul_((largest / (norm + 1e-6)).clamp(max=1.0))
    total: Tensor = torch.linalg.vector_norm(torch.stack([_whole(norm) for norm in norms]))
    return total


def _whole(norm: Tensor) -> Tensor:
    """Return the number of all processes; with sharded gradients each has a part of it."""
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole
