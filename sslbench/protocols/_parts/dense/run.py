"""Dense heads from end to end: survey of the targets, training, choice of a head per row, scores on test."""

import dataclasses
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.dense import DenseEncoder
from sslbench.backbones.layers import Layer
from sslbench.data.decode.handlers import Reading
from sslbench.data.groups import source_groups
from sslbench.data.loading.joint import JointBatches, JointView
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.features.extract import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense.heads import (
    PIXELS,
    DenseHead,
    HeadInput,
    MapEncoder,
    Sizes,
    fitted_sizes,
    head_inputs,
    make_heads,
)
from sslbench.protocols._parts.dense.scoring import Inference, score
from sslbench.protocols._parts.dense.settings import HeadSettings
from sslbench.protocols._parts.dense.survey import Survey, survey
from sslbench.protocols._parts.dense.task import DenseTask
from sslbench.protocols._parts.dense.training import Training, number_of_updates, train
from sslbench.protocols._parts.images import unreadable_images
from sslbench.protocols._parts.selection import holdout_rows, is_better, no_holdout, percent
from sslbench.runtime.progress import Progress, stage_progress
from sslbench.train.loop import NotFiniteError

log = logging.getLogger("sslbench")

_TRAIN_IMAGES = 200
"""Training images at most that the chosen heads are scored on, to see whether they fit."""


@dataclasses.dataclass(frozen=True)
class DenseRow:
    """Result of one row.

    Attributes:
        rows: (N, R), scores of the test images in order.
        floors: 'constant', 'position only' and 'pixels' -> (N, R), scores of the same images.
        train: leading metric on training images.
        selected: chosen settings, as records hold them.
        notes: one sentence each.
    """

    rows: FloatArray
    floors: dict[str, FloatArray]
    train: float
    selected: dict[str, Any]
    notes: tuple[str, ...]


def check_settings(settings: HeadSettings, *, protocol: str) -> None:
    """Refuse settings that are not possible, whatever the data and the backbone.

    Raises:
        UsageError: they are.
    """

    def need(right: bool, message: str) -> None:
        if not right:
            raise UsageError(f"{protocol}: {message}")

    def positive(value: float) -> bool:
        return math.isfinite(value) and value > 0

    need(bool(settings.lr) and all(map(positive, settings.lr)), f"lr should be above 0, not {list(settings.lr)}")
    for name in ("lr", "blocks", "scales"):
        values = getattr(settings, name)
        need(len(set(values)) == len(values), f"{name} holds a value twice: {list(values)}")
    need(all(n >= 1 for n in settings.blocks), f"blocks should be 1 or more, not {list(settings.blocks)}")
    for name in ("steps", "batch_size", "upsample"):
        need(getattr(settings, name) >= 1, f"{name} should be at least 1, not {getattr(settings, name)}")
    need(settings.batch_size > 1, "batch_size should be at least 2: BatchNorm needs it")
    need(0 <= settings.warmup_steps < settings.steps, f"warmup_steps={settings.warmup_steps} should be below steps")
    need(positive(settings.power), f"power should be above 0, not {settings.power}")
    need(settings.max_epochs is None or positive(settings.max_epochs), "max_epochs should be above 0")
    need(settings.power == 1 or settings.schedule == "poly", f"power has no effect with schedule={settings.schedule}")
    need(settings.weight_decay >= 0, f"weight_decay should be 0 or more, not {settings.weight_decay}")
    need(settings.clip_norm is None or positive(settings.clip_norm), "clip_norm should be above 0")
    for name in ("dropout", "flip"):
        need(0 <= getattr(settings, name) <= 1, f"{name} should lie between 0 and 1, not {getattr(settings, name)}")
    need(settings.dropout < 1, "dropout should be below 1")
    need(0 < settings.holdout < 1, f"holdout should lie between 0 and 1, not {settings.holdout}")
    need(0 <= settings.rotation <= 180, f"rotation should lie between 0 and 180, not {settings.rotation}")
    low, high = settings.resize_range
    need(0 < low <= high, f"resize_range should ascend from above 0, not {[low, high]}")
    need(bool(settings.scales) and all(map(positive, settings.scales)), f"scales: {list(settings.scales)}")
    sizes = [
        ("size", (1 if settings.size is None else settings.size,)),
        ("crop", settings.crop),
        ("stride", settings.stride),
    ]
    for name, values in [*sizes, ("window", settings.window or (1, 1))]:
        need(min(values) >= 1, f"{name} should be at least 1 pixel, not {list(values)}")
    if settings.window is not None:
        fits = all(step <= side for step, side in zip(settings.stride, settings.window, strict=True))
        need(fits, f"stride={list(settings.stride)} would leave gaps between windows of {list(settings.window)}")
    need(not (settings.enlarge and settings.size is None), "enlarge has no effect without size")


