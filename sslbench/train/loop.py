"""The training loop: batch, loss, backward, clip, step, after_update, log, checkpoint, evaluate."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslbench.data.decode.transforms import normalise
from sslbench.data.loading.pretraining import RawBatch
from sslbench.data.views.on_device import change_colours
from sslbench.distributed.collectives import gather_objects, on_all, sum_, world_size
from sslbench.distributed.parallel import clip_gradients, gradient_norm, without_synchronisation
from sslbench.errors import SslbenchError
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.device import DTYPES
from sslbench.runtime.device_names import Precision
from sslbench.runtime.signals import SIGNAL_INTERVAL, signal_on_any_process, stop_together
from sslbench.train.meter import LogRecord, TrainingMeter
from sslbench.train.method import Batch, Loss, Method, Step
from sslbench.train.optimizers.optimizer import set_rates
from sslbench.train.schedules import Schedule
from sslbench.train.state import State, update_average


@dataclasses.dataclass(frozen=True)
class RateSchedules:
    """RateSchedules over the course of training.

    Attributes:
        lr: learning rate, as a function of the progress in [0, 1].
        peak_lr: learning rate of parameters with a constant rate.
        weight_decay: schedule of the weight decay; None keeps that of the groups.
        momentum: schedule of SGD's momentum; None keeps it constant.
    """

    lr: Schedule
    peak_lr: float
    weight_decay: Schedule | None = None
    momentum: Schedule | None = None


_LARGEST_FIRST_SHARE = 0.05
"""Share of the first network in its moving average, after the last update, above which it is said."""


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """Plan of a training run.

    Attributes:
        steps: optimizer updates of the whole run.
        per_epoch: updates per epoch.
        rates: rates of all parameters but those of `parts`.
        normalisation: mean and std of the views.
        colours: for each view the order of its changes of colours, where those are left to the device.
        transform: change of every batch on the device; None: none.
        parts: rates of the groups of a `part`, see `parameter_groups`.
        accumulate: forward passes per update.
        clip_norm: largest norm of the gradients.
        clip_each: apply clip_norm to each tensor's gradient instead of all together.
        precision: precision of the forward pass; parameters are float32.
        average_decay: decay of the moving average of `method.averaged()`.
        frozen: number of updates for which parameters are frozen, by prefix of their names.
        log_every: updates between log lines.
        save_every: updates between checkpoints; the last update is always saved.
        evaluate_every: updates between evaluations, 0 for none.
    """

    steps: int
    per_epoch: int
    rates: RateSchedules
    normalisation: Preprocessing
    colours: tuple[tuple[str | dict[str, Any], ...], ...] = ()
    transform: Callable[[Batch], Batch] | None = None
    parts: Mapping[str, RateSchedules] = dataclasses.field(default_factory=dict)
    accumulate: int = 1
    clip_norm: float | None = None
    clip_each: bool = False
    precision: Precision = "fp32"
    average_decay: float = 0.0
    frozen: Mapping[str, int] = dataclasses.field(default_factory=dict)
    log_every: int = 10
    save_every: int = 1000
    evaluate_every: int = 0

    @property
    def average_note(self) -> str:
        """Remark on a moving average that still holds much of the first network at the end; else ''."""
        first = self.average_decay**self.steps
        if not self.average_decay or first < _LARGEST_FIRST_SHARE:
            return ""
        shorter = 0.01 ** (1 / self.steps)
        return (
            f"The moving average (ema={self.average_decay:g}) still has {100 * first:.0f} % of the network before the "
            f"first of {self.steps:,} updates: give a smaller ema, such as {shorter:.2g}, or more updates."
        )


def run_first_pass(state: State, plan: TrainingPlan, batches: Iterator[RawBatch]) -> None:
    """Run the forward passes of one epoch before the first update, see `Method.first_pass`.

    Args:
        state: training state; only buffers of the method change.
        plan: precision, normalisation and number of passes per update.
        batches: the batches of the first epoch.
    """
    for number, raw in enumerate(batches):
        step = Step(number - plan.per_epoch, plan.steps, plan.per_epoch)
        for part in _split(raw, plan.accumulate):
            with torch.no_grad():
                _forward(state, plan, _to_device(part, state, plan), step)
        state.method.after_update(step)


class NotFiniteError(SslbenchError):
    """NaN or infinite loss."""

    exit_code = 1


def train(
    state: State,
    plan: TrainingPlan,
    batches: Iterator[RawBatch],
    *,
    log: Callable[[LogRecord], None],
    save: Callable[[], None],
    evaluate: Callable[[Step], None],
    signal_number: Callable[[], int],
    failed: Callable[[RawBatch, float, int], Path],
) -> None:
    """Train from `state.step` to the end of the plan.

    Args:
        state: training state, changed in place.
        plan: schedules, clipping, precision and intervals.
        batches: one batch per update for this process, from update `state.step` on.
        log: called on every process every `log_every` updates and at the end.
        save: callback that writes a checkpoint; called on every process.
        evaluate: called on every process every `evaluate_every` updates, with the update that has just ended.
        signal_number: see `stop_signals`.
        failed: callback that saves a batch whose loss is not finite, with the loss and the update.

    Raises:
        NotFiniteError: the loss is NaN or infinite; the parameters are those before the update, on a GPU those of it or
            of the next one. No checkpoint has them.
        StoppedError: a signal was received; a checkpoint was saved.
    """
    meter, losses = TrainingMeter(state.device), _LossCheck(failed)
    for index in range(state.step, plan.steps):
        step = Step(index, plan.steps, plan.per_epoch)
        raw = meter.wait_for(batches)
        _set_rates(state, plan, step.where)
        loss, value = _forward_backward(state, plan, raw, step)
        losses.add(raw, step, loss.value, value)
        last = index + 1 == plan.steps
        logged = (index + 1) % plan.log_every == 0 or last
        norm, norms = _update(state, plan, step, parts=logged)
        state.step = index + 1
        epoch_ends = state.step % plan.per_epoch == 0
        evaluated = plan.evaluate_every > 0 and (state.step % plan.evaluate_every == 0 or last)
        saved = state.step % plan.save_every == 0 or last
        if logged or evaluated or saved:
            losses.read()
        if logged:
            decay = plan.rates.weight_decay
            rates = plan.rates.lr(step.where), decay(step.where) if decay else None
            own = {f"lr_{name}": torch.tensor(part.lr(step.where)) for name, part in plan.parts.items()}
            loss = dataclasses.replace(loss, parts={**loss.parts, **own})
            log(meter.line(state.step / plan.per_epoch, state.step, loss, float(value), rates, norm, norms))
        if evaluated:
            evaluate(step)
        compare = state.step % SIGNAL_INTERVAL == 0 or epoch_ends
        stop = signal_on_any_process(signal_number, state.device, compare=compare)
        if stop or saved:
            losses.read()
            save()
        if stop and not last:
            stop_together(stop, f"update {state.step} of {plan.steps}")


def _forward_backward(state: State, plan: TrainingPlan, raw: RawBatch, step: Step) -> tuple[Loss, Tensor]:
    """Compute the gradients; return the loss of all passes, and the mean loss over passes and processes."""
    state.optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), device=state.device)
    parts, losses = _split(raw, plan.accumulate), []
    for number, part in enumerate(parts):
        final = number == len(parts) - 1
        with contextlib.nullcontext() if final else without_synchronisation(state.model):
            batch = _to_device(part, state, plan)
            loss = _forward(state, plan, batch, step)
            state.scaler.scale(loss.value / len(parts)).backward()  # type: ignore[no-untyped-call]
        if state.online_head is not None and batch.labels is not None:
            with _autocast(state, plan):
                state.online_head.add_gradient(batch.views, batch.labels, 1 / len(parts))
        total += loss.value.detach() / len(parts)
        losses.append(loss)
    if len(losses) > 1:
        means = {
            name: torch.stack([torch.as_tensor(each.parts[name]) for each in losses]).mean() for name in loss.parts
        }
        loss = dataclasses.replace(
            loss, embeddings=torch.cat([each.embeddings.detach() for each in losses]), parts=means
        )
    return loss, sum_(total) / world_size()


def _forward(state: State, plan: TrainingPlan, batch: Batch, step: Step) -> Loss:
    """Return the loss of a forward pass in the precision of the plan."""
    batch = batch if plan.transform is None else plan.transform(batch)
    with _autocast(state, plan):
        loss: Loss = state.model(batch, step)
    return loss


def _autocast(state: State, plan: TrainingPlan) -> torch.autocast:
    return torch.autocast(state.device.type, dtype=DTYPES[plan.precision], enabled=plan.precision != "fp32")


def _update(state: State, plan: TrainingPlan, step: Step, *, parts: bool) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Update parameters, moving average and online head.

    Returns:
        The norm of the gradients if they are clipped, and with `parts` the norms of the method's parts before clipping.
    """
    state.scaler.unscale_(state.optimizer)
    for prefix, updates in plan.frozen.items():
        if step.index < updates:
            for name, parameter in state.method.named_parameters():
                if name.startswith(prefix):
                    parameter.grad = None
    state.method.before_update(step)
    norms = _gradient_norms(state.method) if parts else {}
    norm = None
    if plan.clip_norm:
        norm = clip_gradients(state.method.parameters(), plan.clip_norm, each=plan.clip_each)
    state.scaler.step(state.optimizer)
    state.scaler.update()
    state.method.after_update(step)
    if state.average is not None:
        update_average(state.average, state.method.averaged(), plan.average_decay)
    if state.online_head is not None:
        state.online_head.update(step.where)
    return norm, norms


