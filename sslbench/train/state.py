"""State of a training run, and its conversion to and from a checkpoint."""

import copy
import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslbench.distributed.collectives import gather_objects, on_all, rank, world_size
from sslbench.distributed.parallel import (
    Strategy,
    empty_moments,
    load_module_state,
    load_optimizer_shards,
    load_optimizer_state,
    module_state,
    optimizer_shards,
    optimizer_state,
    wrap,
    zero_optimizer,
)
from sslbench.distributed.sharded import read as read_shards
from sslbench.distributed.sharded import shapes
from sslbench.errors import UsageError
from sslbench.runtime.device import DTYPES
from sslbench.runtime.resources import Precision
from sslbench.runtime.seeds import random_states, restore_random_states, seed_process
from sslbench.train import checkpoints
from sslbench.train.checkpoints import continue_from, newest_whole
from sslbench.train.method import Learner, Method
from sslbench.train.online_head import OnlineHead
from sslbench.train.optimizers.optimizer import OptimizerSettings, PartSettings, make_optimizer
from sslbench.train.parameter_groups import parameter_groups

log = logging.getLogger("sslbench")


@dataclasses.dataclass
class State:
    """State of a training run: everything that training changes.

    Attributes:
        method: the method itself, heads, or a detector.
        model: module to call: the method, or its DDP or FSDP wrapper.
        optimizer: optimizer of the method's parameters.
        scaler: scaler of the loss, for float16.
        average: exponential moving average of `method.averaged()`, or None.
        step: optimizer updates done.
        online_head: classifier trained beside the method, or None.
        rows_of_channels: images are laid out channel by channel: see `new_state`.
    """

    method: Learner
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler = dataclasses.field(default_factory=lambda: torch.amp.GradScaler("cpu", enabled=False))
    average: nn.Module | None = None
    step: int = 0
    online_head: OnlineHead | None = None
    rows_of_channels: bool = False

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.method.parameters()).device


def new_state(  # noqa: PLR0913  how a run computes, each from another setting
    method: Method[Any],
    device: torch.device,
    optimizer: OptimizerSettings,
    *,
    seed: int,
    precision: Precision = "fp32",
    strategy: Strategy = "ddp",
    zero: bool = False,
    channels_last: bool = True,
    compiled: bool = False,
    averaged: bool = False,
    layers: Mapping[str, int] | None = None,
    parts: Mapping[str, PartSettings] | None = None,
) -> State:
    """Return the state at the start of training, on its device; every process calls this.

    The global generators are seeded here, with a separate stream on every process.
    """
    sharded = strategy == "fsdp" and world_size() > 1
    # oneDNN writes the gradient of some convolutions past its memory (its issue 6035): they have kernels of 1 x 1,
    # strides, and fewer channels than a register of AVX-512 holds numbers; large images end the process.
    convolutions = [part for part in method.modules() if isinstance(part, nn.Conv2d)] if device.type == "cpu" else []
    overflows = any(c.in_channels < 16 and max(c.kernel_size) == 1 < max(c.stride) for c in convolutions)
    if not sharded:  # FSDP moves one block after the other, and supports contiguous parameters only
        method = method.to(device)
        method = method.to(memory_format=torch.channels_last) if channels_last and not overflows else method
    average = moving_average(method.averaged()) if averaged else None
    model = wrap(method, device, strategy, dtype=DTYPES[precision], block_methods=method.block_methods)
    if average is not None and sharded:
        average = wrap(average, device, strategy)  # each process averages its share
    if compiled:
        method.compile_networks()
    groups = parameter_groups(method, optimizer, layers, parts)
    own_optimizer = make_optimizer(groups, optimizer, sharded=zero_optimizer if zero else None)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    seed_process(seed, rank())
    return State(method, model, own_optimizer, scaler, average, rows_of_channels=overflows)


def moving_average(network: nn.Module) -> nn.Module:
    """Return a copy of a network for its moving average: without gradients, in evaluation mode."""
    # Groups of processes cannot be copied: the copy refers to the same ones.
    groups = [module.process_group for module in network.modules() if isinstance(module, nn.SyncBatchNorm)]
    return copy.deepcopy(network, {id(group): group for group in groups}).eval().requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, network: nn.Module, decay: float) -> None:
    """Update parameters and float buffers: average <- decay * average + (1 - decay) * network; copy counters."""
    for own, new in zip(average.state_dict().values(), network.state_dict().values(), strict=True):
        if own.is_floating_point():
            own.lerp_(new.to(own.dtype), 1 - decay)
        else:
            own.copy_(new)


