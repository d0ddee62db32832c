"""Few-shot least squares in closed form, as big_vision's `fewshot_lsr` evaluates representations.

From every class the first k of a seeded order of its training samples, by their file names, are taken. Their features
are standardised by their own mean and deviation (+ 1e-5), a constant feature of 100 is added (so the bias is nearly
unregularised), and weights W = (X'X + l2 I)^-1 X'Y with targets of -1 and 1 are solved for in double precision; the
class with the largest value is predicted. With the published l2 = 1024 nothing is chosen. Of several l2 one is chosen
by cross-validation inside the draw, for every draw; with one sample per class there are no folds, and 1024 is used.

The headline is the mean over the draws at the largest k; `variants` of the result holds every k: mean, min, max, std
and the 95 % interval over the draws. The scores of all draws at the largest k are kept beside the record.

Version 2: the scores of all draws are kept, groups of samples are kept together, and intervals are those of
half-samples. Version 3: metrics per group and per class, and the score without suspected overlaps, are means over all
draws. Version 4: names and numbers of classes change no draw.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.config import setting
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.metrics.classification import top_k_accuracy
from sslbench.protocols._parts import few_shot
from sslbench.protocols._parts.few_shot import Draw, Fitted, LearningCurve, check_labels, usable_k
from sslbench.protocols._parts.selection import best_of, check_features, for_all_classes
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, ProtocolSettings, Shapes
from sslbench.results import Outcome
from sslbench.solvers.ridge import LeastSquaresClassifier, fit_classifier
from sslbench.targets.classes import Classes
from sslbench.targets.target import OfClasses, Target

_DEFAULT_K = (1, 5, 10, 25)
_PUBLISHED_L2 = 1024.0


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of few-shot least squares."""

    k: tuple[int, ...] = setting(
        _DEFAULT_K,
        "samples per class; the largest gives the leading metric",
        within="[1, inf)",
        filled=True,
        distinct=True,
    )
    draws: int = setting(3, "independent draws; draw i has the seed (seed of the run) x draws + i", within="[1, inf)")
    l2: tuple[float, ...] = setting(
        (_PUBLISHED_L2,),
        "candidates of the regularisation; a single value needs no selection",
        within="(0, inf)",
        filled=True,
    )
    folds: int = setting(3, "folds of the cross-validation inside a draw, if several l2 are given", within="[2, inf)")
    select: Literal["train", "test"] = setting(
        "train",
        "split on which l2 is selected, if several are given; test: the highest mean on test, and the row is marked",
    )


def check(settings: Settings, train: Target) -> None:
    """Refuse settings that cannot work on these training labels, before any feature is computed."""
    check_labels("lsr", train)
    if not isinstance(train, Classes):
        raise DataError(
            "lsr needs one label per sample, and these samples have several",
            "Use low-shot, svm or linear for multi-label data.",
        )
    most, why = few_shot.largest_k(train)
    usable_k("lsr", settings.k, _DEFAULT_K, most, why)


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Learn from draws of train, score on test."""
    check_features(train, test)
    check(settings, train.target)
    most, why = few_shot.largest_k(train.target)
    ks, notes = usable_k("lsr", settings.k, _DEFAULT_K, most, why)
    seeds = few_shot.seeds(seed, settings.draws)
    curve = LearningCurve(test, train.ids, seed=seed)
    for k in ks:
        pools = (few_shot.pool(train, each) for each in seeds)
        draws = [
            few_shot.k_per_class(labels, k, shuffler, groups=groups).of(order)
            for order, labels, groups, shuffler in pools
        ]
        curve.add(f"k={k}", draws, _fit_all(train, test, draws, settings), headline=k == ks[-1])
    notes = [f"The metrics are means over {settings.draws} draws of {ks[-1]} samples per class.", *notes]
    selected: dict[str, Any] = {}
    if len(settings.l2) > 1:
        inside = f"cross-validation (up to {settings.folds} folds) inside each draw; 1024 where k is 1"
        on = "test, the mean over the draws" if settings.select == "test" else inside
        selected = {"on": on, "l2": curve.strengths}
    return curve.outcome(selected=selected, seeds=seeds, notes=notes)


def _fit_all(train: Features, test: Features, draws: Sequence[Draw], settings: Settings) -> Iterator[Fitted]:
    """Yield a classifier per draw; classes without training samples score below all others."""
    learned = np.flatnonzero(OfClasses.of(train.target).present())
    models = [_model(train, draw, learned) for draw in draws]
    if settings.select == "test" and len(settings.l2) > 1:
        means = []
        for l2 in settings.l2:
            decided = (for_all_classes(model.decide(test.x, l2), learned, test.target) for model in models)
            shares = [top_k_accuracy(np.asarray(test.target.values, np.int64), s) for s in decided]
            means.append(float(np.mean(shares)))
        strengths = [settings.l2[best_of(means)]] * len(draws)
    else:
        strengths = [_inside(train, draw, learned, settings) for draw in draws]
    for model, draw, l2 in zip(models, draws, strengths, strict=True):
        own = model.decide(train.x[draw.rows], l2)
        score = draw.labels.headline(draw.labels.values, for_all_classes(own, learned, draw.labels))
        yield Fitted(for_all_classes(model.decide(test.x, l2), learned, test.target), score, l2)


def _model(
    train: Features, draw: Draw, learned: IntArray, kept: npt.NDArray[np.bool_] | None = None
) -> LeastSquaresClassifier:
    rows, values = draw.rows, draw.labels.values
    if kept is not None:
        rows, values = rows[kept], values[kept]
    return fit_classifier(train.x[rows], np.searchsorted(learned, values), len(learned))


def _inside(train: Features, draw: Draw, learned: IntArray, settings: Settings) -> float:
    """Return the first l2 with the highest accuracy over the folds of the draw; the published one without folds."""
    if len(settings.l2) == 1:
        return settings.l2[0]
    folds = few_shot.stratified_folds(draw.labels.values, settings.folds, draw.groups)
    if folds is None:
        return _PUBLISHED_L2
    own = np.searchsorted(learned, draw.labels.values)
    right = np.zeros(len(settings.l2))
    for fold in range(int(folds.max()) + 1):
        held_out = folds == fold
        model = _model(train, draw, learned, ~held_out)
        for i, l2 in enumerate(settings.l2):
            right[i] += np.sum(np.argmax(model.decide(train.x[draw.rows[held_out]], l2), axis=1) == own[held_out])
    return settings.l2[int(np.argmax(right))]


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the decompositions of all draws and the scores of test."""
    width, classes, draws = shapes.width + 1, shapes.classes, settings.draws
    products = 0.0
    for k in settings.k:
        rows = min(k * classes, shapes.train)
        rank = min(rows, width)
        fits = 1 + (settings.folds if len(settings.l2) > 1 else 0)
        products += draws * (4.0 * rows * width * rank * fits + 4.0 * shapes.test * width * classes)
    size = float(shapes.test) * width
    memory = 16 * size + 8.0 * draws * shapes.test * classes
    return Cost(products, 40 * size * draws * len(settings.k), memory, 4.0 * draws * shapes.test * classes)


PROTOCOL = Protocol(
    version=5,
    summary="Few-shot least squares in closed form, as big_vision's `fewshot_lsr`.",
    settings=Settings,
    kind=OnFeatures(check, run, cost=cost, takes=(Classes,)),
)
