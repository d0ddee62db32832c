"""Training of a detector: batches, learning rates, updates, checkpoints, and final BatchNorm statistics."""

import bisect
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from sslbench.detection.recipe import DETR, DetectionRecipe, after_divergence
from sslbench.distributed.collectives import rank, sum_, world_size
from sslbench.distributed.parallel import broadcast_buffers, wrap
from sslbench.errors import UsageError
from sslbench.runtime.seeds import seeded
from sslbench.runtime.signals import stop_signals
from sslbench.train import loop
from sslbench.train.lock import exclusive
from sslbench.train.loop import NotFiniteError, RateSchedules, TrainingPlan
from sslbench.train.meter import LogRecord
from sslbench.train.method import Learner, Loss, Step
from sslbench.train.observers import Observer, RunInfo
from sslbench.train.observers.json_lines import JsonLines
from sslbench.train.optimizers.optimizer import OptimizerSettings
from sslbench.train.optimizers.optimizer import make_optimizer as make_grouped_optimizer
from sslbench.train.parameter_groups import GroupRates, grouped, norm_parameters, numbered_layers
from sslbench.train.state import State, resume, save
from sslbench.weights.reading.folders import newest_checkpoint

_LINES = 100  # log lines per training, if it has that many iterations
_FEWEST = 20  # largest number of iterations between two lines


@dataclasses.dataclass(frozen=True)
class DetectionLogLine:
    """State of a training after an iteration.

    Attributes:
        iteration: number of completed iterations.
        iterations: total number.
        loss: of this iteration, averaged over the processes.
        parts: terms of the loss, averaged likewise.
        lr: learning rate.
        per_second: iterations per second since the previous line.
        images_per_second: likewise, over all processes.
        left: estimated seconds to the end, from this run's iterations.
        memory: peak GPU memory in bytes; None on a CPU.
    """

    iteration: int
    iterations: int
    loss: float
    parts: Mapping[str, float]
    lr: float
    per_second: float
    images_per_second: float
    left: float
    memory: int | None

    def summary(self, *, whole: bool = True) -> str:
        """Return 'loss 1.302 (rpn_cls 0.638, rpn_loc 0.060, cls 0.572, box_reg 0.031)  lr 0.01  4.5 it/s'."""
        parts = " (" + ", ".join(f"{name} {value:.3f}" for name, value in self.parts.items()) + ")" if whole else ""
        pace = f"{self.per_second:.2g} it/s" if self.per_second < 10 else f"{self.per_second:.0f} it/s"
        memory = "" if self.memory is None else f"  {self.memory / 2**30:.1f} GiB"
        return f"loss {self.loss:.3f}{parts}  lr {self.lr:.3g}  {pace}{memory}"

    def record(self) -> dict[str, float | int]:
        """Return the line as NAME.metrics.jsonl has it."""
        memory = {} if self.memory is None else {"memory": self.memory}
        values = {"step": self.iteration, "loss": self.loss, "lr": self.lr, **self.parts}
        return {**values, "images_per_second": self.images_per_second, **memory}


Watch = Callable[[DetectionLogLine], None]


