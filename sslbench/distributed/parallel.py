"""Data-parallel training: torch's DDP, FSDP2 and ZeRO optimizer, and their full state."""

import contextlib
import inspect
import io
import logging
import pickle
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint import state_dict as sharded
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from sslbench.distributed.collectives import broadcast_, from_first, rank, world_size
from sslbench.errors import WeightsError
from sslbench.names import search_current_folder

T = TypeVar("T")
log = logging.getLogger("sslbench")


def structure_from_first(build: Callable[[], T]) -> T:
    """Return what a function builds on the first process; every process calls this."""
    # On the other processes it is the same, with each module's parameters and buffers on the meta device: with shapes,
    # without values. Parameters that modules share stay shared. What cannot be pickled is built by every process.
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
    """Move parameters and buffers to a device, with the values of the first process; every process calls this."""
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


Strategy = Literal["ddp", "fsdp"]
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)


def wrap(
    module: nn.Module,
    device: torch.device,
    strategy: Strategy,
    *,
    dtype: torch.dtype = torch.float32,
    block_methods: Collection[str] = (),
) -> nn.Module:
    """Return a wrapped module whose gradients are those of all processes' images."""
    if world_size() == 1:
        return module
    if strategy == "fsdp":
        return _shard(module, device, dtype, block_methods)
    ids = [device.index] if device.type == "cuda" else None
    # Queues and centres are equal on all processes by construction, and statistics of BatchNorm are taken from the
    # first process at the end, so broadcasting buffers in every forward pass would be wasted.
    accepted = inspect.signature(DistributedDataParallel.__init__).parameters
    switch = "forward_sync_buffers" if "forward_sync_buffers" in accepted else "broadcast_buffers"  # before torch 2.15
    options: dict[str, Any] = {"device_ids": ids, "gradient_as_bucket_view": True, switch: False}
    return DistributedDataParallel(module, **options)


def _shard(module: nn.Module, device: torch.device, dtype: torch.dtype, block_methods: Collection[str]) -> nn.Module:
    """Shard each block, so that only one is whole at a time, then what remains."""
    done: set[nn.Module] = set()
    mesh = init_device_mesh(device.type, (world_size(),))
    # Autocast goes on to choose the precision of each operation, so inputs are left as they are.
    low = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in blocks(module):
        values_from_first(block, device, done)
        norms = [m for m in block.modules() if isinstance(m, _NORMS) and not isinstance(m, FSDPModule)]
        norms = [m for m in norms if any(True for _ in m.parameters())]
        if norms and dtype != torch.float32:
            fully_shard(norms, mesh=mesh)  # type: ignore[arg-type]  # as autocast leaves them: in float32
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy() if dtype == torch.float32 else low)
        for name in block_methods:
            if hasattr(block, name):
                register_fsdp_forward_method(block, name)
    values_from_first(module, device, done)
    return fully_shard(module, mesh=mesh)  # type: ignore[return-value]


def blocks(module: nn.Module) -> list[nn.Module]:
    """Return the repeated parts of a network: blocks of transformers, residual blocks; inner ones come first.

    These are the elements of an nn.Sequential or nn.ModuleList that have parameters and consist of other modules.

    >>> mlp = nn.Sequential(nn.Linear(2, 2), nn.ReLU())  # its elements are layers
    >>> len(blocks(mlp)), len(blocks(nn.ModuleList([mlp, mlp])))
    (0, 1)
    """
    found = [
        element
        for container in module.modules()
        if isinstance(container, nn.Sequential | nn.ModuleList)
        for element in container
        if any(element.children()) and any(True for _ in element.parameters())
    ]
    unique = list(dict.fromkeys(found))
    # `modules` gives a module before what is in it.
    return unique[::-1]


