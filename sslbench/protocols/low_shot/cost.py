"""Cost of low-shot classification: small problems for every draw, and the metrics of the last draws."""

import math

from sslbench.protocols._parts.costs import DOUBLE, FLOAT, summary_cost
from sslbench.protocols.linear.cost import axes_cost, logistic_cost
from sslbench.protocols.low_shot.settings import Settings
from sslbench.protocols.protocol import Shapes
from sslbench.protocols.svm.cost import problems_cost, rotation_cost
from sslbench.runtime.cost import Cost
from sslbench.targets.multilabel import MultiLabel

_RESAMPLES, _FEWEST = 1000, 100  # `few_shot`: shared by the draws


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return the work of the protocol; values of k above the mean size of a class are left out."""
    each = shapes.train / max(1, shapes.classes)
    per_class = [k for k in settings.k if k <= each] or [1]
    spread = shapes.classes if issubclass(shapes.target, MultiLabel) else 1  # every class has samples of its own
    points = [(k * shapes.classes * spread, k) for k in per_class if settings.k]
    points += [(max(2, int(share * shapes.train)), int(share * each)) for share in settings.fractions]
    total = Cost()
    for rows, k in points:
        total += _draw_cost(settings, shapes, min(rows, shapes.train), k).times(settings.draws)
    resamples = max(_FEWEST, math.ceil(_RESAMPLES / settings.draws))
    summary = summary_cost(shapes.target, shapes.test, shapes.classes, resamples=resamples).times(settings.draws)
    scores = summary.scores * settings.draws
    # Scores of one draw in double precision while the next is fitted, and of all in single.
    held = float(shapes.test) * shapes.classes * (2 * DOUBLE + settings.draws * FLOAT)
    found = (total + summary).beside(held)
    return Cost(found.single, found.double, found.search, found.traffic, found.calls, found.memory, scores)


def _draw_cost(settings: Settings, shapes: Shapes, rows: int, k: int) -> Cost:
    """Return the cost of one draw: the choice by cross-validation, the fit, and the scores of test."""
    folds = min(settings.folds, k)
    scored = Cost(double=2.0 * shapes.test * shapes.width * shapes.classes)
    if settings.classifier == "svm":
        costs = len(settings.costs)
        chosen = costs * folds if costs > 1 and folds > 1 else 0
        problems = shapes.classes * (chosen + (costs if chosen else 1))
        rotation = rotation_cost(rows, shapes.width)
        return (
            rotation
            + problems_cost(rows, shapes.width, problems, shapes.classes * max(1, folds), 1.0).beside(rotation.memory)
            + scored
        )
    chosen = len(settings.c) * folds if len(settings.c) > 1 and folds > 1 else 0
    rank = min(rows, shapes.width)
    fits = logistic_cost(rows, rank, shapes.classes, chosen + 1).beside(2 * DOUBLE * float(rows) * rank)
    projected = Cost(double=2.0 * shapes.test * shapes.width * rank)
    return axes_cost(rows, shapes.width) + fits + projected + scored
