"""Selective classification, which leaves out the least sure samples, and sets of classes by conformal prediction.

Shapes: N samples, C classes. Rates are fractions, 0 to 1.
"""

import dataclasses
import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.metrics.intervals import Statistic
from sslbench.metrics.metric import LOSS, RATE, Metric

AURC = Metric("aurc", "mean error of the most confident samples over all coverages", "%", -1, RATE, needs="confidence")
E_AURC = dataclasses.replace(AURC, name="e_aurc", title="AURC above that of the best order of the same answers")
COVERAGES = (0.8, 0.95)
"""Shares of the samples that are answered."""
AT_COVERAGE = tuple(
    Metric(
        f"accuracy@{100 * share:.0f}coverage",
        f"accuracy of the {100 * share:.0f} % most confident samples",
        "%", 1, RATE, needs="confidence",
    )
    for share in COVERAGES
)  # fmt: skip
SELECTIVE = (AURC, E_AURC, *AT_COVERAGE)
SET_COVERAGE = Metric("set_coverage", "share of samples whose set has their class", "%", 0, RATE, needs="sets")
SET_SIZE = Metric("set_size", "mean number of classes of a set", "classes", -1, LOSS, needs="sets")
EMPTY_SETS = Metric("empty_sets", "share of samples whose set has no class", "%", 0, RATE, needs="sets")
SETS = (SET_COVERAGE, SET_SIZE, EMPTY_SETS)

Rule = Literal["lac", "aps", "raps"]
_BLOCK = 2_000_000  # probabilities in memory at a time, five arrays of them


def selective_statistic(confidence: npt.NDArray[np.floating], correct: BoolArray) -> Statistic:
    """Return the function from weights (R, N) of the samples to the metrics of `SELECTIVE` (R, 4).

    The samples are answered in the order of their confidence. At coverage i / N the error is that of the first i; AURC
    is its mean over i = 1 ... N (Geifman and El-Yaniv 2017; Geifman et al. 2019, eq. 2 and 4). Of samples with equal
    confidence any may come first: the mean over their orders is taken. The best order has all right answers first.

    `confidence`: (N,), higher is surer; `correct`: (N,).

    >>> found = selective_statistic(np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, True, False, True]))
    >>> found(np.ones((1, 4)))[0, :2].round(4).tolist()
    [0.1458, 0.0833]
    """
    order = np.argsort(confidence, kind="stable")[::-1]
    right, ordered = correct[order].astype(np.float64), confidence[order]

    def statistic(weights: FloatArray) -> FloatArray:
        from scipy.special import digamma

        ranked = weights[:, order]
        share = means_of_equals(ordered, right[None], ranked)
        seen, hits = np.cumsum(ranked, axis=1), np.cumsum(ranked * share, axis=1)
        total, found = seen[:, -1], hits[:, -1]
        error = 1 - (ranked * hits / np.maximum(seen, 1e-300)).sum(axis=1) / total
        # the sum of 1 / i for i from the number of right answers + 1 to the number of samples
        least = 1 - found * (1 + digamma(total + 1) - digamma(found + 1)) / total
        columns = [error, error - least]
        for coverage in COVERAGES:
            answered = coverage * total
            last = np.argmax(seen >= answered[:, None] - 1e-9, axis=1)[:, None]
            beyond, own, part = (np.take_along_axis(each, last, axis=1)[:, 0] for each in (seen, hits, share))
            columns.append((own - (beyond - answered) * part) / answered)
        return np.column_stack(columns)

    return statistic


