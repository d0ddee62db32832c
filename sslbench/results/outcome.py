"""Outcome of a protocol, before it is recorded; values in the units of records, in the plain types of JSON."""

import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.metrics import catalog
from sslbench.metrics.intervals import Interval, Values, over_trainings
from sslbench.metrics.measure import SampleMeans
from sslbench.metrics.summary import summarise
from sslbench.results.parts import MetricValue
from sslbench.targets.target import Target
from sslbench.text import without_secrets


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """First images, or texts, that a query found.

    Attributes:
        found: id of each image, or the text, nearest first, and whether it is right.
        part: that the images found belong to; 'texts': they are texts.
    """

    query: str
    found: tuple[tuple[str, bool], ...]
    part: Literal["train", "test", "texts"] = "test"


@dataclasses.dataclass(frozen=True)
class NetworkWeights:
    """Network that a protocol has trained, for a file beside the record: all of it, or a probe of a frozen backbone.

    Attributes:
        heads: name -> tensor of its classifier, or head for maps.
        classifier: facts about the classifier, see `ClassifierInfo`; without a layer, it is that of the record. Empty
            for a head for maps, whose facts are in `metadata`.
        backbone: name of the backbone, where it was trained too.
        tensors: canonical name -> tensor of the backbone, where it was trained too.
        metadata: further entries of the file's metadata.
    """

    heads: Mapping[str, Any]
    classifier: Mapping[str, Any]
    backbone: str = ""
    tensors: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def of_classes(self, classes: Sequence[str]) -> Self:
        """Return the linear classifier of some of its classes, in their own order."""
        kept = [number for number, name in enumerate(self.classifier["classes"]) if name in set(classes)]
        facts = {**self.classifier, "classes": tuple(self.classifier["classes"][number] for number in kept)}
        return dataclasses.replace(
            self, heads={name: each[kept] for name, each in self.heads.items()}, classifier=facts
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of a protocol. Rates are fractions here, as in scikit-learn; records and tables hold percent.

    Attributes:
        metrics: name -> (value, low, high): the value on test and its 95 % interval; NaN where not computable.
        headline: name of the leading metric ('top1', 'mAP').
        scores: float32 (N_test, C), higher means more likely, columns in the order of the classes.
        draws: for metrics that are means over several draws of train, the scores of each; `scores` are the first.
        per_class: class name -> recall (single label) or average precision (multi-label); NaN where not computable.
        train: headline metric of the final model on its training samples; NaN if meaningless.
        selected: settings and data of the choice, e.g. {'k': 20, 'on': 'held-out 10 % of train', 'score': 0.91};
            empty when nothing was chosen. Its scores are as computed, in records too: rates are fractions.
        variants: results of the settings that were not chosen, e.g. {'k=10': {'top1': 0.9}}.
        converged: False marks the row; None for protocols without an iterative solver.
        notes: remarks on the numbers, one sentence each.
        absolute: metrics of a user's protocol that are no fractions (a rank, an exponent), which records hold as they
            are and not in percent; the unit of sslbench's own metrics is known.
        probabilities: conversion of scores to probabilities: 'softmax', or 'scores' for none; None where there is no
            conversion, as for the decision values of SVMs.
        neighbours: first images found by a few queries, for a sheet of pictures.
        chance: expected metrics of a random answer, of protocols that predict no classes; None: chance is that of
            guessing classes.
        floors: further floors that the protocol computes, e.g. {'position only': {'mIoU': 0.1}}.
        picture: PNG of some test images with prediction and truth, written beside the record; empty: none.
        means: metrics that are means over the test samples, with the outcomes of each sample; None where there are
            none beside those computed from `scores`.
        train_part: part of train that the network was finetuned on, see `DataUsed`; empty: all of it.
        scored: number of test samples that the metrics are over; None: all.
        counts: numbers of samples of the metrics that are over others than those: queries, videos, images of a further
            set.
    """

    metrics: dict[str, Interval]
    headline: str
    scores: npt.NDArray[np.float32]
    per_class: dict[str, float]
    train: float = float("nan")
    selected: dict[str, Any] = dataclasses.field(default_factory=dict)
    variants: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    converged: bool | None = None
    notes: tuple[str, ...] = ()
    absolute: frozenset[str] = frozenset()
    probabilities: Literal["softmax", "scores"] | None = None
    draws: tuple[npt.NDArray[np.float32], ...] = ()
    weights: NetworkWeights | None = None
    chance: Mapping[str, float] | None = None
    floors: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    picture: bytes = b""
    neighbours: tuple[Neighbours, ...] = ()
    means: SampleMeans | None = None
    train_part: str = ""
    scored: int | None = None
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        target: Target,
        scores: npt.NDArray[np.floating],
        *,
        seed: int,
        groups: IntArray | None,
        further: Values | None = None,
        **rest: Any,
    ) -> Self:
        """Return the outcome with all metrics of scores (N, C), see `summarise`.

        `further`: metrics of the protocol beside these; `rest`: other fields of the outcome.
        """
        metrics, headline, per_class = summarise(
            type(target),
            target.classes,
            target.values,
            scores,
            seed=seed,
            probabilities=rest.get("probabilities"),
            groups=groups,
        )
        return cls(metrics | (further or {}), headline, np.asarray(scores, dtype=np.float32), per_class, **rest)


def mean_line(metric: str, values: Sequence[float | None], first_seed: int) -> str:
    """Return the values of a metric over trainings and their mean, in words.

    >>> mean_line("AP", [18.0, 21.3, 23.4], 5)
    'AP 20.9, the mean of 3 trainings: 18.0, 21.3, 23.4 (seeds 5 to 7)'
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return f"{metric} of {len(values)} trainings is not computable for each"
    digits = 1 if metric == "AP" else 2
    each = ", ".join(f"{value:.{digits}f}" for value in known)
    mean = sum(known) / len(known)
    last = first_seed + len(known) - 1
    return f"{metric} {mean:.{digits}f}, the mean of {len(known)} trainings: {each} (seeds {first_seed} to {last})"


def mean_metric(name: str, values: Sequence[MetricValue]) -> MetricValue:
    """Return the mean of a metric over trainings or seeds, with its interval over others and other test sets.

    See `metrics.intervals.over_trainings`; not computable where a value is missing.

    >>> mean_metric("top1", [MetricValue(value=50.0, low=45.0, high=55.0)] * 2).high
    55.0
    """
    if len(values) == 1:
        return values[0]
    if any(each.value is None for each in values):
        return MetricValue(value=None, low=None, high=None, n=values[0].n)
    metric = catalog.known(name)
    least, most = (-math.inf, math.inf) if metric is None else metric.bounds
    scale = 1.0 if metric is None else metric.scale
    each = [(_number(v.value), _number(v.low), _number(v.high)) for v in values]
    found = over_trainings(each, (least * scale, most * scale))
    value, low, high = (None if math.isnan(end) else end for end in found)
    return MetricValue(value=value, low=low, high=high, n=values[0].n)


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def percent(fraction: float) -> float | None:
    """Return a fraction in percent, None when it is NaN.

    >>> percent(0.25)
    25.0
    """
    return None if math.isnan(fraction) else 100.0 * float(fraction)


def percent_metrics(outcome: Outcome, n: int) -> dict[str, MetricValue]:
    """Return the metrics of an outcome in the units of records; `n` is the number of test samples."""
    n = n if outcome.scored is None else outcome.scored
    return {
        name: metric_value(name, interval, outcome.counts.get(name, n), outcome.absolute)
        for name, interval in outcome.metrics.items()
    }


def metric_value(name: str, interval: Interval, n: int, absolute: Collection[str] = ()) -> MetricValue:
    """Return a metric with its interval in the unit of records, see `as_recorded`."""
    value, low, high = (as_recorded(name, end, absolute) for end in interval)
    return MetricValue(value=value, low=low, high=high, n=n)


def as_recorded(name: str, value: float, absolute: Collection[str]) -> float | None:
    """Return a metric's value in the unit of records: percent for rates and for unknown metrics not in `absolute`.

    None when it is NaN.
    """
    metric = catalog.known(name)
    if metric is not None:
        return metric.recorded(value)
    if name not in absolute:
        return percent(value)
    return None if math.isnan(value) else float(value)


def plain(value: Any) -> Any:
    """Return a value in JSON's types: dataclasses are mappings, tuples lists, NumPy numbers plain, NaN and inf null.

    Secrets of URLs in texts are hidden.

    >>> plain({"a": (1, np.float32(0.5)), "b": float("nan")})
    {'a': [1, 0.5], 'b': None}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name != "file"}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return without_secrets(str(value) if isinstance(value, Path) else value)


def canonical(value: Any) -> str:
    """Return the canonical JSON of a value: sorted keys and no spaces.

    >>> canonical({"b": 1, "a": (2,)})
    '{"a":[2],"b":1}'
    """
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
