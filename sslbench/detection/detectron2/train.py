"""Training by Detectron2's own trainer, loader, optimizer and schedule, with sslbench's checkpoints and signals."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from sslbench.data.objects import ObjectSource
from sslbench.detection.detectron2.config import Configured, changed, refusals
from sslbench.detection.detectron2.data import train_loader
from sslbench.detection.detectron2.library import load
from sslbench.detection.recipe import DetectionRecipe, after_divergence
from sslbench.detection.train import IterationMeter, Trained, TrainingRun
from sslbench.distributed.collectives import rank
from sslbench.distributed.parallel import broadcast_buffers, module_state, wrap
from sslbench.errors import UsageError
from sslbench.runtime.signals import SIGNAL_INTERVAL, signal_on_any_process, stop_signals, stop_together
from sslbench.train import checkpoints
from sslbench.train.checkpoints import continue_from, newest_whole
from sslbench.train.lock import exclusive
from sslbench.train.loop import NotFiniteError
from sslbench.weights.reading.folders import newest_checkpoint

_KEEP = 2  # checkpoints
BACKEND = "detectron2"
"""Mark of this backend's checkpoints, which differ from those of the torchvision backend."""


def train(
    model: Any, configuration: Configured, recipe: DetectionRecipe, source: ObjectSource, run: TrainingRun
) -> Trained:
    """Train Detectron2's model in place, with its weights on `run.device`; every process calls this.

    Detectron2 draws from the global random states, which are seeded here; the caller restores them.
    """
    cfg = configuration.cfg
    # The user's d2.KEY=value take precedence.
    recipe = dataclasses.replace(recipe, iterations=cfg.SOLVER.MAX_ITER, batch_size=cfg.SOLVER.IMS_PER_BATCH)
    with exclusive(run.folder):
        checkpoint = newest_whole(run.folder)
        path, content = (None, None) if checkpoint is None else checkpoint
        start = 0 if content is None else int(content["step"])
        if path is not None and content is not None:
            if content.get("backend") != BACKEND:
                raise UsageError(f"{path} was not written by the detectron2 backend", "Remove it to start again.")
            continue_from(run.folder, path, start)
        began = time.perf_counter()
        if content is not None:
            model.load_state_dict(content["model"])
        if start < recipe.iterations:
            # Detectron2's order of images restarts after an interruption; another seed avoids a repetition.
            load("utils.env").seed_all_rng(_seed(run.seed, start, rank()))
            with refusals(configuration.given):
                trainer = _trainer(model, changed(cfg, {"SEED": _seed(run.seed, start, 0)}), source, run)
            if content is not None:
                trainer.load_state_dict(content["trainer"])
            with stop_signals() as signal_number, _not_finite(recipe, run.folder):
                trainer.register_hooks([_last_hook(model, recipe, run, start, signal_number)])
                trainer.train(start, recipe.iterations)
            broadcast_buffers(model)
        return Trained(time.perf_counter() - began, recipe.iterations - start, None if content is None else start)


def _seed(seed: int, start: int, process: int) -> int:
    """Return a process's seed below 2^31; Detectron2 adds the rank only in its own set-up."""
    return (seed * 1_000_003 + start * 1009 + process + 1) % (2**31 - 1)


def _trainer(model: Any, cfg: Any, source: ObjectSource, run: TrainingRun) -> Any:
    """Return Detectron2's SimpleTrainer (AMPTrainer) with the training hooks of its DefaultTrainer."""
    engine, solver = load("engine"), load("solver")
    optimizer = solver.build_optimizer(cfg, model)
    loader = train_loader(source, cfg, workers=run.workers)
    kind = engine.AMPTrainer if cfg.SOLVER.AMP.ENABLED else engine.SimpleTrainer
    # DefaultTrainer's own wrapper names a GPU, which makes it fail on processors.
    trainer = kind(wrap(model, run.device, "ddp"), loader, optimizer)
    # Detectron2 compresses the warm-up of a training that is shorter than it.
    whole = changed(cfg, {"SOLVER.MAX_ITER": max(cfg.SOLVER.MAX_ITER, cfg.SOLVER.WARMUP_ITERS)})
    schedule = engine.hooks.LRScheduler(optimizer, solver.build_lr_scheduler(whole, optimizer))
    hooks = [engine.hooks.IterationTimer(), schedule]
    if cfg.TEST.PRECISE_BN.ENABLED and any(isinstance(m, _BatchNorm) and m.training for m in model.modules()):
        precise = train_loader(source, cfg, workers=0)
        hooks.append(engine.hooks.PreciseBN(0, model, precise, cfg.TEST.PRECISE_BN.NUM_ITER))
    trainer.register_hooks(hooks)
    return trainer


def _last_hook(
    model: Any, recipe: DetectionRecipe, run: TrainingRun, start: int, signal_number: Callable[[], int]
) -> Any:
    """Return the trainer's last hook: log, checkpoints, signals."""
    meter = IterationMeter(recipe, start, run.device)
    watchers = run.watchers(start)

    class Last(load("engine").HookBase):  # type: ignore[misc]
        def after_step(self) -> None:
            done, last = self.trainer.iter + 1, self.trainer.iter + 1 == recipe.iterations
            if watchers and meter.due(done):
                values = {n: float(torch.tensor(v)) for n, (v, _) in self.trainer.storage.latest().items()}
                losses = {n: value for n, value in values.items() if n.startswith("loss_")}
                line = meter.line(done, losses, values["total_loss"], float(values["lr"]))
                for told in watchers:
                    told(line)
            # Comparing costs a collective operation, so not every iteration has one.
            stop = signal_on_any_process(signal_number, run.device, compare=done % SIGNAL_INTERVAL == 0)
            if stop or last or done % run.save_every == 0:
                state = {"backend": BACKEND, "model": module_state(model), "trainer": self.trainer.state_dict()}
                if rank() == 0:
                    checkpoints.write(run.folder, done, {**state, "about": run.about}, keep=_KEEP)
            if stop and not last:
                stop_together(stop, f"iteration {done} of {recipe.iterations}")

    return Last()


@contextlib.contextmanager
def _not_finite(recipe: DetectionRecipe, folder: Path) -> Iterator[None]:
    """Turn Detectron2's FloatingPointError (a loss, box or score is not finite) into a NotFiniteError."""
    try:
        yield
    except FloatingPointError as error:
        kept = newest_checkpoint(folder)
        where = f" The last checkpoint, {kept}, is older." if kept else ""
        raise NotFiniteError(
            f"Detectron2 stopped: {str(error).splitlines()[0]}{where}", after_divergence(recipe)
        ) from error