def _gradient_norms(method: Method[Any]) -> dict[str, Tensor]:
    """Return the norm of the gradients of each network of a method, by its name: 'backbone', 'projector', ..."""
    parts: dict[str, list[Tensor]] = {}
    for name, parameter in method.named_parameters():
        if parameter.grad is not None:
            parts.setdefault(name.partition(".")[0], []).append(parameter.grad)
    return {name: gradient_norm(gradients) for name, gradients in parts.items()}


def _set_rates(state: State, plan: TrainingPlan, progress: float) -> None:
    for part, rates in {"": plan.rates, **plan.parts}.items():
        set_rates(
            state.optimizer,
            lr=rates.lr(progress),
            peak_lr=rates.peak_lr,
            weight_decay=rates.weight_decay(progress) if rates.weight_decay else None,
            momentum=rates.momentum(progress) if rates.momentum else None,
            part=part,
        )


def _split(raw: RawBatch, parts: int) -> list[RawBatch]:
    """Return the batch in equal parts."""
    if parts == 1:
        return [raw]
    # Chunks share the pinned memory of the batch; RawBatch.rows would copy it.
    views = zip(*(view.chunk(parts) for view in raw.views), strict=True)
    labels = [None] * parts if raw.labels is None else raw.labels.chunk(parts)
    boxes = [None] * parts if raw.boxes is None else raw.boxes.chunk(parts)
    colours = [None] * parts if raw.colours is None else raw.colours.chunk(parts)
    rows = torch.arange(len(raw.indices)).chunk(parts)
    origins = [tuple(raw.origins[row] for row in part) if raw.origins else () for part in rows]
    return [
        dataclasses.replace(
            raw, views=own, labels=label, indices=raw.indices[part], origins=names, boxes=box, colours=colour
        )
        for own, label, part, names, box, colour in zip(views, labels, rows, origins, boxes, colours, strict=True)
    ]


