"""Linear SVMs on frozen features: the VOC07 protocol of Goyal et al. 2019 ("Scaling and benchmarking") and VISSL.

One binary SVM per class (squared hinge, L2, bias regularised; positives weigh twice), on features divided by their
length, the cost chosen by 3-fold cross-validation on train. Multi-label: a cost per class by non-interpolated average
precision; reported is the mean over classes of the interpolated average precision on test. Single label: one cost for
all classes by accuracy; the class with the largest decision value is predicted.

Version 2: SVMs are solved to the optimum. In version 1 liblinear stopped earlier, above all at large costs.
Version 3: the folds keep groups of samples together, and intervals are those of half-samples.
"""

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from sslbench.arrays import FloatArray, Int8Array, Int16Array, IntArray
from sslbench.config import setting
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.metrics import ranking
from sslbench.protocols._parts.selection import (
    check_features,
    class_sizes,
    decide_by_blocks,
    folds_of,
    folds_of_class,
    for_all_classes,
    headline_by_blocks,
    signed_targets,
)
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, ProtocolSettings, Shapes, any_labels
from sslbench.results import Outcome
from sslbench.solvers import svm
from sslbench.solvers.svm import HeldOut, Models, PreparedRows, no_model, relative_gaps
from sslbench.steps import counted
from sslbench.targets.classes import Classes

_NEWTON_UP_TO = 12288  # axes: memory of rotating the features grows with their square, time with their cube


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of the SVM protocol."""

    costs: tuple[float, ...] = setting(
        (0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0),
        "candidates of the cost (scikit-learn's C); a single value needs no selection",
        within="(0, inf)",
        filled=True,
    )
    folds: int = setting(3, "folds of the cross-validation that selects the cost", within="[2, inf)")
    normalise: bool = setting(True, "divide each feature vector by its norm + 1e-5")
    positive_weight: float = setting(2.0, "weight of positives in the loss; negatives weigh 1", within="(0, inf)")
    ignore_in_training: Literal["negative", "drop"] = setting(
        "negative", "role of labels -1 in training: negatives, as in VISSL, or left out; test always leaves them out"
    )
    intercept_scaling: float = setting(
        1.0, "constant feature whose weight, times this value, is the bias", within="(0, inf)"
    )
    solver: Literal["auto", "newton", "liblinear"] = setting(
        "auto",
        "newton: all classes, costs and folds jointly; liblinear: scikit-learn's LinearSVC, "
        "one by one; auto: newton, unless samples and features both exceed 12,288",
    )
    max_memory: float = setting(
        1.0,
        "working memory of newton beside the features, by which classes are solved together",
        unit="GB",
        changes_result=False,
        within="(0, inf)",
    )
    max_iter: int = setting(2000, "largest number of solver iterations", within="(0, inf)")
    tolerance: float = setting(
        1e-4,
        "newton: largest relative distance of the coefficients from the optimum; liblinear: its own measure",
        within="(0, inf)",
    )


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Fit on train, score on test."""
    check_features(train, test)
    x = PreparedRows(train.x, settings.normalise)
    targets, usable = signed_targets(train.target, ignore=settings.ignore_in_training == "drop")
    if not len(usable):
        raise DataError("no class has both positive and negative training samples, so nothing can be learned")
    left_out = [name for c, name in enumerate(train.target.classes) if c not in usable]
    notes = [f"Classes without an example in train were left out: {', '.join(left_out)}."] if left_out else []
    solver, solver_notes = make_solver(x, settings, seed)
    if isinstance(train.target, Classes):
        choice = choose_one(solver, targets, settings, train.groups, train.rank)
    else:
        names = [train.target.classes[c] for c in usable]
        choice = choose_each(solver, targets, names, settings, train.groups, train.rank)
    with counted("svm: final models", "classes", targets.shape[1]):
        models = solver.fit(targets, choice.costs)
    decision = decide_by_blocks(
        test.x, lambda block: models.decide(PreparedRows(block, settings.normalise)[:]), len(usable)
    )
    unconverged = int(np.sum(~models.converged))
    gaps = relative_gaps(
        x,
        targets,
        choice.costs,
        models,
        positive_weight=settings.positive_weight,
        intercept_scaling=settings.intercept_scaling,
    )
    notes += [*choice.notes, *solver_notes]
    if unconverged:
        notes.append(f"{unconverged} of the SVMs did not converge in {settings.max_iter} iterations.")
    scores = for_all_classes(decision, usable, test.target)
    return Outcome.of(
        test.target,
        scores,
        seed=seed,
        groups=test.groups,
        train=headline_by_blocks(
            train.target, lambda rows: for_all_classes(models.decide(x[rows]), usable, train.target)
        ),
        selected=choice.selected | {"gap": float(gaps.max())},
        converged=not unconverged,
        notes=tuple(notes),
    )


@dataclasses.dataclass(frozen=True)
class Choice:
    """Cost per class, the record of the choice, and notes."""

    costs: list[float]
    selected: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


