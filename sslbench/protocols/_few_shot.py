"""What the protocols with few training samples have in common: statistics over the draws, and the outcome.

The 95 % interval over R draws is Student's: mean -+ t(0.975, R - 1) std / sqrt(R). It says how much other draws from
the same train would move the mean. The interval of the headline also holds what another test set would do: the half
widths of the two are added as squares, that of the test set being the mean over the draws of its half widths, which is
never too small (a mean does not vary more than its parts do on average).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.source import Labels
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.intervals import Units, student_half_width
from sslbench.metrics.summary import headline, one_measure, summarise
from sslbench.protocols._draws import Draw
from sslbench.results import Outcome

FloatArray = npt.NDArray[np.float64]

_RESAMPLES = 1000
_FEWEST_RESAMPLES = 100


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A classifier that was trained on one draw.

    Attributes:
        scores: (N_test, C), higher means more likely; a class that was not learned has NaN (multi-label) or a value
            below all others.
        train: the leading metric on the samples of the draw.
        strength: of the regularisation that was used; class name -> strength where each has its own.
        converged: None without an iterative solver.
        notes: what a reader must know.
    """

    scores: FloatArray
    train: float
    strength: float | dict[str, float]
    converged: bool | None = None
    notes: tuple[str, ...] = ()


def statistics(values: Sequence[float]) -> dict[str, float]:
    """Mean, min, max, std (of a sample, R - 1) and the 95 % interval of the mean; NaN where one draw is too few."""
    known = _known(values)
    if not len(known):
        return dict.fromkeys(("mean", "min", "max", "std", "low", "high"), math.nan)
    half = student_half_width(values)
    low, high = _cut(float(known.mean()) - half, float(known.mean()) + half)
    return {
        "mean": float(known.mean()),
        "min": float(known.min()),
        "max": float(known.max()),
        "std": float(known.std(ddof=1)) if len(known) > 1 else math.nan,
        "low": low,
        "high": high,
    }


def _known(values: Sequence[float]) -> FloatArray:
    return np.array([value for value in values if not math.isnan(value)], dtype=np.float64)


def _mean(values: Sequence[float]) -> float:
    known = _known(values)
    return float(known.mean()) if len(known) else math.nan


def _cut(low: float, high: float) -> tuple[float, float]:
    """Rates lie between 0 and 1; NaN stays."""
    return (low if math.isnan(low) else max(low, 0.0)), (high if math.isnan(high) else min(high, 1.0))


def leading_metric(asked: str, labels: Labels) -> str:
    """Return the metric that leads; 'auto' is top-1 of single labels and mAP of several.

    Raises:
        UsageError: samples of several classes have no top-1 accuracy.
    """
    usual = "top1" if labels.kind == "single" else "mAP"
    if asked == "top1" and usual != "top1":
        raise UsageError("metric=top1 is for single labels, and these samples have several", "Leave metric out.")
    return usual if asked == "auto" else asked


def leading(asked: str, labels: Labels, scores: npt.NDArray[np.floating]) -> float:
    """Return the metric that leads, as a fraction; `asked` as for `leading_metric`."""
    metric = leading_metric(asked, labels)
    if metric == leading_metric("auto", labels):
        return headline(labels.kind, labels.values, scores)
    measure = one_measure(metric, labels.kind, labels.values, scores, Units.of(len(labels), None))
    values = measure.statistic(np.ones((1, len(labels))))[0]
    return float(values[measure.names.index(metric)])