def checked_rows(
    backbone: Backbone, layers: Sequence[Layer], train_part: Source, settings: HeadSettings, *, protocol: str, seed: int
) -> tuple[str, ...]:
    """Return the names of the results, after all checks that read no image.

    Raises:
        UsageError: backbone, layers, settings, data or the number of processes do not fit.
    """
    if (world := this_process().world) > 1:
        raise UsageError(f"{protocol} trains its heads in one process, and {world} were started", "Start one process.")
    if backbone.preprocessing.channels not in (1, 3) and settings.colours != "none":
        raise UsageError(
            f"{protocol}: colours={settings.colours} is for RGB images, and the backbone takes "
            f"{backbone.preprocessing.channels} channels",
            "Give colours=none.",
        )
    inputs, _ = head_inputs(backbone, layers, settings, protocol=protocol)
    _split(train_part, settings, seed)
    return tuple(each.row for each in inputs)


def train_and_score(  # noqa: PLR0913  network, data, settings and how it runs
    backbone: Backbone,
    layers: Sequence[Layer],
    train_part: Source,
    test: Source,
    task: DenseTask,
    settings: HeadSettings,
    view: JointView,
    *,
    seed: int,
    engine: ExtractSettings,
    folder: Path,
    progress: Progress | None = None,
) -> dict[str, DenseRow]:
    """Train heads on train, choose one per row on a held-out part of it, and score the test images.

    Args:
        backbone: stays as it is.
        layers: a row of results each, unless `settings.blocks` is set.
        train_part: images with targets.
        test: the same.
        task: targets, loss and scores.
        settings: see `HeadSettings`.
        view: augmentation of the task; sizes, flip, rotation, colours and fill come from the settings.
        seed: of the held-out part, the order, the augmentation and the first weights.
        engine: device, precision and workers.
        folder: for checkpoints: the same call continues from the newest one there.
        progress: called with what, images done and images in all.

    Returns:
        Row -> result; a row of which every head diverged is left out.

    Raises:
        DataError: images or targets cannot be used; all of them are listed.
        NotFiniteError: every head diverged.
        StoppedError: a signal came; everything is saved.
    """
    fit, held_out = _split(train_part, settings, seed)
    surveyed = _survey(train_part, test, task, backbone, engine, progress)
    inputs, maps = head_inputs(backbone, layers, settings, protocol=task.name)
    own = backbone.preprocessing
    encoder = DenseEncoder(backbone, maps, device=engine.device, precision=engine.precision)
    encode = MapEncoder(encoder, own.channels, pixels=True)
    sizes = fitted_sizes(settings, encode.multiple, surveyed.short_side)
    heads = _make_heads(inputs, encode, task, settings, seed)
    updates, warmup = number_of_updates(settings, len(fit))
    log.info(f"{len(heads)} heads on {backbone.name}, {updates} updates of {settings.batch_size} crops")
    data = JointBatches(
        fit,
        task.read,
        _view(view, settings, sizes, own),
        batch_size=settings.batch_size,
        seed=seed,
        mirrored=task.mirrored,
        workers=engine.workers,
        reading=Reading(own.decoder, own.max_pixels, engine.start_method),
        channels=own.channels,
    )
    plan = Training(
        updates,
        warmup,
        own,
        folder,
        seed,
        lambda: unreadable_images(fit, own, engine),
        stage_progress(progress, f"{backbone.name}: training heads on {train_part.name}"),
    )
    alive = train(heads, encode, data, task, settings, plan)
    if not any(alive[head.number] for head in heads if head.input in inputs):
        raise NotFiniteError(
            f"{task.name}: every head diverged", "Give lower learning rates (lr=[0.0001,0.0003]), or norm=true."
        )
    scorer = _Scorer(encode, task, backbone, engine, progress)
    living = [head for head, lives in zip(heads, alive, strict=True) if lives]
    plain = Inference(sizes)
    values: dict[int, float] = {}
    if held_out is not None:
        found, _ = scorer.score(living, held_out, plain, "selecting heads on")
        values = {number: task.value(rows) for number, rows in found.items()}
    chosen = {
        row: _best([head for head in living if head.input.row == row], values)
        for row in dict.fromkeys(head.input.row for head in living)
    }
    final = Inference(sizes, settings.scales, settings.flip_test)
    fixed = {"constant": surveyed.constant, "position only": surveyed.by_position}
    on_test, floors = scorer.score(list(chosen.values()), test, final, "scoring", fixed)
    sample = _sample(fit, min(len(test), _TRAIN_IMAGES), seed)
    on_train, _ = scorer.score(list(chosen.values()), sample, plain, "scoring a part of")
    if PIXELS in chosen:
        floors[PIXELS] = on_test[chosen[PIXELS].number]
    epochs = updates * settings.batch_size / len(fit)
    used = (
        f"Trained for {updates:,} updates of {settings.batch_size} crops ({epochs:.3g} epochs of {len(fit):,} images)"
    )
    used += f"; {len(held_out):,} further train images chose the head." if held_out is not None else "."
    notes = [used, sizes.text]
    if surveyed.unknown:
        notes.append(f"{counted(len(surveyed.unknown), 'training image')} without a counted pixel.")
    rows = {}
    for each in inputs:
        if each.row not in chosen:
            log.warning(f"{each.row}: every head diverged; try lower learning rates")
            continue
        head = chosen[each.row]
        others = [other for other in heads if other.input.row == each.row]
        rows[each.row] = DenseRow(
            on_test[head.number],
            floors,
            task.value(on_train[head.number]),
            _selected(head, others, values, settings, seed) if held_out is not None else {},
            (*notes, *_notes(head, others, alive, settings)),
        )
    return rows


