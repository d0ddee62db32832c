"""Backbone and method of a run, built from their names and settings."""

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
from sslbench.backbones.resnet_spec import without_initialisation
from sslbench.config import build
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.pretraining.settings import PretrainRequest, PretrainSettings
from sslbench.runtime.device_names import Precision
from sslbench.runtime.seeds import seeded
from sslbench.train.method import Method, Setup, find_method
from sslbench.train.state import State, new_state

log = logging.getLogger("sslbench")


def make_backbone(request: PretrainRequest) -> Backbone:
    """Return the backbone to train, with random weights or the weights of a file, loaded strictly.

    Raises:
        SslbenchError: there is no such backbone, or the file does not fit it.
    """
    name = request.settings.backbone
    backbone = load_backbone(
        request.init or "random",
        backbone=without_initialisation(name) if request.init else name,  # --init replaces the recipe's initialisation
        format=request.init_format,
        stem=request.stem,
        seed=request.settings.seed,
    )
    if backbone.report is not None:
        log.info(f"{request.init}: {backbone.name}, {backbone.report.line()}")
    backbone.module.requires_grad_(True).train()
    # Trained weights are saved under the plain architecture, without its initialisation.
    return dataclasses.replace(backbone, name=without_initialisation(backbone.name))


def make_method(backbone: nn.Module, settings: dict[str, Any], setup: Setup, *, seed: int) -> Method[Any]:
    """Return the method around a backbone; the initial weights of its heads depend on the seed only.

    Args:
        backbone: network to train.
        settings: 'name' of the method, and its settings.
        setup: facts about the run.
        seed: seed of the heads.

    Raises:
        UsageError: there is no such method or setting, or the method cannot use this backbone or data.
    """
    name = settings["name"]
    method_type = find_method(name)
    values = {key: value for key, value in settings.items() if key != "name"}
    config = build(method_type.config_type, values, f"method {name}")
    with seeded(seed + 1):  # a random stream separate from that of the backbone's weights
        return method_type(backbone, config, setup)


def with_sync_bn(method: Method[Any], device: torch.device, *, enabled: bool, world: int) -> Method[Any]:
    """Return the method with BatchNorm synchronised over all processes, if requested and on GPUs."""
    if not enabled or world == 1:
        return method
    if device.type != "cuda":
        if this_process().rank == 0:
            log.warning(
                "sync_bn is off: torch synchronises BatchNorm on GPUs only; every process has its own statistics"
            )
        return method
    converted: Method[Any] = nn.SyncBatchNorm.convert_sync_batchnorm(method)  # type: ignore[no-untyped-call]
    return converted


def checkpoint_activations(backbone: Backbone) -> None:
    """Recompute activations in the backward pass, by timm's own switch or per block of a ResNet's stages.

    Raises:
        UsageError: the backbone has neither.
    """
    # The backbone may be a model of timm, torchvision or the user, so its interface is only known at run time.
    module = backbone.module
    if callable(switch := getattr(module, "set_grad_checkpointing", None)):
        switch(True)
        return
    stages = [stage for name in ("layer1", "layer2", "layer3", "layer4") if (stage := getattr(module, name, None))]
    if not stages:
        raise UsageError(
            f"activation_checkpointing=true does not support {backbone.name}", "Use a ResNet or a timm model."
        )
    for stage in stages:
        for block in stage:
            block.forward = functools.partial(
                checkpoint, block.forward, use_reentrant=False, context_fn=functools.partial(_contexts, block)
            )


def make_state(method: Method[Any], settings: PretrainSettings, device: torch.device, precision: Precision) -> State:
    """Return the state at the start of training, on its device; every process calls this."""
    return new_state(
        method,
        device,
        settings.optimizer,
        seed=settings.seed,
        precision=precision,
        strategy=settings.strategy,
        zero=settings.zero,
        channels_last=settings.channels_last,
        compiled=settings.compile,
        averaged=settings.ema is not None,
        parts=settings.groups,
    )


def _contexts(
    block: nn.Module,
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    return contextlib.nullcontext(), _frozen_statistics(block)


@contextlib.contextmanager
def _frozen_statistics(block: nn.Module) -> Iterator[None]:
    """Keep BatchNorm's running statistics during a block, or recomputation would count every batch twice."""
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
