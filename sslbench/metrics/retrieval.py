"""Retrieval metrics: average precision by trapezoids or by steps, precision and recall at k, R-precision, micro AP.

A query ranks a database. Every metric of one query follows from the 0-based ranks of its positives among the items
that are not ignored ("junk" of Oxford and Paris: Philbin et al., CVPR 2007, section 5). Where scores are equal,
negatives come first: the value is the lowest that any order of the tied items gives.
"""

import dataclasses
import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.metrics.measure import Measure
from sslbench.metrics.metric import CORRELATION, RATE, Metric

_FEW = 16  # positives up to which one comparison with all scores each is faster than a binary search
RECALLED = (1, 5, 10)
"""Numbers of first items of recalls."""

RECALL = tuple(
    Metric(f"recall@{k}", f"Share of queries with a positive among the first {k}", "%", 1, RATE, needs="rankings")
    for k in RECALLED
)
R_PRECISION = dataclasses.replace(RECALL[0], name="r_precision", title="R-precision, mean over queries")
RETRIEVAL_MAP = dataclasses.replace(
    RECALL[0], name="retrieval_mAP", title="Average precision (by steps), mean over queries"
)
MAP_AT_R = dataclasses.replace(RECALL[0], name="mAP@R", title="Average precision among the first R, mean over queries")
COMPRESSION_LOSS = Metric(
    "compression_loss", "Leading metric of whole features, less that of compressed ones",
    "%", -1, CORRELATION, needs="rankings",
)  # fmt: skip
RANKING = (*RECALL, R_PRECISION, RETRIEVAL_MAP, MAP_AT_R)
"""Metrics of one query, in the order of `ranking_values` and `random_order_values`."""
TRAPEZOID_MAP = dataclasses.replace(
    RECALL[0], name="mAP_trapezoid", title="Average precision (by trapezoids), mean over queries"
)
MEAN_PRECISION = tuple(
    dataclasses.replace(RECALL[0], name=f"mP@{k}", title=f"Precision among the first {k}, mean over queries")
    for k in RECALLED
)
LANDMARK = (TRAPEZOID_MAP, *MEAN_PRECISION)
"""Metrics of one query of Oxford, Paris, INSTRE, Holidays and Copydays, in the order of `landmark_values`."""
MINP = dataclasses.replace(RECALL[0], name="mINP", title="Inverse negative penalty, mean over queries")
IDENTITY = (*RECALL, RETRIEVAL_MAP, MINP)
"""Metrics of one query of re-identification, in the order of `identity_values`; recall@k is the CMC at rank k."""
MICRO_AP = dataclasses.replace(RECALL[0], name="micro_AP", title="Average precision of all predicted pairs in one list")
RECALL_AT_P90 = dataclasses.replace(RECALL[0], name="recall@p90", title="Recall at a precision of 90 %")
TEXT_RECALL, IMAGE_RECALL = (
    tuple(
        dataclasses.replace(each, name=f"{found}_recall@{k}", title=title.format(k), labels=("texts",))
        for k, each in zip(RECALLED, RECALL, strict=True)
    )
    for found, title in (
        ("text", "Share of images with one of their texts among the first {}"),
        ("image", "Share of texts with their image among the first {}"),
    )
)
MEAN_RECALL = dataclasses.replace(
    RECALL[0], name="mean_recall", title="Mean of the six recalls of texts and images", labels=("texts",)
)
TEXT_COLUMNS = ("rank of the first own text", *(f"own texts that find it among the first {k}" for k in RECALLED))
"""Scores of an image among images and texts."""
COPIES = (MICRO_AP, RECALL_AT_P90)
"""Metrics of copy detection, in the order of `micro_values`."""


@dataclasses.dataclass(frozen=True)
class GroundTruth:
    """Answers to one query, as places in the database.

    Attributes:
        positives: (P,) places of the items to be found, distinct.
        ignored: (I,) places of the items that are taken out of the ranking, distinct; none of them is a positive.
    """

    positives: IntArray
    ignored: IntArray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))


