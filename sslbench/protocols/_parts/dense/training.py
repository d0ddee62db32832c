"""Training of many heads at once: one forward pass of the frozen backbone per batch feeds all of them."""

import contextlib
import dataclasses
import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslbench.data.decode.transforms import normalise
from sslbench.data.loading.joint import JointBatch, JointBatches
from sslbench.errors import DataError
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense.heads import DenseHead, MapEncoder
from sslbench.protocols._parts.dense.task import DenseTask, HeadSettings
from sslbench.protocols._parts.head_training import HeadTraining, stop_diverged
from sslbench.runtime.progress import StageProgress
from sslbench.runtime.seeds import seeded
from sslbench.runtime.signals import stop_signals
from sslbench.solvers.dense import resized
from sslbench.train import loop, schedules
from sslbench.train.lock import exclusive
from sslbench.train.loop import RateSchedules, TrainingPlan
from sslbench.train.method import Loss, Step
from sslbench.train.optimizers.optimizer import OptimizerSettings, make_optimizer
from sslbench.train.parameter_groups import GroupRates, group
from sslbench.train.state import State, resume

log = logging.getLogger("sslbench")

# Maps of a batch by layer.
Maps = dict[str, Tensor]

CHECK_EVERY = 10  # updates between two checks of losses
LINE_SECONDS = 30.0  # between log lines
_WARMUP_START = 1e-6  # factor of the rates, as in MMSegmentation
MOST_BYTES = 2 * 2**30  # of all kept maps


@dataclasses.dataclass(frozen=True)
class Training:
    """Plan of a training.

    Attributes:
        warmup: updates of warm-up.
        preprocessing: mean and std of the images.
        unreadable: makes the error about unreadable images, once there is one.
        crops: number of different crops, if the augmentation repeats them exactly.
        progress: called with crops done and crops in all.
    """

    updates: int
    warmup: int
    preprocessing: Preprocessing
    folder: Path
    seed: int
    unreadable: Callable[[], DataError]
    crops: int | None = None
    progress: StageProgress | None = None


def number_of_updates(settings: HeadSettings, images: int) -> tuple[int, int]:
    """Return the updates of a training, and those of its warm-up: fewer for few images.

    >>> number_of_updates(HeadSettings(), 20_210), number_of_updates(HeadSettings(), 160)
    ((40000, 1500), (500, 19))
    """
    updates = settings.steps
    if settings.max_epochs is not None:
        updates = min(updates, max(1, round(settings.max_epochs * images / settings.batch_size)))
    return updates, round(settings.warmup_steps * updates / settings.steps)


def rate_factor(settings: HeadSettings, updates: int, warmup: int) -> schedules.Schedule:
    """Return the factor of the rates: MMSegmentation's poly multiplied by its warm-up, or a cosine after a warm-up.

    >>> factor = rate_factor(HeadSettings(), 40_000, 1_500)
    >>> [round(factor(step / 40_000), 4) for step in (0, 750, 1_500, 20_000, 40_000)]
    [0.0, 0.4906, 0.9625, 0.5, 0.0]
    """
    if settings.schedule == "constant":
        falling = schedules.constant(1.0)
    elif settings.schedule == "poly":
        falling = schedules.polynomial(1.0, settings.power)
    elif settings.schedule == "steps":
        falling = schedules.multistep((1.0, 0.1, 0.01), (0.6, 0.9), epochs=1.0)
    else:
        falling = schedules.cosine(1.0, 0.0)
    if not warmup:
        return falling
    share = warmup / updates
    rising = schedules.linear(_WARMUP_START, 1.0)
    if settings.schedule == "poly":
        return schedules.product(falling, lambda where: rising(min(1.0, where / share)))
    return lambda where: rising(where / share) if where < share else falling((where - share) / (1 - share))


