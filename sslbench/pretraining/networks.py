"""Backbone, method, batch transform and views of a run, built from their names and settings."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sslbench.backbones.architectures import without_initialisation
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.load import load_backbone
from sslbench.backbones.stems import with_channels
from sslbench.data.decode.handlers import Reading
from sslbench.data.loading.batch import first_look, measure
from sslbench.data.source import Source
from sslbench.data.views import Augment, without_colours
from sslbench.distributed import this_process
from sslbench.distributed.collectives import subgroup
from sslbench.errors import DataError, UsageError
from sslbench.names import find_object
from sslbench.preprocessing import Preprocessing
from sslbench.pretraining.settings import PretrainRequest, PretrainSettings
from sslbench.runtime.resources import Precision
from sslbench.runtime.seeds import preserved_random_states, seeded
from sslbench.train.method import Batch, Method, Setup, find_method
from sslbench.train.state import State, new_state

log = logging.getLogger("sslbench")


def make_backbone(request: PretrainRequest) -> Backbone:
    """Return the backbone to train, with random weights or the weights of a file, loaded strictly."""
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
    # Loaded backbones are frozen and in evaluation mode.
    backbone.module.requires_grad_(True).train()
    # Trained weights are saved under the plain architecture, without its initialisation.
    return dataclasses.replace(backbone, name=without_initialisation(backbone.name))


def make_method(backbone: nn.Module, settings: dict[str, Any], setup: Setup, *, seed: int) -> Method[Any]:
    """Return the method around a backbone; the initial weights of its heads depend on the seed only."""
    method_type = find_method(settings["name"])
    config = method_type.config_of(settings)
    with seeded(seed + 1):  # a random stream separate from that of the backbone's weights
        return method_type(backbone, config, setup)


def with_sync_bn(method: Method[Any], device: torch.device, settings: PretrainSettings, *, world: int) -> Method[Any]:
    """Return the method with BatchNorm synchronised over all processes or groups of them, if requested and on GPUs."""
    if world == 1 and settings.sync_bn_group:
        log.warning("sync_bn_group has no effect: there is one process")
    if not settings.sync_bn or world == 1:
        return method
    if device.type != "cuda":
        if settings.sync_bn_group:
            raise UsageError(
                f"sync_bn_group={settings.sync_bn_group}: torch synchronises BatchNorm on GPUs only, and the device is "
                f"{device.type}",
                "Leave it out, or use GPUs.",
            )
        if this_process().rank == 0:
            log.warning(
                "sync_bn is off: torch synchronises BatchNorm on GPUs only; every process has its own statistics"
            )
        return method
    group = subgroup(settings.sync_bn_group) if settings.sync_bn_group else None
    converted: Method[Any] = nn.SyncBatchNorm.convert_sync_batchnorm(method, group)  # type: ignore[no-untyped-call]
    return converted


def checkpoint_activations(backbone: Backbone) -> None:
    """Recompute activations in the backward pass, by timm's own switch or per block of a ResNet's stages."""
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
            # Wrapping forward leaves the names of parameters as they are, unlike a wrapping module.
            # torch takes a context for the recomputation only where that is not reentrant.
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
    # Of the forward pass, and of its recomputation.
    return contextlib.nullcontext(), _frozen_statistics(block)


@contextlib.contextmanager
def _frozen_statistics(block: nn.Module) -> Iterator[None]:
    """Keep BatchNorm's running statistics during a block, or recomputation would count every batch twice."""
    norms = [m for m in block.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [m.momentum for m in norms]
    # Copies: the counters are increased in place.
    counts = [None if m.num_batches_tracked is None else m.num_batches_tracked.clone() for m in norms]
    for m in norms:
        # The batch then leaves the running statistics as they are.
        m.momentum = 0.0
    try:
        yield
    finally:
        for m, momentum, count in zip(norms, momenta, counts, strict=True):
            m.momentum = momentum
            if count is not None and m.num_batches_tracked is not None:
                m.num_batches_tracked.copy_(count)


def make_batch_transform(name: str, setup: Setup) -> Callable[[Batch], Batch]:
    """Return the function called `name` after a trial on a small grey batch."""
    function = find_object(name)
    if not callable(function):
        raise UsageError(f"batch_transform: {name} is a {type(function).__name__}, not a function")
    views = tuple(torch.zeros(4, setup.channels, size, size) for size in setup.sizes)
    labels = torch.arange(4) % setup.classes if setup.classes else None
    checked = functools.partial(_checked, function, name)
    # The trial must take no random numbers from the run.
    with preserved_random_states():
        checked(Batch(views, labels, torch.arange(4)))
    return checked


def _checked(function: Callable[[Batch], Batch], name: str, batch: Batch) -> Batch:
    """Return a changed batch."""
    try:
        changed = function(batch)
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(f"batch_transform: {name} fails: {type(error).__name__}: {error}") from error
    if not isinstance(changed, Batch):
        raise UsageError(f"batch_transform: {name} gives a {type(changed).__name__}, not a Batch")
    given, found = ([tuple(view.shape) for view in each.views] for each in (batch, changed))
    if given != found:
        raise UsageError(f"batch_transform: {name} gives views of {found} for views of {given}", "Keep the shapes.")
    return changed


def views_for(
    request: PretrainRequest, backbone: Backbone, source: Source, reading: Reading, channels: int
) -> tuple[Augment, dict[str, str]]:
    """Return a recipe's views for a number of channels, after a check of the first images.

    Operations for red, green and blue are removed from a recipe, with a log message; if the user set them, they are
    refused.
    """
    augment = request.settings.augment
    _check_images(source, reading, backbone, channels)
    for name in _wrong_lengths(augment, channels):
        if channels == 3 or f"augment.{name}" in request.chosen:
            raise UsageError(
                f"augment.{name} has {len(getattr(augment, name))} values, but {backbone.name} "
                f"takes images of {_channels(channels)}",
                "Give one per channel" + (", or none: then they are measured." if channels != 3 else "."),
            )
    if channels == 3:
        return augment, {}
    adapted, dropped = without_colours(augment)
    if not dropped:
        return augment, {}
    # Views of a preset are adapted; those that the user wrote are not.
    if "augment.views" in request.chosen:
        raise UsageError(
            f"augment.views: {', '.join(dropped)}: for RGB images only; {backbone.name} takes images of "
            f"{_channels(channels)}",
            "Leave them out: brightness, contrast, blur and solarize work for any channels.",
        )
    text = f"without {', '.join(dropped)}, which need red, green and blue; the images have {_channels(channels)}"
    log.info(f"augment.views: {text}")
    return adapted, {"augment.views": text}


def normalised(
    augment: Augment, preprocessing: Preprocessing, source: Source, reading: Reading, *, seed: int
) -> tuple[Augment, dict[str, str]]:
    """Return views with mean and std for all channels of the backbone: the backbone's own, or measured ones."""
    channels = preprocessing.channels
    unfit = _wrong_lengths(augment, channels)
    if not unfit:
        return augment, {}
    if not preprocessing.averaged:
        values, origin = {name: getattr(preprocessing, name) for name in unfit}, preprocessing.origin
    else:
        found = measure(source, channels, reading=reading, seed=seed)
        if not found.images:
            raise DataError(
                f"{source.name}: mean and std of its channels cannot be measured, no image that was tried can be read",
                "sslbench check-data lists them.",
            )
        values, origin = {name: getattr(found, name) for name in unfit}, f"measured on {found.images} images"
        for channel in found.constant:
            log.warning(
                f"channel {channel} (the first is 0) is the same in all of {found.images} images; std 1 is used"
            )
    for name in unfit:
        log.info(f"augment.{name}: {' '.join(f'{value:g}' for value in values[name])} ({origin})")
    return dataclasses.replace(augment, **values), {f"augment.{name}": origin for name in unfit}


def _wrong_lengths(augment: Augment, channels: int) -> list[str]:
    """Return those of mean and std that have another number of values."""
    return [name for name in ("mean", "std") if len(getattr(augment, name)) != channels]


def _check_images(source: Source, reading: Reading, backbone: Backbone, channels: int) -> None:
    """Refuse images with another number of channels."""
    other = first_look(source, channels, reading=reading)
    if other is None:
        return
    path, channels_found = other
    if channels != backbone.preprocessing.channels:
        raise UsageError(
            f"{path} has {_channels(channels_found)}, and the method takes red, green and blue",
            "Convert the channels by your own decoder=my_module.my_function.",
        )
    remedy = "Or convert the channels by your own decoder=my_module.my_function."
    if "in_chans" in backbone.kind.options:
        name = with_channels(backbone.name, channels_found)
        remedy = f"--backbone {name} takes them (--stem maps the stem of --init). {remedy}"
    raise UsageError(f"{path} has {_channels(channels_found)}, and {backbone.name} takes {channels}", remedy)


def _channels(count: int) -> str:
    return f"{count} channel{'' if count == 1 else 's'}"
