"""Dense heads from end to end: survey of the targets, training, choice of a head per row, scores on test."""

import dataclasses
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sslbench.arrays import FloatArray, IntArray
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.dense import DenseEncoder
from sslbench.backbones.layers import Layer
from sslbench.data.decode.handlers import Reading
from sslbench.data.groups import source_groups
from sslbench.data.loading.joint import JointBatches, JointView, PixelTarget
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.distributed import this_process
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense.heads import (
    PIXELS,
    DenseHead,
    MapEncoder,
    Sizes,
    fitted_sizes,
    head_inputs,
    make_heads,
)
from sslbench.protocols._parts.dense.scoring import Inference, outputs
from sslbench.protocols._parts.dense.survey import Survey, refuse_problems, survey
from sslbench.protocols._parts.dense.task import DenseRow, DenseTask, HeadSettings
from sslbench.protocols._parts.dense.training import Training, number_of_updates, train
from sslbench.protocols._parts.images import random_sample, unreadable_images
from sslbench.protocols._parts.pictures import chosen_by_score, sheet
from sslbench.protocols._parts.selection import edge_notes, holdout_rows, is_better, no_holdout, percent
from sslbench.protocols.protocol import ImageInputs
from sslbench.results import Outcome
from sslbench.runtime.progress import Progress, stage_progress
from sslbench.train.loop import NotFiniteError

log = logging.getLogger("sslbench")

# Training images at most that the chosen heads are scored on, to see whether they fit.
_TRAIN_IMAGES = 200
# Images in each group of the picture.
_SHOWN = 3


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
    backbone, test, settings, seed = own.backbone, own.test, task.settings, own.seed
    surveyed = _survey(task, own)
    fit, held_out = _split(own.train, settings, seed, surveyed)
    inputs, maps = head_inputs(backbone, own.layers, settings, protocol=task.name)
    encoder = DenseEncoder(backbone, maps, device=own.engine.device, precision=own.engine.float_precision())
    encode = MapEncoder(encoder, backbone.preprocessing.channels, pixels=True)
    sizes = fitted_sizes(settings, encode.multiple, surveyed.short_side, backbone.preprocessing.trained_side or 1)
    inference = Inference(sizes, settings.scales, settings.flip_test, settings.batch_size)
    run = _Run(backbone, encode, task, inference, seed, own.engine, own.progress)
    # The floor: the same head on the colours of the cells. Layers of one grid share it, hence the unique keys.
    on_colours = dict.fromkeys(encode.pixel_input(each) for each in inputs)
    heads = make_heads((*inputs, *on_colours), encode, task.outputs, settings, seed=seed)
    heads = [head.to(encode.device) for head in heads]
    alive = run.train(heads, fit, own.folder, square=surveyed.square)
    living = [head for head, lives in zip(heads, alive, strict=True) if lives]
    # Heads on colours may live on; without one on features there is nothing to report.
    if not any(head.input in inputs for head in living):
        raise NotFiniteError(
            f"{task.name}: every head diverged", "Give lower learning rates (lr=0.0001,0.0003), or norm=true."
        )
    values: dict[int, float] = {}
    if held_out is not None:
        found, _ = run.score(living, held_out, "selecting heads on")
        values = {number: task.value(rows) for number, rows in found.items()}
        _check_values(values, held_out, task)
    best = _best(living, values)
    chosen = list(best.values())
    fixed = {"constant": surveyed.constant, "position only": surveyed.by_position, **task.constants()}
    on_test, floors = run.score(chosen, test, "scoring", fixed)
    part = random_sample(fit, min(len(test), _TRAIN_IMAGES), seed)
    on_train, _ = run.score(chosen, part, "scoring a part of")
    notes = [_training_note(settings, fit, held_out), sizes.text]
    if surveyed.unknown:
        notes.append(f"{counted(len(surveyed.unknown), 'training image')} without a counted pixel.")
    rows = {}
    for row in dict.fromkeys(each.row for each in inputs):
        if row not in best:
            log.warning(f"{row}: every head diverged; try lower learning rates")
            continue
        head, others = best[row], [other for other in heads if other.input.row == row]
        pixels = best.get(encode.pixel_input(head.input).row)
        result = DenseRow(
            on_test[head.number],
            floors if pixels is None else {**floors, PIXELS: on_test[pixels.number]},
            task.value(on_train[head.number]),
            surveyed.constant.ravel(),
            _selected(head, others, values, settings, seed) if held_out is not None else {},
            (*notes, *_notes(head, others, alive, settings)),
            run.picture(head, on_test[head.number], test),
        )
        rows[row] = task.outcome(result, test, seed)
    return rows


