"""Training of a detector: batches, rates, updates, checkpoints; and BatchNorm statistics taken anew at the end."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import torch

from sslbench.data.objects import ObjectSource
from sslbench.detection.batches import training_batches
from sslbench.detection.log import Meter, MetricsFile, Watch
from sslbench.detection.models.detector import Detector
from sslbench.detection.optimizer import make_optimizer, rate
from sslbench.detection.precise_bn import precise_statistics
from sslbench.detection.recipe import DetectionRecipe
from sslbench.detection.step import finite_mean, losses_of
from sslbench.distributed.collectives import max_, rank, world_size
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
from sslbench.train.lock import exclusive
from sslbench.train.loop import SIGNAL_CHECK, StoppedError
from sslbench.train.resume import continue_from, newest_whole
from sslbench.train.signals import stop_signals

_KEEP = 2  # checkpoints


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """How a detector is trained, apart from its recipe.

    Attributes:
        seed: of the order of the images, their sizes and flips, and the regions drawn for the losses.
        device: of the detector.
        workers: processes that decode; 0: this one.
        folder: for the checkpoints.
        save_every: iterations between two of them.
        metrics: file for the lines of the log; None for none.
        about: stands in the checkpoints and says whose they are: `saved.About.text`.
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


def train(detector: Detector, source: ObjectSource, run: TrainingRun, watch: Watch | None = None) -> Trained:
    """Trains a detector in place, as its recipe says; every process calls this.

    A checkpoint is written every `save_every` iterations and after the last; the same call finds the newest one in
    `run.folder` and continues to the same weights as without the interruption.

    Args:
        detector: from `build_detector`, on `run.device`.
        source: the images and objects.
        run: see there.
        watch: told of every line of the log, on the first process.

    Raises:
        UsageError: the batch cannot be divided among the processes, another run uses the folder, or the checkpoint
            cannot be written.
        WeightsError: no checkpoint in the folder is whole, or the processes see different ones.
        DataError: an image cannot be read.
        NotFiniteError: the loss is NaN or infinite; the last checkpoint is from before.
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
    """Who is told of the lines: on the first process the file and the caller."""
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
    meter = Meter(recipe, start, run.device)
    share = rank(), world_size()
    every = training_batches(
        source, recipe, start=start, stop=recipe.iterations, seed=run.seed, share=share, workers=run.workers
    )
    # Closed whatever happens: workers that outlive the loop would hold up the end of the process.
    with stop_signals() as signal_number, contextlib.closing(every) as batches:  # type: ignore[type-var]
        for iteration, batch in enumerate(batches, start=start):
            for group in optimizer.param_groups:
                group["lr"] = rate(recipe, iteration) * group["lr_factor"]
            losses = losses_of(model, batch, run.device, seed=run.seed, iteration=iteration)
            total = torch.stack(list(losses.values())).sum()
            mean = finite_mean(losses, total, recipe, iteration, run.folder)
            optimizer.zero_grad(set_to_none=True)
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done, last = iteration + 1, iteration + 1 == recipe.iterations
            if watchers and meter.due(done):
                line = meter.line(done, losses, mean, rate(recipe, iteration))
                for watch in watchers:
                    watch(line)
            stop = _signalled(signal_number, done, run.device)
            if stop or last or done % run.save_every == 0:
                _save(detector, optimizer, run, done)
            if stop and not last:
                _stop(stop, done, recipe)


def _stop(signal: int, done: int, recipe: DetectionRecipe) -> None:
    raise StoppedError(
        f"stopped by signal {signal} after iteration {done} of {recipe.iterations}; everything is saved",
        "Run the same command again to continue.",
        128 + signal,
    )


def _signalled(signal_number: Callable[[], int], done: int, device: torch.device) -> int:
    """The signal that any process got; several processes only compare now and then."""
    if world_size() == 1:
        return signal_number()
    return 0 if done % SIGNAL_CHECK else int(max_(torch.tensor(signal_number(), device=device)))


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