class IterationMeter:
    """Schedule of the log lines, and their clock."""

    def __init__(self, recipe: DetectionRecipe, start: int, device: torch.device) -> None:
        self.recipe, self.start, self.device = recipe, start, device
        self.every = max(min(recipe.iterations // _LINES, _FEWEST), 1)
        self.began = self.last = time.perf_counter()
        self.reported = start

    def due(self, done: int) -> bool:
        """Return whether a line is due after `done` iterations."""
        return done % self.every == 0 or done == self.recipe.iterations

    def line(self, done: int, losses: Mapping[str, float], mean: float, lr: float) -> DetectionLogLine:
        """Return the line of the iteration that just ended."""
        now, total = time.perf_counter(), self.recipe.iterations
        per_second = (done - self.reported) / max(now - self.last, 1e-9)
        left = (now - self.began) / (done - self.start) * (total - done)
        self.last, self.reported = now, done
        return DetectionLogLine(
            iteration=done,
            iterations=total,
            loss=mean,
            parts={name.removeprefix("loss_"): value for name, value in losses.items()},
            lr=lr,
            per_second=per_second,
            images_per_second=per_second * self.recipe.batch_size,
            left=left,
            memory=torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None,
        )


def losses_of(
    model: nn.Module, batch: Batch, device: torch.device, *, seed: int, iteration: int, part: int = 0
) -> dict[str, Tensor]:
    """Return the losses by name; the draws of anchors and regions depend on seed, iteration, process and part."""
    source = (seed, iteration, rank(), part) if part else (seed, iteration, rank())
    number = int(np.random.SeedSequence(source).generate_state(1)[0])
    generator = torch.Generator().manual_seed(number)
    images = [image.to(device, non_blocking=True) for image in batch[0]]
    targets = []
    for target in batch[1]:
        masks, points = (None if part is None else part.to(device) for part in (target.masks, target.keypoints))
        targets.append(Target(target.boxes.to(device), target.classes.to(device), masks, points))
    with seeded(number, device):  # stochastic depth takes torch's own random numbers
        return cast(dict[str, Tensor], model(images, targets, generator))


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
        about: description of the detector in the checkpoints: `DetectorDescription.text`.
        watch: called with every line of the log, on the first process.
        observers: of the torchvision backend's training, on the first process.
        logs: folder of the observers.
    """

    seed: int
    device: torch.device
    workers: int
    folder: Path
    save_every: int
    metrics: Path | None = None
    about: str = ""
    watch: Watch | None = None
    observers: Sequence[Observer] = ()
    logs: Path = Path()

    def watchers(self, start: int) -> list[Watch]:
        """Return the receivers of the log of iterations after `start`: none on processes other than the first."""
        if rank() != 0:
            return []
        receivers: list[Watch] = [] if self.watch is None else [self.watch]
        if self.metrics is not None:
            self.metrics.parent.mkdir(parents=True, exist_ok=True)
            file = JsonLines(self.metrics)
            file.keep_until(start)
            receivers.insert(0, lambda line: file.append(line.record()))
        return receivers


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
    """Raise if the batch cannot be divided among the processes."""
    parts = processes * recipe.accumulate
    if recipe.batch_size % parts:
        near = max(recipe.batch_size // parts, 1) * parts
        each = f" with accumulate={recipe.accumulate}" if recipe.accumulate > 1 else ""
        raise UsageError(
            f"batch_size={recipe.batch_size} images cannot be divided among {processes} processes{each}",
            f"Give batch_size={near}, or another number of processes.",
        )


def train(detector: Detector, source: ObjectSource, run: TrainingRun) -> Trained:
    """Train a detector in place by its recipe; every process calls this.

    A checkpoint is written every `save_every` iterations and after the last; the same call finds the newest one in
    `run.folder` and continues to the same weights as without the interruption.

    Args:
        detector: from `build_detector`, on `run.device`.
        source: the images and objects.
        run: settings of the run.

    Raises:
        UsageError: the batch cannot be divided among the processes, another run uses the folder, or the checkpoint
            cannot be written.
        WeightsError: no checkpoint in the folder is intact, or the processes see different ones.
        DataError: an image cannot be read.
        NotFiniteError: the loss is NaN or infinite; the last checkpoint precedes it.
        StoppedError: SIGTERM, SIGUSR1 or SIGINT came; everything is saved.
    """
    recipe, share = detector.recipe, (rank(), world_size())
    check_processes(recipe, world_size())
    batches = functools.partial(training_batches, source, recipe, seed=run.seed, share=share, workers=run.workers)
    with exclusive(run.folder):
        training = _DetectorTraining(detector, run)
        state = training.state
        resumed = state.step if resume(state, run.folder) is not None else None
        start = state.step
        began = time.perf_counter()
        if start < recipe.iterations:
            training.started()
            plan = TrainingPlan(  # its updates are the iterations
                steps=recipe.iterations,
                per_epoch=recipe.iterations,
                rates=RateSchedules(lambda where: rate(recipe, round(where * recipe.iterations)), recipe.lr),
                accumulate=recipe.accumulate,
                clip_norm=recipe.clip_gradients or None,
                precision=recipe.precision,
                log_every=training.meter.every,
                save_every=run.save_every,
            )
            # Always closed: workers that outlive the loop would block the end of the process.
            stream = contextlib.closing(batches(start=start, stop=recipe.iterations))  # type: ignore[type-var]
            with stop_signals() as signal_number, stream as images:
                loop.train(state, plan, images, training, signal_number)
            broadcast_buffers(detector)
            for observer in training.observers:
                observer.finished()
        if recipe.precise_bn:
            further = batches(start=recipe.iterations, stop=recipe.iterations + recipe.precise_bn)
            precise_statistics(detector, further, seed=run.seed)
        return Trained(time.perf_counter() - began, recipe.iterations - start, resumed)


Pass = tuple[list[Tensor], list[Target], Tensor, int]


class _DetectorTraining(Learner, loop.Run[Batch]):
    """Training of a detector: the parts of a batch, with weights that make them one."""

    stored_as = "detector"
    draws = False  # anchors, regions and dropout are drawn from the seed and the iteration

    def __init__(self, detector: Detector, run: TrainingRun) -> None:
        super().__init__()
        self.detector, self.run = detector, run
        self.state = State(self.train(), self, make_optimizer(detector, detector.recipe))

    @property
    def stored(self) -> Detector:
        """The detector."""
        return self.detector

    def started(self) -> None:
        """Start the clock and the observers."""
        recipe, start = self.detector.recipe, self.state.step
        self.state.model = wrap(self, self.run.device, "ddp")
        self.meter = IterationMeter(recipe, start, self.run.device)
        self.watchers = self.run.watchers(start)
        self.observers = self.run.observers if rank() == 0 else ()
        for observer in self.observers:
            self.run.logs.mkdir(parents=True, exist_ok=True)
            observer.started(
                RunInfo(self.run.logs, self.detector, recipe.iterations, recipe.iterations, start, recipe.batch_size)
            )

    def passes(self, raw: Batch) -> Iterator[Pass]:
        """Yield the parts of a batch, with weight and number."""
        images, targets = raw
        parts = self.detector.recipe.accumulate
        size = len(images) // parts
        for part, weight in enumerate(weights_of_parts(self.detector, raw, parts, self.run.device)):
            own = slice(part * size, (part + 1) * size)
            yield images[own], targets[own], weight, part

    def loss(self, batch: Pass, step: Step) -> Loss:
        """Return the weighted sum of the losses of a part."""
        images, targets, weight, part = batch
        losses = losses_of(
            self.detector, (images, targets), self.run.device, seed=self.run.seed, iteration=step.index, part=part
        )
        value = torch.stack([loss.float() for loss in losses.values()]).sum() * weight
        return Loss(value, parts={name: loss.detach().float() * weight for name, loss in losses.items()})

    def joined(self, losses: Sequence[Loss], passes: int) -> Loss:
        """Return the losses of an iteration, each the mean over processes of the sum of its parts."""
        mean: dict[str, Tensor] = {}
        for loss in losses:
            for name, part in loss.parts.items():
                mean[name] = mean[name] + part / passes if name in mean else part / passes
        means = sum_(torch.stack(list(mean.values()))) / world_size()
        return Loss(means.sum(), parts=dict(zip(mean, means, strict=True)))

    def log(self, line: LogRecord) -> None:
        """Give a line to the watchers and the observers."""
        if self.watchers:
            shown = self.meter.line(line.step, line.parts, line.loss, line.lr)
            for watch in self.watchers:
                watch(shown)
        for observer in self.observers:
            observer.line(line)

    def save(self) -> None:
        """Write a checkpoint that describes its detector."""
        save(self.state, self.run.folder, keep=_KEEP, about=self.run.about)

    def diverged(self, raw: Batch, step: Step, loss: Loss, own: float, mean: float) -> None:
        """Name the losses that are not finite."""
        recipe = self.detector.recipe
        bad = ", ".join(name for name, part in loss.parts.items() if not torch.isfinite(part))
        kept = newest_checkpoint(self.run.folder)
        where = f" The last checkpoint, {kept}, is older." if kept else ""
        raise NotFiniteError(
            f"the loss is {mean} in iteration {step.index + 1} of {recipe.iterations} ({bad}).{where}",
            after_divergence(recipe),
        )


def weights_of_parts(detector: Detector, batch: Batch, parts: int, device: torch.device) -> list[Tensor]:
    """Return the weights of the losses of each part of a process's batch: their mean is that of the update."""
    # Where the losses of a part are divided by a number of its own (`Detector.denominator`), the weights make that the
    # sum over all parts of all processes: neither their number nor that of the processes changes the update.
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


@torch.no_grad()
def precise_statistics(detector: Detector, batches: Iterator[Batch], *, seed: int) -> None:
    """Replace BatchNorm's moving averages by statistics over many batches (Wu and Johnson 2021, arXiv 2105.07576)."""
    # The mean is that over the batches, the variance the mean of theirs plus the variance of their means (section 3.2).
    # Nothing happens if every BatchNorm is frozen.
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

    Raises:
        UsageError: layer_decay for a backbone without transformer blocks, or an optimizer that cannot be built.
    """
    # Of a vision transformer the rate of each block is `layer_decay` times that of the block above it, and the
    # positions do not decay (ViTDet: Li et al. 2022, arXiv 2203.16527, appendix A.2, with the exceptions of its
    # configuration in Detectron2); neither do class and register tokens, which ViTDet has not. `backbone_rate` and
    # `offset_rate` are further factors of the rate.
    above: dict[str, int] = {}  # number of layers above a parameter (get_vit_lr_decay_rate)
    if recipe.layer_decay != 1:
        names = [name for name, _ in detector.named_parameters()]
        if not any(name.startswith(f"{_VIT}blocks.") for name in names):
            raise UsageError(
                f"layer_decay={recipe.layer_decay} needs a vision transformer: this backbone has no blocks",
                "Give layer_decay=1.",
            )
        layers = numbered_layers(
            [f"backbone.{name.removeprefix(_VIT)}" if name.startswith(_VIT) else f"head.{name}" for name in names]
        )
        last = max(layers.values())
        above = {name: last - layer for name, layer in zip(names, layers.values(), strict=True)}
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
