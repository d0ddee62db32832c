"""Outcome of a protocol, before it is recorded."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.metrics.intervals import Interval
from sslbench.metrics.measure import SampleMeans


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """First images that a query found.

    Attributes:
        found: id of each image, nearest first, and whether it is right.
        part: that the images found belong to.
    """

    query: str
    found: tuple[tuple[str, bool], ...]
    part: Literal["train", "test"] = "test"


@dataclasses.dataclass(frozen=True)
class NetworkWeights:
    """Network that a protocol has trained, for a weights file beside the record.

    Attributes:
        tensors: canonical name -> tensor of the backbone.
        heads: name -> tensor of its classifier.
    """

    backbone: str
    tensors: Mapping[str, Any]
    heads: Mapping[str, Any]
    metadata: Mapping[str, Any]


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