def ranks_of_positives(scores: npt.NDArray[np.floating], truth: GroundTruth) -> IntArray:
    """Return the 0-based ranks of the positives, ascending, (P,).

    `scores`: (N,) similarity of the query to every item of the database, higher is nearer.

    >>> ranks_of_positives(np.array([0.9, 0.8, 0.7, 0.1]), GroundTruth(np.array([1, 3]), np.array([0]))).tolist()
    [0, 2]
    """
    # Takes O(N log P) time for a database of N items: the negatives are counted, never sorted.
    positives = np.sort(scores[truth.positives])
    if len(positives) <= _FEW:
        ignored, top = scores[truth.ignored], positives[::-1]
        # Items that score at least as much, less the ignored ones and the positives that are not ahead of it.
        level = [np.count_nonzero(scores >= value) - np.count_nonzero(ignored >= value) for value in top]
        own = len(positives) - np.searchsorted(positives, top, side="left")
        return np.array(level, np.int64) - own + np.arange(len(positives))
    negative = np.ones(len(scores), bool)
    negative[truth.positives] = negative[truth.ignored] = False
    # beaten[j]: the negatives that score at least as much as exactly the j lowest positives
    beaten = np.bincount(np.searchsorted(positives, scores[negative], side="right"), minlength=len(positives) + 1)
    ahead = len(scores) - len(positives) - len(truth.ignored) - np.cumsum(beaten)[:-1]
    return (ahead[::-1] + np.arange(len(positives))).astype(np.int64)


def average_precision(
    ranks: IntArray, n_positives: int, *, interpolation: Literal["trapezoid", "step"] = "trapezoid"
) -> float:
    """Return the average precision of one query, from 0 to 1; NaN without positives.

    `trapezoid` is the area under the precision-recall curve by trapezoids, as Oxford5k's own program and the revisited
    protocol compute it (Radenovic et al., CVPR 2018); `step` is the mean of the precisions at the positives.

    `ranks`: (F,) 0-based ranks of the positives that were found, ascending; F <= n_positives.

    >>> average_precision(np.array([0, 2]), 2)
    0.7916666666666666
    >>> round(average_precision(np.array([0, 2]), 2, interpolation="step"), 6)
    0.833333
    """
    if n_positives == 0:
        return float("nan")
    found = np.arange(len(ranks))
    after = (found + 1) / (ranks + 1)
    if interpolation == "step":
        return float(after.sum() / n_positives)
    before = np.where(ranks == 0, 1.0, found / np.maximum(ranks, 1))
    return float((before + after).sum() / 2 / n_positives)


def precision_at(ranks: IntArray, k: int) -> float:
    """Return the precision among the first k items, from 0 to 1; NaN without positives.

    >>> precision_at(np.array([0, 2]), 5)
    0.6666666666666666
    """
    # Where the last positive stands before place k, the list ends with it: a query with three positives at the first
    # three places has 1, not 3 / k (revisited protocol, Radenovic et al., CVPR 2018, code `compute_map`).
    if len(ranks) == 0:
        return float("nan")
    length = min(int(ranks[-1]) + 1, k)
    return float((ranks < length).sum() / length)


def r_precision(ranks: IntArray) -> float:
    """Return the precision among the first R items, R being the number of positives; NaN without positives.

    >>> r_precision(np.array([0, 2]))
    0.5
    """
    return float((ranks < len(ranks)).mean()) if len(ranks) else float("nan")


