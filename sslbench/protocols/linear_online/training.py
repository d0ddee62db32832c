"""Training of linear heads on images: one forward pass of the frozen backbone per batch feeds all of them."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from sslbench.data.loading.pretraining import RawBatch
from sslbench.data.loading.probing import EpochBatches
from sslbench.data.source import Source
from sslbench.distributed.collectives import sum_, world_size
from sslbench.errors import DataError
from sslbench.protocols._parts.head_training import HeadTraining, stop_diverged
from sslbench.protocols.linear_online.heads import Heads
from sslbench.protocols.linear_online.inputs import InputEncoder
from sslbench.runtime.signals import stop_signals
from sslbench.train import loop
from sslbench.train.lock import exclusive
from sslbench.train.loop import RateSchedules, TrainingPlan
from sslbench.train.method import Loss, Step
from sslbench.train.optimizers.optimizer import OptimizerSettings, make_optimizer
from sslbench.train.schedules import Schedule
from sslbench.train.state import State, resume

log = logging.getLogger("sslbench")

CHECK_EVERY = 10  # updates between two checks of losses and, with several processes, of signals
LINE_SECONDS = 30.0  # between log lines, which are also written at the end of an epoch


@dataclasses.dataclass(frozen=True)
class Training:
    """Plan of a training of heads.

    Attributes:
        updates: in all.
        schedule: share of the training in [0, 1] -> factor of the rates.
        optimizer: its options; rates and weight decay are those of each head.
        folder: for checkpoints.
        unreadable: makes the error about unreadable images, once there is one.
        progress: called with images done and images in all.
    """

    updates: int
    schedule: Schedule
    optimizer: OptimizerSettings
    folder: Path
    unreadable: Callable[[], DataError]
    progress: Callable[[int, int], None] | None = None


def train(heads: Heads, encode: InputEncoder, source: Source, data: EpochBatches, plan: Training) -> float:
    """Train the heads in place to the end; every process calls this. Continue from a checkpoint in `plan.folder`.

    The backbone is not trained, nor does anything else of it move: that is checked.

    Args:
        heads: on the device of the encoder.
        encode: the frozen backbone.
        source: the images and labels of `data`.
        data: batches of it.
        plan: plan of the training.

    Returns:
        Seconds that it took, without what an earlier run had done.

    Raises:
        UsageError: another run uses the folder.
        WeightsError: no checkpoint in the folder is whole, or the processes see different ones.
        NotFiniteError: no head is left whose loss is a number.
        StoppedError: a signal came; a checkpoint was saved.
        DataError: an image cannot be read, or features are not finite.
        BackboneError: parameters or statistics of the backbone moved.
    """
    with exclusive(plan.folder):
        began = time.perf_counter()
        run = _HeadTraining(heads, encode, source, data, plan)
        resume(run.state, plan.folder)
        steps = TrainingPlan(
            plan.updates, data.steps_per_epoch, RateSchedules(plan.schedule, 1.0), log_every=0, save_every=0
        )
        # Always closed: workers that outlive the loop would delay the end of the process.
        stream = contextlib.closing(data.batches(run.state.step, plan.updates))
        with stop_signals() as signal_number, stream as pieces:
            loop.train(run.state, steps, run.encoded(pieces), run, signal_number)
        return time.perf_counter() - began


Features = dict[str, Tensor]


class _HeadTraining(HeadTraining[tuple[Features, Tensor]]):
    """Training of all heads on the features of each batch, of every process together."""

    def __init__(self, heads: Heads, encode: InputEncoder, source: Source, data: EpochBatches, plan: Training) -> None:
        super().__init__(heads, encode.state_sha256, folder=plan.folder, updates=plan.updates)
        self.banks, self.encode, self.plan, self.source, self.data = heads, encode, plan, source, data
        optimizer = make_optimizer(heads.groups(plan.optimizer, data.batch_size), plan.optimizer)
        self.state = State(self, self, optimizer)
        self.reported = time.perf_counter()

    def encoded(self, stream: Iterable[tuple[RawBatch, ...]]) -> Iterator[tuple[Features, Tensor]]:
        """Yield features and labels of this process's parts of batches."""
        for pieces in stream:
            if any(piece.unreadable for piece in pieces):
                raise self.plan.unreadable()
            parts = [self.encode(piece.views[0]) for piece in pieces]
            features = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            indices = torch.cat([piece.indices for piece in pieces]).numpy()
            labels = torch.from_numpy(self.source.target.values[indices])
            yield features, labels.to(next(iter(features.values())).device, non_blocking=True)

    def passes(self, raw: tuple[Features, Tensor]) -> Iterator[tuple[Features, Tensor]]:
        """Yield the batch as it is."""
        yield raw

    def loss(self, batch: tuple[Features, Tensor], step: Step) -> Loss:
        """Return the sum of the heads' losses."""
        self.features, labels = batch
        losses = self.banks.losses(self.features, labels, self.data.batch_size)
        self.losses = losses.detach()
        return Loss(losses.sum())

    def before_update(self, step: Step) -> None:
        """Sum the gradients over processes."""
        self.banks.share_gradients()

    def after_update(self, step: Step) -> None:
        """Look at the losses now and then."""
        self.banks.clear_gradients()
        if self.is_report_due(step.index + 1):
            self.report(self.losses, self.features, step.index + 1)

    def is_report_due(self, done: int) -> bool:
        """Return True at regular updates; after some seconds too in a single process, where no other has to agree."""
        if done % CHECK_EVERY == 0 or done % self.data.steps_per_epoch == 0 or done == self.plan.updates:
            return True
        return world_size() == 1 and time.perf_counter() - self.reported > LINE_SECONDS

    def report(self, losses: Tensor, features: dict[str, Tensor], done: int) -> None:
        """Log the progress now and then; stop when no head is left."""
        values = sum_(losses.clone())
        if not torch.isfinite(values).any():
            remedy = "Give lower learning rates (lr=0.01,0.1), or norm=batch, which normalises the features."
            stop_diverged(features, done, "all heads", remedy)
        if self.plan.progress is not None:
            self.plan.progress(done * self.data.batch_size, self.plan.updates * self.data.batch_size)
        now = time.perf_counter()
        if done % self.data.steps_per_epoch == 0 or done == self.plan.updates or now - self.reported > LINE_SECONDS:
            log.info(self._line(values, done))
            self.reported = now

    def _line(self, values: Tensor, done: int) -> str:
        left = values.nan_to_num(nan=float("inf"), posinf=float("inf"))
        best, count = int(left.argmin()), len(values)
        diverged = int((~torch.isfinite(values)).sum())
        rates = [group["lr"] for group in self.state.optimizer.param_groups if "weight" in group["names"]]
        epochs = self.plan.updates / self.data.steps_per_epoch
        return (
            f"epoch {done / self.data.steps_per_epoch:.3g} of {epochs:.3g}, update {done} of {self.plan.updates}: "
            + (f"lowest loss of {count} heads" if count > 1 else "loss")
            + f" {float(values[best]):.4g}, lr {rates[best]:.3g}"
            + (f"; {diverged} diverged" if diverged else "")
        )
