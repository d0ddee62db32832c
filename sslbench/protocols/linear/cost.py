"""Cost of the linear probe: products with the coordinates, and passes over the logits."""

from sslbench.protocols._parts.costs import DOUBLE, EIGEN, FLOAT, summary_cost
from sslbench.protocols.linear.settings import Settings
from sslbench.protocols.protocol import Shapes
from sslbench.runtime.cost import Cost
from sslbench.targets.classes import Classes
from sslbench.targets.numbers import Numbers

PRODUCTS = 20
"""Products of a fit with coordinates and weights, there and back, as measured over the default path of c."""
_SINGLE_FROM, _STORED_UP_TO = 2**22, 2**27  # as in `solvers.logistic`
_ROWS = 8192  # rows prepared at a time
_BLOCK = 2**24  # values converted at a time, `solvers.logistic.problem`
_STORED = 2**28  # probabilities kept during a step, `solvers.logistic.problem`
_LOGIT = 200  # bytes per logit and product: exponentials, sums, residuals
_CALLS = 60  # calls of array functions per product


def logistic_cost(rows: int, width: int, outputs: int, fits: float) -> Cost:
    """Return the cost of logistic regressions (rows, width) -> outputs."""
    size, number = float(rows) * width, fits * PRODUCTS
    operations = 4 * size * outputs * number
    single = size * outputs >= _SINGLE_FROM
    return Cost(
        single=operations if single else 0,
        double=operations * (0.1 if single else 1),
        traffic=rows * outputs * number * _LOGIT,
        calls=number * _CALLS,
        memory=min(rows * outputs, _STORED) * FLOAT + min(size, _BLOCK) * DOUBLE + 25 * DOUBLE * width * outputs,
    )


def axes_cost(rows: int, width: int) -> Cost:
    """Return the cost of the principal axes of (rows, width) and of the coordinates."""
    return Cost(
        double=6.0 * rows * width * min(rows, width) + EIGEN * min(rows, width) ** 3,
        traffic=rows * width * 10 * DOUBLE,
        memory=3 * DOUBLE * float(width) * min(rows, width),
    )


def probe_cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return the cost of training the probe, without the metrics."""
    train, rank = shapes.train, min(shapes.train, shapes.width)
    tried = len(settings.c) + 2 * settings.refine if len(settings.c) > 1 else 0
    coordinates = float(train) * rank
    stored = coordinates <= _STORED_UP_TO
    held_out = 1 - settings.holdout if settings.select_on == "train" else 1
    outputs = 1 if issubclass(shapes.target, Classes) and shapes.classes == 2 else shapes.classes
    # Coordinates, their part while c is chosen, and single precision beside double.
    held = coordinates * DOUBLE * (1 + (held_out if tried else 0))
    held += coordinates * FLOAT if coordinates * outputs >= _SINGLE_FROM else 0
    fits = logistic_cost(train, rank, outputs, tried * held_out + 1)
    # More of them are never stored: two blocks of features, and weights on the features beside those on the axes.
    without = 2.0 * _BLOCK * DOUBLE + 4 * DOUBLE * shapes.width * outputs
    return axes_cost(train, shapes.width) + fits.beside(held if stored else without)


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return the work of the linear probe."""
    summary = summary_cost(shapes.target, shapes.test, shapes.classes)
    if not issubclass(shapes.target, Numbers):
        coordinates = float(shapes.train) * min(shapes.train, shapes.width)
        return probe_cost(settings, shapes) + summary.beside(DOUBLE * coordinates * (coordinates <= _STORED_UP_TO))
    rank = min(shapes.train, shapes.width)
    fits = axes_cost(shapes.train, shapes.width).times(2) + Cost(
        double=2.0 * (shapes.train + shapes.test * len(settings.alpha)) * rank * shapes.classes
    )
    predicted = DOUBLE * float(shapes.train + shapes.test) * len(settings.alpha) * shapes.classes
    return fits.beside(4.0 * _ROWS * rank * DOUBLE + predicted) + summary