def ranking_values(ranks: IntArray) -> FloatArray:
    """Return the metrics `RANKING` of one query, (6,) fractions; NaN without positives.

    `ranks`: (P,) 0-based ranks of all its positives, ascending.

    >>> ranking_values(np.array([0, 2])).round(3).tolist()
    [1.0, 1.0, 1.0, 0.5, 0.833, 0.5]
    """
    if not len(ranks):
        return np.full(len(RANKING), np.nan)
    # Recall@k of metric learning (Oh Song et al., CVPR 2016, section 5): 1 if a positive is among the first k items.
    recalls = [float(ranks[0] < k) for k in RECALLED]
    mean_precision = average_precision(ranks, len(ranks), interpolation="step")
    # Musgrave et al. (ECCV 2020, eq. 2): mean over the first R places of the precision at each that holds a positive.
    map_at_r = average_precision(ranks[ranks < len(ranks)], len(ranks), interpolation="step")
    return np.array([*recalls, r_precision(ranks), mean_precision, map_at_r])


def text_measures(texts: IntArray, scores: npt.NDArray[np.floating]) -> list[Measure]:
    """Return the recalls of images and texts as functions of the weights of N images.

    An image finds a text if one of its own is among the first k; of all texts, a share finds its image. The texts of an
    image are not independent, so the image is the unit of both (Karpathy and Fei-Fei, CVPR 2015, section 4.1).

    `texts`: (N,), number of texts of each image; `scores`: (N, 4), see `TEXT_COLUMNS`; ranks from 0.

    >>> measure, *_ = text_measures(np.array([2, 2]), np.array([[0, 1, 2, 2], [7, 0, 0, 1]]))
    >>> measure.statistic(np.ones((1, 2))).tolist()
    [[0.5, 0.5, 1.0]]
    """
    found = (scores[:, :1] < np.array(RECALLED)).astype(np.float64)
    hits = scores[:, 1:].astype(np.float64)

    def of_images(weights: FloatArray) -> FloatArray:
        return np.asarray(weights @ hits / (weights @ texts)[:, None])

    def of_texts(weights: FloatArray) -> FloatArray:
        return np.asarray(weights @ found / weights.sum(axis=1, keepdims=True))

    return [
        Measure(TEXT_RECALL, of_texts, per_sample=found, binary=True),
        Measure(IMAGE_RECALL, of_images),
        Measure((MEAN_RECALL,), lambda weights: np.hstack([of_texts(weights), of_images(weights)]).mean(1)[:, None]),
    ]


def random_order_values(n_positives: int, n_candidates: int) -> FloatArray:
    """Return the expected values of `RANKING` when the candidates are in random order, (6,) fractions.

    >>> random_order_values(1, 2).tolist()
    [0.5, 1.0, 1.0, 0.5, 0.75, 0.5]
    """
    # Exact. A given place holds a positive with probability R / M; if it does, each earlier place does with probability
    # (R - 1) / (M - 1).
    r, m = n_positives, n_candidates
    recalls = [1 - math.comb(m - r, k) / math.comb(m, k) if k < m else 1.0 for k in RECALLED]
    earlier = (r - 1) / (m - 1) if m > 1 else 1.0
    harmonic = np.cumsum(1 / np.arange(1, m + 1))
    mean_precision = earlier + (1 - earlier) * harmonic[-1] / m
    at_r = (earlier * r + (1 - earlier) * harmonic[r - 1]) / m
    return np.array([*recalls, r / m, mean_precision, at_r])


def landmark_values(ranks: IntArray) -> FloatArray:
    """Return the metrics `LANDMARK` of one query, (4,) fractions; NaN without positives.

    `ranks`: (P,) 0-based ranks of all its positives, ascending.

    >>> landmark_values(np.array([0, 2])).round(3).tolist()
    [0.792, 1.0, 0.667, 0.667]
    """
    return np.array([average_precision(ranks, len(ranks)), *(precision_at(ranks, k) for k in RECALLED)])


