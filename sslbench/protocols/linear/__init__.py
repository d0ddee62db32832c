"""Linear probe: logistic regression on frozen features, to convergence, its regularisation chosen on a part of train.

The features are standardised, so their scale and offset do not matter, and the problem is convex, so there is no
learning rate, no seed and no number of epochs that decides the result. The regularisation is chosen as DINOv2's
`log_regression.py` and CLIP's linear probe (Radford et al. 2021, app. A.3) do, on a held-out part of train, and the
model is then fitted on all of train. Target that are numbers are predicted by ridge regression, in closed form.

Version 2: the same optimum, found faster; further settings, and regression. Version 3: converged means a proven bound
of the distance to the optimum, in any size; every value of c is tried; no axis is lost in features used as they are;
groups of samples are kept together where c or alpha is chosen, and intervals are those of half-samples. Version 4:
features of more than 2^27 values are read where they lie, and not rounded to coordinates in single precision.
"""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arithmetic import arithmetic
from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.classification import top_k_correct
from sslbench.metrics.summary import summarise
from sslbench.protocols._parts.selection import (
    check_features,
    decide_by_blocks,
    for_all_classes,
    holdout_rows,
    no_holdout,
    percent,
)
from sslbench.protocols.linear.settings import Settings
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.steps import Advance, counted
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target

if TYPE_CHECKING:
    from sslbench.solvers.logistic import Axes, Fit, Problem, Unrotated

ON_DEVICE_FROM = 2**28
"""Coordinates x outputs from which a GPU is used: smaller problems are solved sooner than they are sent there."""


