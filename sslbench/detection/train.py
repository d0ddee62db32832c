"""Training of a detector: batches, rates, updates, checkpoints; and BatchNorm statistics taken anew at the end."""

import bisect
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sslbench.data.objects import ObjectSource
from sslbench.detection.batches import Batch, training_batches
from sslbench.detection.models.boxes import Target
from sslbench.detection.models.detector import Detector
from sslbench.detection.recipe import DetectionRecipe
from sslbench.distributed.collectives import rank, sum_, world_size
from sslbench.distributed.parallel import (
    broadcast_buffers,
    load_module_state,
    load_optimizer_state,
    module_state,
    optimizer_state,
    wrap,
)
from sslbench.errors import UsageError
from sslbench.train import checkpoints
from sslbench.train.loop import NotFiniteError

log = logging.getLogger("sslbench")

Progress = Callable[[str, int, int], None]
_LINES = 20  # of the log in a whole training
_KEEP = 2  # checkpoints
_FIRST = tuple(f"backbone.net.{part}" for part in ("patch_embed", "pos_embed", "cls_token", "reg_token", "norm_pre"))


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """How a detector is trained, apart from its recipe.

    Attributes:
        seed: of the order of the images, their sizes and flips, and the regions drawn for the losses.
        device: of the detector.
        workers: processes that decode; 0: this one.
        folder: for the checkpoints.
        save_every: iterations between two of them.
    """

    seed: int
    device: torch.device
    workers: int
    folder: Path
    save_every: int


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a training took.

    Attributes:
        seconds: of this run, without earlier ones that it continued.
        iterations: done in this run.
        resumed_from: iterations that an earlier run had done; None when it began anew.
    """

    seconds: float
    iterations: int
    resumed_from: int | None


def check_processes(recipe: DetectionRecipe, processes: int) -> None:
    """Refuses a batch that cannot be divided.

    Raises:
        UsageError: it cannot.
    """
    if recipe.batch_size % processes:
        near = max(recipe.batch_size // processes, 1) * processes
        raise UsageError(
            f"batch_size={recipe.batch_size} images cannot be divided among {processes} processes",
            f"Give batch_size={near}, or another number of processes.",
        )


def train(detector: Detector, source: ObjectSource, run: TrainingRun, progress: Progress | None = None) -> Trained:
    """Trains a detector in place, as its recipe says; every process calls this.

    A checkpoint is written every `save_every` iterations and after the last; the same call finds the newest one in
    `run.folder` and continues to the same weights as without the interruption.

    Args:
        detector: from `build_detector`, on `run.device`.
        source: the images and objects.
        run: see there.
        progress: called with what, images done, images in all.

    Raises:
        UsageError: the batch cannot be divided among the processes, or the checkpoint cannot be written.
        DataError: an image cannot be read.
        NotFiniteError: the loss is NaN or infinite; the last checkpoint is from before.
    """
    recipe = detector.recipe
    check_processes(recipe, world_size())
    optimizer = make_optimizer(detector, recipe)
    resumed = _resume(detector, optimizer, run.folder)
    start = resumed or 0
    began = time.perf_counter()
    if start < recipe.iterations:
        _loop(detector, optimizer, source, run, start, progress)
        broadcast_buffers(detector)
    if recipe.precise_bn:
        share = rank(), world_size()
        stop = recipe.iterations + recipe.precise_bn
        batches = training_batches(
            source, recipe, start=recipe.iterations, stop=stop, seed=run.seed, share=share, workers=run.workers
        )
        precise_statistics(detector, batches, seed=run.seed)
    return Trained(time.perf_counter() - began, recipe.iterations - start, resumed)


def rate(recipe: DetectionRecipe, iteration: int) -> float:
    """The learning rate of an iteration (counted from 0): linear warm-up, times gamma after each step (Detectron2)."""
    value = recipe.lr * recipe.gamma ** bisect.bisect_right(recipe.steps, iteration)
    if iteration >= recipe.warmup_iterations:
        return value
    done = iteration / recipe.warmup_iterations
    return value * (recipe.warmup_factor * (1 - done) + done)


def make_optimizer(detector: Detector, recipe: DetectionRecipe) -> torch.optim.Optimizer:
    """SGD or AdamW over all that is trained, in groups of one weight decay and one factor of the rate.

    Raises:
        UsageError: layer_decay for a backbone without transformer blocks.
    """
    names = [name for name, _ in detector.named_parameters()]
    blocks = {int(n.split(".")[3]) for n in names if n.startswith("backbone.net.blocks.")}
    if recipe.layer_decay != 1 and not blocks:
        raise UsageError(
            f"layer_decay={recipe.layer_decay} is for vision transformers: this backbone has no blocks",
            "Give layer_decay=1.",
        )
    in_norm = {
        f"{prefix}.{leaf}"
        for prefix, layer in detector.named_modules()
        if "norm" in type(layer).__name__.lower()
        for leaf, _ in layer.named_parameters(recurse=False)
    }
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in detector.named_parameters():
        if parameter.requires_grad:
            decay = recipe.weight_decay_norm if name in in_norm else recipe.weight_decay
            factor = recipe.layer_decay ** _layers_above(name, len(blocks))
            groups.setdefault((decay, factor), []).append(parameter)
    keys = sorted(groups)
    options = [{"params": groups[key], "weight_decay": key[0], "lr_factor": key[1]} for key in keys]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(options, lr=recipe.lr)
    return torch.optim.SGD(options, lr=recipe.lr, momentum=recipe.momentum)


def _layers_above(name: str, blocks: int) -> int:
    """How many layers lie above a parameter: transformer blocks, and one for the rest (get_vit_lr_decay_rate)."""
    if name.startswith("backbone.net.blocks."):
        return blocks - int(name.split(".")[3])
    return blocks + 1 if name.startswith(_FIRST) else 0


def _loop(
    detector: Detector,
    optimizer: torch.optim.Optimizer,
    source: ObjectSource,
    run: TrainingRun,
    start: int,
    progress: Progress | None,
) -> None:
    recipe = detector.recipe
    model = wrap(detector.train(), run.device, "ddp")
    batches = training_batches(
        source,
        recipe,
        start=start,
        stop=recipe.iterations,
        seed=run.seed,
        share=(rank(), world_size()),
        workers=run.workers,
    )
    every = max(recipe.iterations // _LINES, 1)
    for iteration, batch in enumerate(batches, start=start):
        for group in optimizer.param_groups:
            group["lr"] = rate(recipe, iteration) * group["lr_factor"]
        losses = _losses(model, batch, run.device, run.seed, iteration)
        total = torch.stack(list(losses.values())).sum()
        _check_finite(losses, total, recipe, iteration, run.folder)
        optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        done = iteration + 1
        if done % every == 0 or done == recipe.iterations:
            log.info(_line(done, recipe, losses, total))
        if progress is not None:
            progress("training the detector", done * recipe.batch_size, recipe.iterations * recipe.batch_size)
        if done % run.save_every == 0 or done == recipe.iterations:
            _save(detector, optimizer, run.folder, done)


def _losses(model: nn.Module, batch: Batch, device: torch.device, seed: int, iteration: int) -> dict[str, Tensor]:
    """Which anchors and regions are drawn follows from seed, iteration and process."""
    number = int(np.random.SeedSequence((seed, iteration, rank())).generate_state(1)[0])
    generator = torch.Generator().manual_seed(number)
    images = [image.to(device, non_blocking=True) for image in batch[0]]
    return cast(dict[str, Tensor], model(images, [_moved(target, device) for target in batch[1]], generator))


def _moved(target: Target, device: torch.device) -> Target:
    masks = None if target.masks is None else target.masks.to(device)
    return Target(target.boxes.to(device), target.classes.to(device), masks)


def _check_finite(
    losses: dict[str, Tensor], total: Tensor, recipe: DetectionRecipe, iteration: int, folder: Path
) -> None:
    """Every process comes to the same verdict, before the weights are touched."""
    mean = sum_(total.detach().clone())
    if torch.isfinite(mean):
        return
    bad = ", ".join(name for name, value in losses.items() if not torch.isfinite(value)) or "that of another process"
    kept = checkpoints.newest(folder)
    where = f" The last checkpoint, {kept}, is from before." if kept else ""
    raise NotFiniteError(
        f"the loss is {float(mean)} in iteration {iteration + 1} of {recipe.iterations} ({bad}).{where}",
        f"Try a lower rate (lr={recipe.lr:g} now) or a longer warm-up (warmup_iterations={recipe.warmup_iterations} "
        "now); or are these the weights that you meant?",
    )


def _line(done: int, recipe: DetectionRecipe, losses: dict[str, Tensor], total: Tensor) -> str:
    parts = ", ".join(f"{name.removeprefix('loss_')} {float(value.detach()):.3f}" for name, value in losses.items())
    return (
        f"iteration {done} of {recipe.iterations}: loss {float(total.detach()):.3f} ({parts}), "
        f"lr {rate(recipe, done - 1):.3g}"
    )


def _save(detector: Detector, optimizer: torch.optim.Optimizer, folder: Path, done: int) -> None:
    state = {"detector": module_state(detector), "optimizer": optimizer_state(detector, optimizer)}
    if rank() == 0:
        checkpoints.write(folder, done, state, keep=_KEEP)


def _resume(detector: Detector, optimizer: torch.optim.Optimizer, folder: Path) -> int | None:
    found = checkpoints.newest(folder)
    if rank() == 0:
        checkpoints.remove_leftovers(folder)
    if found is None:
        return None
    content = checkpoints.read(found)
    load_module_state(detector, content["detector"])
    load_optimizer_state(detector, optimizer, content["optimizer"])
    log.info(f"continues from {found}, after {content['step']} of {detector.recipe.iterations} iterations")
    return int(content["step"])


@torch.no_grad()
def precise_statistics(detector: Detector, batches: Iterator[Batch], *, seed: int) -> None:
    """BatchNorm statistics over many batches in place of the moving average (Wu and Johnson 2021, arXiv 2105.07576).

    The mean is that over the batches, the variance the mean of theirs plus the variance of their means (section 3.2).
    Nothing happens if every BatchNorm is frozen.
    """
    layers = [m for m in detector.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not layers:
        return
    before = [layer.momentum for layer in layers]
    device = next(detector.parameters()).device
    means = [torch.zeros_like(cast(Tensor, layer.running_mean)) for layer in layers]
    squares, variances = [m.clone() for m in means], [m.clone() for m in means]
    detector.train()
    for layer in layers:
        layer.momentum = 1.0  # so that the running values are those of the last batch alone
    count = 0
    for number, batch in enumerate(batches):
        _losses(detector, batch, device, seed, detector.recipe.iterations + number)
        count += 1
        for layer, mean, square, variance in zip(layers, means, squares, variances, strict=True):
            mean += cast(Tensor, layer.running_mean)
            square += cast(Tensor, layer.running_mean) ** 2
            variance += cast(Tensor, layer.running_var)
    total = count * world_size()
    for i, layer in enumerate(layers):
        layer.momentum = before[i]
        mean, square, variance = (sum_(x[i]) / total for x in (means, squares, variances))
        cast(Tensor, layer.running_mean).copy_(mean)
        cast(Tensor, layer.running_var).copy_(variance + square - mean**2)
