"""The training loop: batch, loss, backward, clip, step, after_update, log, checkpoint, evaluate."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from sslbench.distributed.collectives import sum_, world_size
from sslbench.distributed.parallel import clip_gradients, gradient_norm, without_synchronisation
from sslbench.errors import SslbenchError
from sslbench.preprocessing import Preprocessing
from sslbench.runtime.device import DTYPES
from sslbench.runtime.resources import Precision
from sslbench.runtime.signals import SIGNAL_INTERVAL, signal_on_any_process, stop_together
from sslbench.train.meter import LogRecord, TrainingMeter
from sslbench.train.method import Batch, Learner, Loss, Step
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


RawT = TypeVar("RawT")

SAVE_SECONDS = 300.0
"""Loss of work when a run is killed that saves by the clock."""
_LARGEST_FIRST_SHARE = 0.05
"""Share of the first network in its moving average, after the last update, above which it is said."""


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """Plan of a training run.

    Attributes:
        steps: optimizer updates of the whole run.
        per_epoch: updates per epoch.
        rates: rates of all parameters but those of `parts`.
        normalisation: mean and std of the views, where batches are views.
        colours: for each view the order of its changes of colours, where those are left to the device.
        transform: change of every batch on the device; None: none.
        parts: rates of the groups of a `part`, see `parameter_groups`.
        accumulate: forward passes per update.
        clip_norm: largest norm of the gradients.
        clip_each: apply clip_norm to each tensor's gradient instead of all together.
        precision: precision of the forward pass; parameters are float32.
        average_decay: decay of the moving average of `method.averaged()`.
        frozen: number of updates for which parameters are frozen, by prefix of their names.
        log_every: updates between log lines; 0 for none.
        save_every: updates between checkpoints; the last update is always saved. 0: by the clock of
            each process, for runs whose `save` sends nothing between processes.
        evaluate_every: updates between evaluations, 0 for none.
    """

    steps: int
    per_epoch: int
    rates: RateSchedules
    normalisation: Preprocessing = dataclasses.field(default_factory=Preprocessing)
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


class NotFiniteError(SslbenchError):
    """NaN or infinite loss."""

    exit_code = 1


class Run(Generic[RawT]):
    """Training in progress, as the loop sees it: its batches, and its duties at intervals. Every process has one."""

    def passes(self, raw: RawT) -> Iterator[Any]:
        """Yield the inputs of the forward passes of an update, on the device.

        There are `plan.accumulate`, or more whose losses are added; each is differentiated before the next is taken.
        """
        raise NotImplementedError

    def updated(self, step: Step) -> None:
        """Look at the state after an update."""

    def log(self, line: LogRecord) -> None:
        """Handle a log record, every `log_every` updates and at the end."""

    def save(self) -> None:
        """Write a checkpoint."""

    def evaluate(self, step: Step) -> None:
        """Evaluate every `evaluate_every` updates, after the given one."""

    def diverged(self, raw: RawT, step: Step, loss: Loss, own: float, mean: float) -> None:
        """Stop the training, since the mean loss is not finite; `own` is that of this process."""
        raise NotFiniteError(f"the loss is {mean} in update {step.index + 1}")


def run_first_pass(state: State, plan: TrainingPlan, batches: Iterator[RawT], run: Run[RawT]) -> None:
    """Run the forward passes of one epoch before the first update, see `Method.first_pass`: only buffers change."""
    for number, raw in enumerate(batches):
        step = Step(number - plan.per_epoch, plan.steps, plan.per_epoch)
        for batch in run.passes(raw):
            with torch.no_grad():
                _forward(state, plan, batch, step)
        state.method.after_update(step)


def train(
    state: State, plan: TrainingPlan, batches: Iterator[RawT], run: Run[RawT], signal_number: Callable[[], int]
) -> None:
    """Train from `state.step` to the end of the plan; every process calls this.

    Args:
        state: training state, changed in place.
        plan: schedules, clipping, precision and intervals.
        batches: one batch per update for this process, from update `state.step` on.
        run: divides batches into passes, logs, saves and evaluates.
        signal_number: see `stop_signals`.

    Raises:
        NotFiniteError: the loss is NaN or infinite; the parameters are those before the update, on a GPU those of it or
            of the next one. No checkpoint has them.
        StoppedError: a signal was received; a checkpoint was saved.
    """
    meter, losses = TrainingMeter(state.device), _LossCheck(run)
    saved_at = time.perf_counter()
    for index in range(state.step, plan.steps):
        step = Step(index, plan.steps, plan.per_epoch)
        raw = meter.wait_for(batches)
        _set_rates(state, plan, step.where)
        loss, value = _forward_backward(state, plan, run.passes(raw), step)
        losses.add(raw, step, loss, value)
        last = index + 1 == plan.steps
        logged = plan.log_every > 0 and ((index + 1) % plan.log_every == 0 or last)
        norm, norms = _update(state, plan, step, parts=logged)
        state.step = index + 1
        run.updated(step)
        epoch_ends = state.step % plan.per_epoch == 0
        evaluated = plan.evaluate_every > 0 and (state.step % plan.evaluate_every == 0 or last)
        due = state.step % plan.save_every == 0 if plan.save_every else time.perf_counter() - saved_at > SAVE_SECONDS
        saved = due or last
        # A loss that is not finite ends the run before it is logged, scored or saved.
        if logged or evaluated or saved:
            losses.read()
        if logged:
            decay = plan.rates.weight_decay
            rates = plan.rates.lr(step.where), decay(step.where) if decay else None
            own = {f"lr_{name}": torch.tensor(part.lr(step.where)) for name, part in plan.parts.items()}
            loss = dataclasses.replace(loss, parts={**loss.parts, **own})
            run.log(meter.line(state.step / plan.per_epoch, state.step, loss, float(value), rates, norm, norms))
        if evaluated:
            run.evaluate(step)
        compare = state.step % SIGNAL_INTERVAL == 0 or epoch_ends
        stop = signal_on_any_process(signal_number, state.device, compare=compare)
        if stop or saved:
            losses.read()
            run.save()
            saved_at = time.perf_counter()
        if stop and not last:
            stop_together(stop, f"update {state.step} of {plan.steps}")


def _forward_backward(state: State, plan: TrainingPlan, passes: Iterator[Any], step: Step) -> tuple[Loss, Tensor]:
    """Compute the gradients; return the loss of all passes, and its mean over processes."""
    state.optimizer.zero_grad(set_to_none=True)
    losses: list[Loss] = []
    for number, batch in enumerate(passes):
        final = number + 1 >= plan.accumulate
        # Only the last pass exchanges gradients: those before add to the same sums.
        with contextlib.nullcontext() if final else without_synchronisation(state.model):
            loss = _forward(state, plan, batch, step)
            state.scaler.scale(loss.value / plan.accumulate).backward()  # type: ignore[no-untyped-call]
        if state.online_head is not None and batch.labels is not None:
            with _autocast(state, plan):
                state.online_head.add_gradient(batch.views, batch.labels, 1 / plan.accumulate)
        losses.append(dataclasses.replace(loss, value=loss.value.detach()))
    loss = state.method.joined(losses, plan.accumulate)
    return loss, sum_(loss.value.float().clone()) / world_size()


def _forward(state: State, plan: TrainingPlan, batch: Batch, step: Step) -> Loss:
    """Return the loss of a forward pass in the precision of the plan."""
    batch = batch if plan.transform is None else plan.transform(batch)
    with _autocast(state, plan):
        loss: Loss = state.model(batch, step)
    return loss


def _autocast(state: State, plan: TrainingPlan) -> torch.autocast:
    return torch.autocast(state.device.type, dtype=DTYPES[plan.precision], enabled=plan.precision != "fp32")


def _update(state: State, plan: TrainingPlan, step: Step, *, parts: bool) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Update parameters, moving average and online head."""
    state.scaler.unscale_(state.optimizer)
    # Without a gradient, an optimizer changes neither the parameter nor its moments, and does not decay it.
    for prefix, updates in plan.frozen.items():
        if step.index < updates:
            for name, parameter in state.method.named_parameters():
                if name.startswith(prefix):
                    parameter.grad = None
    state.method.before_update(step)
    # Before clipping, so that the log shows what the loss asked for.
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


