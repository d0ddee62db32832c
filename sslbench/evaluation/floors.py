"""The floor under a score: chance, majority, the pixels themselves, and the same network untrained."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np

from sslbench import paths
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.in_memory import untrained_copy
from sslbench.backbones.load import load_backbone
from sslbench.data.source import Labels
from sslbench.errors import ResultError
from sslbench.identity import record_id
from sslbench.metrics import regression
from sslbench.metrics.differences import Answers, difference
from sslbench.results import DataUsed, Result, as_recorded, records

log = logging.getLogger("sslbench")

# 8 x 8 pixels are a higher floor than 32 x 32 (CIFAR-10, 8,068 train images: kNN 37.3 against 32.0, linear 38.6 against
# 37.8), and a sixteenth of the work for the SVM.
PIXELS = "pixels:8"
UNTRAINED_SEED = 0  # of the untrained backbone: the same for every evaluation, so that it is computed once per data set


def guessing(train: Labels, test: Labels) -> dict[str, dict[str, float | None]]:
    """What guessing scores, in percent: 'chance' picks a class at random, 'majority' always the most frequent one.

    Single label: top-1, top-5 where there are at least five classes, and balanced accuracy. Multi-label: a random order
    of the samples has an expected average precision of about the share of positives; there is no majority class.
    Numbers: 'chance' is the mean of train for every sample; errors are in the units of the labels.
    """
    if test.kind == "none":
        return {}
    if test.kind == "value":
        errors = regression.Errors(test.values, np.broadcast_to(train.values.mean(axis=0), test.values.shape))
        found = errors.statistic(np.ones((1, len(test))))[0]
        recorded = (as_recorded(name, float(v), ("mae", "rmse")) for name, v in zip(errors.names, found, strict=True))
        return {"chance": dict(zip(errors.names, recorded, strict=True))}
    if test.kind == "multi":
        known = (test.values >= 0).sum(axis=0)
        positive = (test.values == 1).sum(axis=0)
        rates = positive[positive > 0] / known[positive > 0]
        return {"chance": {"mAP": 100.0 * float(rates.mean()) if len(rates) else None}}
    classes = len(test.classes)
    number = {name: i for i, name in enumerate(train.classes)}
    counts = np.bincount(train.values, minlength=len(number))[[number[name] for name in test.classes]]
    order = np.argsort(-counts, kind="stable")
    floors: dict[str, dict[str, float | None]] = {"chance": {}, "majority": {}}
    for k in (1, 5):
        if classes >= k:
            floors["chance"][f"top{k}"] = 100.0 * k / classes
            floors["majority"][f"top{k}"] = 100.0 * float(np.isin(test.values, order[:k]).mean())
    # Whatever is guessed independently of the sample: of every class the same share is right, and the shares sum to 1.
    present = np.unique(test.values)
    floors["chance"]["balanced_accuracy"] = 100.0 / classes
    # Each class against the rest: the expected average precision is about its share, and the shares sum to 1.
    floors["chance"]["mAP"] = 100.0 / len(present)
    floors["majority"]["balanced_accuracy"] = 100.0 * float(order[0] in present) / len(present)
    return floors


@dataclasses.dataclass(frozen=True)
class FloorBackbones:
    """Backbones whose scores stand beside that of another one.

    Attributes:
        found: 'pixels', 'untrained' -> the backbone.
        missing: those that there should be and are not -> the reason.
    """

    found: dict[str, Backbone]
    missing: dict[str, str]


def floor_backbones(backbone: Backbone, *, is_floor: bool) -> FloorBackbones:
    """The backbones whose scores stand beside this one's: pixels, and the same architecture untrained.

    Args:
        backbone: the one that is evaluated.
        is_floor: it is itself untrained, or the pixels; then only what it is not is returned.
    """
    if backbone.builder == "pixels":
        return FloorBackbones({}, {})
    found = {"pixels": _pixels_like(backbone)}
    if is_floor:
        return FloorBackbones(found, {})
    untrained = untrained_like(backbone)
    if untrained is None:
        return FloorBackbones(found, {"untrained": in_memory(backbone)})
    return FloorBackbones({**found, "untrained": untrained}, {})


def in_memory(backbone: Backbone) -> str:
    """Return why a module that is in memory has no untrained floor."""
    if not any(True for _ in backbone.module.parameters()):
        return f"{backbone.name} has no parameters that could be trained"
    return f"{backbone.name} is in memory, and parts of it with parameters have no reset_parameters()"


def untrained_like(backbone: Backbone) -> Backbone | None:
    """Return the same architecture untrained, for the same images; None for modules that cannot be built anew."""
    if backbone.builder == "memory":
        return untrained_copy(backbone, UNTRAINED_SEED)
    untrained = load_backbone("random", backbone=backbone.name, seed=UNTRAINED_SEED)
    return dataclasses.replace(untrained, preprocessing=backbone.preprocessing)


def _pixels_like(backbone: Backbone) -> Backbone:
    """The pixels of the same pictures: decoded in the same way, with as many channels (RGB where it takes one)."""
    pixels, same = load_backbone(PIXELS), backbone.preprocessing
    own = pixels.preprocessing if same.channels == 1 else pixels.preprocessing.for_channels(same.channels)
    own = dataclasses.replace(own, decoder=same.decoder, max_pixels=same.max_pixels)
    return dataclasses.replace(pixels, preprocessing=own)


def cached(wanted: str, data: DataUsed) -> tuple[Result, records.Scores] | None:
    """Return a floor's result from an earlier evaluation; one that is damaged is passed over.

    Args:
        wanted: `identity.record_id` of what it should have measured.
        data: on what; images that could not be read then may be readable now.
    """
    for path in sorted(_folder().glob(f"*/*-{wanted}.json")):
        try:
            result, scores = records.read(path), records.read_scores(path)
        except ResultError as error:
            log.warning(f"a stored floor is computed again: {error.message}")
            continue
        if not result.id == record_id(result) == wanted:
            log.warning(f"a stored floor is computed again: {path} holds another measurement than its name says")
        elif {row.id for row in result.data.unreadable} != {row.id for row in data.unreadable}:
            log.info(f"a stored floor is computed again: other images can be read than for {path}")
        else:
            return result, scores
    return None


def keep(result: Result, scores: records.Scores) -> None:
    """Write a floor's result, without groups, into the cache; a cache that cannot be written costs time only."""
    try:
        write(result, scores, _folder())
    except ResultError as error:
        log.warning(f"a floor is not kept for later runs: {error.message}")


