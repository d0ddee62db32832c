"""Linear SVMs on frozen features: the VOC07 protocol of Goyal et al. 2019 ("Scaling and benchmarking") and VISSL.

One binary SVM per class (squared hinge, L2, bias regularised; positives weigh twice), on features divided by their
length, the cost chosen by 3-fold cross-validation on train. Multi-label: a cost per class by non-interpolated average
precision; reported is the mean over classes of the interpolated average precision on test. Single label: one cost for
all classes by accuracy; the class with the largest decision value is predicted.

Version 2: SVMs are solved to the optimum. In version 1 liblinear stopped earlier, above all at large costs.
Version 3: the folds keep groups of samples together, and intervals are those of half-samples.
"""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.summary import summarise
from sslbench.protocols._parts.selection import (
    check_features,
    decide_by_blocks,
    for_all_classes,
    headline_by_blocks,
    signed_targets,
)
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, Shapes
from sslbench.protocols.svm.choice import choose_each, choose_one, make_solver
from sslbench.protocols.svm.settings import Settings
from sslbench.results import Outcome
from sslbench.solvers.svm import PreparedRows, relative_gaps
from sslbench.steps import counted
from sslbench.targets.classes import Classes
from sslbench.targets.target import Target


def check(settings: Settings, train: Target) -> None:
    """Refuse settings that cannot work on these training labels, before any feature is computed.

    Raises:
        UsageError: settings that are not possible.
    """
    check_settings(settings)


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Fit on train, score on test.

    Args:
        train: features and labels to fit and cross-validate on.
        test: features and labels that are scored.
        settings: see `Settings`.
        seed: of the solver and of the intervals.
        device: ignored; the computation runs on the processor.

    Raises:
        DataError: features that are not finite, no labels, or nothing to learn in train.
        UsageError: settings that are not possible.
    """
    check_features(train, test)
    check(settings, train.target)
    x = PreparedRows(train.x, settings.normalise)
    targets, usable = _targets(train.target, settings)
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
    kind, classes = type(test.target), test.target.classes
    metrics, name, per_class = summarise(kind, classes, test.target.values, scores, seed=seed, groups=test.groups)
    return Outcome(
        metrics=metrics,
        headline=name,
        scores=scores.astype(np.float32),
        per_class=per_class,
        train=headline_by_blocks(
            train.target, lambda rows: for_all_classes(models.decide(x[rows]), usable, train.target)
        ),
        selected=choice.selected | {"gap": float(gaps.max())},
        converged=not unconverged,
        notes=tuple(notes),
    )


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data.

    Raises:
        UsageError: the message names the setting.
    """
    if not settings.costs or not all(np.isfinite(c) and c > 0 for c in settings.costs):
        raise UsageError(f"svm: costs should be one or several numbers greater than 0, not {list(settings.costs)}")
    if settings.folds < 2:
        raise UsageError(f"svm: folds should be at least 2, not {settings.folds}")
    for name in ("positive_weight", "intercept_scaling", "tolerance", "max_iter", "max_memory"):
        value = getattr(settings, name)
        if not (np.isfinite(value) and value > 0):
            raise UsageError(f"svm: {name} should be greater than 0, not {value}")


def _targets(labels: Target, settings: Settings) -> tuple[npt.NDArray[np.int8], IntArray]:
    targets, usable = signed_targets(labels, ignore=settings.ignore_in_training == "drop")
    if not len(usable):
        raise DataError("no class has both positive and negative training samples, so nothing can be learned")
    return targets, usable


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
    check_settings=check_settings,
    kind=OnFeatures(check, run, cost=cost, class_subsets=True),
)