class KeptMaps:
    """Function from crops to their maps, without a second forward pass of a crop.

    Maps are those of the batch in which a crop came first, so a continued run has to see the crops in the same order to
    have them bit for bit. 400 kB are kept for a crop of 224 pixels and a ViT-S/16, 100 kB for a ResNet-18's last map.

    Attributes:
        keeps: maps are kept; False if there is not enough memory for all of them, or if no crop comes twice.
    """

    def __init__(self, encode: MapEncoder, preprocessing: Preprocessing, crops: int | None) -> None:
        """Set up without maps.

        `crops`: number of different crops; None: each is new.
        """
        self.keeps = crops is not None
        self._encode, self._preprocessing, self._crops = encode, preprocessing, crops or 0
        self._maps: dict[bytes, dict[str, Tensor]] = {}

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """Return the maps of crops, (B, C, h, w) from 0 to 255: name -> (B, c, rows, columns)."""
        if not self.keeps:
            return self._encoded(images)
        # No copy: the channels of a crop are interleaved in memory.
        pixels = (image.permute(1, 2, 0).contiguous() for image in images.cpu())
        keys = [hashlib.blake2b(crop.numpy().data, digest_size=16).digest() for crop in pixels]
        # By key, as a crop may come twice in one batch.
        new = {key: row for row, key in enumerate(keys) if key not in self._maps}
        if new:
            encoded = self._encoded(images[list(new.values())])
            # All crops have one size, so the first says what all take.
            if sum(maps[0].nbytes for maps in encoded.values()) * self._crops > MOST_BYTES:
                self.keeps = False
                return self._encoded(images)
            for place, key in enumerate(new):
                # A view would keep the maps of the whole batch in memory.
                self._maps[key] = {name: maps[place].clone() for name, maps in encoded.items()}
        kept = [self._maps[key] for key in keys]
        return {name: torch.stack([maps[name] for maps in kept]) for name in kept[0]}

    def _encoded(self, images: Tensor) -> dict[str, Tensor]:
        return self._encode(normalise(images.to(self._encode.device, non_blocking=True), self._preprocessing))


def train(
    heads: Sequence[DenseHead],
    encode: MapEncoder,
    data: JointBatches,
    task: DenseTask[Any],
    settings: HeadSettings,
    plan: Training,
) -> list[bool]:
    """Train the heads in place to the end; continue from a checkpoint in `plan.folder`.

    The backbone is not trained, nor does anything else of it move: that is checked. A killed run that continues ends
    with the same weights.
    """
    with exclusive(plan.folder):
        run = _HeadTraining(heads, encode, task, settings, plan)
        content = resume(run.state, plan.folder)
        run.alive = list(content["alive"]) if content is not None else run.alive
        start = run.state.step
        maps_of = KeptMaps(encode, plan.preprocessing, plan.crops)
        if maps_of.keeps:  # a continued run has the maps of the run before, bit for bit
            with contextlib.closing(data.batches(0, start)) as earlier:
                for batch in earlier:
                    if batch.unreadable or not maps_of.keeps:
                        break
                    maps_of(batch.images)
        # Each head's group holds its own learning rate as a factor, so that one schedule serves all heads.
        rates = RateSchedules(rate_factor(settings, plan.updates, plan.warmup), 1.0)
        steps = TrainingPlan(plan.updates, plan.updates, rates, log_every=0, save_every=0)
        with stop_signals() as signal_number, contextlib.closing(data.batches(start, plan.updates)) as stream:
            loop.train(run.state, steps, _encoded(stream, maps_of, encode.device, plan), run, signal_number)
    return run.alive


def _encoded(
    stream: Iterable[JointBatch], maps_of: KeptMaps, device: torch.device, plan: Training
) -> Iterator[tuple[Maps, Tensor]]:
    """Yield the maps and targets of crops."""
    for batch in stream:
        if batch.unreadable:
            raise plan.unreadable()
        maps = maps_of(batch.images)
        yield maps, batch.targets.to(device, non_blocking=True)


