"""Low-shot classification: linear SVMs or logistic regression on k images per class, over several draws.

After Goyal et al. 2019 (arXiv 1905.01235, section 5.2) and VISSL. Single label: k images of every class, one set for
all. Multi-label: every class has k positives and (C - 1) k negatives of its own, and reported is the mean over classes
of the average precision on all of test. In place of k per class, shares of train (1 %, 10 %) can be drawn.

The headline is the mean over the draws at the largest k (without k: at the largest share); `variants` of the result
holds every point: mean, min, max, std and the 95 % interval over the draws. The scores of all draws lie beside the
record. The strength of the regularisation is chosen by cross-validation inside the samples of a draw. Where most
classes have a single one, that cannot be, and a fixed value is used: `fixed_cost`, or C = N / `fixed_lambda`, 0.025 as
in VISSL's logistic regression. `select=test` reports, as VISSL does, the strength with the highest mean on test, and
marks the row.

Of samples that belong to groups (the frames of a video) k are of as many groups as possible, and a share of train is
one of whole groups.

Version 2: logistic regression is converged when the distance of its objective to the lowest value is proven small; the
scores of all draws are kept, groups of samples are kept together, and intervals are those of half-samples.
Version 3: metrics per group and per class, and the score without suspected overlaps, are means over all draws.
Version 4: images are drawn by their file names, so that names and numbers of classes change no draw.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sslbench.errors import UsageError
from sslbench.features.array import Features
from sslbench.protocols import linear, svm
from sslbench.protocols._parts import few_shot
from sslbench.protocols._parts.few_shot import (
    Draw,
    Fitted,
    LearningCurve,
    check_labels,
    leading,
    leading_metric,
    usable_k,
)
from sslbench.protocols._parts.selection import check_features, is_better, percent
from sslbench.protocols.low_shot.models import Classifier, Logistic, Svm
from sslbench.protocols.low_shot.settings import DEFAULT_K, Settings
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.steps import Advance, counted
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.target import Target


@dataclasses.dataclass(frozen=True)
class _Point:
    """One number of training samples: k per class, or a share of train."""

    name: str
    k: int = 0
    fraction: float = 0.0

    def draw(self, train: Features, seed: int, settings: Settings) -> Draw:
        """Return the samples drawn with a seed."""
        order, labels, groups, shuffler = few_shot.pool(train, seed)
        if self.fraction:
            part = few_shot.share(labels, self.fraction, seed, shuffler, stratified=settings.stratified, groups=groups)
        elif isinstance(labels, MultiLabel):
            part = few_shot.k_with_and_without(labels, self.k, shuffler, groups=groups)
        else:
            part = few_shot.k_per_class(labels, self.k, shuffler, groups=groups)
        return part.of(order)


def check(settings: Settings, train: Target) -> None:
    """Refuse settings that cannot work on these training labels, before any feature is computed.

    Raises:
        UsageError: settings that are not possible, for instance k larger than a class.
        DataError: no labels, or train is too small.
    """
    check_settings(settings)
    check_labels("low-shot", train)
    leading_metric(settings.metric, train)
    _points(settings, train)


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Learn from draws of train, score on test.

    Args:
        train: features and labels to draw from.
        test: features and labels that are scored, all of them for every draw.
        settings: see `Settings`.
        seed: of the draws and of the intervals.
        device: ignored; the computation runs on the processor.

    Raises:
        DataError: features that are not finite, no labels, or too few samples.
        UsageError: settings that are not possible.
    """
    check_features(train, test)
    check(settings, train.target)
    points, notes = _points(settings, train.target)
    seeds = few_shot.seeds(seed, settings.draws)
    learner: Classifier = Svm(test.x, settings, seed) if settings.classifier == "svm" else Logistic(test.x, settings)
    strengths = settings.costs if settings.classifier == "svm" else settings.c
    curve, on_test = LearningCurve(test, train.ids, settings.metric, seed=seed), {}
    with counted("low-shot", "draws", len(points) * len(seeds)) as advance:
        for point in points:
            draws = [point.draw(train, each, settings) for each in seeds]
            used: Sequence[float] = strengths
            if settings.select == "test" and len(strengths) > 1:
                asked = settings.metric
                used, on_test[point.name] = _best_on_test(learner, train, test.target, draws, strengths, asked)
            fitted = _fits(learner, train, draws, used, advance)
            curve.add(point.name, draws, fitted, headline=point is points[-1])
    name = "cost" if settings.classifier == "svm" else "c"
    selected: dict[str, Any] = {}
    if len(strengths) > 1:
        selected = {"on": _chosen_on(settings), name: curve.strengths}
    if on_test:
        selected["mean on test"] = on_test
    condition = (
        f"{points[-1].name} images per class".replace("k=", "") if points[-1].k else f"{points[-1].name} of train"
    )
    notes = [f"The metrics are means over {settings.draws} draws of {condition}.", *notes]
    return curve.outcome(selected=selected, seeds=seeds, notes=notes)