def means_of_equals(ordered: npt.NDArray[np.floating], values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the mean (R, N) of the values over the samples with an equal score, for R weightings.

    `ordered`: (N,), scores in order; `values`: (1, N), in that order; `weights`: (R, N), in that order.
    """
    first = np.flatnonzero(np.r_[True, np.diff(ordered) != 0])
    sums, number = (np.add.reduceat(part, first, axis=1) for part in (weights * values, weights))
    means = np.divide(sums, number, out=np.zeros_like(sums), where=number > 0)
    return np.asarray(np.repeat(means, np.diff(np.r_[first, len(ordered)]), axis=1))


@dataclasses.dataclass(frozen=True)
class ConformalSets:
    """Sets of classes that have a sample's class with probability 1 - alpha: split conformal prediction.

    Every class of a sample has a score of strangeness, from its probabilities p. The set has all classes whose score is
    at most the ceil((n + 1)(1 - alpha))-th smallest score of the true classes of n calibration samples; all classes
    where n is too small for that. The guarantee holds for samples that are exchangeable with those.

    - lac: 1 - p (Sadinle et al. 2019; THR): the smallest sets on average.
    - aps: sum of the probabilities above p, and u p with u uniform between 0 and 1 (Romano et al. 2020, eq. 8).
    - raps: aps, and `penalty` for each place beyond `free` (Angelopoulos et al. 2021, eq. 4).

    Classes of equal probability have one score: that of the last of them.

    Attributes:
        seed: seed of u; one u per sample.
        penalty: lambda of the publication, whose example has 0.01.
        free: its k_reg, whose example has 5.
    """

    rule: Rule
    alpha: float
    seed: int = 0
    penalty: float = 0.01
    free: int = 5

    def threshold(self, probabilities: npt.NDArray[np.floating], classes: IntArray) -> float:
        """Return the largest score of a set's classes; infinite where the calibration samples are too few.

        `probabilities`: (n, C), of the calibration samples; `classes`: (n,), their true ones.

        >>> p = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.2, 0.8]])
        >>> round(ConformalSets("lac", 0.4).threshold(p, np.array([0, 0, 0, 1])), 6)
        0.4
        """
        drawn = self._drawn(len(classes), 0)
        own = [
            np.take_along_axis(self._scores(probabilities[rows], drawn[rows]), classes[rows, None], axis=1)[:, 0]
            for rows in _blocks(probabilities.shape)
        ]
        scores = np.concatenate(own)
        place = math.ceil(round((len(scores) + 1) * (1 - self.alpha), 9))
        return math.inf if place > len(scores) else float(np.partition(scores, place - 1)[place - 1])

    def sets(
        self, threshold: float, probabilities: npt.NDArray[np.floating], classes: IntArray
    ) -> tuple[BoolArray, IntArray]:
        """Return for each sample whether its set has its class, and the number of the set's classes, (N,) each.

        >>> p = np.array([[0.9, 0.1], [0.5, 0.5]])
        >>> has, size = ConformalSets("lac", 0.4).sets(0.6, p, np.array([1, 1]))
        >>> has.tolist(), size.tolist()
        ([False, True], [1, 2])
        """
        drawn = self._drawn(len(classes), 1)
        has, size = np.empty(len(classes), np.bool_), np.empty(len(classes), np.int64)
        for rows in _blocks(probabilities.shape):
            within = self._scores(probabilities[rows], drawn[rows]) <= threshold
            has[rows] = np.take_along_axis(within, classes[rows, None], axis=1)[:, 0]
            size[rows] = within.sum(axis=1)
        return has, size

    def _drawn(self, number: int, part: int) -> FloatArray:
        """Return u of the samples (number,), of calibration (part 0) or test (part 1)."""
        return np.random.default_rng([self.seed, part]).random(number)

    def _scores(self, probabilities: npt.NDArray[np.floating], drawn: FloatArray) -> FloatArray:
        """Return the score of every class (N, C)."""
        from scipy.stats import rankdata

        p = probabilities.astype(np.float64)
        if self.rule == "lac":
            return 1 - p
        place = rankdata(-p, method="max", axis=1).astype(np.int64)
        sums = np.cumsum(-np.sort(-p, axis=1), axis=1)
        scores = np.take_along_axis(sums, place - 1, axis=1) - (1 - drawn[:, None]) * p
        return np.asarray(scores + self.penalty * np.maximum(0, place - self.free) if self.rule == "raps" else scores)


def _blocks(shape: tuple[int, ...]) -> list[slice]:
    step = max(1, _BLOCK // shape[1])
    return [slice(start, start + step) for start in range(0, shape[0], step)]


def likely_coverage(calibrated: int, tested: int, alpha: float) -> tuple[float, float]:
    """Return the 2.5 and 97.5 % points of the coverage on a test set that is exchangeable with the calibration samples.

    The number of covered ones of m test samples is beta-binomial with parameters k = ceil((n + 1)(1 - alpha)) and
    n + 1 - k (Vovk 2012; Angelopoulos and Bates 2023, appendix C); scores without ties.

    >>> [round(end, 3) for end in likely_coverage(1000, 1000, 0.1)]
    [0.873, 0.925]
    """
    from scipy.stats import betabinom

    place = math.ceil(round((calibrated + 1) * (1 - alpha), 9))
    if place > calibrated:
        return 1.0, 1.0
    found = betabinom(tested, place, calibrated + 1 - place)
    return float(found.ppf(0.025)) / tested, float(found.ppf(0.975)) / tested
