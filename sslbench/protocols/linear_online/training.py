"""Training of heads on images: one forward pass of the frozen backbone per batch feeds all of them."""

import contextlib
import copy
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layer_spec import Pool
from sslbench.backbones.layers import Layer, forward_layers, hooked, resolve_layers, run
from sslbench.backbones.speed import Encoder, prepare
from sslbench.data.decode.transforms import normalise
from sslbench.data.loading.pretraining import RawBatch
from sslbench.data.loading.probing import EpochBatches
from sslbench.data.source import Source
from sslbench.distributed.collectives import sum_, world_size
from sslbench.errors import DataError, UsageError
from sslbench.protocols._parts.head_training import HeadTraining, stop_diverged
from sslbench.protocols.linear_online.heads import Heads
from sslbench.runtime.resources import Precision
from sslbench.runtime.signals import stop_signals
from sslbench.train import loop
from sslbench.train.lock import exclusive
from sslbench.train.loop import RateSchedules, TrainingPlan
from sslbench.train.method import Loss, Step
from sslbench.train.optimizers.optimizer import OptimizerSettings, make_optimizer
from sslbench.train.schedules import Schedule
from sslbench.train.state import State, resume

_NORM = "norm"


@dataclasses.dataclass(frozen=True)
class Input:
    """Features that heads are trained on: one vector per image, or one per token for heads that attend.

    Attributes:
        name: unique among the inputs of a run.
        row: name in results; inputs of one row are alternatives, of which one is chosen.
        layers: the features that are joined to it.
        normalised: number of them, from the first on, that are class tokens to go through the backbone's last norm.
        choice: difference from the other inputs of its row.
    """

    name: str
    row: str
    layers: tuple[Layer, ...]
    normalised: int = 0
    choice: tuple[tuple[str, int | bool], ...] = ()


def layer_inputs(layers: Sequence[Layer]) -> tuple[Input, ...]:
    """Return an input and a row of results for every layer."""
    return tuple(Input(layer.text, layer.text, (layer,)) for layer in layers)


def block_inputs(backbone: Backbone, counts: Sequence[int], means: Sequence[bool]) -> tuple[Input, ...]:
    """Return the class tokens of the last n blocks joined, each after the last norm, as DINO and DINOv2 evaluate.

    `means`: true if the mean of the last block's patches (after the norm) is joined too; both can be tried.
    """
    modules = {name for name, _ in backbone.module.named_modules()}
    total = next(i for i in range(len(modules) + 1) if f"blocks.{i}" not in modules)
    if not total or _NORM not in modules:
        raise UsageError(
            f"blocks={list(counts)} needs a vision transformer; {backbone.name} has no modules blocks.0, ..., norm",
            "Leave out blocks=, and name layers with --layers.",
        )
    if max(counts) > total:
        raise UsageError(f"blocks={list(counts)}: {backbone.name} has {total} blocks")
    row = "last block:cls" if list(counts) == [1] else f"last {','.join(map(str, counts))} blocks:cls"
    row += ", with and without mean" if len(set(means)) > 1 else "+mean" if means[0] else ""
    inputs = []
    for n in dict.fromkeys(counts):
        for mean in dict.fromkeys(means):
            texts = [f"blocks.{i}:cls" for i in range(total - n, total)] + ([f"{_NORM}:mean"] if mean else [])
            layers = resolve_layers(backbone, texts)
            choice = (("blocks", n), ("patch_mean", mean))
            inputs.append(Input(f"blocks={n} patch_mean={str(mean).lower()}", row, layers, n, choice))
    return tuple(inputs)


