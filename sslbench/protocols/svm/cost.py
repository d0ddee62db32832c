"""Cost of linear SVMs by Newton's method: systems of the samples inside the margin, or conjugate gradients."""

from sslbench.protocols._parts.costs import DOUBLE, EIGEN, FLOAT, summary_cost
from sslbench.protocols.protocol import Shapes
from sslbench.protocols.svm.settings import Settings
from sslbench.runtime.cost import Cost

INSIDE = 0.25
"""Share of the samples inside the margin, on average over costs and steps."""
SYSTEMS = 1.6
"""Newton systems per problem, each problem beginning at the solution of the smaller cost."""
_GRADIENTS = 60  # iterations of conjugate gradients, where those are cheaper than a decomposition
_STEP = 600  # bytes per problem and sample: derivatives and line search of its steps
_CALLS = 14  # calls of array functions per system
_GRAM_UP_TO = 2**26  # `solvers.svm.features`
_ARRAYS = 24  # arrays of each problem of a block, `protocols.svm.newton`
_ROWS = 32768  # rows prepared at a time, `solvers.svm.features`


def problems_cost(rows: int, width: int, problems: float, together: float, max_memory: float) -> Cost:
    """Return the cost of solving problems on features (rows, width), one cost each; `together` of them at a time.

    They take at most `max_memory` GB, but for one class.
    """
    rank = min(rows, width + 1)
    inside = INSIDE * rows
    kept = float(rows) ** 2 <= min(_GRAM_UP_TO, 4.0 * rows * rank)
    decomposed = rank**3 / 3 + 2 * inside * float(rank) ** 2
    if inside < rank:
        decomposed = inside**3 / 3 + (0 if kept else 2 * inside**2 * rank)
    by_gradients = 4.0 * rows * rank * _GRADIENTS
    gradients = by_gradients / 2 < decomposed  # single precision takes half the time
    systems = problems * SYSTEMS
    return Cost(
        single=by_gradients * systems if gradients else 0,
        double=(0 if gradients else decomposed * systems) + 4.0 * rows * rank * systems,
        traffic=problems * rows * _STEP + (0 if gradients else systems * inside * min(inside, rank) * 3 * DOUBLE),
        calls=systems * _CALLS,
        memory=min(max_memory * 1e9, together * DOUBLE * _ARRAYS * (rows + rank)),
    )


def rotation_cost(rows: int, width: int) -> Cost:
    """Return the cost of preparing and rotating features (rows, width), which are held."""
    rank, size = min(rows, width + 1), float(rows) * width
    gram = float(rows) ** 2 if float(rows) ** 2 <= min(_GRAM_UP_TO, 4 * size) else 0
    return Cost(
        double=4 * size * rank + EIGEN * float(rank) ** 3 + 2 * gram * rank,
        traffic=size * 6 * DOUBLE,
        # With fewer rows than columns the span of the rows is held whole.
        memory=(2 * size if rows <= width else 2.0 * min(rows, _ROWS) * width) * DOUBLE
        + float(rows) * rank * (DOUBLE + FLOAT)
        + gram * DOUBLE,
    )


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return the work of the protocol."""
    costs, classes = len(settings.costs), shapes.classes
    problems = classes * costs * (settings.folds if costs > 1 else 0) + classes * costs
    rotation = rotation_cost(shapes.train, shapes.width)
    # One block of problems after the other: their memory is that of a block.
    together = classes * (settings.folds if costs > 1 else 1)
    solved = problems_cost(shapes.train, shapes.width, problems, together, settings.max_memory)
    choice = costs * shapes.train * 2 * DOUBLE + shapes.train * classes * 3
    scored = Cost(
        double=2.0 * (shapes.test + 3 * shapes.train) * shapes.width * classes,
        memory=min(shapes.train, _ROWS) * 64.0 * 5 * DOUBLE + float(shapes.test) * classes * DOUBLE,
    )
    return (
        rotation
        + solved.beside(rotation.memory + choice)
        + scored.beside(rotation.memory)
        + summary_cost(shapes.target, shapes.test, classes).beside(rotation.memory)
    )