def _gradient_norms(learner: Learner) -> dict[str, Tensor]:
    """Return the norm of the gradients of each network of a learner, by its name: 'backbone', 'projector', ..."""
    parts: dict[str, list[Tensor]] = {}
    for name, parameter in learner.stored.named_parameters():
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


class _LossCheck:
    """Check that losses are finite; on a GPU one update late, so that the processor need not wait for the device."""

    def __init__(self, run: Run[Any]) -> None:
        self._run = run
        self._waiting: tuple[Any, Step, Loss, Tensor, torch.cuda.Event | None] | None = None

    def add(self, raw: Any, step: Step, loss: Loss, mean: Tensor) -> None:
        """Note the loss of this process and the mean over all; read those of the update before, on a CPU these."""
        self.read()
        late = mean.device.type == "cuda"
        values = torch.stack([loss.value.detach().float(), mean.float()]).to("cpu", non_blocking=late)
        ready = torch.cuda.Event() if late else None  # type: ignore[no-untyped-call]
        if ready is not None:
            ready.record()
        self._waiting = raw, step, loss, values, ready
        if not late:
            self.read()

    def read(self) -> None:
        """Read the losses that were noted last, and stop the run if their mean is not finite."""
        if self._waiting is None:
            return
        raw, step, loss, values, ready = self._waiting
        self._waiting = None
        if ready is not None:
            ready.synchronize()
        own, mean = values.tolist()
        if not math.isfinite(mean):
            self._run.diverged(raw, step, loss, own, mean)
