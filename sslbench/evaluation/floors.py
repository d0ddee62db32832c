"""Floors of a score: chance, majority class, raw pixels, and the same network untrained."""

import contextlib
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench import paths
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.in_memory import untrained_copy, untrained_heads
from sslbench.backbones.load import load_backbone
from sslbench.data.decode.handlers import picture_decoder
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.loading.loader import read
from sslbench.data.source import Source
from sslbench.errors import ResultError
from sslbench.evaluation.groups import with_details
from sslbench.identity import record_id
from sslbench.metrics import regression
from sslbench.metrics.catalog import METRICS, find
from sslbench.metrics.differences import Predictions, difference
from sslbench.results import DataUsed, RequestedParts, Result, records
from sslbench.targets import kinds
from sslbench.targets.classes import Classes
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import OfClasses, Target
from sslbench.targets.texts import Texts
from sslbench.targets.triplets import Compared

log = logging.getLogger("sslbench")

# 8 x 8 pixels give a higher floor than 32 x 32 (CIFAR-10, 8,068 train images: kNN 37.3 against 32.0, linear 38.6
# against 37.8), for a sixteenth of the SVM's work.
PIXELS = "pixels:8"
_RESAMPLES = 300  # half-samples of metrics without a closed form
_TRIED = 16  # images of which one should be readable
UNTRAINED_SEEDS = (0, 1, 2)
"""Seeds of the untrained backbones: fixed, so that their floors are computed once per data set."""
_TESTED = (Classes, Compared, Texts)
"""Kinds of targets whose leading metric is compared with that of the untrained backbone."""


def guessing(train: Target, test: Target) -> dict[str, dict[str, float | None]]:
    """Return the metrics of guessing, in the units of records, under 'chance' and 'majority'.

    Classes: 'chance' is the chance level of each metric that states one as a floor. Single label: 'majority' predicts
    the most frequent classes of train. Numbers: 'chance' predicts the mean of train for every sample.
    """
    if not test.labelled:
        return {}
    if isinstance(test, Numbers):
        errors = regression.Errors(test.values, np.broadcast_to(train.values.mean(axis=0), test.values.shape))
        values = errors.statistic(np.ones((1, len(test))))[0]
        return {"chance": {m.name: m.recorded(float(v)) for m, v in zip(errors.metrics, values, strict=True)}}
    chance: dict[str, float | None] = {}
    if isinstance(test, OfClasses):
        # A kind that extends another one has its metrics, too.
        names, frequencies = {vars(above).get("name") for above in type(test).__mro__}, test.frequencies()
        floors = (metric for metric in METRICS.values() if metric.floor and names & {*metric.labels})
        levels = {metric: metric.chance_level(frequencies) for metric in floors}
        chance = {metric.name: metric.recorded(level) for metric, level in levels.items() if level is not None}
    return {"chance": chance} | ({"majority": _majority(train, test)} if isinstance(test, Classes) else {})


def _majority(train: Target, test: Target) -> dict[str, float | None]:
    """Return top-1, top-5 (of at least five classes) and balanced accuracy of the most frequent classes of train.

    The expectation, where equally frequent classes are drawn.
    """
    number = {name: i for i, name in enumerate(train.classes)}
    counts = np.bincount(train.values, minlength=len(number))[[number[name] for name in test.classes]]
    ordered = np.sort(counts)
    first, last = (np.searchsorted(ordered, counts, side=side) for side in ("left", "right"))
    ahead, equal = len(counts) - last, last - first
    # The chance that a class is among the k predicted ones: of equally frequent classes at the end, some are drawn.
    drawn = {k: np.clip((k - ahead) / equal, 0.0, 1.0) for k in (1, 5) if len(counts) >= k}
    found: dict[str, float | None] = {f"top{k}": 100.0 * float(drawn[k][test.values].mean()) for k in drawn}
    return found | {"balanced_accuracy": 100.0 * float(drawn[1][np.unique(test.values)].mean())}


@dataclasses.dataclass(frozen=True)
class FloorBackbones:
    """Backbones whose scores stand beside that of another one.

    Attributes:
        found: 'pixels', 'untrained' -> the backbones, whose mean is the floor.
        missing: those that there should be and are not -> the reason.
    """

    found: Mapping[str, tuple[Backbone, ...]]
    missing: dict[str, str]