def make_solver(x: FloatArray | svm.PreparedRows, settings: Settings, seed: int) -> tuple[svm.SvmSolver, list[str]]:
    """Return the solver of the settings for features (N, D), with a note where 'auto' chose the slow one."""
    axes = min(x.shape[0], x.shape[1] + 1)
    if settings.solver == "newton" or (settings.solver == "auto" and axes <= _NEWTON_UP_TO):
        from sslbench.solvers.svm.newton import Newton

        newton = Newton(
            x,
            costs=settings.costs,
            positive_weight=settings.positive_weight,
            intercept_scaling=settings.intercept_scaling,
            tolerance=settings.tolerance,
            max_iter=settings.max_iter,
            max_memory=settings.max_memory,
        )
        return newton, []
    because = f"liblinear was used, because {axes} axes are too many for the joint solver."
    return Liblinear(x[:], settings, seed), [because[0].upper() + because[1:]] if settings.solver == "auto" else []


def choose_each(
    solver: svm.SvmSolver,
    targets: Int8Array,
    classes: Sequence[str],
    settings: Settings,
    groups: IntArray | None = None,
    rank: IntArray | None = None,
) -> Choice:
    """Return a cost per class: the first with the highest mean average precision over the folds.

    `targets`: (N, K), 1 positive, -1 negative, 0 left out; both present in every class; `groups`: (N,) the group of
    each sample; the samples of one are in one fold; `rank`: (N,) order of the samples in folds.
    """
    costs = settings.costs
    if len(costs) == 1:
        return Choice([costs[0]] * len(classes))
    folds = np.stack(
        [folds_of_class(column > 0, column != 0, settings.folds, groups, rank) for column in targets.T], axis=1
    )
    number = folds.max(axis=0) + 1
    validated = np.flatnonzero(number > 1)
    means, unconverged = np.full((len(classes), len(costs)), np.nan), 0
    if len(validated):
        with counted("svm: choice of costs", "cross-validations", len(validated) * len(costs)) as advance:
            for part in solver.held_out(targets[:, validated], folds[:, validated]):
                k = validated[part.column]
                precisions = [
                    ranking.single_class(ranking.non_interpolated, targets[rows, k], part.decision[rows])
                    for rows in (np.flatnonzero(folds[:, k] == fold) for fold in range(number[k]))
                ]
                means[k, part.place] = ranking.mean_over_classes(np.array(precisions))
                unconverged += part.unconverged
                advance(1)
    best_costs = [_first_best(costs, row) for row in means]
    few = [name for name, n in zip(classes, number, strict=True) if n < settings.folds]
    notes = _search_notes(unconverged)
    if few:
        samples = "training samples" if groups is None else "groups with training samples"
        note = (
            f"Classes with fewer than {settings.folds} positive (or negative) {samples} were "
            f"cross-validated in fewer folds, with a single one not at all: {', '.join(few)}."
        )
        notes = (note, *notes)
    best = [np.nan if np.isnan(row).all() else np.nanmax(row) for row in means]
    selected = {
        "cost": dict(zip(classes, best_costs, strict=True)),
        "on": f"{settings.folds}-fold cross-validation on train, per class",
        "score": ranking.mean_over_classes(np.asarray(best)),
    }
    return Choice(best_costs, selected, notes)


def choose_one(
    solver: svm.SvmSolver,
    targets: Int8Array,
    settings: Settings,
    groups: IntArray | None = None,
    rank: IntArray | None = None,
) -> Choice:
    """Return one cost for all classes: the first with the highest accuracy over the folds.

    `targets`: (N, K), 1 in the column of the sample's class, else -1; `groups`: (N,) the group of each sample; the
    samples of one are in one fold; `rank`: (N,) order of the samples in folds.
    """
    costs, classes = settings.costs, targets.shape[1]
    if len(costs) == 1:
        return Choice([costs[0]] * classes)
    own = np.argmax(targets, axis=1)
    number = min(settings.folds, int(max(class_sizes(own, groups))))
    if number < 2:
        one = "one training sample" if groups is None else "the training samples of one group"
        note = f"Every class has {one}, so no cost could be selected; {_middle(costs):g} was used."
        return Choice([_middle(costs)] * classes, notes=(note,))
    folds = np.broadcast_to(folds_of(own, number, groups, rank)[:, None], targets.shape)
    # Keeps only the best class so far (the first of equals): all of them would need costs x classes times the memory.
    best = np.full((len(costs), len(own)), -np.inf)
    predicted = np.full(best.shape, -1)
    unconverged = 0
    with counted("svm: choice of the cost", "cross-validations", len(costs) * classes) as advance:
        for part in solver.held_out(targets, folds):
            better = part.decision > best[part.place]
            best[part.place, better], predicted[part.place, better] = part.decision[better], part.column
            unconverged += part.unconverged
            advance(1)
    accuracy = np.mean(predicted == own, axis=1)
    cost = _first_best(costs, accuracy)
    fewer = (f"The cost was selected by {number} folds, for lack of samples.",) if number < settings.folds else ()
    selected = {"cost": cost, "on": f"{number}-fold cross-validation on train", "score": float(accuracy.max())}
    return Choice([cost] * classes, selected, fewer + _search_notes(unconverged))