def check(settings: Settings, train: Target) -> None:
    """Refuse settings that cannot work on these training labels, before any feature is computed.

    Raises:
        UsageError: settings that are not possible.
    """
    check_settings(settings)


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Fit on train, score on test.

    Args:
        train: features and labels to fit on; a part is held out while c is chosen.
        test: features and labels that are scored.
        settings: see `Settings`.
        seed: of the held-out part and of the intervals.
        device: of the products of large problems; the optimum is the same.

    Raises:
        DataError: features that are not finite, no labels, or fewer than two classes in train.
        UsageError: settings that are not possible.
    """
    from sslbench.protocols.linear.regression import regress

    check_features(train, test)
    check(settings, train.target)
    if isinstance(train.target, Numbers):
        return regress(train, test, settings, seed=seed)
    on = test if settings.select_on == "test" else None
    probe = train_probe(train, settings, seed=seed, on=on, device=device)
    scores = probe.scores(test.x, test.target)
    probabilities: Literal["softmax"] | None = "softmax" if probe.gives_logits(test.target) else None
    kind, classes = type(test.target), test.target.classes
    metrics, name, per_class = summarise(
        kind, classes, test.target.values, scores, seed=seed, probabilities=probabilities, groups=test.groups
    )
    return Outcome(
        metrics=metrics,
        headline=name,
        scores=scores.astype(np.float32),
        per_class=per_class,
        train=probe.on_train,
        selected=probe.selected,
        converged=probe.model.converged,
        notes=probe.notes,
        probabilities=probabilities,
    )


@dataclasses.dataclass(frozen=True)
class LinearProbe:
    """Trained linear classifier of features.

    Attributes:
        axes: standardisation and rotation of the features.
        model: weights and biases of the learned classes on these axes.
        usable: numbers of the learned classes.
        on_train: headline metric on the training samples.
        selected: the chosen c and the data of the choice.
        notes: remarks on the training, one sentence each.
    """

    axes: "Axes"
    model: "Fit"
    usable: IntArray
    on_train: float
    selected: dict[str, Any]
    notes: tuple[str, ...]

    def scores(self, x: Matrix, labels: Target) -> FloatArray:
        """Return decision values (N, C) of features (N, D), with a column for each of the C classes of `labels`."""
        decided = decide_by_blocks(
            x, lambda block: self.model.decide(self.axes.project(block)), self.model.weight.shape[1]
        )
        return _for_all_classes(decided, self.usable, labels)

    def gives_logits(self, labels: Target) -> bool:
        """Return whether the softmax of the scores is a probability: a class without an example in train has none."""
        return isinstance(labels, Classes) and len(self.usable) == len(labels.classes)


def train_probe(
    train: Features, settings: Settings, *, seed: int, on: Features | None = None, device: str = "cpu"
) -> LinearProbe:
    """Return the logistic regression on the training samples, with its chosen c.

    Args:
        train: features and labels to fit on; a part is held out while c is chosen.
        settings: see `Settings`.
        seed: of the held-out part.
        on: samples to choose c on, in place of the held-out part.
        device: 'cuda' computes the products of large problems there.

    Raises:
        DataError: fewer than two classes in train.
    """
    with arithmetic(device):
        return _train_probe(train, settings, seed, on, device)


def _train_probe(train: Features, settings: Settings, seed: int, on: Features | None, device: str) -> LinearProbe:
    from sslbench.solvers.logistic import fit, principal_axes

    usable, notes = _usable_classes(train.target)
    axes = principal_axes(train.x, standardise=settings.scale == "standard", device=device)
    problem = _problem(axes.coordinates(train.x), train.target, usable, device)
    while_choosing = len(settings.c) + 2 * settings.refine if len(settings.c) > 1 else 0
    with counted("linear", "fits", while_choosing + 1) as advance:
        choice = _choose(problem, train, on, axes, settings, seed, device, advance)
        model = fit(
            problem,
            axes.variance,
            choice.c,
            start=choice.start,
            max_iter=settings.max_iter,
            tolerance=settings.tolerance,
        )
    notes += choice.notes
    if not model.converged:
        gap = f"by at most {model.gap:.2g} of that minimum" if np.isfinite(model.gap) else "by an unknown amount"
        notes.append(
            f"The solver did not converge in {model.iterations} steps: the objective exceeds its minimum {gap}; "
            f"the tolerance is {settings.tolerance:.2g}."
        )
    on_train = _headline(model, problem, usable, train.target, len(train))
    selected = choice.selected | {"c": choice.c, "gap": model.gap, "iterations": model.iterations}
    return LinearProbe(axes, model, usable, on_train, selected, tuple(notes))


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data.

    Raises:
        UsageError: the message names the setting.
    """
    if not settings.c or not all(np.isfinite(c) and c > 0 for c in settings.c):
        raise UsageError(f"linear: c should be one or several numbers greater than 0, not {list(settings.c)}")
    if not settings.alpha or not all(np.isfinite(alpha) and alpha > 0 for alpha in settings.alpha):
        raise UsageError(f"linear: alpha should be one or several numbers greater than 0, not {list(settings.alpha)}")
    if not 0 < settings.holdout < 1:
        raise UsageError(f"linear: holdout should lie between 0 and 1, not {settings.holdout}")
    if settings.max_iter < 1 or min(settings.refine, settings.patience) < 0 or not settings.tolerance > 0:
        raise UsageError(
            "linear: max_iter should be at least 1, refine and patience at least 0 and tolerance greater than 0"
        )


def _usable_classes(labels: Target) -> tuple[IntArray, list[str]]:
    """Return the classes that can be learned: present in train (single), or both present and absent (multi)."""
    values = labels.values
    if isinstance(labels, Classes):
        usable = np.unique(values).astype(np.int64)
        if len(usable) < 2:
            raise DataError(f"all training samples belong to one class, '{labels.classes[int(usable[0])]}'")
    else:
        usable = np.flatnonzero((values > 0).any(axis=0) & (values == 0).any(axis=0))
        if not len(usable):
            raise DataError("no class has both positive and negative training samples, so nothing can be learned")
    left_out = [name for c, name in enumerate(labels.classes) if c not in usable]
    notes = [f"Classes without an example in train were left out: {', '.join(left_out)}."] if left_out else []
    return usable, notes