def _fits(
    learner: Classifier, train: Features, draws: Sequence[Draw], strengths: Sequence[float], advance: Advance
) -> Iterator[Fitted]:
    """Yield the classifier of each draw."""
    for draw in draws:
        yield learner.fit(train.x[draw.rows], draw.labels, strengths, draw.groups)
        advance(1)


def _chosen_on(settings: Settings) -> str:
    if settings.select == "test":
        return "test, the mean over the draws"
    return f"cross-validation (up to {settings.folds} folds) inside each draw; fixed where k is 1"


def _best_on_test(
    learner: Classifier, train: Features, test: Target, draws: Sequence[Draw], strengths: Sequence[float], metric: str
) -> tuple[tuple[float], dict[str, float]]:
    """Return the strength with the highest mean over the draws of the leading test metric, and the means of all."""
    means: dict[str, float] = {}
    best, best_score = strengths[0], float("nan")
    for strength in strengths:
        fitted = (learner.fit(train.x[draw.rows], draw.labels, (strength,)) for draw in draws)
        score = float(np.mean([leading(metric, test, one.scores) for one in fitted]))
        means[f"{strength:g}"] = score
        if is_better(score, best_score):
            best, best_score = strength, score
    return (best,), means


def _points(settings: Settings, labels: Target) -> tuple[list[_Point], list[str]]:
    """Return the points of the curve, the headline last, and a note on defaults left out."""
    ks: list[int] = []
    notes: list[str] = []
    if settings.k:
        most, why = few_shot.largest_k(labels)
        ks, notes = usable_k("low-shot", settings.k, DEFAULT_K, most, why)
    missing = sorted(set(range(len(labels.classes))) - set(few_shot.present(labels).tolist()))
    if missing:
        names = ", ".join(labels.classes[c] for c in missing)
        notes.append(f"Classes without an example in train were left out: {names}.")
    shares = [_Point(percent(fraction), fraction=fraction) for fraction in sorted(settings.fractions)]
    return [*shares, *(_Point(f"k={k}", k=k) for k in ks)], notes


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data.

    Raises:
        UsageError: the message names the setting.
    """
    if not settings.k and not settings.fractions:
        raise UsageError("low-shot: give k or fractions")
    few_shot.check_k("low-shot", settings.k)
    if not all(0 < fraction <= 1 for fraction in settings.fractions):
        raise UsageError(
            f"low-shot: fractions should lie between 0 and 1, not {list(settings.fractions)}", "1 % is 0.01."
        )
    if settings.draws < 1:
        raise UsageError(f"low-shot: draws should be at least 1, not {settings.draws}")
    if settings.folds < 2:
        raise UsageError(f"low-shot: folds should be at least 2, not {settings.folds}")
    for name in ("costs", "c"):
        values = getattr(settings, name)
        if not values or not all(np.isfinite(v) and v > 0 for v in values):
            raise UsageError(f"low-shot: {name} should be one or several numbers greater than 0, not {list(values)}")
    for name in ("fixed_cost", "fixed_lambda", "positive_weight", "tolerance", "max_iter"):
        value = getattr(settings, name)
        if not (np.isfinite(value) and value > 0):
            raise UsageError(f"low-shot: {name} should be greater than 0, not {value}")


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the choice by cross-validation, the fit and the scores of test of every draw."""
    width, classes = shapes.width, shapes.classes
    # Every class has samples of its own where samples have several.
    spread = classes if issubclass(shapes.target, MultiLabel) else 1
    sizes = [k * classes * spread for k in settings.k] + [int(share * shapes.train) for share in settings.fractions]
    strengths = len(settings.costs if settings.classifier == "svm" else settings.c)
    fits = 1 + (strengths * settings.folds if strengths > 1 else 0)
    products = 0.0
    for rows in (min(size, shapes.train) for size in sizes):
        rank = min(rows, width)
        if settings.classifier == "svm":
            products += fits * classes * svm.fit_products(rows, width)
        else:
            products += fits * linear.fit_products(rows, rank, classes)
        products += 8.0 * rows * width * rank + 4.0 * shapes.test * width * classes
    # Scores of one draw in double precision while the next is fitted, and of all in single.
    scores = float(shapes.test) * classes
    memory = scores * (16 + 4 * settings.draws) + 16.0 * min(max(sizes), shapes.train) * width
    return Cost(settings.draws * products, 0.0, memory, 4 * settings.draws * scores)


PROTOCOL = Protocol(
    version=5,
    summary="Linear SVMs or logistic regression on k images per class, over several draws.",
    settings=Settings,
    check_settings=check_settings,
    kind=OnFeatures(check, run, cost=cost),
)