@dataclasses.dataclass(frozen=True)
class _Run:
    """Parts that the training and the scorings of a run share."""

    backbone: Backbone
    encode: MapEncoder
    task: DenseTask[Any]
    inference: Inference
    seed: int
    engine: ExtractSettings
    progress: Progress | None

    def train(self, heads: Sequence[DenseHead], fit: Source, folder: Path, *, square: bool) -> list[bool]:
        """Train the heads in place, on images that are all `square`; return a mask of those that did not diverge."""
        settings, own = self.task.settings, self.backbone.preprocessing
        updates, warmup = number_of_updates(settings, len(fit))
        log.info(f"{len(heads)} heads on {self.backbone.name}, {updates} updates of {settings.batch_size} crops")
        view = _view(self.task, self.inference.sizes, own)
        data = JointBatches(
            fit,
            self.task.read,
            view,
            batch_size=settings.batch_size,
            seed=self.seed,
            mirrored=self.task.mirrored,
            workers=self.engine.workers,
            reading=Reading(own.decoder, own.max_pixels, self.engine.start_method),
            channels=own.channels,
        )
        plan = Training(
            updates,
            warmup,
            own,
            folder,
            self.seed,
            lambda: unreadable_images(fit, own, self.engine),
            _different_crops(view, len(fit)) if square else None,
            stage_progress(self.progress, f"{self.backbone.name}: training heads on {fit.name}"),
        )
        return train(heads, self.encode, data, self.task, settings, plan)

    def outputs(self, heads: Sequence[DenseHead], source: Source) -> Iterator[tuple[PixelTarget, Iterator[Tensor]]]:
        """Yield the target of every image and the output of each head."""
        own = self.backbone.preprocessing
        return outputs(
            heads,
            self.encode,
            source,
            self.task,
            own,
            self.inference,
            self.engine,
            unreadable=lambda: unreadable_images(source, own, self.engine),
        )

    def score(
        self, heads: Sequence[DenseHead], source: Source, title: str, fixed: Mapping[str, FloatArray] | None = None
    ) -> tuple[dict[int, FloatArray], dict[str, FloatArray]]:
        """Return the rows (N, R) of heads by number, and of outputs that are the same for every image by name."""
        report = stage_progress(self.progress, f"{self.backbone.name}: {title} {source.name}")
        constant = {name: torch.from_numpy(np.asarray(x, dtype=np.float32)) for name, x in (fixed or {}).items()}
        rows: dict[int, list[FloatArray]] = {head.number: [] for head in heads}
        of_fixed: dict[str, list[FloatArray]] = {name: [] for name in constant}
        found = self.outputs(heads, source)
        with torch.inference_mode():
            for done, (target, each) in enumerate(found, start=1):
                for head, output in zip(heads, each, strict=True):
                    rows[head.number].append(self.task.row(output, target))
                for name, output in constant.items():
                    of_fixed[name].append(self.task.row(output, target))
                if report is not None:
                    report(done, len(source))
        return {n: np.stack(each) for n, each in rows.items()}, {n: np.stack(each) for n, each in of_fixed.items()}

    def picture(self, head: DenseHead, rows: FloatArray, test: Source) -> bytes:
        """Return a sheet of the best, median and worst test images, each with its truth and its prediction."""
        values = np.array([self.task.value(row[None]) for row in rows])
        known = np.flatnonzero(np.isfinite(values))
        if not len(known):
            return b""
        chosen = {name: known[at].tolist() for name, at in chosen_by_score(values[known], _SHOWN).items()}
        # In the order in which their outputs come.
        shown = sorted(index for group in chosen.values() for index in group)
        drawn = {}
        with torch.inference_mode():
            found = self.outputs([head], test.select(np.array(shown)))
            for index, (target, each) in zip(shown, found, strict=True):
                drawn[index] = self.task.drawn(next(each), target)

        def draw(picture: Image.Image, index: int, factor: float) -> Image.Image:
            paper = Image.new("RGB", (3 * picture.width, picture.height))
            for place, part in enumerate((picture, *drawn[index])):
                small = part.resize(picture.size, Image.Resampling.NEAREST)
                paper.paste(small, (place * picture.width, 0))
            return paper

        captions = {index: f"image, truth, prediction: {self.task.caption(float(values[index]))}" for index in shown}
        return sheet(test, chosen, captions, draw, self.backbone.preprocessing)


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
                f"Give {_one_rate(settings)}, another --seed, or a larger holdout than {settings.holdout:g}.",
            )
    return train_part.select(parts[0]), train_part.select(parts[1])


