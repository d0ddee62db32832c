"""Is the difference between two results real? Paired tests on the same test samples."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from sslbench.errors import ResultError
from sslbench.leaderboard.differences import differing
from sslbench.leaderboard.flags import is_floor
from sslbench.leaderboard.grouping import groups_of, newest_of_each
from sslbench.leaderboard.model import direction
from sslbench.metrics.classification import top_k_correct
from sslbench.metrics.intervals import Statistic, holm, mcnemar, paired_difference, paired_statistics
from sslbench.metrics.summary import one_measure
from sslbench.names import did_you_mean
from sslbench.records import Scores, read_scores, scores_path
from sslbench.results import ABSOLUTE, Result

RESAMPLES = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two results on the same test samples by one metric; rates and differences in percent.

    Attributes:
        a: one result.
        b: the other one.
        metric: that they are compared by.
        n: test samples.
        value_a: the metric on the per-sample scores of a (for means over draws those of the first draw).
        value_b: the same of b.
        difference: value_a - value_b.
        low: low end of its 95 % interval, by resampling the test samples for both at once.
        high: its high end.
        p_mcnemar: of McNemar's exact test that both are right equally often; top-1 only.
        p_holm: the same, corrected for all comparisons of the list by Holm's method.
        verdict: 'tied' where the interval holds 0, else 'A better' or 'B better'; 'different' by a metric of which it
            is not known whether more is better.
    """

    a: Result
    b: Result
    metric: str
    n: int
    value_a: float
    value_b: float
    difference: float
    low: float
    high: float
    p_mcnemar: float | None = None
    p_holm: float | None = None
    verdict: str


def compare(
    a: Result, b: Result, *, metric: str | None = None, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """Compare two results that were measured in the same way on the same test samples.

    Args:
        a: as read from its file, with the scores beside it.
        b: the same.
        metric: default the headline of a.
        seed: of the resamples.
        resamples: how many.

    Raises:
        ResultError: they may not be compared (with all that differs), one has no per-sample scores, or no such metric.
    """
    name = metric or a.headline
    different = differing(a, b, metric)
    if different:
        listed = "\n".join(f"  {key}: {one} / {other}" for key, one, other in different)
        raise ResultError(
            f"{_called(a)} and {_called(b)} cannot be compared; what differs (A / B):\n{listed}",
            "Evaluate both with the same protocol, settings and data.",
        )
    return compare_scores(a, b, _scores(a), _scores(b), name, seed=seed, resamples=resamples)


def compare_scores(
    a: Result, b: Result, of_a: Scores, of_b: Scores, metric: str, *, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """The same for scores that have been read already.

    Raises:
        ResultError: the scores are not of the same samples, or the metric cannot be computed from them.
    """
    if not same_samples(of_a, of_b):
        raise ResultError(f"the scores beside {_called(a)} and {_called(b)} are not of the same test samples")
    p = None
    k = {"top1": 1, "top5": 5}.get(metric, 0)
    if 0 < k <= len(of_a.classes) and of_a.labels.ndim == 1:
        right = [top_k_correct(s.labels.astype(np.int64), s.scores, k) for s in (of_a, of_b)]
        difference, low, high = paired_difference(right[0], right[1], n=resamples, seed=seed)
        values = [float(np.mean(r)) for r in right]
        p = mcnemar(right[0], right[1]) if k == 1 else None
    else:
        of_both = _statistic(a, of_a, metric), _statistic(b, of_b, metric)
        difference, low, high = paired_statistics(of_both[0], of_both[1], len(of_a.ids), n=resamples, seed=seed)
        values = [float(statistic(np.ones((1, len(of_a.ids))))[0, 0]) for statistic in of_both]
    factor = 1.0 if metric in ABSOLUTE else 100.0
    return Comparison(
        a=a,
        b=b,
        metric=metric,
        n=len(of_a.ids),
        value_a=factor * values[0],
        value_b=factor * values[1],
        difference=factor * difference,
        low=factor * low,
        high=factor * high,
        p_mcnemar=p,
        verdict=_verdict(metric, low, high),
    )


def same_samples(a: Scores, b: Scores) -> bool:
    """Whether two results scored the same samples with the same labels."""
    return a.ids == b.ids and a.classes == b.classes and np.array_equal(a.labels, b.labels)


def _verdict(metric: str, low: float, high: float) -> str:
    if math.isnan(low) or math.isnan(high):
        return "not computable"
    if low <= 0 <= high:
        return "tied"
    sign = direction(metric)
    return "different" if sign == 0 else ("A better" if (low > 0) == (sign > 0) else "B better")


def _statistic(result: Result, scores: Scores, metric: str) -> Statistic:
    try:
        measure = one_measure(metric, result.data.labels, scores.labels, scores.scores, result.probabilities)
    except (KeyError, ValueError) as error:
        raise ResultError(
            f"{_called(result)}: '{metric}' cannot be computed from its per-sample scores",
            did_you_mean(metric, (name for name in result.metrics if not name.startswith("worst_group("))),
        ) from error
    column = measure.names.index(metric)
    return lambda counts: measure.statistic(counts)[:, column : column + 1]


def _scores(result: Result) -> Scores:
    path = scores_path(result)
    if path is None:
        raise ResultError(
            f"{_called(result)} has no per-sample scores beside it, which a paired comparison needs",
            "`sslbench eval` writes them for every protocol on features (not for detection).",
        )
    return read_scores(path)


def _called(result: Result) -> str:
    return str(result.file) if result.file is not None else result.weights.name


def with_holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons with McNemar's p values corrected for their number (Holm 1979); one needs no correction."""
    if len(comparisons) < 2:
        return list(comparisons)
    given = [math.nan if one.p_mcnemar is None else one.p_mcnemar for one in comparisons]
    return [
        dataclasses.replace(one, p_holm=None if math.isnan(p) else p)
        for one, p in zip(comparisons, holm(given), strict=True)
    ]


def pairs(first: Sequence[Result], second: Sequence[Result], metric: str | None = None) -> list[tuple[Result, Result]]:
    """All pairs of two lists that may be compared: equal in all that is not the backbone, with equal seeds and layers.

    Where both have one result only for a seed, their layers may differ. Floors (untrained, pixels) are left out where a
    list has anything else.
    """
    found = []
    ours, theirs = (_without_floors(newest_of_each(side, groups_of(side, metric))) for side in (first, second))
    for a in ours:
        alike = [b for b in theirs if b.seed == a.seed and a.id != b.id and not differing(a, b, metric)]
        same_layer = [b for b in alike if b.layer == a.layer]
        alone = sum(not differing(a, other, metric) and other.seed == a.seed for other in ours) == 1
        found += [(a, b) for b in (same_layer or (alike if len(alike) == 1 and alone else []))]
    return found


def _without_floors(results: Sequence[Result]) -> list[Result]:
    kept = [result for result in results if not is_floor(result)]
    return kept or list(results)
