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
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.features.array import Features
from sslbench.metrics import ranking
from sslbench.metrics.answers import top_k_correct
from sslbench.metrics.catalog import find
from sslbench.protocols import linear, svm
from sslbench.protocols._parts import few_shot
from sslbench.protocols._parts.few_shot import (
    Draw,
    Fitted,
    LearningCurve,
    check_labels,
    leading,
    leading_metric,
    stratified_folds,
    usable_k,
)
from sslbench.protocols._parts.selection import (
    best_of,
    check_features,
    class_sizes,
    decide_by_blocks,
    folds_of_class,
    for_all_classes,
    percent,
    signed_targets,
)
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, ProtocolSettings, Shapes
from sslbench.protocols.svm import Settings as SvmSettings
from sslbench.protocols.svm import choose_each, choose_one, make_solver
from sslbench.results import Outcome
from sslbench.solvers.logistic import Fit, Problem, fit, principal_axes
from sslbench.solvers.svm import SvmSolver
from sslbench.steps import Advance, counted
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.target import OfClasses, Target

DEFAULT_K = (1, 2, 4, 8, 16)


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of the low-shot protocol."""

    k: tuple[int, ...] = setting(
        DEFAULT_K,
        "images per class; the largest gives the leading metric; []: shares of train only",
        within="[1, inf)",
        distinct=True,
    )
    fractions: tuple[float, ...] = setting((), "shares of train to train on too, such as [0.01,0.1]", within="(0, 1]")
    stratified: bool = setting(True, "draw shares of train stratified by class; false: regardless of class")
    draws: int = setting(5, "independent draws; draw i has the seed (seed of the run) x draws + i", within="[1, inf)")
    classifier: Literal["svm", "logistic"] = setting("svm", "classifier trained on each draw")
    select: Literal["train", "test"] = setting(
        "train", "split on which the regularisation is selected; test: as VISSL reports it, and the row is marked"
    )
    metric: Literal["auto", "top1", "mAP"] = setting(
        "auto",
        "leading metric, which select=test maximises; auto: top1 of single labels, mAP of several. mAP "
        "of single labels averages each class against the rest",
    )
    folds: int = setting(
        3, "folds of the cross-validation inside a draw; fewer where most classes have fewer samples", within="[2, inf)"
    )
    costs: tuple[float, ...] = setting(
        (0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0),
        "svm: candidates of the cost (scikit-learn's C); a single value needs no selection",
        within="(0, inf)",
        filled=True,
    )
    fixed_cost: float = setting(
        1.0, "svm: cost if most classes have one sample, too few for selection", within="(0, inf)"
    )
    positive_weight: float = setting(2.0, "svm: weight of positives in the loss; negatives weigh 1", within="(0, inf)")
    solver: Literal["auto", "newton", "liblinear"] = setting("auto", "svm: as in the protocol svm")
    c: tuple[float, ...] = setting(
        (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0),
        "logistic: candidates of the inverse regularisation (scikit-learn's C); a single value needs no selection",
        within="(0, inf)",
        filled=True,
    )
    fixed_lambda: float = setting(
        0.025, "logistic: if most classes have one sample, C = samples / fixed_lambda", within="(0, inf)"
    )
    tolerance: float = setting(
        1e-10,
        "logistic: largest relative distance of the objective from its minimum that counts as converged",
        within="(0, inf)",
    )
    max_iter: int = setting(2000, "largest number of solver iterations", within="(0, inf)")

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        if not self.k and not self.fractions:
            raise UsageError("low-shot: give k or fractions")


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


class Classifier(typing.Protocol):
    """Fitting of one draw; it has the test features, but not their labels."""

    def fit(self, x: Matrix, labels: Target, strengths: Sequence[float], groups: IntArray | None = None) -> Fitted:
        """Learn from one draw.

        `x`: (N, D), of the draw; `strengths`: of the regularisation (scikit-learn's C) to choose from; one is used as
        it is; `groups`: (N,) the group of each sample, kept together by the folds; None if no two share one.
        """


class Svm:
    """One linear SVM per class, as in the SVM protocol; labels -1 are left out."""

    def __init__(self, test: Matrix, settings: Settings, seed: int) -> None:
        self._settings, self._seed, self._test = settings, seed, test

    def fit(self, x: Matrix, labels: Target, strengths: Sequence[float], groups: IntArray | None = None) -> Fitted:
        """Fit one draw, see `Classifier`. With several labels per sample the cost is chosen per class."""
        x = _unit(x)
        targets, learned = _targets(labels)
        names = [labels.classes[c] for c in learned]
        if not len(learned):
            return _nothing(len(self._test), labels)
        solver, notes = make_solver(x, self._as_svm(strengths), self._seed)
        strength, costs, searched = self._choose(solver, targets, names, type(labels), strengths, groups)
        models = solver.fit(targets, costs)
        decided = decide_by_blocks(self._test, lambda block: models.decide(_unit(block)), len(learned))
        scores = for_all_classes(decided, learned, labels)
        train = leading(self._settings.metric, labels, for_all_classes(models.decide(x), learned, labels))
        return Fitted(scores, train, strength, bool(models.converged.all()), (*notes, *searched))

    def _as_svm(self, strengths: Sequence[float]) -> SvmSettings:
        s = self._settings
        return SvmSettings(
            costs=tuple(strengths),
            folds=s.folds,
            positive_weight=s.positive_weight,
            solver=s.solver,
            max_iter=s.max_iter,
        )

    def _choose(
        self,
        solver: SvmSolver,
        targets: npt.NDArray[np.int8],
        names: list[str],
        kind: type[Target],
        strengths: Sequence[float],
        groups: IntArray | None,
    ) -> tuple[float | dict[str, float], list[float], tuple[str, ...]]:
        """Return the cost for the record, the cost of every class, and notes; without folds the fixed cost."""
        fixed = self._settings.fixed_cost if len(strengths) > 1 else strengths[0]
        # Of positives and negatives the smaller number; with groups, that of groups.
        smallest = []
        for column in targets.T:
            rows = np.flatnonzero(column)
            sizes = class_sizes((column[rows] > 0).astype(np.int64), None if groups is None else groups[rows])
            smallest.append(int(sizes.min()) if len(sizes) == 2 else 0)
        fewest = np.array(smallest)
        # A class with one sample is never predicted when that is held out, and would bias the shared cost.
        folds = min(self._settings.folds, int(np.median(fewest) if issubclass(kind, Classes) else fewest.max()))
        if len(strengths) == 1 or folds < 2:
            return fixed, [fixed] * len(names), ()
        settings = dataclasses.replace(self._as_svm(strengths), folds=folds)
        if issubclass(kind, Classes):
            choice = choose_one(solver, targets, settings, groups)
            return choice.costs[0], choice.costs, choice.notes
        choice = choose_each(solver, targets, names, settings, groups)
        costs = [cost if few > 1 else fixed for cost, few in zip(choice.costs, fewest, strict=True)]
        return dict(zip(names, costs, strict=True)), costs, choice.notes


class Logistic:
    """Logistic regression on features standardised by the draw: multinomial, or one per class (multi-label)."""

    def __init__(self, test: Matrix, settings: Settings) -> None:
        self._settings, self._test = settings, test

    def fit(self, x: Matrix, labels: Target, strengths: Sequence[float], groups: IntArray | None = None) -> Fitted:
        """Fit one draw, see `Classifier`. One strength for all classes, by accuracy or mean average precision."""
        learned = signed_targets(labels)[1]
        if not len(learned):
            return _nothing(len(self._test), labels)
        axes = principal_axes(x)
        x = axes.project(x)
        strength = self._choose(x, labels, axes.variance, strengths, groups)
        model, learned = self._fit(x, labels, axes.variance, strength, None, self._settings.tolerance)
        decided = decide_by_blocks(self._test, lambda block: model.decide(axes.project(block)), model.weight.shape[1])
        scores = for_all_classes(decided, learned, labels)
        train = leading(self._settings.metric, labels, for_all_classes(model.decide(x), learned, labels))
        return Fitted(scores, train, strength, model.converged)

    def _fit(
        self, x: Matrix, labels: Target, variance: FloatArray, c: float, start: "Fit | None", tolerance: float
    ) -> tuple[Fit, IntArray]:
        targets, learned = _targets(labels)
        if isinstance(labels, MultiLabel):
            # In multi-label targets -1 is ignored and 0 is a negative.
            problem = Problem(x, np.where(targets == 0, -1, targets > 0).astype(np.int8), len(learned))
        elif len(learned) == 2:
            problem = Problem(x, (targets[:, 1:] > 0).astype(np.int8), 1)
        else:
            problem = Problem(x, np.searchsorted(learned, labels.values), len(learned))
        max_iter = self._settings.max_iter
        return fit(problem, variance, c, start=start, max_iter=max_iter, tolerance=tolerance), learned

    def _choose(
        self, x: Matrix, labels: Target, variance: FloatArray, strengths: Sequence[float], groups: IntArray | None
    ) -> float:
        """Return the smallest strength with the best score over the folds; without folds C = N / fixed_lambda."""
        if len(strengths) == 1:
            return strengths[0]
        single, wanted = isinstance(labels, Classes), self._settings.folds
        # (N,) of single labels; (N, C) of several, with -1 for samples left out.
        folds = (
            stratified_folds(labels.values, wanted, groups)
            if single
            else np.stack([folds_of_class(of > 0, of >= 0, wanted, groups) for of in labels.values.T], axis=1)
        )
        if folds is None or folds.max() < 1:  # k is 1
            return len(x) / self._settings.fixed_lambda
        grid = sorted(strengths)
        right = np.zeros(len(grid))
        held_out_scores = np.full((len(grid), 0 if single else len(x), len(labels.classes)), np.nan)
        for fold in range(int(folds.max()) + 1):
            rows = folds == fold
            # Rows are removed, or with several labels per sample marked as unknown.
            if single:
                kept = np.flatnonzero(~rows)
                inside, rest = x[kept], labels.select(kept)
            else:
                inside, rest = x, labels.changed(values=np.where(rows, -1, labels.values).astype(np.int8))
            # The other folds may hold a single class.
            if not len(signed_targets(rest)[1]):
                continue
            model = None
            # Ascending: each fit begins near its optimum, at that of the next smaller strength.
            for i, c in enumerate(grid):
                model, learned = self._fit(inside, rest, variance, c, model, linear.TOLERANCE)
                if single:  # the scores at all strengths of a share of ImageNet are over a gigabyte
                    decided = for_all_classes(model.decide(x[rows]), learned, labels)
                    right[i] += top_k_correct(labels.values[rows], decided, 1).sum()
                else:
                    decided = for_all_classes(model.decide(x), learned, labels)
                    held_out_scores[i] = np.where(rows, decided, held_out_scores[i])
        scores = right if single else [_average_precision(labels, folds, part) for part in held_out_scores]
        # numpy's argmax takes NaN as the largest.
        return grid[int(np.argmax(np.nan_to_num(scores, nan=-1.0)))]


def check(settings: Settings, train: Target) -> None:
    """Refuse settings that cannot work on these training labels, before any feature is computed."""
    check_labels("low-shot", train)
    leading_metric(settings.metric, train)
    _points(settings, train)


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Learn from draws of train, score on test."""
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
        inside = f"cross-validation (up to {settings.folds} folds) inside each draw; fixed where k is 1"
        on = "test, the mean over the draws" if settings.select == "test" else inside
        selected = {"on": on, name: curve.strengths}
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


def _best_on_test(
    learner: Classifier, train: Features, test: Target, draws: Sequence[Draw], strengths: Sequence[float], metric: str
) -> tuple[tuple[float], dict[str, float]]:
    """Return the strength with the highest mean over the draws of the leading test metric, and the means of all."""
    means = []
    for strength in strengths:
        fitted = (learner.fit(train.x[draw.rows], draw.labels, (strength,)) for draw in draws)
        means.append(float(np.mean([leading(metric, test, one.scores) for one in fitted])))
    best = best_of(means, find(few_shot.leading_metric(metric, test)).sign)
    return (strengths[best],), {f"{strength:g}": mean for strength, mean in zip(strengths, means, strict=True)}


def _points(settings: Settings, labels: Target) -> tuple[list[_Point], list[str]]:
    """Return the points of the curve, the headline last, and a note on defaults left out."""
    ks: list[int] = []
    notes: list[str] = []
    if settings.k:
        most, why = few_shot.largest_k(labels)
        ks, notes = usable_k("low-shot", settings.k, DEFAULT_K, most, why)
    missing = np.flatnonzero(~OfClasses.of(labels).present()).tolist()
    if missing:
        names = ", ".join(labels.classes[c] for c in missing)
        notes.append(f"Classes without an example in train were left out: {names}.")
    shares = [_Point(percent(fraction), fraction=fraction) for fraction in sorted(settings.fractions)]
    return [*shares, *(_Point(f"k={k}", k=k) for k in ks)], notes


def _unit(x: Matrix) -> FloatArray:
    """Return features divided by their length + 1e-5."""
    prepared = np.array(x, dtype=np.float64)
    prepared /= np.linalg.norm(prepared, axis=1, keepdims=True) + 1e-5
    return prepared


def _targets(labels: Target) -> tuple[npt.NDArray[np.int8], IntArray]:
    targets, learned = signed_targets(labels)
    return np.ascontiguousarray(targets), learned  # memory order determines the rounding of products


def _nothing(n: int, labels: Target) -> Fitted:
    """Return the result of a draw of one class (a small share of train), from which nothing can be learned."""
    scores = np.full((n, len(labels.classes)), np.nan if isinstance(labels, MultiLabel) else 0.0)
    return Fitted(scores, float("nan"), {}, True, ("A draw contained one class only, so nothing was learned.",))


def _average_precision(labels: Target, folds: npt.NDArray[np.int16], scores: FloatArray) -> float:
    """Return the mean over classes and folds of the non-interpolated average precision."""
    values = [
        ranking.single_class(ranking.non_interpolated, labels.values[rows, c], scores[rows, c])
        for c in range(folds.shape[1])
        for fold in range(int(folds[:, c].max()) + 1)
        if len(rows := np.flatnonzero(folds[:, c] == fold))
    ]
    return ranking.mean_over_classes(np.array(values))


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the choice by cross-validation, the fit and the scores of test of every draw."""
    width, classes = shapes.width, shapes.classes
    # Every class has samples of its own where samples have several.
    spread = classes if issubclass(shapes.target, MultiLabel) else 1
    sizes = [k * classes * spread for k in settings.k] + [int(share * shapes.train) for share in settings.fractions]
    strengths = len(settings.costs if settings.classifier == "svm" else settings.c)
    fits = 1 + (strengths * settings.folds if strengths > 1 else 0)
    products = 0.0
    # A point larger than train uses all of it.
    for rows in (min(size, shapes.train) for size in sizes):
        rank = min(rows, width)
        if settings.classifier == "svm":
            products += fits * classes * svm.fit_products(rows, width)
        else:
            products += (
                fits * linear.fit_passes(settings.c, rows, rank, settings.max_iter) * 4.0 * rows * rank * classes
            )
        products += 8.0 * rows * width * rank + 4.0 * shapes.test * width * classes
    # Scores of one draw in double precision while the next is fitted, and of all in single.
    scores = float(shapes.test) * classes
    memory = scores * (16 + 4 * settings.draws) + 16.0 * min(max(sizes), shapes.train) * width
    return Cost(settings.draws * products, 0.0, memory, 4 * settings.draws * scores)


PROTOCOL = Protocol(
    version=5,
    summary="Linear SVMs or logistic regression on k images per class, over several draws.",
    settings=Settings,
    kind=OnFeatures(check, run, cost=cost),
)
