"""Training of a backbone with a classifier on labelled images."""

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from sslbench.backbones.backbone import Backbone, copied
from sslbench.backbones.classifier import ClassifierHead
from sslbench.backbones.layers import Layer
from sslbench.data.loading.batch import RawBatch
from sslbench.data.loading.probing import EpochBatches
from sslbench.data.source import Source
from sslbench.distributed.collectives import rank, world_size
from sslbench.distributed.parallel import broadcast_buffers, module_state, structure_from_first
from sslbench.errors import UsageError
from sslbench.features.array import ExtractSettings
from sslbench.protocols._parts.attention import attention_of
from sslbench.protocols._parts.images import evaluation_side, unreadable_images
from sslbench.protocols.finetune.network import FinetunedNetwork, Targets, feature_width, layer_numbers, make_network
from sslbench.protocols.finetune.plan import CHECKPOINTS, make_batches
from sslbench.protocols.finetune.settings import NAME, Rates, Settings, optimizer_settings
from sslbench.runtime.device import check_precision
from sslbench.runtime.progress import StageProgress
from sslbench.runtime.signals import stop_signals
from sslbench.train import loop
from sslbench.train.lock import exclusive
from sslbench.train.loop import NotFiniteError, RateSchedules, TrainingPlan
from sslbench.train.meter import LogRecord
from sslbench.train.method import Setup
from sslbench.train.observers import Observer, RunInfo
from sslbench.train.observers.always import requested
from sslbench.train.optimizers.optimizer import scaled_lr
from sslbench.train.schedules import scaled
from sslbench.train.state import State, new_state, resume, save
from sslbench.train.views import RunOnViews
from sslbench.weights.fill import fill

log = logging.getLogger("sslbench")

LOG_EVERY = 10  # updates
LINE_SECONDS = 30.0  # between log lines


@dataclasses.dataclass(frozen=True)
class Finetuned:
    """Finetuned network, on the CPU, in evaluation mode and without gradients.

    Attributes:
        head: classifier on the pooled features of the layer.
        epochs: length of the training.
        notes: remarks on the training.
    """

    backbone: Backbone
    head: ClassifierHead
    epochs: float
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PreparedTraining:
    """Data and length of a training.

    Attributes:
        data: batches of the training samples.
        side: side of the views in pixels.
        width: dimension of the features.
        probe: number of updates at the start that train the head only.
        factor: factor of the learning rates as a function of the progress in [0, 1].
    """

    data: EpochBatches
    side: int
    width: int
    updates: int
    probe: int
    factor: Callable[[float], float]

    @property
    def epochs(self) -> float:
        """Length of the training in epochs."""
        return self.updates / self.data.steps_per_epoch


def prepare(
    backbone: Backbone, layer: Layer, fit: Source, settings: Settings, *, seed: int, engine: ExtractSettings | None
) -> PreparedTraining:
    """Return data and length of a training, after all checks; at most one image is decoded."""
    side = evaluation_side(fit, backbone.preprocessing, NAME)
    size = settings.size or side
    channels = backbone.preprocessing.channels
    width = feature_width(backbone.module, layer, (size, side), channels, name=backbone.name)
    data = make_batches(fit, backbone.preprocessing, settings, size, seed=seed, engine=engine)
    updates = settings.updates or max(1, round(settings.epochs * data.steps_per_epoch))
    probe = round(settings.probe_epochs * data.steps_per_epoch)
    if settings.updates is not None:
        probe = int(settings.probe_epochs / settings.epochs * updates)
    if probe >= updates:
        raise UsageError(
            f"finetune: probe_epochs={settings.probe_epochs:g} are {probe:,} updates, of {updates:,} in all",
            "Give fewer, or more epochs; linear-online trains heads alone.",
        )
    return PreparedTraining(data, size, width, updates, probe, settings.rate_schedule(updates / data.steps_per_epoch))