class _Scorer:
    """Parts that all scorings of a run share."""

    def __init__(
        self,
        encode: MapEncoder,
        task: DenseTask,
        backbone: Backbone,
        engine: ExtractSettings,
        progress: Progress | None,
    ) -> None:
        self.encode, self.task, self.backbone, self.engine, self.progress = encode, task, backbone, engine, progress

    def score(
        self,
        heads: Sequence[DenseHead],
        source: Source,
        inference: Inference,
        title: str,
        fixed: dict[str, FloatArray] | None = None,
    ) -> tuple[dict[int, FloatArray], dict[str, FloatArray]]:
        """Return the rows of heads and of fixed outputs."""
        own = self.backbone.preprocessing
        return score(
            heads,
            self.encode,
            source,
            self.task,
            own,
            inference,
            self.engine,
            fixed=fixed,
            unreadable=lambda: unreadable_images(source, own, self.engine),
            progress=stage_progress(self.progress, f"{self.backbone.name}: {title} {source.name}"),
        )


def _survey(
    train_part: Source,
    test: Source,
    task: DenseTask,
    backbone: Backbone,
    engine: ExtractSettings,
    progress: Progress | None,
) -> Survey:
    """Return the survey of train, after checks of both parts."""
    found = []
    for source in (train_part, test):
        report = stage_progress(progress, f"reading the targets of {source.name}")
        found.append(survey(source, task, engine, report))
        if found[-1].unreadable:
            raise unreadable_images(source, backbone.preprocessing, engine)
    task.check_totals(found[0].sums.sum(axis=(1, 2)))
    return found[0]


def _split(train_part: Source, settings: HeadSettings, seed: int) -> tuple[Source, Source | None]:
    """Return the part that is trained on, and the held-out part; None where there is one learning rate."""
    if len(settings.lr) == 1:
        return train_part, None
    groups = source_groups(train_part)
    parts = holdout_rows(train_part.labels, settings.holdout, seed, groups)
    if parts is None:
        reason = no_holdout(groups)
        raise UsageError(
            f"{train_part.name}: {reason[0].lower()}{reason[1:]} for the selection of a head",
            f"Give one learning rate, such as lr={settings.lr[len(settings.lr) // 2]:g}.",
        )
    return train_part.select(parts[0]), train_part.select(parts[1])


def _make_heads(
    inputs: Sequence[HeadInput], encode: MapEncoder, task: DenseTask, settings: HeadSettings, seed: int
) -> list[DenseHead]:
    """Return the heads of all rows, and those on the colours."""
    parts = max(len(each.parts) for each in inputs)
    pixels = HeadInput(PIXELS, (PIXELS,) * parts)
    heads = make_heads((*inputs, pixels), encode.widths, task.outputs, settings, seed=seed)
    return [head.to(encode.device) for head in heads]


def _view(view: JointView, settings: HeadSettings, sizes: Sizes, own: Preprocessing) -> JointView:
    return dataclasses.replace(
        view,
        crop=sizes.crop,
        short_side=sizes.short_side,
        resize_range=settings.resize_range,
        flip=settings.flip,
        rotation=settings.rotation,
        colours=settings.colours,
        interpolation=own.interpolation,
        fill=tuple(255 * value for value in own.mean),
    )


def _best(heads: Sequence[DenseHead], values: dict[int, float]) -> DenseHead:
    """Return the head with the best value, of equal ones the first."""
    best = heads[0]
    for head in heads[1:]:
        best = head if is_better(values[head.number], values[best.number]) else best
    return best


def _selected(
    head: DenseHead, others: Sequence[DenseHead], values: dict[int, float], settings: HeadSettings, seed: int
) -> dict[str, Any]:
    tried = {other.text: values.get(other.number, math.nan) for other in others}
    on = f"held-out {percent(settings.holdout)} of train"
    return {"lr": head.lr, "on": on, "score": values[head.number], "seed": seed, "tried": tried}


def _notes(head: DenseHead, others: Sequence[DenseHead], alive: Sequence[bool], settings: HeadSettings) -> list[str]:
    notes = []
    if diverged := [other.text for other in others if not alive[other.number]]:
        notes.append(f"Diverged heads were left out: {'; '.join(diverged)}.")
    rates = sorted(settings.lr)
    if len(rates) > 2 and head.lr in (rates[0], rates[-1]):
        end = "smallest" if head.lr == rates[0] else "largest"
        notes.append(f"The selected lr={head.lr:g} is the {end} value tried; the best may lie beyond.")
    return notes


def _sample(source: Source, most: int, seed: int) -> Source:
    if len(source) <= most:
        return source
    return source.select(np.sort(np.random.default_rng(seed).choice(len(source), most, replace=False)))
