"""Dense heads from end to end: survey of the targets, training, choice of a head per row, scores on test."""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sslbench.arrays import IntArray
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.dense import DenseEncoder
from sslbench.backbones.layers import Layer
from sslbench.data.decode.handlers import Reading
from sslbench.data.loading.joint import JointBatches, JointView
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.distributed import this_process
from sslbench.errors import DataError, UsageError
from sslbench.protocols._parts.dense.heads import (
    PIXELS,
    DenseHead,
    HeadInput,
    MapEncoder,
    fitted_sizes,
    head_inputs,
    make_heads,
)
from sslbench.protocols._parts.dense.saved import as_weights
from sslbench.protocols._parts.dense.scoring import Inference, Scoring
from sslbench.protocols._parts.dense.survey import Survey, refuse_problems, survey
from sslbench.protocols._parts.dense.task import DenseRow, DenseTask, HeadSettings
from sslbench.protocols._parts.dense.training import Training, number_of_updates, train
from sslbench.protocols._parts.images import random_sample, unreadable_images
from sslbench.protocols._parts.selection import best_of, edge_notes, held_out_rows, percent
from sslbench.protocols.protocol import ImageInputs
from sslbench.results import Outcome
from sslbench.runtime.progress import stage_progress
from sslbench.train.loop import NotFiniteError

log = logging.getLogger("sslbench")

# Training images at most that the chosen heads are scored on, to see whether they fit.
_TRAIN_IMAGES = 200


def checked_rows(
    backbone: Backbone, layers: Sequence[Layer], train_part: Source, settings: HeadSettings, *, protocol: str, seed: int
) -> tuple[str, ...]:
    """Return the names of the results, after all checks that read no image."""
    if (world := this_process().world) > 1:
        raise UsageError(f"{protocol} trains its heads in one process, and {world} were started", "Start one process.")
    if backbone.preprocessing.channels not in (1, 3) and settings.colours != "none":
        raise UsageError(
            f"{protocol}: colours={settings.colours} is for RGB images, and the backbone takes "
            f"{backbone.preprocessing.channels} channels",
            "Give colours=none.",
        )
    inputs, _ = head_inputs(backbone, layers, settings, protocol=protocol)
    # Called for its errors: a hold-out that is impossible shows before any image is decoded.
    _split_rows(train_part, settings, seed)
    return tuple(each.row for each in inputs)


def train_and_score(task: DenseTask[Any], own: ImageInputs[Any]) -> dict[str, Outcome]:
    """Train heads on train, choose one per row on a held-out part of it, and score the test images.

    Row -> outcome; a row of which every head diverged is left out.
    """
    backbone, settings, seed = own.backbone, task.settings, own.seed
    surveyed = _survey(task, own)
    fit, held_out = _split(own.train, settings, seed, surveyed)
    own = dataclasses.replace(own, train=fit)
    inputs, maps = head_inputs(backbone, own.layers, settings, protocol=task.name)
    encoder = DenseEncoder(backbone, maps, device=own.engine.device, precision=own.engine.float_precision())
    encode = MapEncoder(encoder, backbone.preprocessing.channels, pixels=True)
    sizes = fitted_sizes(settings, encode.multiple, surveyed.short_side, backbone.preprocessing.trained_side or 1)
    inference = Inference(sizes, settings.scales, settings.flip_test, settings.batch_size)
    scoring = Scoring(backbone, encode, task, inference, own.engine, own.progress)
    # The floor: the same head on the colours of the cells. Layers of one grid share it, hence the unique keys.
    on_colours = dict.fromkeys(encode.pixel_input(each) for each in inputs)
    heads = make_heads((*inputs, *on_colours), encode, task.outputs, settings, seed=seed)
    heads = [head.to(encode.device) for head in heads]
    alive = _train(heads, scoring, own, square=surveyed.square)
    living = [head for head, lives in zip(heads, alive, strict=True) if lives]
    # Heads on colours may live on; without one on features there is nothing to report.
    if not any(head.input in inputs for head in living):
        raise NotFiniteError(
            f"{task.name}: every head diverged", "Give lower learning rates (lr=0.0001,0.0003), or norm=true."
        )
    values: dict[int, float] = {}
    if held_out is not None:
        rows, _ = scoring.score(living, held_out, "selecting heads on")
        values = {number: task.value(scores) for number, scores in rows.items()}
        if all(math.isnan(value) for value in values.values()):
            raise DataError(
                f"{task.name}: no head has a score on the {counted(len(held_out), 'image')} held out to select one",
                "No known pixel is in the scored region: give one learning rate, another --seed or a larger holdout.",
            )
    updates, _ = number_of_updates(settings, len(fit))
    epochs = f"{updates * settings.batch_size / len(fit):.3g} epochs of {len(fit):,} images"
    used = f"Trained for {updates:,} updates of {settings.batch_size} crops ({epochs})"
    chose = "." if held_out is None else f"; {len(held_out):,} further train images chose the head."
    notes = [used + chose, sizes.text]
    if surveyed.unknown:
        notes.append(f"{counted(len(surveyed.unknown), 'training image')} without a counted pixel.")
    return _outcomes(scoring, own, heads, living, values, inputs, surveyed, notes)