class Curve:
    """Scores along the numbers of training samples; the last one that is added is the headline."""

    def __init__(self, test: Features, train_ids: Sequence[str], metric: str = "auto") -> None:
        """Start without points; `metric` leads, as for `leading_metric`."""
        self._test, self._groups, self._ids = test.labels, test.groups, train_ids
        self._metric = leading_metric(metric, test.labels)
        self.variants: dict[str, dict[str, float]] = {}
        self.drawn: dict[str, list[str]] = {}
        self.strengths: dict[str, list[Any]] = {}
        self._converged: list[bool] = []
        self._notes: dict[str, None] = {}
        self._last: Sequence[Fitted] = ()

    def add(self, name: str, draws: Sequence[Draw], fitted: Sequence[Fitted]) -> None:
        """One point of the curve: 'k=4' with the classifiers of all draws."""
        found = statistics([leading(self._metric, self._test, one.scores) for one in fitted])
        mean = found.pop("mean")
        rest = {f"{self._metric}_{key}": value for key, value in found.items()}
        self.variants[name] = {self._metric: mean, **rest, "train": _mean([one.train for one in fitted])}
        self.drawn[name] = [draw.digest(self._ids) for draw in draws]
        self.strengths[name] = [one.strength for one in fitted]
        self._converged += [one.converged for one in fitted if one.converged is not None]
        self._notes |= {f"{name}: {note}": None for one in fitted for note in one.notes}
        self._last = fitted

    def outcome(self, *, seed: int, selected: dict[str, Any], seeds: Sequence[int], notes: Sequence[str]) -> Outcome:
        """The outcome, whose headline is the last point; `seed` is that of the half-samples."""
        kind, classes, values = self._test.kind, self._test.classes, self._test.values
        # All draws together get the resamples of one result: it is the mean of their half widths that is used.
        resamples = max(_FEWEST_RESAMPLES, math.ceil(_RESAMPLES / len(self._last)))
        each = [
            summarise(kind, classes, values, one.scores, seed=seed, resamples=resamples, groups=self._groups)
            for one in self._last
        ]
        metrics = {name: combine([found[0][name] for found in each]) for name in each[0][0]}
        per_class = {name: _mean([found[2][name] for found in each]) for name in classes}
        draws = {"seeds": list(seeds), "samples_sha256": self.drawn}
        scores = [one.scores.astype(np.float32) for one in self._last]
        return Outcome(
            metrics=metrics,
            headline=self._metric,
            # Of the first draw and not an average of all, which would be another and better classifier.
            scores=scores[0],
            draws=tuple(scores) if len(scores) > 1 else (),
            per_class=per_class,
            train=_mean([one.train for one in self._last]),
            selected={**selected, "draws": draws},
            variants=self.variants,
            converged=all(self._converged) if self._converged else None,
            notes=(*notes, *self._notes),
        )


def combine(values: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """The mean over the draws with its interval for other draws and another test set."""
    means = [value for value, _, _ in values]
    below, above = _mean([value - low for value, low, _ in values]), _mean([high - value for value, _, high in values])
    half = student_half_width(means)
    draws = 0.0 if math.isnan(half) else half
    return _mean(means), *_cut(_mean(means) - math.hypot(below, draws), _mean(means) + math.hypot(above, draws))


def usable_k(
    protocol: str, asked: tuple[int, ...], default: tuple[int, ...], most: int, why: str
) -> tuple[list[int], list[str]]:
    """The numbers of samples per class that train has enough for, ascending, and a note on defaults left out.

    Raises:
        UsageError: numbers that are not possible, or one that was asked for and is too large.
        DataError: none of the defaults fits.
    """
    if min(asked, default=1) < 1 or len(set(asked)) < len(asked):
        raise UsageError(f"{protocol}: k should be one or several different numbers from 1 on, not {list(asked)}")
    fitting, dropped = [k for k in sorted(asked) if k <= most], [k for k in sorted(asked) if k > most]
    if not dropped:
        return fitting, []
    if asked != default:
        raise UsageError(
            f"{protocol}: k={dropped[0]} is more than train has samples for: {why}",
            f"Give a k of at most {most}." if most else None,
        )
    if not fitting:
        raise DataError(f"{protocol}: train is too small to draw {dropped[0]} samples per class: {why}")
    names = ", ".join(map(str, dropped))
    return fitting, [f"Train is too small for these default values of k ({why}): {names}."]


def check_labels(protocol: str, labels: Labels) -> None:
    """Refuses training labels that say nothing.

    Raises:
        DataError: there are none, or fewer than two classes of single labels.
    """
    from sslbench.protocols._draws import present

    if labels.kind == "none":
        raise DataError(
            f"{protocol}: the train samples have no labels to draw samples per class by",
            "Give labelled data: a folder per class, a table with a label column, or a manifest with categories.",
        )
    if len(present(labels)) < (2 if labels.kind == "single" else 1):
        raise DataError(f"{protocol}: train should have at least two classes")