def _to_device(raw: RawBatch, state: State, plan: TrainingPlan) -> Batch:
    device = state.device
    moved = [view.to(device, non_blocking=True) for view in raw.views]
    if raw.colours is not None:
        values = raw.colours.unbind(1)
        moved = [change_colours(*each) for each in zip(moved, values, plan.colours, strict=True)]
    views = tuple(normalise(view, plan.normalisation) for view in moved)
    views = tuple(view.contiguous() for view in views) if state.rows_of_channels else views
    labels = None if raw.labels is None else raw.labels.to(device, non_blocking=True)
    boxes = None if raw.boxes is None else raw.boxes.to(device, non_blocking=True)
    return Batch(views, labels, raw.indices, raw.origins, boxes)


class _LossCheck:
    """Check that losses are finite; on a GPU one update late, so that the processor need not wait for the device."""

    def __init__(self, failed: Callable[[RawBatch, float, int], Path]) -> None:
        self._failed = failed
        self._waiting: tuple[RawBatch, Step, Tensor, torch.cuda.Event | None] | None = None

    def add(self, raw: RawBatch, step: Step, own: Tensor, mean: Tensor) -> None:
        """Note the loss of this process and the mean over all; read those of the update before, on a CPU these."""
        self.read()
        late = mean.device.type == "cuda"
        losses = torch.stack([own.detach().float(), mean.float()]).to("cpu", non_blocking=late)
        ready = torch.cuda.Event() if late else None  # type: ignore[no-untyped-call]
        if ready is not None:
            ready.record()
        self._waiting = raw, step, losses, ready
        if not late:
            self.read()

    def read(self) -> None:
        """Read the losses that were noted last.

        Raises:
            NotFiniteError: the mean is not finite; see `train`.
        """
        if self._waiting is None:
            return
        raw, step, losses, ready = self._waiting
        self._waiting = None
        if ready is not None:
            ready.synchronize()
        own, mean = losses.tolist()
        if not math.isfinite(mean):
            _stop_not_finite(raw, step, own, mean, self._failed)


def _stop_not_finite(
    raw: RawBatch, step: Step, own: float, mean: float, failed: Callable[[RawBatch, float, int], Path]
) -> None:
    """Raise NotFiniteError on all processes; those with a loss that is not finite save their batch first."""
    file = on_all(lambda: None if math.isfinite(own) else str(failed(raw, own, step.index)))
    files = [each for each in gather_objects(file) if each is not None]
    saved = f" The batch is in {', '.join(files)}." if files else ""
    raise NotFiniteError(
        f"the loss is {mean} in update {step.index + 1} (epoch {step.epoch + 1}).{saved}",
        "Try a lower optimizer.lr, more schedule.warmup_epochs, clip_norm=3 or precision=fp32; the weights before this "
        "update are in the last checkpoint.",
    )
