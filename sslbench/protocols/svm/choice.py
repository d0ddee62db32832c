"""Binary linear SVMs for all classes: the choice of their costs by cross-validation, and the final models."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from sslbench.arrays import FloatArray, Int8Array, Int16Array, IntArray
from sslbench.metrics import ranking
from sslbench.protocols._parts.selection import class_sizes, folds_of, folds_of_class
from sslbench.protocols.svm.liblinear import Liblinear
from sslbench.protocols.svm.settings import Settings
from sslbench.solvers import svm
from sslbench.steps import counted

_NEWTON_UP_TO = 12288  # axes: memory of rotating the features grows with their square, time with their cube


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
        from sslbench.protocols.svm.newton import Newton

        return Newton(x, settings), []

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

    Args:
        solver: of the training features.
        targets: (N, K), 1 positive, -1 negative, 0 left out; both present in every class.
        classes: K names.
        settings: of the protocol.
        groups: (N,) the group of each sample; the samples of one are in one fold.
        rank: (N,) order of the samples in folds.
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
                means[k, part.place] = _average_precision(targets[:, k], folds[:, k], part.decision)
                unconverged += part.unconverged
                advance(1)
    best_costs = [_first_best(costs, row) for row in means]
    few = [name for name, n in zip(classes, number, strict=True) if n < settings.folds]
    notes = _search_notes(unconverged)
    if few:
        note = (
            f"Classes with fewer than {settings.folds} positive (or negative) {_samples_in_words(groups)} were "
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

    Args:
        solver: of the training features.
        targets: (N, K), 1 in the column of the sample's class, else -1.
        settings: of the protocol.
        groups: (N,) the group of each sample; the samples of one are in one fold.
        rank: (N,) order of the samples in folds.
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


def _samples_in_words(groups: IntArray | None) -> str:
    return "training samples" if groups is None else "groups with training samples"


def _average_precision(target: Int8Array, folds: Int16Array, decision: FloatArray) -> float:
    rows = [np.flatnonzero(folds == fold) for fold in range(int(folds.max()) + 1)]
    values = [ranking.single_class(ranking.non_interpolated, target[r], decision[r]) for r in rows]
    return ranking.mean_over_classes(np.array(values))


def _middle(costs: Sequence[float]) -> float:
    return sorted(costs)[len(costs) // 2]


def _first_best(costs: Sequence[float], scores: FloatArray) -> float:
    """Return the cost with the highest score, the first of equals; the middle one without scores."""
    return _middle(costs) if np.isnan(scores).all() else costs[int(np.nanargmax(scores))]
