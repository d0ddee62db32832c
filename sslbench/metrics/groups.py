"""A metric on groups of the test samples, and on the worst of them (Sagawa et al. 2020; Koh et al. 2021, WILDS)."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sslbench.metrics.intervals import IntArray, Units
from sslbench.metrics.summary import Probabilities, one_measure, with_intervals

_FEW = 20


@dataclasses.dataclass(frozen=True)
class GroupScore:
    """A metric on the n samples of one group, with its 95 % interval; NaN where it is not computable."""

    name: str
    n: int
    value: float
    low: float
    high: float


def by_group(  # noqa: PLR0913  what an evaluation consists of, and two kinds of groups
    metric: str,
    kind: str,
    values: npt.NDArray[np.integer],
    scores: npt.NDArray[np.floating],
    groups: Sequence[str],
    *,
    seed: int,
    probabilities: Probabilities | None = None,
    resamples: int = 1000,
    together: IntArray | None = None,
) -> list[GroupScore]:
    """The metric on every group, the worst first (of equals the first by name), groups without a value last.

    The interval of a group is that of its own samples; it does not say that the group was picked for being the worst.

    Args:
        metric: of those that `summarise` computes; more is better.
        kind: 'single' or 'multi'.
        values: as for `summarise`, of N samples.
        scores: (N, C).
        groups: the group of each of the N samples.
        seed: of the half-samples.
        probabilities: as for `summarise`.
        resamples: how many half-samples.
        together: (N,) numbers; samples with the same one are kept together by the intervals (`groups` of
            `summarise`).

    Raises:
        KeyError: there is no such metric.
    """
    names, number = np.unique(np.asarray(groups, dtype=np.str_), return_inverse=True)
    found = []
    for i, name in enumerate(names.tolist()):
        rows = np.flatnonzero(number == i)
        units = Units.of(len(rows), None if together is None else together[rows])
        measure = one_measure(metric, kind, values[rows], scores[rows], units, probabilities)
        value, low, high = with_intervals(measure, units, seed, resamples)[metric]
        found.append(GroupScore(name, len(rows), value, low, high))
    return sorted(found, key=lambda score: (np.isnan(score.value), score.value, score.name))


def warning(column: str, worst: GroupScore) -> str | None:
    """One sentence about a worst group that is too small to say much."""
    if worst.n >= _FEW:
        return None
    return f"The worst group of {column}, '{worst.name}', has only {worst.n} test sample{'s' if worst.n > 1 else ''}."
