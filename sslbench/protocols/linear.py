"""Linear probe: logistic regression on frozen features, to convergence, its regularisation chosen on a part of train.

The features are standardised, so their scale and offset do not matter, and the problem is convex, so there is no
learning rate, no seed and no number of epochs that decides the result. The regularisation is chosen as DINOv2's
`log_regression.py` and CLIP's linear probe (Radford et al. 2021, app. A.3) do, on a held-out part of train, and the
model is then fitted on all of train. Labels that are numbers are predicted by ridge regression, in closed form.

Version 2: the same optimum, found faster; further settings, and regression. Version 3: converged means a proven bound
of the distance to the optimum, in any size; every value of c is tried; no axis is lost in features used as they are;
groups of samples are kept together where c or alpha is chosen, and intervals are those of half-samples. Version 4:
features of more than 2^27 values are read where they lie, and not rounded to coordinates in single precision.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arithmetic import arithmetic
from sslbench.arrays import FloatArray, IntArray, Matrix, RowSubset
from sslbench.config import setting
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.protocols._parts import heads
from sslbench.protocols._parts.selection import (
    best_of,
    check_features,
    decide_by_blocks,
    edge_notes,
    for_all_classes,
    headline_of_blocks,
    holdout_rows,
    no_holdout,
    percent,
)
from sslbench.protocols._parts.views import over_views
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, ProtocolSettings, Shapes, any_labels
from sslbench.results import NetworkWeights, Outcome
from sslbench.solvers.logistic import Axes, Fit, Problem, Unrotated, extrapolate, fit, principal_axes
from sslbench.solvers.ridge import RidgeRegression, fit_regression
from sslbench.steps import Advance, counted
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target

GRID = tuple(float(f"{10 ** (e / 2):.3g}") for e in range(-12, 5))

ALPHAS = tuple(float(f"{10 ** (e / 2):.3g}") for e in range(-6, 15))

# Coordinates x outputs from which a GPU is used: smaller problems are solved sooner than they are sent there.
ON_DEVICE_FROM = 2**28

TOLERANCE = 1e-4  # relative tolerance of the objective for fits that are only compared
_AHEAD = 2.0  # largest extrapolation of the next starting point, in multiples of the last step


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of the linear probe."""

    c: tuple[float, ...] = setting(
        GRID,
        "candidates of the inverse regularisation (scikit-learn's C); a single value needs no selection",
        within="(0, inf)",
        filled=True,
    )
    refine: int = setting(
        0, "refinements of c: halve the spacing around the best and try its two neighbours (CLIP: 4)", within="[0, inf)"
    )
    select_on: Literal["train", "test"] = setting(
        "train", "split on which c is selected: a hold-out of train; or test, and the row is marked"
    )
    holdout: float = setting(0.2, "share of train held out to select c or alpha", within="(0, 1)")
    scale: Literal["standard", "none"] = setting(
        "standard", "standard: subtract train's mean and divide by train's standard deviation; none: unchanged"
    )
    alpha: tuple[float, ...] = setting(
        ALPHAS,
        "numbers as labels: candidates of ridge regression's penalty (scikit-learn's alpha)",
        within="(0, inf)",
        filled=True,
    )
    patience: int = setting(
        0,
        "stop the path of c after this many values in a row with a worse loss and no better score; 0: try all",
        within="[0, inf)",
    )
    max_iter: int = setting(1000, "largest number of solver steps for one c", within="[1, inf)")
    tolerance: float = setting(
        1e-10, "largest relative distance of the objective from its minimum that counts as converged", within="(0, inf)"
    )


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Fit on train, score on test.

    `train`: features and labels to fit on; a part is held out while c is chosen; `device`: of the products of large
    problems; the optimum is the same.
    """
    train = train.averaged
    check_features(train, test.averaged)
    if isinstance(train.target, Numbers):
        return regress(train, test, settings, seed=seed)
    on = test.averaged if settings.select_on == "test" else None
    probe = train_probe(train, settings, seed=seed, on=on, device=device)
    scores = probe.scores(test.by_view, test.target, test.views)
    return Outcome.of(
        test.target,
        scores,
        seed=seed,
        groups=test.groups,
        train=probe.on_train,
        selected=probe.selected,
        converged=probe.model.converged,
        notes=probe.notes,
        probabilities="softmax" if probe.gives_logits(test.target) else None,
        weights=probe.on_features(test.target),
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

    axes: Axes
    model: Fit
    usable: IntArray
    on_train: float
    selected: dict[str, Any]
    notes: tuple[str, ...]

    def scores(self, x: Matrix, labels: Target, views: int = 1) -> FloatArray:
        """Return decision values (N, C) of features (N * views, D), a column for each class of `labels`."""
        decided = decide_by_blocks(
            x, lambda block: self.model.decide(self.axes.project(block)), self.model.weight.shape[1]
        )
        if views > 1:
            import torch

            single = isinstance(labels, Classes) and decided.shape[1] > 1
            decided = over_views(torch.from_numpy(decided), views, single=single).numpy()
        return for_all_classes(decided, self.usable, labels)

    def on_features(self, labels: Target) -> NetworkWeights | None:
        """Return the probe of the learned classes on the features themselves, for its file."""
        weight, bias = self.model.weight, self.model.bias
        if isinstance(labels, Classes) and len(self.usable) == 2:  # as in `for_all_classes`
            weight, bias = weight * [-0.5, 0.5], bias * [-0.5, 0.5]
        return _on_features(self.axes, weight, bias, labels, classes=tuple(labels.classes[c] for c in self.usable))

    def gives_logits(self, labels: Target) -> bool:
        """Return whether the softmax of the scores is a probability: a class without an example in train has none."""
        return isinstance(labels, Classes) and len(self.usable) == len(labels.classes)


def _on_features(
    axes: Axes, weight: FloatArray, bias: FloatArray, labels: Target, **facts: Any
) -> NetworkWeights | None:
    """Return the probe on the features, of weights (R, C) and biases (C,) on their axes; `facts`: see `heads.probe`."""
    rotated = (axes.rotation @ weight) / axes.std[:, None]
    tensors = {"head.weight": rotated.T, "head.bias": bias - axes.mean @ rotated}
    return heads.probe({name: each.astype(np.float32) for name, each in tensors.items()}, labels, **facts)


def train_probe(
    train: Features, settings: Settings, *, seed: int, on: Features | None = None, device: str = "cpu"
) -> LinearProbe:
    """Return the logistic regression on the training samples, with its chosen c.

    `train`: features and labels to fit on; a part is held out while c is chosen.
    """
    with arithmetic(device):
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
        on_train = _headline(model, problem, usable, train.target, train.target)
        selected = choice.selected | {"c": choice.c, "gap": model.gap, "iterations": model.iterations}
        return LinearProbe(axes, model, usable, on_train, selected, tuple(notes))


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


def _problem(x: Matrix | Unrotated, labels: Target, usable: IntArray, device: str = "cpu") -> Problem:
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


def _headline(model: Fit, problem: Problem, usable: IntArray, labels: Target, of: Target) -> float:
    """Return the leading metric on the samples of a problem, see `headline_of_blocks`."""
    blocks = problem.decide(model)
    if not labels.leads_by_right():  # the average precision of a class needs the scores of all samples
        decided = np.concatenate([block for _, block in blocks])
        return labels.headline(labels.values, for_all_classes(decided, usable, labels))
    return headline_of_blocks(labels, ((rows, for_all_classes(block, usable, labels)) for rows, block in blocks), of)


@dataclasses.dataclass(frozen=True)
class _Choice:
    """The chosen c, the record of the choice, and the model that the final fit starts from."""

    c: float
    selected: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    start: Fit | None = None


def _choose(
    problem: Problem,
    train: Features,
    test: Features | None,
    axes: Axes,
    settings: Settings,
    seed: int,
    device: str,
    advance: Advance,
) -> _Choice:
    """Return the c with the best headline metric on a held-out part of train, or on test; of equals the smallest.

    `test`: samples to choose on; None: a part of train is held out.
    """
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

    sign = labels.sign()

    def judge(model: Fit) -> tuple[float, float]:
        advance(1)
        loss = scored.loss(model) if len(scored.x) else float("nan")
        return sign * _headline(model, scored, learned, scored_labels, held_labels), loss

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
    notes += edge_notes("c", best.c, grid)
    selected = {"c": best.c, "on": on, "score": sign * best.score, "tried": len(tried), "seed": seed}
    selected["gap_while_choosing"] = max(point.fit.gap for point in tried)
    # A fit of fewer classes has other outputs than the final one, which cannot begin there.
    same = len(learned) == len(_usable_classes(labels)[0])
    return _Choice(best.c, selected, tuple(notes), best.fit if same else None)


def _learned_part(x: Matrix | Unrotated, labels: Target, learned: IntArray, device: str) -> tuple[Problem, Target]:
    """Return the problem of the samples whose class was learned, to compute a loss on, and their labels."""
    rows = np.arange(len(x)) if isinstance(labels, MultiLabel) else np.flatnonzero(np.isin(labels.values, learned))
    if len(rows) < len(x):
        x, labels = _select(x, rows), labels.select(rows)
    return _problem(x, labels, learned, device), labels


def _select(x: Matrix | Unrotated, rows: IntArray) -> Matrix | Unrotated:
    return x[rows] if isinstance(x, np.ndarray) else x.select(rows)


@dataclasses.dataclass(frozen=True)
class Point:
    """One strength, its fit, and its score (more is better) and mean loss on held-out samples."""

    c: float
    fit: Fit
    score: float
    loss: float


def search(
    problem: Problem,
    variance: FloatArray,
    grid: Sequence[float],
    judge: Callable[[Fit], tuple[float, float]],
    *,
    patience: int,
    refine: int,
    max_iter: int,
    tolerance: float,
) -> tuple[Point, list[Point]]:
    """Return the strength with the best score, of equals the smallest; and all that were tried, by strength.

    The path runs from strong to weak regularisation. Each fit begins where the two before it point to, which saves most
    of the steps.

    `variance`: (R,) of its coordinates; `grid`: strengths (scikit-learn's C), ascending; `patience`: values in a row
    with a worse loss and no better score, after which the path ends; 0: it never does; `tolerance`: of the final fit;
    those compared here need not be as exact.
    """
    tried: list[Point] = []

    def attempt(c: float, start: Fit | None) -> None:
        found = fit(problem, variance, c, start=start, max_iter=max_iter, tolerance=max(tolerance, TOLERANCE))
        tried.append(Point(c, found, *judge(found)))

    for c in grid:
        attempt(c, _start(tried, c))
        if patience and len(tried) > patience:
            rising = all(b.loss > a.loss for a, b in itertools.pairwise(tried[-patience - 1 :]))
            earlier, late = (max(point.score for point in part) for part in (tried[:-patience], tried[-patience:]))
            if rising and late <= earlier:
                break
    # Half of the median distance of neighbours, as the logarithm of their ratio.
    step = float(np.median([math.log(b / a) for a, b in itertools.pairwise(grid)])) if len(grid) > 1 else 0.0
    for _ in range(refine if len(grid) > 1 else 0):
        step /= 2
        best = _best(tried)
        for sign in (-1, 1):
            attempt(best.c * math.exp(sign * step), best.fit)
    tried.sort(key=lambda point: point.c)
    return _best(tried), tried


def _start(tried: Sequence[Point], c: float) -> Fit | None:
    if len(tried) < 2:
        return tried[-1].fit if tried else None
    before, last = tried[-2:]
    steps = math.log(c / last.c) / math.log(last.c / before.c)
    return extrapolate(before.fit, last.fit, min(steps, _AHEAD))


def _best(tried: Sequence[Point]) -> Point:
    # Refined strengths were tried out of order, and of equal scores the smallest strength wins.
    ascending = sorted(tried, key=lambda point: point.c)
    return ascending[best_of([point.score for point in ascending])]


def regress(train: Features, test: Features, settings: Settings, *, seed: int) -> Outcome:
    """Fit on train with the alpha that is best on a held-out part of it, score on test; see `linear.run`."""
    standardise = settings.scale == "standard"
    model = fit_regression(train.x, train.target.values, standardise=standardise)
    alpha, selected, notes = _choose_alpha(train, test, model, settings, seed)
    return Outcome.of(
        test.target,
        model.predict(test.x, alpha),
        seed=seed,
        groups=test.groups,
        train=test.target.headline(train.target.values, model.predict(train.x, alpha)),
        selected={"alpha": alpha} | selected,
        notes=notes,
        weights=_on_features(model.axes, model.weights(alpha), model.mean, test.target),
    )


def _choose_alpha(
    train: Features, test: Features, model: RidgeRegression, settings: Settings, seed: int
) -> tuple[float, dict[str, Any], tuple[str, ...]]:
    """Return the alpha with the best leading metric, of equals the largest; the record of the choice, and notes."""
    grid = sorted(settings.alpha, reverse=True)
    if len(grid) == 1:
        return grid[0], {}, ()
    if settings.select_on == "test":
        on, labels = "test", test.target
        predicted = model.predict_each(test.x, grid)
    else:
        parts = holdout_rows(train.target, settings.holdout, seed, train.groups, train.rank)
        if parts is None:
            middle = grid[len(grid) // 2]
            note = f"{no_holdout(train.groups)} to select alpha on; {middle:g} was used."
            return middle, {}, (note,)
        on, labels = f"held-out {percent(settings.holdout)} of train", train.target.select(parts[1])
        fitted, held_out = (RowSubset(train.x, rows) for rows in parts)
        tried = fit_regression(fitted, train.target.values[parts[0]], standardise=settings.scale == "standard")
        predicted = tried.predict_each(held_out, grid)
    scores = [labels.headline(labels.values, values) for values in predicted]
    best = best_of(scores, labels.sign())
    notes = tuple(edge_notes("alpha", grid[best], grid))
    return grid[best], {"on": on, "score": scores[best], "seed": seed}, notes


def fit_passes(strengths: Sequence[float], rows: float, width: float, most: int = 1000) -> float:
    """Return the passes of a logistic regression there and back over the features, the mean over the strengths of C.

    Conjugate gradients make an error e times smaller in sqrt(k) / 2 steps, for a condition number k: at most
    1 + C n D / 4 for n standardised samples of D features. A fit that starts at that of the next C needs about that.
    """
    return sum(min(most, 1 + math.sqrt(1 + c * rows * width / 4) / 2) for c in strengths) / len(strengths)


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
    steps = fits * fit_passes(settings.c, train, rank, settings.max_iter)
    coordinates = train * rank
    # `solvers.logistic` stores 2^27 coordinates and 2^28 probabilities at most, else it works in blocks of 2^24 values.
    held = coordinates * 8 * (2 if tried else 1) if coordinates <= 2**27 else 2.0 * 8 * 2**24
    on_device = train * rank * outputs >= ON_DEVICE_FROM
    passes = 80.0 * train * shapes.width + steps * 200.0 * train * outputs
    return Cost(
        products=products + steps * 4.0 * coordinates * outputs,
        passes=passes,
        memory=held + 4.0 * min(train * outputs, 2**28) + 200.0 * shapes.width * outputs,
        scores=scores,
        products_on_device=on_device,
        passes_on_device=on_device * passes,
    )


PROTOCOL = Protocol(
    version=6,
    summary="Linear probe: logistic regression on frozen features, to convergence.",
    settings=Settings,
    kind=OnFeatures(
        any_labels, run, cost=cost, takes=(Classes, MultiLabel, Numbers), class_subsets=True, averages_views=True
    ),
)