def _problem(x: "Matrix | Unrotated", labels: Target, usable: IntArray, device: str = "cpu") -> "Problem":
    from sslbench.solvers.logistic import Problem

    targets: npt.NDArray[np.int64] | npt.NDArray[np.int8]
    outputs = len(usable)
    if isinstance(labels, MultiLabel):
        targets = labels.values[:, usable].astype(np.int8)
    elif len(usable) == 2:
        targets, outputs = np.where(labels.values == usable[1], 1, 0).astype(np.int8)[:, None], 1
    else:
        targets = np.searchsorted(usable, labels.values)
    if device.startswith("cuda") and x.size * outputs >= ON_DEVICE_FROM:
        from sslbench.solvers.logistic.on_device import DeviceProblem

        return DeviceProblem(x, targets, outputs, device)
    return Problem(x, targets, outputs)


def _for_all_classes(decided: FloatArray, usable: IntArray, labels: Target) -> FloatArray:
    """Return (N, C) decision values; a class that was not learned is below all others (single) or NaN (multi)."""
    if isinstance(labels, Classes) and len(usable) == 2:
        decided = np.concatenate([-decided, decided], axis=1) / 2
    return for_all_classes(decided, usable, labels)


def _headline(model: "Fit", problem: "Problem", usable: IntArray, labels: Target, n: int) -> float:
    """Return the leading metric on the samples of a problem, for single labels without all (N, C) scores at once.

    Args:
        model: to score.
        problem: of the samples whose class was learned.
        usable: the learned classes.
        labels: of these samples.
        n: number of samples with those of other classes, which are never right.
    """
    blocks = problem.decide(model)
    if not isinstance(labels, Classes):  # the average precision of a class needs the scores of all samples
        decided = np.concatenate([block for _, block in blocks])
        return labels.headline(labels.values, _for_all_classes(decided, usable, labels))
    right = 0
    for rows, decided in blocks:
        right += int(top_k_correct(labels.values[rows], _for_all_classes(decided, usable, labels), 1).sum())
    return right / n


@dataclasses.dataclass(frozen=True)
class _Choice:
    """The chosen c, the record of the choice, and the model that the final fit starts from."""

    c: float
    selected: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    start: "Fit | None" = None