def _search_notes(unconverged: int) -> tuple[str, ...]:
    return (f"During the selection of the cost, {unconverged} of the SVMs did not converge.",) if unconverged else ()


def _middle(costs: Sequence[float]) -> float:
    return sorted(costs)[len(costs) // 2]


def _first_best(costs: Sequence[float], scores: FloatArray) -> float:
    """Return the cost with the highest score, the first of equals; the middle one without scores."""
    return _middle(costs) if np.isnan(scores).all() else costs[int(np.nanargmax(scores))]


class Liblinear:
    """All models of one data set."""

    def __init__(self, x: FloatArray, settings: Settings, seed: int) -> None:
        self._x, self._settings, self._seed = x, settings, seed

    def held_out(self, targets: Int8Array, folds: Int16Array) -> Iterator[HeldOut]:
        """Yield decision values on the held-out folds; see `Solver`."""
        jobs = [(k, place) for k in range(targets.shape[1]) for place in range(len(self._settings.costs))]

        def cross_validate(job: tuple[int, int]) -> HeldOut:
            k, place = job
            decision, unconverged = np.zeros(len(targets)), 0
            for fold in range(int(folds[:, k].max()) + 1):
                held_out = (folds[:, k] == fold) & (targets[:, k] != 0)
                sign = np.where(held_out, 0, targets[:, k])
                constant = no_model(sign)
                if np.isnan(constant):
                    model = self._fit(sign, self._settings.costs[place])
                    decision[held_out] = model.decide(self._x[held_out])[:, 0]
                    unconverged += int(not model.converged[0])
                else:
                    decision[held_out] = constant
            return HeldOut(k, place, decision, unconverged)

        yield from self._map(cross_validate, jobs)

    def fit(self, targets: Int8Array, costs: Sequence[float]) -> Models:
        """Return the final models; see `Solver`."""
        models = list(self._map(lambda k: self._fit(targets[:, k], costs[k]), range(targets.shape[1])))
        return Models(*(np.concatenate([getattr(m, name) for m in models]) for name in ("weight", "bias", "converged")))

    def _fit(self, sign: Int8Array, cost: float) -> Models:
        from sklearn.svm import LinearSVC

        settings, rows = self._settings, np.flatnonzero(sign)
        x = self._x if len(rows) == len(self._x) else self._x[rows]
        # Primal and dual have the same optimum; the primal solver wins where there are more samples than features.
        model = LinearSVC(
            C=cost,
            dual=len(x) <= x.shape[1],
            class_weight={1: settings.positive_weight, -1: 1.0},
            intercept_scaling=settings.intercept_scaling,
            tol=settings.tolerance,
            max_iter=settings.max_iter,
            random_state=self._seed,
        ).fit(x, sign[rows])
        return Models(model.coef_.copy(), model.intercept_.copy(), np.array([model.n_iter_ < settings.max_iter]))

    def _map(self, function: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
        from sklearn.exceptions import ConvergenceWarning

        # Threads help because liblinear releases the interpreter lock.
        with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            # Reported once, in the result's notes, instead of once per model.
            warnings.simplefilter("ignore", ConvergenceWarning)
            yield from pool.map(function, jobs)


def fit_products(rows: int, width: int) -> float:
    """Return the operations of one SVM: two steps of Newton's method, each by a system or by conjugate gradients.

    A quarter of the samples lies inside the margin; the gradients converge in some sixty iterations.
    """
    rank = float(min(rows, width + 1))
    return 2 * min(2 * rank**3 / 3 + rows * rank * min(rank, rows / 4), 240 * rows * rank) + 8 * rows * rank


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the rotation of the features onto their axes, and the SVMs of all classes, costs and folds."""
    costs, rank = len(settings.costs), float(min(shapes.train, shapes.width + 1))
    problems = shapes.classes * costs * (1 + (settings.folds if costs > 1 else 0))
    size = float(shapes.train) * shapes.width
    return Cost(
        products=8 * size * rank + problems * fit_products(shapes.train, shapes.width),
        passes=600.0 * problems * shapes.train,
        # The rotated features in double and single precision; fewer rows than columns are held whole besides.
        memory=12 * shapes.train * rank
        + (16 * size if shapes.train <= shapes.width else 0)
        + 1e9 * settings.max_memory,
        scores=4.0 * shapes.test * shapes.classes,
    )


PROTOCOL = Protocol(
    version=5,
    summary="One linear SVM per class on frozen features, as VISSL evaluates on VOC07.",
    settings=Settings,
    kind=OnFeatures(any_labels, run, cost=cost, class_subsets=True),
)