def show(result: Result, scores: records.Scores, out: Path) -> None:
    """Write a floor's result into the results, as a row of its own on leaderboards, unless it is there already.

    Where the user asked for it by name (`--weights random`), the record there holds more.
    """
    try:
        found = records.read(records.path_of(result, out))
        there = found.asked if records.scores_path(found) is not None else None
    except ResultError:
        there = None
    if there is None or result.asked is None or there.groups != result.asked.groups:
        write(result, scores, out)


def _folder() -> Path:
    return paths.cache_dir() / "floors"


def write(result: Result, scores: records.Scores, folder: Path) -> Path:
    """Write a record with its scores, and give its path."""
    further: dict[str, Any] = {"groups": scores.groups, "draws": scores.draws, "places": scores.places}
    return records.write(result, scores.scores, scores.ids, scores.labels, folder, **further)


def warn_if_at_floor(result: Result, untrained: tuple[Result, records.Scores], scores: records.Scores) -> str | None:
    """A warning when the weights are not better than no training at all, by a paired test on the same test samples."""
    other = untrained[1]
    if scores.ids != other.ids or scores.labels.ndim != 1 or not scores.scores.shape[1]:
        return None
    answers = [Answers.of(result.seed, each.scores, each.draws, each.places) for each in (scores, other)]
    found = difference("top1", "single", scores.labels, answers[0], answers[1], groups=scores.groups)
    low = found.low
    if low > 0:
        return None
    return (
        f"{result.weights.name} is not better than the untrained {result.weights.backbone} "
        f"({100 * found.difference:+.1f} points, the interval reaches {100 * low:+.1f}): are these the weights "
        "you meant?"
    )
