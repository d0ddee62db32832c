"""The online linear probe from end to end: train, choose, score."""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.data.groups import source_groups
from sslbench.data.source import Source
from sslbench.distributed.collectives import rank
from sslbench.features.array import ExtractSettings
from sslbench.metrics.measure import Probabilities
from sslbench.metrics.summary import summarise
from sslbench.protocols._parts.images import evaluation_side, unreadable_images
from sslbench.protocols.linear_online import plan as planning
from sslbench.protocols.linear_online import recipe
from sslbench.protocols.linear_online.inputs import InputEncoder
from sslbench.protocols.linear_online.scoring import Chosen, Scored, candidates, choose, score
from sslbench.protocols.linear_online.settings import Settings
from sslbench.protocols.linear_online.training import Training, train
from sslbench.results import Outcome
from sslbench.runtime.progress import Progress, stage_progress
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.target import OfClasses

log = logging.getLogger("sslbench")


def run(
    backbone: Backbone,
    layers: Sequence[Layer],
    parts: tuple[Source, Source],
    settings: Settings,
    *,
    seed: int,
    engine: ExtractSettings,
    folder: Path,
    progress: Progress | None,
) -> dict[str, Outcome]:
    """Run the protocol, see `linear_online.run_on_images`; `parts` are train and test."""
    whole, test = parts[0].in_rank(), parts[1]
    plans = planning.planned(backbone, layers, settings)
    fit, held_out = planning.split(whole, plans, settings, seed)
    batches = planning.make_batches(
        fit,
        backbone.preprocessing,
        settings,
        seed=seed,
        piece=engine.batch_size,
        workers=engine.workers,
        start_method=engine.start_method,
    )
    updates = settings.updates or max(1, round(settings.epochs * batches.steps_per_epoch))
    plan = Training(
        updates=updates,
        schedule=recipe.schedule(settings, updates / batches.steps_per_epoch),
        optimizer=recipe.optimizer_settings(settings),
        folder=folder,
        unreadable=lambda: unreadable_images(whole, backbone.preprocessing, engine),
        progress=stage_progress(progress, f"{backbone.name}: training heads on {whole.name}"),
    )
    inputs = tuple({plan.input.name: plan.input for plan in plans}.values())
    side = evaluation_side(fit, backbone.preprocessing, "linear-online")
    sides = (settings.size or side, side)
    encode = InputEncoder(backbone, inputs, sides=sides, device=engine.device, precision=engine.float_precision())
    classes, order = len(whole.target.classes), OfClasses.of(whole.target).by_first_sample()
    heads = planning.make_heads(plans, encode.widths, classes, settings, seed=seed, device=engine.device, order=order)
    log.info(
        f"{len(heads.all_heads())} linear heads on {backbone.name}, {updates} updates of {batches.batch_size} images"
    )
    train(heads, encode, fit, batches, plan)

    def scored(source: Source, heads_: Sequence[int], title: str) -> Scored:
        report = stage_progress(progress, f"{backbone.name}: {title} {source.name}")
        return score(heads, encode, source, backbone.preprocessing, engine, wanted=heads_, progress=report)

    found = candidates(plans, settings, heads.finite())
    chosen = choose(
        found, settings, functools.partial(scored, title="selecting heads on"), test=test, held_out=held_out
    )
    numbers = [each.head.number for each in chosen.values()]
    on_test = scored(test, numbers, "scoring")
    sample = _sample(fit, len(test), seed)
    on_train = scored(sample, numbers if isinstance(whole.target, MultiLabel) else [], "scoring a part of")
    if rank() != 0:
        return {}
    for row in dict.fromkeys(each.row for each in found if each.row not in chosen):
        log.warning(f"{row}: every head diverged; try lower learning rates")
    trained = f"Trained for {batches.batch_size * updates / len(fit):.3g} epochs" + (
        f" on {len(fit):,} of {len(whole):,} train samples; the others chose the head." if held_out is not None else "."
    )
    notes = [trained, f"The train score is measured on {len(sample):,} samples with the evaluation transform."]
    return {row: _outcome(each, on_test, on_train, test, settings, seed, notes) for row, each in chosen.items()}


def _sample(source: Source, most: int, seed: int) -> Source:
    """Return a random sample of a source: enough to see whether the heads fit their training data."""
    if len(source) <= most:
        return source
    return source.select(np.sort(np.random.default_rng(seed).choice(len(source), most, replace=False)))


def _outcome(
    choice: Chosen,
    on_test: Scored,
    on_train: Scored,
    test: Source,
    settings: Settings,
    seed: int,
    notes: Sequence[str],
) -> Outcome:
    number, kind, classes = choice.head.number, type(test.target), test.target.classes
    logits = on_test.logits[number]
    probabilities: Probabilities | None = "softmax" if kind is Classes else None
    metrics, name, per_class = summarise(
        kind, classes, test.target.values, logits, seed=seed, probabilities=probabilities, groups=source_groups(test)
    )
    selected: dict[str, Any] = {}
    if choice.on:
        selected = {**choice.head.choice, "on": choice.on, "score": choice.score}
        selected |= {} if choice.on == "test" else {"seed": seed}
    # Test scores of the other heads, for information; multi-label data would need the scores of every head.
    variants = (
        {} if kind is MultiLabel else {each.text: {name: on_test.headlines[each.number]} for each in choice.others}
    )
    return Outcome(
        metrics=metrics,
        headline=name,
        scores=logits,
        per_class=per_class,
        train=on_train.headlines[number],
        selected=selected,
        variants=variants,
        notes=(*notes, *_notes(choice, settings)),
        probabilities=probabilities,
    )


def _notes(choice: Chosen, settings: Settings) -> list[str]:
    """Return the notes on the choice of a head."""
    notes = []
    if choice.on == "test":
        heads = len(choice.others) + 1
        notes.append(
            f"The best of {heads} heads was selected on the reported test samples, so the score is optimistic."
        )
    diverged = [each.text for each in choice.others if not each.alive]
    if diverged:
        notes.append(f"Diverged heads were left out: {'; '.join(diverged)}.")
    lr, tried = choice.head.choice["lr"], sorted(settings.lr)
    if len(tried) > 2 and lr in (tried[0], tried[-1]):
        end = "smallest" if lr == tried[0] else "largest"
        notes.append(f"The selected lr={lr:g} is the {end} value tried; the best may lie beyond.")
    return notes
