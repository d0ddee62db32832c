"""Training of linear heads on images: one forward pass of the frozen backbone per batch feeds all of them."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from sslbench.data.loading.pretraining import RawBatch
from sslbench.data.loading.probing import EpochBatches
from sslbench.data.source import Source
from sslbench.distributed.collectives import rank, sum_, world_size
from sslbench.distributed.parallel import load_module_state, module_state
from sslbench.errors import BackboneError, DataError
from sslbench.protocols.linear_online.heads import Heads
from sslbench.protocols.linear_online.inputs import InputEncoder
from sslbench.runtime.signals import signal_on_any_process, stop_signals, stop_together
from sslbench.train import checkpoints
from sslbench.train.lock import exclusive
from sslbench.train.loop import NotFiniteError
from sslbench.train.optimizers.optimizer import OptimizerSettings, make_optimizer, set_rates
from sslbench.train.resume import continue_from, newest_whole
from sslbench.train.schedules import Schedule

log = logging.getLogger("sslbench")

CHECK_EVERY = 10  # updates between two checks of losses and, with several processes, of signals
SAVE_SECONDS = 300.0  # maximum loss of work when a run is killed
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
        return _train(heads, encode, source, data, plan)


def _train(heads: Heads, encode: InputEncoder, source: Source, data: EpochBatches, plan: Training) -> float:
    began = time.perf_counter()
    frozen = encode.state_sha256()
    optimizer = make_optimizer(heads.groups(plan.optimizer, data.batch_size), plan.optimizer)
    start = _resume(heads, optimizer, plan)
    run = _HeadTraining(heads, optimizer, plan, source, data)
    # Always closed: workers that outlive the loop would delay the end of the process.
    with stop_signals() as signal_number, contextlib.closing(data.batches(start, plan.updates)) as stream:
        for index, pieces in enumerate(stream, start=start):
            features, labels = run.encoded(encode, pieces)
            losses = run.update(features, labels, index)
            done = index + 1
            if run.is_report_due(done):
                run.report(losses, features, done)
            stop = signal_on_any_process(signal_number, losses.device, compare=done % CHECK_EVERY == 0)
            run.save(done, now=bool(stop) and done < plan.updates)
            if stop and done < plan.updates:
                stop_together(stop, f"update {done} of {plan.updates}")
        if encode.state_sha256() != frozen:
            # The checkpoints are wrong too and must not be resumed.
            for file in checkpoints.files(plan.folder) if rank() == 0 else ():
                file.unlink(missing_ok=True)
            raise BackboneError(
                "the backbone changed while heads were trained on it: parameters or BatchNorm statistics moved",
                "Its forward pass should not switch to training mode or modify weights.",
            )
        run.save(plan.updates, now=start < plan.updates)
    return time.perf_counter() - began


class _HeadTraining:
    """The parts of one training."""

    def __init__(
        self, heads: Heads, optimizer: torch.optim.Optimizer, plan: Training, source: Source, data: EpochBatches
    ) -> None:
        self.heads, self.optimizer, self.plan, self.source, self.data = heads, optimizer, plan, source, data
        self.reported = self.saved = time.perf_counter()

    def encoded(self, encode: InputEncoder, pieces: tuple[RawBatch, ...]) -> tuple[dict[str, Tensor], Tensor]:
        """Return features and labels of this process's part of a batch."""
        if any(piece.unreadable for piece in pieces):
            raise self.plan.unreadable()
        parts = [encode(piece.views[0]) for piece in pieces]
        features = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        labels = torch.from_numpy(self.source.target.values[torch.cat([piece.indices for piece in pieces]).numpy()])
        return features, labels.to(next(iter(features.values())).device, non_blocking=True)

    def update(self, features: dict[str, Tensor], labels: Tensor, index: int) -> Tensor:
        """Update every head once; return the losses before it, of this process."""
        set_rates(self.optimizer, lr=self.plan.schedule(index / self.plan.updates))
        losses = self.heads.losses(features, labels, self.data.batch_size)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        self.heads.share_gradients()
        self.optimizer.step()
        self.heads.clear_gradients()
        return losses.detach()

    def is_report_due(self, done: int) -> bool:
        """Return True at regular updates; after some seconds too in a single process, where no other has to agree."""
        if done % CHECK_EVERY == 0 or done % self.data.steps_per_epoch == 0 or done == self.plan.updates:
            return True
        return world_size() == 1 and time.perf_counter() - self.reported > LINE_SECONDS

    def report(self, losses: Tensor, features: dict[str, Tensor], done: int) -> None:
        """Log the progress now and then; stop when no head is left."""
        values = sum_(losses.clone())
        if not torch.isfinite(values).any():
            _stop_diverged(features, done)
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
        rates = [group["lr"] for group in self.optimizer.param_groups if "weight" in group["names"]]
        epochs = self.plan.updates / self.data.steps_per_epoch
        return (
            f"epoch {done / self.data.steps_per_epoch:.3g} of {epochs:.3g}, update {done} of {self.plan.updates}: "
            + (f"lowest loss of {count} heads" if count > 1 else "loss")
            + f" {float(values[best]):.4g}, lr {rates[best]:.3g}"
            + (f"; {diverged} diverged" if diverged else "")
        )

    def save(self, done: int, *, now: bool) -> None:
        """Write a checkpoint when one is due; the first process's state is that of all."""
        if rank() != 0 or not (now or time.perf_counter() - self.saved > SAVE_SECONDS):
            return
        content = {"heads": module_state(self.heads), "optimizer": self.optimizer.state_dict()}
        checkpoints.write(self.plan.folder, done, content, keep=1)
        self.saved = time.perf_counter()


def _resume(heads: Heads, optimizer: torch.optim.Optimizer, plan: Training) -> int:
    """Restore the newest checkpoint; return the number of updates done."""
    found = newest_whole(plan.folder)
    if found is None:
        return 0
    path, content = found
    load_module_state(heads, content["heads"])
    optimizer.load_state_dict(content["optimizer"])
    done = int(content["step"])
    continue_from(plan.folder, path, done)
    return done


def _stop_diverged(features: dict[str, Tensor], done: int) -> None:
    for name, values in features.items():
        if not torch.isfinite(values).all():
            raise DataError(
                f"the features of layer '{name}' are not finite numbers (update {done})",
                "The backbone overflowed (try --precision fp32) or its weights are damaged (see sslbench inspect).",
            )
    raise NotFiniteError(
        f"all heads diverged: each loss was NaN or infinite by update {done}",
        "Give lower learning rates (lr=0.01,0.1), or norm=batch, which normalises the features.",
    )
