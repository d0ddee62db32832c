"""Training of a detector: batches, learning rates, updates, checkpoints, and final BatchNorm statistics."""

import bisect
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sslbench.data.objects.types import ObjectSource
from sslbench.detection.batches import Batch, training_batches
from sslbench.detection.log import IterationMeter, MetricsFile, Watch
from sslbench.detection.models.boxes import Target
from sslbench.detection.models.detector import Detector
from sslbench.detection.recipe import DETR, DetectionRecipe, after_divergence
from sslbench.distributed.collectives import rank, sum_, world_size
from sslbench.distributed.parallel import (
    broadcast_buffers,
    load_module_state,
    load_optimizer_state,
    module_state,
    optimizer_state,
    without_synchronisation,
    wrap,
)
from sslbench.errors import UsageError
from sslbench.runtime.seeds import seeded
from sslbench.runtime.signals import SIGNAL_INTERVAL, signal_on_any_process, stop_signals, stop_together
from sslbench.train import checkpoints
from sslbench.train.lock import exclusive
from sslbench.train.loop import NotFiniteError
from sslbench.train.optimizers.optimizer import OptimizerSettings, set_rates
from sslbench.train.optimizers.optimizer import make_optimizer as make_grouped_optimizer
from sslbench.train.parameter_groups import GroupRates, grouped, norm_parameters, numbered_layers
from sslbench.train.resume import continue_from, newest_whole


def losses_of(
    model: nn.Module, batch: Batch, device: torch.device, *, seed: int, iteration: int, part: int = 0
) -> dict[str, Tensor]:
    """Return the losses by name; the draws of anchors and regions depend on seed, iteration, process and part."""
    source = (seed, iteration, rank(), part) if part else (seed, iteration, rank())
    number = int(np.random.SeedSequence(source).generate_state(1)[0])
    generator = torch.Generator().manual_seed(number)
    images = [image.to(device, non_blocking=True) for image in batch[0]]
    with seeded(number, device):  # stochastic depth takes torch's own random numbers
        return cast(dict[str, Tensor], model(images, [_moved(target, device) for target in batch[1]], generator))


def _moved(target: Target, device: torch.device) -> Target:
    masks, keypoints = (None if part is None else part.to(device) for part in (target.masks, target.keypoints))
    return Target(target.boxes.to(device), target.classes.to(device), masks, keypoints)


def finite_means(
    losses: Mapping[str, Tensor], recipe: DetectionRecipe, iteration: int, folder: Path
) -> dict[str, Tensor]:
    """Return the losses averaged over the processes; all raise alike, before the weights change.

    Raises:
        NotFiniteError: one is NaN or infinite.
    """
    means = sum_(torch.stack([loss.detach().float() for loss in losses.values()])) / world_size()
    if torch.isfinite(means.sum()):
        return dict(zip(losses, means, strict=True))
    bad = ", ".join(name for name, mean in zip(losses, means, strict=True) if not torch.isfinite(mean))
    kept = checkpoints.newest(folder)
    where = f" The last checkpoint, {kept}, is older." if kept else ""
    raise NotFiniteError(
        f"the loss is {float(means.sum())} in iteration {iteration + 1} of {recipe.iterations} ({bad}).{where}",
        after_divergence(recipe),
    )


_KEEP = 2  # checkpoints


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """Settings of a training apart from the recipe.

    Attributes:
        seed: of the order of the images, their sizes and flips, and the regions drawn for the losses.
        device: of the detector.
        workers: processes that decode; 0: this one.
        folder: of the checkpoints.
        save_every: iterations between two of them.
        metrics: file of the log lines; None: no file.
        about: description of the detector in the checkpoints: `saved.About.text`.
    """

    seed: int
    device: torch.device
    workers: int
    folder: Path
    save_every: int
    metrics: Path | None = None
    about: str = ""


@dataclasses.dataclass(frozen=True)
class Trained:
    """Summary of a training.

    Attributes:
        seconds: of this run, without earlier ones that it continued.
        iterations: number of iterations in this run.
        resumed_from: iterations of an earlier run; None for a new training.
    """

    seconds: float
    iterations: int
    resumed_from: int | None


