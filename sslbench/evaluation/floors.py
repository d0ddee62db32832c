"""The floor under a score: chance, majority, the pixels themselves, and the same network untrained."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np

from sslbench import paths, records
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.load import load_backbone
from sslbench.data.source import Labels
from sslbench.metrics import regression
from sslbench.metrics.differences import Answers, difference
from sslbench.results import Result, as_recorded

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
    floors["majority"]["balanced_accuracy"] = 100.0 * float(order[0] in present) / len(present)
    return floors


def floor_backbones(backbone: Backbone, *, is_floor: bool) -> dict[str, Backbone]:
    """The backbones whose scores stand beside this one's: pixels, and the same architecture untrained.

    Args:
        backbone: the one that is evaluated.
        is_floor: it is itself untrained, or the pixels; then only what it is not is returned.
    """
    found: dict[str, Backbone] = {}
    if backbone.builder == "pixels":
        return found
    found["pixels"] = _pixels_like(backbone)
    if backbone.builder == "module" and ":" not in backbone.name:
        log.info(f"{backbone.name}: no untrained floor: a module that is in memory cannot be built anew")
    elif not is_floor:
        untrained = load_backbone("random", backbone=backbone.name, seed=UNTRAINED_SEED)
        found["untrained"] = dataclasses.replace(untrained, preprocessing=backbone.preprocessing)
    return found


def _pixels_like(backbone: Backbone) -> Backbone:
    """The pixels of the same pictures: decoded in the same way, with as many channels (RGB where it takes one)."""
    pixels, same = load_backbone(PIXELS), backbone.preprocessing
    own = pixels.preprocessing if same.channels == 1 else pixels.preprocessing.for_channels(same.channels)
    own = dataclasses.replace(own, decoder=same.decoder, max_pixels=same.max_pixels)
    return dataclasses.replace(pixels, preprocessing=own)


def cached(measurement: str) -> tuple[Result, records.Scores] | None:
    """A floor's result from an earlier evaluation on the same data with the same settings."""
    for path in (paths.cache_dir() / "floors").glob(f"*/*-{measurement}.json"):
        result = records.read(path)
        return result, records.read_scores(path)
    return None


def keep(result: Result, scores: records.Scores, out: Path) -> None:
    """Writes a floor's result into the cache and into the results: leaderboards show it as a row of its own."""
    for folder in (paths.cache_dir() / "floors", out):
        write(result, scores, folder)


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