def random_order_landmark_values(n_positives: int, n_candidates: int) -> FloatArray:
    """Return the expected values of `LANDMARK` when the candidates are in random order, (4,) fractions.

    >>> random_order_landmark_values(1, 2).tolist()
    [0.625, 0.5, 0.75, 0.75]
    """
    # Exact, see `random_order_values`. The precision just before a positive is 1 at the first place, and elsewhere (R -
    # 1) / (M - 1) on average; the last positive is at place l with probability C(l, R - 1) / C(M, R).
    r, m = n_positives, n_candidates
    step = random_order_values(r, m)[RANKING.index(RETRIEVAL_MAP)]
    before = (1 + (r - 1)) / m
    found = [(before + step) / 2]
    for k in RECALLED:
        early = {last: math.comb(last, r - 1) / math.comb(m, r) for last in range(r - 1, min(k, m) - 1)}
        within = sum(early.values())
        found.append(
            sum(p * r / (last + 1) for last, p in early.items()) + (min(k, m) * r / m - within * r) / min(k, m)
        )
    return np.array(found)


def identity_values(ranks: IntArray) -> FloatArray:
    """Return the metrics `IDENTITY` of one query, (5,) fractions; NaN without positives.

    The inverse negative penalty (Ye et al., TPAMI 2022, section 3.3) is the number of positives over the place of the
    last one.

    `ranks`: (P,) 0-based ranks of all its positives, ascending.

    >>> identity_values(np.array([0, 2])).round(3).tolist()
    [1.0, 1.0, 1.0, 0.833, 0.667]
    """
    if not len(ranks):
        return np.full(len(IDENTITY), np.nan)
    found = dict(zip(RANKING, ranking_values(ranks).tolist(), strict=True))
    return np.array([*(found[metric] for metric in IDENTITY[:-1]), len(ranks) / (ranks[-1] + 1)])


def random_order_identity_values(n_positives: int, n_candidates: int) -> FloatArray:
    """Return the expected values of `IDENTITY` when the candidates are in random order, (5,) fractions.

    >>> random_order_identity_values(1, 2).tolist()
    [0.5, 1.0, 1.0, 0.75, 0.75]
    """
    # The last positive is at place l with probability C(l - 1, R - 1) / C(M, R): built up from the last place.
    r, m = n_positives, n_candidates
    found = dict(zip(RANKING, random_order_values(r, m).tolist(), strict=True))
    places = np.arange(m, r, -1.0)
    chances = np.cumprod([r / m, *((places - r) / (places - 1))])
    return np.array([*(found[metric] for metric in IDENTITY[:-1]), np.sum(chances * r / np.arange(m, r - 1, -1.0))])


def micro_values(
    weights: FloatArray,
    scores: npt.NDArray[np.floating],
    correct: npt.NDArray[np.bool_],
    queries: npt.NDArray[np.integer],
    pairs: FloatArray,
) -> FloatArray:
    """Return the metrics `COPIES`, (R, 2) fractions, for R weightings of the queries, as DISC2021 ranks copies.

    They are micro AP (Perronnin et al., CVPR 2009), the area by steps under the precision-recall curve of all
    predictions in one list, and the largest recall at a precision of at least 0.9.

    `weights`: (R, Q) weights of the queries; `scores`: (M,) of the predicted pairs, higher is surer; `correct`: (M,)
    the pair is true; `queries`: (M,) row of the query of each pair, 0 to Q - 1; `pairs`: (Q,) number of true pairs of
    each query.

    >>> scores, correct = np.array([0.9, 0.8, 0.3]), np.array([True, False, True])
    >>> micro_values(np.ones((1, 2)), scores, correct, np.array([0, 1, 1]), np.array([1.0, 1.0])).round(3).tolist()
    [[0.833, 0.5]]
    """
    order = np.lexsort((correct, -scores))  # among equal scores the wrong ones first
    hit, of_query = correct[order], queries[order]
    found = np.full((len(weights), 2), np.nan)
    for row, weight in enumerate(weights):
        each, total = weight[of_query], float(weight @ pairs)
        hits, listed = np.cumsum(each * hit), np.cumsum(each)
        if total <= 0:
            continue
        precisions = np.divide(hits, listed, out=np.zeros_like(hits), where=listed > 0)
        sure = precisions >= 0.9 - 1e-12
        found[row] = (precisions * each * hit).sum() / total, hits[sure].max(initial=0.0) / total
    return found