def check_processes(recipe: DetectionRecipe, processes: int) -> None:
    """Raise if the batch cannot be divided among the processes.

    Raises:
        UsageError: the batch cannot be divided.
    """
    parts = processes * recipe.accumulate
    if recipe.batch_size % parts:
        near = max(recipe.batch_size // parts, 1) * parts
        each = f" with accumulate={recipe.accumulate}" if recipe.accumulate > 1 else ""
        raise UsageError(
            f"batch_size={recipe.batch_size} images cannot be divided among {processes} processes{each}",
            f"Give batch_size={near}, or another number of processes.",
        )


def train(detector: Detector, source: ObjectSource, run: TrainingRun, watch: Watch | None = None) -> Trained:
    """Train a detector in place by its recipe; every process calls this.

    A checkpoint is written every `save_every` iterations and after the last; the same call finds the newest one in
    `run.folder` and continues to the same weights as without the interruption.

    Args:
        detector: from `build_detector`, on `run.device`.
        source: the images and objects.
        run: settings of the run.
        watch: called with every line of the log, on the first process.

    Raises:
        UsageError: the batch cannot be divided among the processes, another run uses the folder, or the checkpoint
            cannot be written.
        WeightsError: no checkpoint in the folder is intact, or the processes see different ones.
        DataError: an image cannot be read.
        NotFiniteError: the loss is NaN or infinite; the last checkpoint precedes it.
        StoppedError: SIGTERM, SIGUSR1 or SIGINT came; everything is saved.
    """
    recipe = detector.recipe
    check_processes(recipe, world_size())
    with exclusive(run.folder):
        return _train(detector, source, run, watch)


def _train(detector: Detector, source: ObjectSource, run: TrainingRun, watch: Watch | None) -> Trained:
    recipe = detector.recipe
    optimizer = make_optimizer(detector, recipe)
    resumed = _resume(detector, optimizer, run.folder)
    start = resumed or 0
    began = time.perf_counter()
    if start < recipe.iterations:
        _loop(detector, optimizer, source, run, start, _watchers(run, start, watch))
        broadcast_buffers(detector)
    if recipe.precise_bn:
        share = rank(), world_size()
        stop = recipe.iterations + recipe.precise_bn
        batches = training_batches(
            source, recipe, start=recipe.iterations, stop=stop, seed=run.seed, share=share, workers=run.workers
        )
        precise_statistics(detector, batches, seed=run.seed)
    return Trained(time.perf_counter() - began, recipe.iterations - start, resumed)


def _watchers(run: TrainingRun, start: int, watch: Watch | None) -> list[Watch]:
    """Return the receivers of the log lines: on the first process the file and the caller."""
    if rank() != 0:
        return []
    file = [] if run.metrics is None else [MetricsFile(run.metrics, start=start)]
    return [*file, *([] if watch is None else [watch])]


def _loop(
    detector: Detector,
    optimizer: torch.optim.Optimizer,
    source: ObjectSource,
    run: TrainingRun,
    start: int,
    watchers: list[Watch],
) -> None:
    recipe = detector.recipe
    model = wrap(detector.train(), run.device, "ddp")
    meter = IterationMeter(recipe, start, run.device)
    share = rank(), world_size()
    every = training_batches(
        source, recipe, start=start, stop=recipe.iterations, seed=run.seed, share=share, workers=run.workers
    )
    # Always closed: workers that outlive the loop would block the end of the process.
    with stop_signals() as signal_number, contextlib.closing(every) as batches:  # type: ignore[type-var]
        for iteration, batch in enumerate(batches, start=start):
            set_rates(optimizer, lr=rate(recipe, iteration))
            optimizer.zero_grad(set_to_none=True)
            weights = weights_of_parts(detector, batch, recipe.accumulate, run.device)
            losses = _gradients(model, batch, weights, recipe, run, iteration)
            means = finite_means(losses, recipe, iteration, run.folder)
            if recipe.clip_gradients:
                nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_gradients)
            optimizer.step()
            done, last = iteration + 1, iteration + 1 == recipe.iterations
            if watchers and meter.due(done):
                loss = torch.stack(list(means.values())).sum()
                line = meter.line(done, means, loss, rate(recipe, iteration))
                for watch in watchers:
                    watch(line)
            stop = signal_on_any_process(signal_number, run.device, compare=done % SIGNAL_INTERVAL == 0)
            if stop or last or done % run.save_every == 0:
                _save(detector, optimizer, run, done)
            if stop and not last:
                stop_together(stop, f"iteration {done} of {recipe.iterations}")


def weights_of_parts(detector: Detector, batch: Batch, parts: int, device: torch.device) -> list[Tensor]:
    """Return the weights of the losses of each part of a process's batch: their mean is that of the update.

    Where the losses of a part are divided by a number of its own (`Detector.denominator`), the weights make that the
    sum over all parts of all processes: neither their number nor that of the processes changes the update.

    Args:
        detector: its losses.
        batch: images and targets of the process.
        parts: number of parts of the batch.
        device: of the weights.
    """
    every = world_size() * parts
    if every == 1:
        return [torch.ones((), device=device)]
    images, targets = batch
    size = len(images) // parts
    sizes = [(image.shape[-2], image.shape[-1]) for image in images]
    own = [slice(part * size, (part + 1) * size) for part in range(parts)]
    numbers = [detector.denominator(sizes[one], targets[one]) for one in own]
    if None in numbers:
        return [torch.ones((), device=device)] * parts
    counts = torch.tensor(numbers, dtype=torch.float32, device=device)
    whole = sum_(counts.sum())
    return list(counts.clamp(min=1) * every / whole.clamp(min=1))