def floor_backbones(
    backbone: Backbone, *, is_floor: bool, seeds: Sequence[int] = UNTRAINED_SEEDS, deep: bool = False
) -> FloorBackbones:
    """Return the backbones whose scores stand beside this one's: pixels, and the same architecture untrained.

    deep: the answer of `sees_16_bits`.
    """
    if backbone.kind.pixels:
        return FloorBackbones({}, {})
    found = {"pixels": (_pixels_like(backbone, deep=deep),)}
    if is_floor:
        return FloorBackbones(found, {})
    untrained = tuple(each for seed in seeds if (each := untrained_like(backbone, seed)) is not None)
    if not untrained:
        return FloorBackbones(found, {"untrained": in_memory(backbone)})
    return FloorBackbones({**found, "untrained": untrained}, {})


def in_memory(backbone: Backbone) -> str:
    """Return why a module that is in memory has no untrained floor."""
    if not any(True for _ in backbone.module.parameters()):
        return f"{backbone.name} has no trainable parameters"
    return f"{backbone.name} is a module in memory, some of whose parts with parameters lack reset_parameters()"


def untrained_like(backbone: Backbone, seed: int = UNTRAINED_SEEDS[0]) -> Backbone | None:
    """Return the same architecture untrained, for the same images; None for modules that cannot be built anew."""
    if backbone.kind.in_memory:
        return untrained_copy(backbone, seed)
    untrained = load_backbone("random", backbone=backbone.name, seed=seed)
    heads = untrained_heads(backbone.heads, seed)
    return dataclasses.replace(
        untrained, preprocessing=backbone.preprocessing, heads=heads, calibration=backbone.calibration
    )


def sees_16_bits(backbone: Backbone, source: Source) -> bool:
    """Return whether a backbone of one channel is given 16 bits of the first readable image."""
    if backbone.preprocessing.channels != 1:
        return False
    images = source.every_image().images
    decoder = picture_decoder(backbone.preprocessing, images)
    for index in range(min(_TRIED, len(images))):
        with contextlib.suppress(UnreadableImage):
            return read(images, index, decoder).image.is_floating_point()
    return False


def _pixels_like(backbone: Backbone, *, deep: bool) -> Backbone:
    """Return the pixels of the same images: decoded in the same way, with as many channels (RGB for one channel).

    `deep`: one channel, normalised as for the network: RGB would cut 16 bits to 8, in which small ranges are one value.
    """
    pixels, same = load_backbone(PIXELS), backbone.preprocessing
    own = pixels.preprocessing
    if deep:
        own = dataclasses.replace(own, mean=same.mean, std=same.std, space=same.space)
    elif same.channels != 1:
        own = own.for_channels(same.channels)
    own = dataclasses.replace(own, decoder=same.decoder, max_pixels=same.max_pixels)
    return dataclasses.replace(pixels, preprocessing=own)


def pixel_grid(pixels: Backbone, grid: tuple[int, int]) -> Backbone:
    """Return the colours of the same images in the cells of a grid, for protocols on grids of features.

    pixels: those of `floor_backbones`.
    """
    from torch import nn

    (rows, columns), channels = grid, pixels.preprocessing.channels
    own = dataclasses.replace(
        pixels.preprocessing, resize=grid, squash=None, crop=None, origin=f"pixels:{rows}x{columns}"
    )
    if channels > 1:
        own = dataclasses.replace(own, mean=(0.5,) * channels, std=(0.25,) * channels)
    return dataclasses.replace(
        pixels,
        name=f"pixels:{rows}x{columns}",
        module=nn.Identity(),
        preprocessing=own,
        default_layer=f"pixels:grid({rows},{columns})",
    )


def cached(key: str, data: DataUsed, folder: Path | None = None) -> tuple[Result, records.Scores] | None:
    """Return a floor's or a training's result from an earlier evaluation; one that is damaged or edited is passed over.

    `folder`: root of its records; None: the cache of floors.
    """
    for path in sorted((folder or _folder()).glob(f"*/*-{key}.json")):
        try:
            result, scores = records.read_intact(path), records.read_scores(path)
        except ResultError as error:
            log.warning(f"a stored result is computed again: {error.message}")
            continue
        # Computed anew: an edited record still names the id of what it held before.
        if not result.id == record_id(result) == key:
            log.warning(f"a stored result is computed again: {path} holds a measurement other than its name says")
        elif {row.id for row in result.data.unreadable} != {row.id for row in data.unreadable}:
            log.info(f"a stored result is computed again: the readable images differ from those of {path}")
        else:
            return result, scores
    return None