def _outcomes(
    scoring: Scoring,
    own: ImageInputs[Any],
    heads: Sequence[DenseHead],
    living: Sequence[DenseHead],
    values: Mapping[int, float],
    inputs: Sequence[HeadInput],
    surveyed: Survey,
    notes: Sequence[str],
) -> dict[str, Outcome]:
    """Return the outcome of each row by its best head; `values`: of the living heads on held-out images, or empty."""
    task, test, settings = scoring.task, own.test, scoring.task.settings
    # The first of heads with equal values, or where no value is known.
    of_rows: dict[str, list[DenseHead]] = {}
    for head in living:
        of_rows.setdefault(head.input.row, []).append(head)
    best = {row: own[best_of([values.get(head.number, math.nan) for head in own])] for row, own in of_rows.items()}
    fixed = {"constant": surveyed.constant, "position only": surveyed.by_position, **task.constants()}
    on_test, floors = scoring.score(list(best.values()), test, "scoring", fixed)
    sample = random_sample(own.train, min(len(test), _TRAIN_IMAGES), own.seed)
    on_train, _ = scoring.score(list(best.values()), sample, "scoring a part of")
    outcomes = {}
    for row in dict.fromkeys(each.row for each in inputs):
        if row not in best:
            log.warning(f"{row}: every head diverged; try lower learning rates")
            continue
        head, others = best[row], [other for other in heads if other.input.row == row]
        pixels = best.get(scoring.encode.pixel_input(head.input).row)
        selected: dict[str, Any] = {}
        if values:
            tried = {other.text: values.get(other.number, math.nan) for other in others}
            on = f"held-out {percent(settings.holdout)} of train"
            selected = {"lr": head.lr, "on": on, "score": values[head.number], "seed": own.seed, "tried": tried}
        diverged = [other.text for other in others if other not in living]
        result = DenseRow(
            on_test[head.number],
            floors if pixels is None else {**floors, PIXELS: on_test[pixels.number]},
            task.value(on_train[head.number]),
            surveyed.constant.ravel(),
            selected,
            (
                *notes,
                *([f"Diverged heads were left out: {'; '.join(diverged)}."] if diverged else []),
                # Of two rates each is an end, which says nothing.
                *edge_notes("lr", head.lr, settings.lr, least=3),
            ),
            scoring.picture(head, on_test[head.number], test),
        )
        outcome = task.outcome(result, test, own.seed)
        outcomes[row] = dataclasses.replace(outcome, weights=as_weights(head, scoring, own.layers))
    return outcomes