def _choose(
    problem: "Problem",
    train: Features,
    test: Features | None,
    axes: "Axes",
    settings: Settings,
    seed: int,
    device: str,
    advance: Advance,
) -> _Choice:
    """Return the c with the best headline metric on a held-out part of train, or on test; of equals the smallest.

    Args:
        problem: of all training samples.
        train: their labels and groups.
        test: samples to choose on; None: a part of train is held out.
        axes: of the coordinates.
        settings: see `Settings`.
        seed: of the held-out part.
        device: see `train_probe`.
        advance: counts the fits.
    """
    from sslbench.protocols.linear.path import TOLERANCE, search

    labels, grid = train.target, sorted(settings.c)
    if len(grid) == 1:
        return _Choice(grid[0])
    if test is not None:
        on, held_labels, inside = "test", test.target, labels
        learned = _usable_classes(inside)[0]
        scored, scored_labels = _learned_part(axes.coordinates(test.x), held_labels, learned, device)
    else:
        parts = holdout_rows(labels, settings.holdout, seed, train.groups, train.rank)
        if parts is None:
            middle = grid[len(grid) // 2]
            note = f"{no_holdout(train.groups)} to select c on; {middle:g} was used."
            return _Choice(middle, notes=(note,))
        on, held_labels = f"held-out {percent(settings.holdout)} of train", labels.select(parts[1])
        inside = labels.select(parts[0])
        learned = _usable_classes(inside)[0]
        scored, scored_labels = _learned_part(_select(problem.x, parts[1]), held_labels, learned, device)
        problem = _problem(_select(problem.x, parts[0]), inside, learned, device)

    def judge(model: "Fit") -> tuple[float, float]:
        advance(1)
        loss = scored.loss(model) if len(scored.x) else float("nan")
        return _headline(model, scored, learned, scored_labels, len(held_labels)), loss

    best, tried = search(
        problem,
        axes.variance,
        grid,
        judge,
        patience=settings.patience,
        refine=settings.refine,
        max_iter=settings.max_iter,
        tolerance=settings.tolerance,
    )
    notes = []
    within = max(settings.tolerance, TOLERANCE)
    unconverged = sum(not point.fit.converged for point in tried)
    if unconverged:
        notes.append(f"During the selection of c, {unconverged} of {len(tried)} fits did not converge to {within:.2g}.")
    if best.c <= grid[0] or best.c >= grid[-1]:
        end = "smallest" if best.c <= grid[0] else "largest"
        notes.append(f"The selected c={best.c:g} is the {end} value tried; the best may lie beyond.")
    selected = {"c": best.c, "on": on, "score": best.score, "tried": len(tried), "seed": seed}
    selected["gap_while_choosing"] = max(point.fit.gap for point in tried)
    same = len(learned) == len(_usable_classes(labels)[0])
    return _Choice(best.c, selected, tuple(notes), best.fit if same else None)


def _learned_part(x: "Matrix | Unrotated", labels: Target, learned: IntArray, device: str) -> tuple["Problem", Target]:
    """Return the problem of the samples whose class was learned, to compute a loss on, and their labels."""
    rows = np.arange(len(x)) if isinstance(labels, MultiLabel) else np.flatnonzero(np.isin(labels.values, learned))
    if len(rows) < len(x):
        x, labels = _select(x, rows), labels.select(rows)
    return _problem(x, labels, learned, device), labels


def _select(x: "Matrix | Unrotated", rows: IntArray) -> "Matrix | Unrotated":
    return x[rows] if isinstance(x, np.ndarray) else x.select(rows)


def fit_products(rows: float, width: float, outputs: int) -> float:
    """Return the operations of a logistic regression: some twenty products there and back, from a start nearby."""
    return 20 * 4.0 * rows * width * outputs


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the axes of the features, and the fits of the path of c."""
    train, classes = shapes.train, shapes.classes
    rank = float(min(train, shapes.width))
    products, scores = 8.0 * train * shapes.width * rank, 4.0 * shapes.test * classes
    if issubclass(shapes.target, Numbers):
        memory = 8.0 * (train + shapes.test) * len(settings.alpha) * classes + 8.0 * 8192 * rank
        return Cost(products, 80.0 * train * shapes.width, memory, scores)
    outputs = 1 if issubclass(shapes.target, Classes) and classes == 2 else classes
    tried = len(settings.c) + 2 * settings.refine if len(settings.c) > 1 else 0
    fits = tried * (1 - settings.holdout if settings.select_on == "train" else 1) + 1
    coordinates = train * rank
    # `solvers.logistic` stores 2^27 coordinates and 2^28 probabilities at most, else it works in blocks of 2^24 values.
    held = coordinates * 8 * (2 if tried else 1) if coordinates <= 2**27 else 2.0 * 8 * 2**24
    return Cost(
        products=products + fits * fit_products(train, rank, outputs),
        passes=80.0 * train * shapes.width + fits * 20 * 200.0 * train * outputs,
        memory=held + 4.0 * min(train * outputs, 2**28) + 200.0 * shapes.width * outputs,
        scores=scores,
    )


PROTOCOL = Protocol(
    version=6,
    summary="Linear probe: logistic regression on frozen features, to convergence.",
    settings=Settings,
    check_settings=check_settings,
    kind=OnFeatures(check, run, cost=cost, takes=(Classes, MultiLabel, Numbers), class_subsets=True),
)