def without_synchronisation(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which backward passes accumulate gradients without synchronising them."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()


def zero_optimizer(
    kind: type[torch.optim.Optimizer], groups: list[dict[str, Any]], **options: Any
) -> torch.optim.Optimizer:
    """Return an optimizer with its state sharded over the processes, unsharded for a single process.

    Rajbhandari et al. 2020, ZeRO, stage 1.
    """
    if world_size() == 1:
        return kind(groups, **options)
    return ZeroRedundancyOptimizer(groups, optimizer_class=kind, **options)


def broadcast_buffers(module: nn.Module) -> None:
    """Copy the first process's buffers to all processes, whose statistics of BatchNorm differ until then."""
    for buffer in module.buffers():
        broadcast_(buffer)


def is_sharded(module: nn.Module) -> bool:
    """Return whether the parameters of a module are sharded."""
    return any(hasattr(p, "device_mesh") for p in module.parameters())


def module_state(module: nn.Module, *, everywhere: bool = True) -> dict[str, Tensor]:
    """Return the full state on the CPU, under the module's own names; every process calls this."""
    # Sharded parameters are collected one by one, so that the device holds one of them at a time.
    state = {}
    for name, tensor in module.state_dict().items():
        full = whole(tensor.detach())
        if everywhere or rank() == 0:
            state[name] = full.cpu()
    return state


def load_module_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a full state strictly."""
    if is_sharded(module):
        options = sharded.StateDictOptions(full_state_dict=True, strict=True)
        sharded.set_model_state_dict(module, dict(state), options=options)
    else:
        module.load_state_dict(dict(state))


def optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the full state of the optimizer; complete on the first process only."""
    if is_sharded(module):
        options = sharded.StateDictOptions(full_state_dict=True, cpu_offload=True)
        return sharded.get_optimizer_state_dict(module, optimizer, options=options)
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.consolidate_state_dict(to=0)
        return optimizer.state_dict() if rank() == 0 else {}
    return optimizer.state_dict()


def load_optimizer_state(module: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state from `optimizer_state` of the first process; it may be of another number of processes."""
    name_of = {parameter: name for name, parameter in module.named_parameters()}
    # Heads that are views of one tensor are no parameters of the module: they go by numbers.
    names = [name_of.get(parameter, "") for group in optimizer.param_groups for parameter in group["params"]]
    # Numbers count the parameters in the order of the groups.
    numbers = list(range(len(names)))
    own, other = (names, numbers) if is_sharded(module) else (numbers, names)
    given = {key for group in state["param_groups"] for key in group["params"]}
    keys: list[Any] = [*(own if given == set(own) else other)]
    state = _renamed(optimizer, state, dict(zip(keys, own, strict=True)))
    if is_sharded(module):
        # Not strict: parameters that were frozen until the checkpoint have no state.
        options = sharded.StateDictOptions(full_state_dict=True, strict=False)
        sharded.set_optimizer_state_dict(module, optimizer, state, options=options)
        for name, parameter in module.named_parameters():
            if name not in state["state"]:
                optimizer.state.pop(parameter, None)  # torch's initial state counts a step already
    else:
        optimizer.load_state_dict(state)


def optimizer_shards(module: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of the optimizer's state, sharded as the parameters, and the rest of its state."""
    name_of: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for parameter, own in optimizer.state.items():
        for key, value in own.items():
            if isinstance(value, Tensor):
                tensors[f"{name_of[parameter]}.{key}"] = value.detach()
            else:
                values.setdefault(name_of[parameter], {})[key] = value
    groups = [{**group, "params": [name_of[p] for p in group["params"]]} for group in optimizer.param_groups]
    return tensors, {"groups": groups, "state": values}


def empty_moments(module: nn.Module, stored: Mapping[str, tuple[torch.Size, torch.dtype]]) -> dict[str, Tensor]:
    """Return tensors for the values of an optimizer's state: those of a parameter's shape are sharded like it."""
    parameters = dict(module.named_parameters())
    found: dict[str, Tensor] = {}
    for name, (shape, dtype) in stored.items():
        parameter = parameters.get(name.rpartition(".")[0])
        if parameter is None:
            raise WeightsError(f"the checkpoint has optimizer state of '{name}', which is no parameter of this run")
        like = parameter.detach() if parameter.shape == shape else torch.empty(shape)
        found[name] = torch.zeros_like(like, dtype=dtype)
    return found


def load_optimizer_shards(
    module: nn.Module, optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor], rest: Mapping[str, Any]
) -> None:
    """Load a state from `optimizer_shards`, with tensors that are sharded as the parameters of this process."""
    state: dict[str, dict[str, Any]] = {name: dict(values) for name, values in rest["state"].items()}
    for name, tensor in moments.items():
        parameter, _, key = name.rpartition(".")
        state.setdefault(parameter, {})[key] = tensor
    names = [name for group in rest["groups"] for name in group["params"]]
    name_of = {parameter: name for name, parameter in module.named_parameters()}
    if names != [name_of[parameter] for group in optimizer.param_groups for parameter in group["params"]]:
        raise WeightsError("the checkpoint has optimizer state of other parameters than this run")
    whole_state = {"state": state, "param_groups": rest["groups"]}
    # Numbers depend on the order of parameters, names do not: compared above, so nothing is exchanged silently.
    numbered = _renamed(optimizer, whole_state, dict(zip(names, range(len(names)), strict=True)))
    optimizer.load_state_dict(numbered)


def _renamed(optimizer: torch.optim.Optimizer, state: dict[str, Any], order: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the state of an optimizer under other keys of its parameters, with this optimizer's choice of kernels."""
    # Facts of a group that the state has not are this optimizer's: earlier versions had fewer.
    groups = []
    for group, mine in zip(state["param_groups"], optimizer.param_groups, strict=True):
        kernels = {key: mine[key] for key in ("fused", "foreach") if key in mine}  # sharded parameters have fewer
        groups.append({**mine, **group, **kernels, "params": [order[key] for key in group["params"]]})
    return {**state, "state": {order[key]: value for key, value in state["state"].items()}, "param_groups": groups}


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float, *, each: bool = False) -> Tensor:
    """Scale gradients to a norm of at most `max_norm`, and return the norm of all of them before.

    >>> p = nn.Parameter(torch.zeros(2))
    >>> p.grad = torch.tensor([3.0, 4.0])
    >>> float(clip_gradients([p], 1.0)), [round(x, 3) for x in p.grad.tolist()]
    (5.0, [0.6, 0.8])
    """
    if not each:
        return whole(nn.utils.clip_grad_norm_(list(parameters), max_norm))
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms: list[Tensor] = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    for gradient, norm in zip(gradients, norms, strict=True):
        gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    total: Tensor = torch.linalg.vector_norm(torch.stack([whole(norm) for norm in norms]))
    return total


def gradient_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together, on their device; every process calls this.

    >>> float(gradient_norm([torch.tensor([3.0]), torch.tensor([[4.0]])]))
    5.0
    """
    return whole(nn.utils.get_total_norm(gradients))


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor of which each process has a part; every process calls this. Others are returned unchanged."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full