def _train(heads: Sequence[DenseHead], scoring: Scoring, own: ImageInputs[Any], *, square: bool) -> list[bool]:
    """Train the heads in place, on images that are all `square`; return a mask of those that did not diverge."""
    task, settings, fit, preprocessing = scoring.task, scoring.task.settings, own.train, own.backbone.preprocessing
    updates, warmup = number_of_updates(settings, len(fit))
    log.info(f"{len(heads)} heads on {own.backbone.name}, {updates} updates of {settings.batch_size} crops")
    view = JointView(
        crop=scoring.inference.sizes.crop,
        short_side=scoring.inference.sizes.short_side,
        resize_range=settings.resize_range,
        most_of_one=task.most_of_one,
        flip=settings.flip,
        rotation=settings.rotation,
        colours=settings.colours,
        interpolation=preprocessing.interpolation,
        region=task.region,
        # The mean is 0 after the normalisation.
        fill=tuple(255 * value for value in preprocessing.mean),
    )
    data = JointBatches(
        fit,
        task.read,
        view,
        batch_size=settings.batch_size,
        seed=own.seed,
        mirrored=task.mirrored,
        workers=own.engine.workers,
        reading=Reading(preprocessing.decoder, preprocessing.max_pixels, own.engine.start_method),
        channels=preprocessing.channels,
    )
    plan = Training(
        updates,
        warmup,
        preprocessing,
        own.folder,
        own.seed,
        lambda: unreadable_images(fit, preprocessing, own.engine),
        _different_crops(view, len(fit)) if square else None,
        stage_progress(own.progress, f"{own.backbone.name}: training heads on {fit.name}"),
    )
    return train(heads, scoring.encode, data, task, settings, plan)


def _survey(task: DenseTask[Any], own: ImageInputs[Any]) -> Survey:
    """Return the survey of train, after checks of both parts."""
    surveys = []
    for source in (own.train, own.test):
        report = stage_progress(own.progress, f"reading the targets of {source.name}")
        surveys.append(survey(source, task.read, task.cells, own.engine, report))
    parts = list(zip((own.train, own.test), surveys, strict=True))
    refuse_problems(task.name, task.no_value, parts)
    for source, each in parts:
        if each.unreadable:
            raise unreadable_images(source, own.backbone.preprocessing, own.engine)
    for part, each in zip(("train", "test"), surveys, strict=True):
        task.check_totals(part, each.sums.sum(axis=(1, 2)))
    return surveys[0]


def _split(train_part: Source, settings: HeadSettings, seed: int, surveyed: Survey) -> tuple[Source, Source | None]:
    """Return the part that is trained on, and the held-out part; None where there is one learning rate."""
    parts = _split_rows(train_part, settings, seed)
    if parts is None:
        return train_part, None
    for rows, name in zip(parts, ("that heads are trained on", "held out to select a head"), strict=True):
        if set(rows.tolist()) <= set(surveyed.unknown):
            raise DataError(
                f"{train_part.name}: none of the {counted(len(rows), 'image')} {name} has a pixel that counts; "
                f"{len(surveyed.unknown):,} of {len(train_part):,} train images have none",
                f"Give one learning rate, such as lr={settings.lr[len(settings.lr) // 2]:g}, another --seed, or "
                f"a larger holdout than {settings.holdout:g}.",
            )
    return train_part.select(parts[0]), train_part.select(parts[1])


def _split_rows(train_part: Source, settings: HeadSettings, seed: int) -> tuple[IntArray, IntArray] | None:
    """Return the rows that are trained on and those held out; None where there is one learning rate."""
    if len(settings.lr) == 1:
        return None
    remedy = f"Give one learning rate, such as lr={settings.lr[len(settings.lr) // 2]:g}."
    return held_out_rows(train_part, settings.holdout, seed, selected="a head", remedy=remedy)


def _different_crops(view: JointView, images: int) -> int | None:
    """Return the number of different crops of square images; None if crops are drawn at random."""
    whole = view.region is None and view.crop == (view.short_side, view.short_side)
    if not whole or view.resize_range != (1.0, 1.0) or view.rotation or view.colours != "none":
        return None
    # With a probability of 0 or 1 every image has the same crop each time.
    return images * (2 if 0 < view.flip < 1 else 1)