def _gradients(
    model: nn.Module,
    batch: Batch,
    weights: Sequence[Tensor],
    recipe: DetectionRecipe,
    run: TrainingRun,
    iteration: int,
) -> dict[str, Tensor]:
    """Add the gradients of a batch, part by weighted part, to those of the parameters; return the losses, detached.

    Only the last part exchanges gradients between processes.
    """
    images, targets = batch
    parts = len(weights)
    size = len(images) // parts
    mean: dict[str, Tensor] = {}
    for part, weight in enumerate(weights):
        own = slice(part * size, (part + 1) * size)
        last = part + 1 == parts
        with contextlib.nullcontext() if last else without_synchronisation(model):
            with torch.autocast(run.device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
                losses = losses_of(
                    model, (images[own], targets[own]), run.device, seed=run.seed, iteration=iteration, part=part
                )
            (torch.stack([loss.float() for loss in losses.values()]).sum() * weight / parts).backward()  # type: ignore[no-untyped-call]
        for name, loss in losses.items():
            share = loss.detach().float() * weight / parts
            mean[name] = mean[name] + share if name in mean else share
    return mean


def _save(detector: Detector, optimizer: torch.optim.Optimizer, run: TrainingRun, done: int) -> None:
    state = {"detector": module_state(detector), "optimizer": optimizer_state(detector, optimizer)}
    if rank() == 0:
        checkpoints.write(run.folder, done, {**state, "about": run.about}, keep=_KEEP)


def _resume(detector: Detector, optimizer: torch.optim.Optimizer, folder: Path) -> int | None:
    found = newest_whole(folder)
    if found is None:
        return None
    path, content = found
    load_module_state(detector, content["detector"])
    load_optimizer_state(detector, optimizer, content["optimizer"])
    done = int(content["step"])
    continue_from(folder, path, done)
    return done


@torch.no_grad()
def precise_statistics(detector: Detector, batches: Iterator[Batch], *, seed: int) -> None:
    """Replace the moving averages of BatchNorm by statistics over many batches (Wu and Johnson 2021, arXiv 2105.07576).

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
        layer.momentum = 1.0  # so that the running statistics are those of the last batch alone
    count = 0
    for number, batch in enumerate(batches):
        losses_of(detector, batch, device, seed=seed, iteration=detector.recipe.iterations + number)
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


def rate(recipe: DetectionRecipe, iteration: int) -> float:
    """Return the learning rate of an iteration (from 0): linear warm-up, times gamma after each step (Detectron2)."""
    value = recipe.lr * recipe.gamma ** bisect.bisect_right(recipe.steps, iteration)
    if iteration >= recipe.warmup_iterations:
        return value
    done = iteration / recipe.warmup_iterations
    return value * (recipe.warmup_factor * (1 - done) + done)


_VIT = "backbone.net."
_UNDECAYED = tuple(_VIT + part for part in ("pos_embed", "cls_token", "reg_token"))
_OFFSETS = (".sampling_offsets.", ".reference_points.")


def make_optimizer(detector: Detector, recipe: DetectionRecipe) -> torch.optim.Optimizer:
    """Return the optimizer over the trained parameters, grouped by weight decay and factor of the learning rate.

    Of a vision transformer the rate of each block is `layer_decay` times that of the block above it, and the positions
    do not decay (ViTDet: Li et al. 2022, arXiv 2203.16527, appendix A.2, with the exceptions of its configuration in
    Detectron2); neither do class and register tokens, which ViTDet has not. `backbone_rate` and `offset_rate` are
    further factors of the rate.

    Raises:
        UsageError: layer_decay for a backbone without transformer blocks, or an optimizer that cannot be built.
    """
    above = _layers_above(detector, recipe.layer_decay) if recipe.layer_decay != 1 else {}
    in_norm = norm_parameters(detector, largest_dim=None)
    trunk = "backbone." if recipe.architecture == "c4" else ("backbone.bottom_up.", _VIT)

    def rates_of(name: str, parameter: nn.Parameter) -> GroupRates:
        decay = recipe.weight_decay_norm if name in in_norm else recipe.weight_decay
        factor = recipe.layer_decay ** above.get(name, 0)
        if name.startswith(trunk):
            factor *= recipe.backbone_rate
        elif recipe.architecture in DETR and any(part in name for part in _OFFSETS):
            factor *= recipe.offset_rate
        return GroupRates(own_weight_decay=0.0 if name in _UNDECAYED else decay, lr_factor=factor)

    trained = [(name, parameter) for name, parameter in detector.named_parameters() if parameter.requires_grad]
    settings = OptimizerSettings(name=recipe.optimizer, lr=recipe.lr, lr_scaling="none", momentum=recipe.momentum)
    return make_grouped_optimizer(grouped(trained, rates_of), settings, fused=False)  # rounds as Detectron2 does


def _layers_above(detector: Detector, layer_decay: float) -> dict[str, int]:
    """Return the number of layers above each parameter of a vision transformer (get_vit_lr_decay_rate)."""
    names = [name for name, _ in detector.named_parameters()]
    if not any(name.startswith(f"{_VIT}blocks.") for name in names):
        raise UsageError(
            f"layer_decay={layer_decay} needs a vision transformer: this backbone has no blocks",
            "Give layer_decay=1.",
        )
    in_network = [f"backbone.{name.removeprefix(_VIT)}" if name.startswith(_VIT) else f"head.{name}" for name in names]
    layers = numbered_layers(in_network)
    last = max(layers.values())
    return {name: last - layer for name, layer in zip(names, layers.values(), strict=True)}