class _HeadTraining(HeadTraining[tuple[Maps, Tensor]]):
    """Training of heads: each is a pass of its own over the maps, so that the memory is that of one head."""

    def __init__(
        self,
        heads: Sequence[DenseHead],
        encode: MapEncoder,
        task: DenseTask[Any],
        settings: HeadSettings,
        plan: Training,
    ) -> None:
        # One module for all heads, so that one checkpoint and one optimizer hold them.
        together = nn.ModuleList(heads).train()
        super().__init__(together, encode.encoder.state_sha256, folder=plan.folder, updates=plan.updates)
        self.task, self.settings, self.plan = task, settings, plan
        self.all, self.alive = list(heads), [True] * len(heads)
        options = OptimizerSettings(
            name=settings.optimizer, lr=1.0, lr_scaling="none", weight_decay=settings.weight_decay, betas=settings.betas
        )
        groups = [group(dict(head.named_parameters()), GroupRates(lr_factor=head.lr)) for head in heads]
        self.state = State(self, self, make_optimizer(groups, options))
        self.reported = time.perf_counter()

    def passes(self, raw: tuple[Maps, Tensor]) -> Iterator[tuple[int, Maps, Tensor]]:
        """Yield every head that has not diverged, with the maps."""
        self.maps, targets = raw
        self.losses = [torch.tensor(math.nan)] * len(self.all)
        for number in (i for i, alive in enumerate(self.alive) if alive):
            yield number, self.maps, targets

    def loss(self, batch: tuple[int, Maps, Tensor], step: Step) -> Loss:
        """Return the loss of one head."""
        number, maps, targets = batch
        # The seed is that of the run and the update alone: a run continues as it began, whatever its rows are.
        with seeded((self.plan.seed * 1_000_003 + step.index) % 2**63, targets.device):
            outputs = resized(self.task.activated(self.all[number](maps)), (targets.shape[2], targets.shape[3]))
        # Few images end the training before `steps`: what is counted in those keeps its share, as the warm-up does.
        value = self.task.loss(outputs, targets, step.index * self.settings.steps // self.plan.updates)
        self.losses[number] = value.detach()
        return Loss(value)

    def before_update(self, step: Step) -> None:
        """Clip the gradients of each head."""
        if self.settings.clip_norm is not None:
            for head in (head for head, alive in zip(self.all, self.alive, strict=True) if alive):
                nn.utils.clip_grad_norm_(head.parameters(), self.settings.clip_norm)

    def after_update(self, step: Step) -> None:
        """Look at the losses now and then."""
        done = step.index + 1
        if done % CHECK_EVERY == 0 or done == self.plan.updates:
            self.report(self.losses, self.maps, done)

    def report(self, losses: Sequence[Tensor], maps: dict[str, Tensor], done: int) -> None:
        """Mark heads that diverged, stop when none is left, and log the progress now and then."""
        # Losses are read only here, every few updates: reading one makes the processor wait for the device.
        values = [float(loss) for loss in losses]
        # A loss is that of the weights before the update; that an update broke them shows in the weights themselves.
        finite = [
            alive and math.isfinite(value) and all(bool(torch.isfinite(p).all()) for p in head.parameters())
            for head, alive, value in zip(self.all, self.alive, values, strict=True)
        ]
        self.alive = finite
        if not any(finite):
            remedy = "Give lower learning rates (lr=0.0001,0.0003), or norm=true, which normalises the features."
            stop_diverged(maps, done, f"{self.task.name}: every head", remedy)
        size = self.settings.batch_size
        if self.plan.progress is not None:
            self.plan.progress(done * size, self.plan.updates * size)
        now = time.perf_counter()
        if done == self.plan.updates or now - self.reported > LINE_SECONDS:
            self.reported = now
            best = min(value for value, alive in zip(values, finite, strict=True) if alive)
            diverged = f"; {finite.count(False)} diverged" if not all(finite) else ""
            log.info(f"update {done} of {self.plan.updates}: lowest loss of {len(finite)} heads {best:.4g}{diverged}")

    def more(self) -> dict[str, Any]:
        """Return a mask of the heads that have not diverged."""
        return {"alive": self.alive}
