"""The backbone and the method of a run, from their names and settings."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.load import load_backbone
from sslbench.backbones.resnet import without_initialisation
from sslbench.config import build
from sslbench.distributed import this_process
from sslbench.distributed.collectives import rank, world_size
from sslbench.distributed.parallel import wrap
from sslbench.errors import UsageError
from sslbench.pretraining.settings import PretrainRequest, PretrainSettings
from sslbench.runtime.seeds import seed_process
from sslbench.train.method import Method, Setup, find_method
from sslbench.train.optimizers import make_optimizer, parameter_groups
from sslbench.train.state import State, moving_average

log = logging.getLogger("sslbench")


def make_backbone(request: PretrainRequest) -> Backbone:
    """The backbone to be trained: random weights, or those of a file, loaded strictly.

    Raises:
        SslbenchError: there is no such backbone, or the file does not fit it.
    """
    name = request.settings.backbone
    if name.partition(":")[0] == "pixels":
        raise UsageError(f"'{name}' has nothing to train", "Name a network: backbone=resnet50.")
    if request.init is None and (request.init_format or request.stem):
        raise UsageError("--format and --stem say how weights are read, and there is no --init")
    backbone = load_backbone(
        request.init or "random",
        backbone=without_initialisation(name) if request.init else name,  # a recipe's initialisation gives way
        format=request.init_format,
        stem=request.stem,
        seed=request.settings.seed,
    )
    if backbone.report is not None:
        log.info(f"{request.init}: {backbone.name}, {backbone.report.line()}")
    backbone.module.requires_grad_(True).train()
    # The weights that come out are no initial ones: a file of them holds the plain architecture.
    return dataclasses.replace(backbone, name=without_initialisation(backbone.name))


def make_method(backbone: nn.Module, settings: dict[str, Any], setup: Setup, *, seed: int) -> Method:
    """The method around the backbone; its own parts are initialised from the seed alone.

    Raises:
        UsageError: no such method or setting, or the method cannot use this backbone or data.
    """
    name = settings.get("name")
    if not isinstance(name, str):
        raise UsageError("which method? The settings have no method.name")
    method_type = find_method(name)
    values = {key: value for key, value in settings.items() if key != "name"}
    config = build(method_type.config_type, values, f"method {name}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed + 1)  # another stream than that of the backbone's weights
        return method_type(backbone, config, setup)


def with_sync_bn(method: Method, device: torch.device, *, asked: bool, world: int) -> Method:
    """BatchNorm over all processes, where that is possible and makes a difference."""
    if not asked or world == 1:
        return method
    if device.type != "cuda":
        if this_process().rank == 0:
            log.warning(
                "sync_bn is off: torch synchronises BatchNorm on GPUs only; every process has its own statistics"
            )
        return method
    converted: Method = nn.SyncBatchNorm.convert_sync_batchnorm(method)  # type: ignore[no-untyped-call]
    return converted


def checkpoint_activations(backbone: Backbone) -> None:
    """Makes every stage compute its activations again in the backward pass.

    Raises:
        UsageError: the backbone's stages are not known.
    """
    module = backbone.module
    if callable(switch := getattr(module, "set_grad_checkpointing", None)):
        switch(True)
        return
    stages = [stage for name in ("layer1", "layer2", "layer3", "layer4") if (stage := getattr(module, name, None))]
    if not stages:
        raise UsageError(f"activation checkpointing is not known for {backbone.name}", "Use a ResNet or a timm model.")
    for stage in stages:
        for block in stage:
            block.forward = functools.partial(
                checkpoint, block.forward, use_reentrant=False, context_fn=functools.partial(_contexts, block)
            )


def make_state(method: Method, settings: PretrainSettings, device: torch.device) -> State:
    """Return the state at the start of training, on its device; every process calls this.

    Random numbers of training start here, another stream on every process.
    """
    method = method.to(device)
    sharded = settings.strategy == "fsdp" and world_size() > 1
    if settings.channels_last and not sharded:  # FSDP takes contiguous parameters only
        method = method.to(memory_format=torch.channels_last)
    average = moving_average(method.backbone) if settings.ema is not None else None
    model = wrap(method, device, settings.strategy)
    if average is not None and sharded:
        average = wrap(average, device, settings.strategy)  # each process averages its share
    if settings.compile:
        method.compile_networks()
    groups = parameter_groups(method, settings.optimizer)
    optimizer = make_optimizer(groups, settings.optimizer, zero=settings.zero)
    scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
    seed_process(settings.seed, rank())
    return State(method, model, optimizer, scaler, average)


def _contexts(
    block: nn.Module,
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    return contextlib.nullcontext(), _statistics_stay(block)


@contextlib.contextmanager
def _statistics_stay(block: nn.Module) -> Iterator[None]:
    """The second forward pass would count every batch twice in BatchNorm's running statistics."""
    norms = [m for m in block.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [m.momentum for m in norms]
    counts = [None if m.num_batches_tracked is None else m.num_batches_tracked.clone() for m in norms]
    for m in norms:
        m.momentum = 0.0
    try:
        yield
    finally:
        for m, momentum, count in zip(norms, momenta, counts, strict=True):
            m.momentum = momentum
            if count is not None and m.num_batches_tracked is not None:
                m.num_batches_tracked.copy_(count)