def stand(
    floor: tuple[Result, records.Scores],
    groups: Mapping[str, tuple[str, ...]],
    asked: RequestedParts,
    out: Path,
    *,
    kept: bool,
) -> tuple[Result, records.Scores]:
    """Return a floor with its groups, written into the results as a row of its own, and if `kept` into the cache."""
    result, scores = floor
    if kept:  # without groups; a cache that cannot be written costs time only
        try:
            scores = dataclasses.replace(scores, file=records.scores_path(write(result, scores, _folder())))
        except ResultError as error:
            log.warning(f"a floor cannot be stored for later runs: {error.message}")
    result = with_details(dataclasses.replace(result, asked=asked), scores, groups)
    # Where the user asked for it by name (`--weights random`), the record there holds more.
    try:
        found = records.read_intact(records.path_of(result, out))
        there = found.asked if records.scores_path(found) is not None else None
    except ResultError:
        there = None
    if there is None or there.groups != asked.groups:
        write(result, scores, out)
    return result, scores


def _folder() -> Path:
    return paths.cache_dir() / "floors"


def write(result: Result, scores: records.Scores, folder: Path) -> Result:
    """Write a record with its scores; return it as written."""
    further: dict[str, Any] = {"groups": scores.groups, "draws": scores.draws, "places": scores.places}
    further |= {"means": scores.means, "same_as": scores.file}
    return records.write(result, scores.scores, scores.ids, scores.labels, folder, **further)


def warn_if_below_chance(result: Result) -> str | None:
    """Return a warning if the whole interval of the leading metric is worse than chance, for one class per sample."""
    chance = result.floors.get("chance", {}).get(result.headline)
    leading = result.metrics[result.headline]
    known = find(result.headline)
    ends = [known.sign * end for end in (leading.low, leading.high) if end is not None]
    single = issubclass(kinds()[result.data.labels], Classes)
    if not single or chance is None or not ends or max(ends) >= known.sign * chance:
        return None
    return (
        f"{result.protocol.name}: {result.headline} {leading.value:.2f} is below chance ({chance:.2f}): "
        "are the labels of train and test of the same classes in the same order?"
    )


def warn_if_at_floor(
    result: Result, untrained: Sequence[tuple[Result, records.Scores]], scores: records.Scores
) -> str | None:
    """Return a warning if the weights are not clearly above the untrained backbones by a paired test; else None.

    Labels in `_TESTED` are compared by their leading metric. Protocols that train heads on images are compared by
    theirs, and the interval holds over their trainings too.
    """
    kind = kinds()[result.data.labels]
    tested = issubclass(kind, _TESTED) and scores.scores.shape[1] > 0
    if any(scores.ids != other.ids for _, other in untrained) or not (tested or result.seeds is not None):
        return None
    metric = kind.metric if tested else result.headline
    answers = [
        Predictions.of(own.seed, each.scores, each.draws, each.places, own.probabilities, seeds=own.seeds or 1)
        for own, each in ((result, scores), *untrained)
    ]
    below = Predictions.together(answers[1:])
    try:
        found = difference(metric, kind, scores.labels, answers[0], below, groups=scores.groups, resamples=_RESAMPLES)
    except KeyError:  # not a metric of per-sample scores
        return None
    known = find(metric)
    sign = known.sign
    # Where lower is better, the ends change places.
    low = min(sign * found.low, sign * found.high)
    if low > 0:
        return None
    points = "points" if known.unit == "%" else metric
    number = f"{len(untrained)} " if len(untrained) > 1 else ""
    named = f"the {number}untrained {result.weights.backbone}"
    text = (
        f"{result.protocol.name}: {result.weights.name} is not clearly above {named} "
        f"({known.scale * sign * found.difference:+.1f} {points}, the interval reaches {known.scale * low:+.1f}): "
        "check that these are the intended weights"
    )
    if result.seeds == 1:
        return f"{text}; one training each, so the variance between trainings is unknown"
    return text