class InputEncoder:
    """Frozen copy of a backbone that turns pictures into the inputs of all heads in one forward pass.

    Attributes:
        widths: name of an input -> (D, channels): its length, or that of a token, and how many channels a normalisation
            sees: features of a pooled map that belong to one channel share their statistics, as in VISSL's BatchNorm2d.
    """

    def __init__(
        self,
        backbone: Backbone,
        inputs: Sequence[Input],
        *,
        sides: tuple[int, int],
        device: torch.device,
        precision: Precision = "fp32",
    ) -> None:
        """Copy the backbone; the original is not touched."""
        self.inputs, self._preprocessing = tuple(inputs), backbone.preprocessing
        layers = tuple({layer.text: layer for each in inputs for layer in each.layers}.values())
        self._encoder: Encoder = prepare(backbone, layers, device=device, precision=precision)
        self._norm: nn.Module | None = None
        if any(each.normalised for each in inputs):
            self._norm = copy.deepcopy(self._encoder.module.get_submodule(_NORM)).float()
        self.widths = self._widths(sides[0])
        if sides[1] != sides[0]:
            of_images = self._widths(sides[1])
            for name, (width, _) in self.widths.items():
                if of_images[name][0] != width:
                    raise UsageError(
                        f"layer '{name}' has {width:,} features for views of {sides[0]} pixels and "
                        f"{of_images[name][0]:,} for the {sides[1]} pixels of the evaluation transform",
                        "Leave out size=, or pool the layer to a fixed size: LAYER:avg, LAYER:adaptive(2,2).",
                    )

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        """uint8 (B, 3, h, w) -> {name of the input: (B, D) or (B, N, D) float32}, on the device; no gradient."""
        encoder = self._encoder
        pictures = normalise(images.to(encoder.device, non_blocking=True), self._preprocessing, encoder.dtype)
        features = encoder(pictures)
        with torch.inference_mode():
            joined = {}
            for each in self.inputs:
                parts = [features[layer.text] for layer in each.layers]
                if self._norm is not None:
                    # The norm acts per token, so it can be applied to the class tokens alone.
                    parts = [self._norm(part) if i < each.normalised else part for i, part in enumerate(parts)]
                joined[each.name] = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return {name: value.clone() for name, value in joined.items()}  # autograd takes no inference tensors

    def state_sha256(self) -> str:
        """Return the hash of parameters and statistics: it changes if the backbone is not frozen."""
        return self._encoder.state_sha256()

    def _widths(self, side: int) -> dict[str, tuple[int, int]]:
        encoder = self._encoder
        shape = (1, self._preprocessing.channels, side, side)
        images = torch.zeros(shape, device=encoder.device, dtype=encoder.dtype)
        dimensions: dict[str, int] = {}
        with torch.inference_mode():
            with hooked(
                encoder.module, encoder.layers, lambda layer, value: dimensions.update({layer.text: value.ndim})
            ):
                run(encoder.module, images)
            features = encoder(images)
            maps = [
                dataclasses.replace(layer, pool=Pool("avg")) for layer in encoder.layers if dimensions[layer.text] == 4
            ]
            channels = {
                text: int(value.shape[1]) for text, value in forward_layers(encoder.module, images, maps).items()
            }
        widths = {}
        for each in self.inputs:
            width = sum(int(features[layer.text].shape[-1]) for layer in each.layers)
            own = channels.get(each.layers[0].text) if len(each.layers) == 1 else None
            widths[each.name] = (width, own or width)
        return widths


log = logging.getLogger("sslbench")

CHECK_EVERY = 10  # updates between two checks of losses and, with several processes, of signals
LINE_SECONDS = 30.0  # between log lines, which are also written at the end of an epoch


@dataclasses.dataclass(frozen=True)
class Training:
    """Plan of a training of heads.

    Attributes:
        schedule: share of the training in [0, 1] -> factor of the rates.
        optimizer: its options; rates and weight decay are those of each head.
        unreadable: makes the error about unreadable images, once there is one.
        progress: called with images done and images in all.
    """

    updates: int
    schedule: Schedule
    optimizer: OptimizerSettings
    folder: Path
    unreadable: Callable[[], DataError]
    progress: Callable[[int, int], None] | None = None


def train(heads: Heads, encode: InputEncoder, source: Source, data: EpochBatches, plan: Training) -> None:
    """Train the heads in place to the end; every process calls this. Continue from a checkpoint in `plan.folder`.

    The backbone is not trained, nor does anything else of it move: that is checked.
    """
    with exclusive(plan.folder):
        run = _HeadTraining(heads, encode, source, data, plan)
        resume(run.state, plan.folder)
        steps = TrainingPlan(
            plan.updates, data.steps_per_epoch, RateSchedules(plan.schedule, 1.0), log_every=0, save_every=0
        )
        # Always closed: workers that outlive the loop would delay the end of the process.
        stream = contextlib.closing(data.batches(run.state.step, plan.updates))
        with stop_signals() as signal_number, stream as pieces:
            loop.train(run.state, steps, run.encoded(pieces), run, signal_number)


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
        self.banks.zero_grad()
        done = step.index + 1
        regular = done % CHECK_EVERY == 0 or done % self.data.steps_per_epoch == 0 or done == self.plan.updates
        # After some seconds too in a single process, where no other has to agree.
        if regular or (world_size() == 1 and time.perf_counter() - self.reported > LINE_SECONDS):
            self.report(self.losses, self.features, done)

    def report(self, losses: Tensor, features: dict[str, Tensor], done: int) -> None:
        """Log the progress now and then; stop when no head is left."""
        # `sum_` works in place.
        values = sum_(losses.clone())
        if not torch.isfinite(values).any():
            remedy = "Give lower learning rates (lr=0.01,0.1), or norm=batch, which normalises the features."
            stop_diverged(features, done, "all heads", remedy)
        if self.plan.progress is not None:
            self.plan.progress(done * self.data.batch_size, self.plan.updates * self.data.batch_size)
        now = time.perf_counter()
        if done % self.data.steps_per_epoch == 0 or done == self.plan.updates or now - self.reported > LINE_SECONDS:
            self.reported = now
            left = values.nan_to_num(nan=float("inf"), posinf=float("inf"))
            best, count = int(left.argmin()), len(values)
            diverged = int((~torch.isfinite(values)).sum())
            # A head has one group or two, of which one has the weights of the classes: so there is one rate per head.
            groups = self.state.optimizer.param_groups
            rates = [group["lr"] for group in groups if {"weight", "head.weight"} & set(group["names"])]
            epochs = self.plan.updates / self.data.steps_per_epoch
            log.info(
                f"epoch {done / self.data.steps_per_epoch:.3g} of {epochs:.3g}, update {done} of {self.plan.updates}: "
                + (f"lowest loss of {count} heads" if count > 1 else "loss")
                + f" {float(values[best]):.4g}, lr {rates[best]:.3g}"
                + (f"; {diverged} diverged" if diverged else "")
            )