def to_checkpoint(state: State) -> dict[str, Any]:
    """Return the state as plain tensors and numbers, for the first process to write; every process calls this.

    Tensors are complete on the first process only.
    """
    content = {
        state.method.stored_as: module_state(state.method.stored, everywhere=False),
        "optimizer": optimizer_state(state.method, state.optimizer),
    }
    if not state.method.draws:
        return content
    average = module_state(state.average, everywhere=False) if state.average is not None else {}
    return {**content, "average": average, **_small_state(state)}


def to_shards(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state as tensors of which each process has its shards, and all the rest; every process calls this."""
    tensors = _network_tensors(state)
    moments, rest = optimizer_shards(state.method, state.optimizer)
    tensors |= {f"optimizer.{name}": tensor for name, tensor in moments.items()}
    return tensors, {"optimizer": rest, **_small_state(state)}


def _network_tensors(state: State) -> dict[str, Tensor]:
    """Return the tensors of method and average, sharded as they are."""
    average = {} if state.average is None else state.average.state_dict()
    found = {f"method.{name}": tensor.detach() for name, tensor in state.method.state_dict().items()}
    return found | {f"average.{name}": tensor.detach() for name, tensor in average.items()}


def _small_state(state: State) -> dict[str, Any]:
    """Return what the first process writes in any case; every process calls this."""
    processes = gather_objects(
        {
            "random": random_states(state.device),
            "local": {name: tensor.detach().cpu() for name, tensor in state.method.local_state().items()},
        }
    )
    return {
        "scaler": state.scaler.state_dict(),
        "processes": processes,
        **({"online_head": state.online_head.state_dict()} if state.online_head is not None else {}),
    }


def from_checkpoint(state: State, content: dict[str, Any], path: Path | None = None) -> None:
    """Restore the content of a checkpoint into a state that was built with the same settings.

    The number of processes may be another than that which wrote the checkpoint, unless each has a state of its own.
    """
    if not state.method.draws:
        load_module_state(state.method.stored, content[state.method.stored_as])
        load_optimizer_state(state.method, state.optimizer, content["optimizer"])
        state.step = content["step"]
        return
    processes = content["processes"]
    before, now = len(processes), world_size()
    if before != now and any(process["local"] for process in processes):
        names = ", ".join(sorted({name for process in processes for name in process["local"]}))
        raise UsageError(
            f"the checkpoint was written by {before} processes, this run has {now}, and each had its own {names}",
            f"Start {before} processes, or start a new run in another --out with --init from its weights.",
        )
    if path is not None and path.is_dir():
        on_all(lambda: _read_shards(state, path, content["optimizer"]))
    else:
        load_module_state(state.method, content["method"])
        load_optimizer_state(state.method, state.optimizer, content["optimizer"])
        if state.average is not None:
            load_module_state(state.average, content["average"])
    state.scaler.load_state_dict(content["scaler"])
    if state.online_head is not None:
        if "online_head" in content:
            state.online_head.load_state_dict(content["online_head"])
        else:
            log.warning("the online linear head starts untrained: the checkpoint was written without it")
    state.step = content["step"]
    if before == now:
        own = processes[rank()]
        state.method.load_local_state(own["local"])
        restore_random_states(own["random"], state.device)
        return
    # Images, views and draws of images do not depend on the processes; only dropout and the like do.
    torch.manual_seed((torch.initial_seed() + state.step * 1_000_003**2) % 2**63)
    if rank() == 0:
        log.warning(
            f"continuing with {now} processes, {before} before: each update has the same images, but statistics of "
            "BatchNorm and rounding differ from here on"
        )


def resume(state: State, folder: Path) -> dict[str, Any] | None:
    """Continue from the newest whole checkpoint of a folder; return its content or None. Every process calls this."""
    found = newest_whole(folder)
    if found is None:
        return None
    path, content = found
    from_checkpoint(state, content, path)
    continue_from(folder, path, state.step)
    return content


def save(state: State, folder: Path, *, keep: int = 1, **more: Any) -> None:
    """Write a checkpoint of the state on the first process, with more entries; every process calls this."""
    content = to_checkpoint(state)
    if rank() == 0:
        checkpoints.write(folder, state.step, {**content, **more}, keep=keep)


def _read_shards(state: State, folder: Path, rest: dict[str, Any]) -> None:
    """Fill networks and optimizer from a sharded checkpoint."""
    prefix = "optimizer."
    stored = {name.removeprefix(prefix): of for name, of in shapes(folder).items() if name.startswith(prefix)}
    moments = empty_moments(state.method, stored)
    read_shards(folder, _network_tensors(state) | {prefix + name: tensor for name, tensor in moments.items()})
    load_optimizer_shards(state.method, state.optimizer, moments, rest)