def finetune(  # noqa: PLR0913  network, data, settings and how it runs
    backbone: Backbone,
    layer: Layer,
    fit: Source,
    rates: Rates,
    settings: Settings,
    *,
    seed: int,
    engine: ExtractSettings,
    folder: Path,
    logs: Path,
    progress: StageProgress | None,
) -> Finetuned:
    """Train a copy of the backbone with a new head; every process of a run calls this.

    `backbone`: pretrained network; a copy of it is trained; `folder`: folder of the checkpoints; the same call
    continues from the newest.
    """
    prepared = prepare(backbone, layer, fit, settings, seed=seed, engine=engine)
    check_precision(
        engine.float_precision(),
        engine.device,
        backbone.module,
        prepared.side,
        channels=backbone.preprocessing.channels,
    )
    data = prepared.data
    targets = Targets.of(fit.target)
    setup = Setup(
        feature_dim=prepared.width,
        sizes=(prepared.side,),
        batch_size=data.batch_size // world_size() // settings.accumulate,
        images_per_update=data.batch_size,
        world=world_size(),
        samples=len(fit),
        classes=len(fit.target.classes),
        steps=prepared.updates,
        steps_per_epoch=data.steps_per_epoch,
        backbone=backbone.name,
        channels=backbone.preprocessing.channels,
    )
    make = functools.partial(
        make_network, backbone, layer, targets, settings, setup, probe=prepared.probe, side=prepared.side, seed=seed
    )
    network = structure_from_first(make) if settings.strategy == "fsdp" else make()
    options = optimizer_settings(settings, rates, targets.kind)
    peak = scaled_lr(options, data.batch_size)
    plan = TrainingPlan(
        steps=prepared.updates,
        per_epoch=data.steps_per_epoch,
        rates=RateSchedules(scaled(prepared.factor, peak), peak),
        normalisation=backbone.preprocessing,
        accumulate=settings.accumulate,
        clip_norm=settings.clip_norm,
        precision=engine.float_precision(),
        average_decay=settings.ema or 0.0,
        frozen={"backbone.": prepared.probe} if prepared.probe else {},
        log_every=LOG_EVERY,
        save_every=max(data.steps_per_epoch, -(-prepared.updates // CHECKPOINTS)),
    )
    if plan.average_note and rank() == 0:
        log.warning(f"finetune: {plan.average_note}")
    with exclusive(folder):
        state = new_state(
            network,
            engine.device,
            options,
            seed=seed,
            precision=engine.float_precision(),
            strategy=settings.strategy,
            averaged=settings.ema is not None,
            layers=_depths(backbone, network, settings),
        )
        config = dataclasses.asdict(settings) | dataclasses.asdict(rates)
        observers = requested(settings, logs, config) if rank() == 0 else []
        run = _Training(state, plan, fit, data, folder, observers, progress)
        resume(state, folder)
        if observers:
            logs.mkdir(parents=True, exist_ok=True)
        info = RunInfo(logs, network, plan.steps, plan.per_epoch, state.step, data.batch_size)
        for observer in observers:
            observer.started(info)
        run.train(backbone, engine)
        for observer in observers:
            observer.finished()
    notes = (plan.average_note,) if plan.average_note else ()
    return _trained(state, backbone, network, targets, prepared.epochs, notes)


def _depths(backbone: Backbone, network: FinetunedNetwork, settings: Settings) -> dict[str, int] | None:
    """Return the depth of each parameter of the network; None without layer-wise learning rates."""
    if settings.layer_decay is None:
        return None
    layers = layer_numbers(backbone)
    return {
        name: layers.backbone[name.removeprefix("backbone.")] if name.startswith("backbone.") else layers.head
        for name, _ in network.named_parameters()
    }


class _Training(RunOnViews):
    """Training in progress."""

    def __init__(
        self,
        state: State,
        plan: TrainingPlan,
        source: Source,
        data: EpochBatches,
        folder: Path,
        observers: Sequence[Observer],
        progress: StageProgress | None,
    ) -> None:
        super().__init__(plan, source.ids, folder)
        self.state, self.source, self.data, self.folder = state, source, data, folder
        self.observers, self.progress = observers, progress
        self.reported = time.perf_counter()

    def train(self, backbone: Backbone, engine: ExtractSettings) -> None:
        """Train to the end of the plan."""
        batches = contextlib.closing(self.data.batches(self.state.step, self.plan.steps))
        with stop_signals() as signal_number, batches as stream:

            def readable() -> Iterator[RawBatch]:
                for (batch,) in stream:
                    if batch.unreadable:
                        raise unreadable_images(self.source, backbone.preprocessing, engine)
                    yield batch

            try:
                loop.train(self.state, self.plan, readable(), self, signal_number)
            except NotFiniteError as error:
                raise NotFiniteError(
                    f"finetune: {error.message}", "Give a lower lr, warmup_epochs or clip_norm."
                ) from error

    def log(self, line: LogRecord) -> None:
        """Give a log record to the observers, and tell the progress."""
        for observer in self.observers:
            observer.line(line)
        size, last = self.data.batch_size, line.step == self.plan.steps
        if self.progress is not None:
            self.progress(line.step * size, self.plan.steps * size)
        now = time.perf_counter()
        if last or now - self.reported > LINE_SECONDS:
            self.reported = now
            parts = "".join(f", {name} {value:.4g}" for name, value in line.parts.items())
            log.info(
                f"epoch {line.epoch:.3g} of {self.plan.steps / self.plan.per_epoch:.3g}, update {line.step} of "
                f"{self.plan.steps}: loss {line.loss:.4g}{parts}, lr {line.lr:.3g}"
            )

    def save(self) -> None:
        """Write a checkpoint."""
        save(self.state, self.folder)


def _trained(
    state: State, backbone: Backbone, network: FinetunedNetwork, targets: Targets, epochs: float, notes: tuple[str, ...]
) -> Finetuned:
    """Return the trained network on the CPU, or its moving average if there is one."""
    if world_size() > 1:
        broadcast_buffers(state.method)  # statistics of BatchNorm differ between processes
    tensors = module_state(state.average if state.average is not None else state.method)
    module = copied(backbone.module)
    fill(module, {k.removeprefix("backbone."): t for k, t in tensors.items() if k.startswith("backbone.")}, what=NAME)
    width = network.head.head.weight.shape[1]
    head = ClassifierHead(width, len(targets.shift), network.config.norm, attention_of(network.config, width))
    fill(head, {k.removeprefix("head."): t for k, t in tensors.items() if k.startswith("head.")}, what=NAME)
    with torch.no_grad():  # from standardised numbers to numbers; nothing changes for classes
        head.head.weight.mul_(targets.scale[:, None])
        head.head.bias.mul_(targets.scale).add_(targets.shift)
    trained = dataclasses.replace(backbone, module=module.eval().requires_grad_(False))
    return Finetuned(trained, head.eval().requires_grad_(False), epochs, notes)