def _split_rows(train_part: Source, settings: HeadSettings, seed: int) -> tuple[IntArray, IntArray] | None:
    """Return the rows that are trained on and those held out; None where there is one learning rate."""
    if len(settings.lr) == 1:
        return None
    groups = source_groups(train_part)
    parts = holdout_rows(train_part.target, settings.holdout, seed, groups)
    if parts is None:
        reason = no_holdout(groups)
        raise UsageError(
            f"{train_part.name}: {reason[0].lower()}{reason[1:]} for the selection of a head",
            f"Give {_one_rate(settings)}.",
        )
    return parts


def _one_rate(settings: HeadSettings) -> str:
    return f"one learning rate, such as lr={settings.lr[len(settings.lr) // 2]:g}"


def _view(task: DenseTask[Any], sizes: Sizes, own: Preprocessing) -> JointView:
    settings = task.settings
    return JointView(
        crop=sizes.crop,
        short_side=sizes.short_side,
        resize_range=settings.resize_range,
        most_of_one=task.most_of_one,
        flip=settings.flip,
        rotation=settings.rotation,
        colours=settings.colours,
        interpolation=own.interpolation,
        region=task.region,
        # The mean is 0 after the normalisation.
        fill=tuple(255 * value for value in own.mean),
    )


def _different_crops(view: JointView, images: int) -> int | None:
    """Return the number of different crops of square images; None if crops are drawn at random."""
    whole = view.region is None and view.crop == (view.short_side, view.short_side)
    if not whole or view.resize_range != (1.0, 1.0) or view.rotation or view.colours != "none":
        return None
    # With a probability of 0 or 1 every image has the same crop each time.
    return images * (2 if 0 < view.flip < 1 else 1)


def _check_values(values: Mapping[int, float], held_out: Source, task: DenseTask[Any]) -> None:
    """Refuse a choice among heads of which none has a score."""
    if all(math.isnan(value) for value in values.values()):
        raise DataError(
            f"{task.name}: no head has a score on the {counted(len(held_out), 'image')} held out to select one",
            "No known pixel is in the scored region: give one learning rate, another --seed or a larger holdout.",
        )


def _best(living: Sequence[DenseHead], values: dict[int, float]) -> dict[str, DenseHead]:
    """Return the head of each row with the best value; the first of equal ones, or where no value is known."""
    best: dict[str, DenseHead] = {}
    for head in living:
        other = best.setdefault(head.input.row, head)
        if values and is_better(values[head.number], values[other.number]):
            best[head.input.row] = head
    return best


def _selected(
    head: DenseHead, others: Sequence[DenseHead], values: dict[int, float], settings: HeadSettings, seed: int
) -> dict[str, Any]:
    tried = {other.text: values.get(other.number, math.nan) for other in others}
    on = f"held-out {percent(settings.holdout)} of train"
    return {"lr": head.lr, "on": on, "score": values[head.number], "seed": seed, "tried": tried}


def _training_note(settings: HeadSettings, fit: Source, held_out: Source | None) -> str:
    updates, _ = number_of_updates(settings, len(fit))
    epochs = f"{updates * settings.batch_size / len(fit):.3g} epochs of {len(fit):,} images"
    used = f"Trained for {updates:,} updates of {settings.batch_size} crops ({epochs})"
    return used + ("." if held_out is None else f"; {len(held_out):,} further train images chose the head.")


def _notes(head: DenseHead, others: Sequence[DenseHead], alive: Sequence[bool], settings: HeadSettings) -> list[str]:
    notes = []
    if diverged := [other.text for other in others if not alive[other.number]]:
        notes.append(f"Diverged heads were left out: {'; '.join(diverged)}.")
    # Of two rates each is an end, which says nothing.
    return notes + edge_notes("lr", head.lr, settings.lr, least=3)
