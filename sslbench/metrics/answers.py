"""Answers of a classifier with one class per sample: places of classes, predictions and probabilities.

Ties: a class is ranked behind all others with its score, and of several classes with the highest score none is
predicted. So no value depends on the names or numbers of the classes, and a tie never counts as right.

Shapes: N samples, C classes, k of them kept (`BestScores`).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.metrics.measure import Probabilities

KEPT = 256
"""Number of best scores per sample that are kept of more scores than `records` stores: more than votes of kNN."""
_BLOCK = 2_000_000  # scores that are taken to double precision at a time


@dataclasses.dataclass(frozen=True, eq=False)
class BestScores:
    """The k highest scores of every sample, and of the others what all metrics need that do not rank samples.

    Attributes:
        n_classes: C.
        classes: int32 (N, k), the best first; of equal scores the lower number first.
        scores: float32 (N, k), their scores, falling.
        own: float32 (N,), score of the true class.
        places: (N,), number of classes ranked before the true one.
        squares: float64 (N,), sum of the squared probabilities of all classes; NaN if there are none.
        sums: float64 (N,), sum of exp(score less the highest) over all classes; None if scores are no logits.

    >>> best = BestScores.of(np.array([1]), np.array([[0.5, 0.25, 0.25]]), "scores", kept=2)
    >>> best.classes.tolist(), best.scores.tolist(), best.places.tolist(), best.squares.tolist()
    ([[0, 1]], [[0.5, 0.25]], [2], [0.375])
    """

    n_classes: int
    classes: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    own: npt.NDArray[np.float32]
    places: npt.NDArray[np.integer]
    squares: FloatArray
    sums: FloatArray | None = None

    @classmethod
    def of(cls, labels: IntArray, scores: "ClassScores", how: Probabilities | None, kept: int = KEPT) -> "BestScores":
        """Return the best of all scores (N, C), given the true classes (N,); scores that are the best ones stay."""
        if isinstance(scores, BestScores):
            return scores
        kept = min(kept, scores.shape[1])
        classes = np.empty((len(scores), kept), np.int32)
        sums = np.empty(len(scores)) if how == "softmax" else None
        for rows in _blocks(scores):
            part = scores[rows]
            # Every score above the k-th highest is kept, and of those equal to it the first ones.
            least = np.partition(part, -kept, axis=1)[:, -kept]
            above, equal = part > least[:, None], part == least[:, None]
            equal &= np.cumsum(equal, axis=1, dtype=np.int32) <= kept - above.sum(axis=1, keepdims=True)
            chosen = np.nonzero(above | equal)[1].reshape(-1, kept)
            order = np.argsort(-np.take_along_axis(part, chosen, axis=1), axis=1, kind="stable")
            classes[rows] = np.take_along_axis(chosen, order, axis=1)
            if sums is not None:
                sums[rows] = _powers(part, part.max(axis=1)).sum(axis=1)
        return cls(
            scores.shape[1],
            classes,
            np.take_along_axis(scores, classes.astype(np.int64), axis=1).astype(np.float32, copy=False),
            np.take_along_axis(scores, labels[:, None], axis=1)[:, 0].astype(np.float32, copy=False),
            places(labels, scores),
            np.full(len(scores), np.nan) if how is None else Confidences.of(labels, scores, how).squares,
            sums,
        )

    def __post_init__(self) -> None:
        """Refuse arrays that do not belong together, as those of a damaged file."""
        n, kept = self.classes.shape
        found = {
            name: (part.shape, "whole" if np.issubdtype(part.dtype, np.integer) else part.dtype.kind)
            for name, part in self.arrays().items()
        }
        wanted = {
            name: (
                (n, kept) if name in ("classes", "scores") else (n,),
                "whole" if name in ("classes", "places") else "f",
            )
            for name in found
        }
        inside = self.classes.min(initial=0) >= 0 and self.classes.max(initial=0) < self.n_classes
        if found != wanted or not 1 <= kept <= self.n_classes or not inside:
            raise ValueError(f"the best of {self.n_classes} scores are {found}")

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def shape(self) -> tuple[int, int]:
        """N and C, as of all scores."""
        return len(self.classes), self.n_classes

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, rows: slice | IntArray | BoolArray) -> Self:
        return type(self)(n_classes=self.n_classes, **{name: part[rows] for name, part in self.arrays().items()})

    def probabilities(self, scores: npt.NDArray[np.floating]) -> FloatArray:
        """Return the probabilities of some scores (N, n) of these samples, with the bits of `softmax`."""
        return (
            scores.astype(np.float64) if self.sums is None else _powers(scores, self.scores[:, 0]) / self.sums[:, None]
        )


ClassScores = npt.NDArray[np.floating] | BestScores
"""All scores (N, C), higher means more likely, or the best ones of each sample."""


def _blocks(scores: npt.NDArray[np.floating]) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, scores.shape[1]))
    return (slice(start, start + step) for start in range(0, max(1, len(scores)), step))


def top_k_correct(classes: IntArray, scores: ClassScores, k: int) -> npt.NDArray[np.bool_]:
    """Return for each sample whether its class is among its k best scored ones, (N,) booleans.

    `classes`: (N,), the true class of each sample.

    >>> top_k_correct(np.array([0, 1]), np.array([[0.9, 0.1], [0.8, 0.2]]), k=1).tolist()
    [True, False]
    """
    return np.asarray(places(classes, scores) < k)


def places(classes: IntArray, scores: ClassScores) -> IntArray:
    """Return the number of classes ranked before each sample's own (N,): 0 where it is predicted.

    `classes`: (N,), the true class of each sample; classes with equal scores are ranked before the own one.

    >>> places(np.array([2, 0]), np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.0]])).tolist()
    [1, 1]
    """
    if isinstance(scores, BestScores):
        return scores.places.astype(np.int64)
    own = np.take_along_axis(scores, classes[:, None], axis=1)
    before = [(~(scores[rows] < own[rows])).sum(axis=1, dtype=np.int64) for rows in _blocks(scores)]
    return np.asarray(np.concatenate(before) - 1)


def stored_places(classes: IntArray, draws: Sequence[ClassScores]) -> npt.NDArray[np.integer]:
    """Return the places (R, N) of several draws, in 16 bits where their classes allow it.

    >>> stored_places(np.array([0]), [np.array([[0.5, 0.6]])])
    array([[1]], dtype=uint16)
    """
    found = np.stack([places(classes, scores) for scores in draws])
    return found.astype(np.uint16 if draws[0].shape[1] <= 2**16 else np.uint32)


def predicted_classes(scores: ClassScores) -> IntArray:
    """Return the class with the highest score of each sample (N,); -1 where several have it.

    >>> predicted_classes(np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.0]])).tolist()
    [1, -1]
    """
    if isinstance(scores, BestScores):
        return np.where(scores.scores[:, 0] > scores.scores[:, 1], scores.classes[:, 0].astype(np.int64), -1)
    best = np.argmax(scores, axis=1)
    return np.asarray(np.where(places(best, scores) == 0, best, -1), dtype=np.int64)


def highest(scores: ClassScores, number: int) -> npt.NDArray[np.floating]:
    """Return the highest scores of each sample, (N, number), falling.

    >>> highest(np.array([[0.1, 0.7, 0.2]]), 2).tolist()
    [[0.7, 0.2]]
    """
    if isinstance(scores, BestScores):
        return scores.scores[:, :number]
    return np.sort(np.partition(scores, -number, axis=1)[:, -number:], axis=1)[:, ::-1]


def softmax(scores: npt.NDArray[np.floating]) -> FloatArray:
    """Return the softmax of logits (N, C): probabilities (N, C).

    >>> softmax(np.array([[0.0, 0.0]])).tolist()
    [[0.5, 0.5]]
    """
    powers = _powers(scores, scores.max(axis=1))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _powers(scores: npt.NDArray[np.floating], highest: npt.NDArray[np.floating]) -> FloatArray:
    return np.asarray(np.exp(scores.astype(np.float64) - highest[:, None]))


class Confidences(NamedTuple):
    """Probabilities of N samples, as far as calibration depends on them.

    Attributes:
        highest: (N,), the largest.
        own: (N,), that of the true class.
        squares: (N,), sum of the squares of all.
        right: (N,), True where the true class alone has the largest.
    """

    highest: FloatArray
    own: FloatArray
    squares: FloatArray
    right: BoolArray

    @classmethod
    def of(cls, classes: IntArray, scores: ClassScores, how: Probabilities) -> "Confidences":
        """Return those of scores of samples with these classes (N,).

        >>> sure = Confidences.of(np.array([0]), np.array([[0.75, 0.25]]), "scores")
        >>> sure.highest.tolist(), sure.squares.tolist(), sure.right.tolist()
        ([0.75], [0.625], [True])
        """
        if isinstance(scores, BestScores):
            first, own = scores.probabilities(scores.scores[:, :2]), scores.probabilities(scores.own[:, None])[:, 0]
            right = (scores.places == 0) & (first[:, 0] > first[:, 1])
            return cls(first[:, 0], own, scores.squares, right)
        parts = []
        for rows in _blocks(scores):
            p, own_class = softmax(scores[rows]) if how == "softmax" else scores[rows].astype(np.float64), classes[rows]
            own = np.take_along_axis(p, own_class[:, None], axis=1)[:, 0]
            parts.append((p.max(axis=1), own, np.sum(p**2, axis=1), predicted_classes(p) == own_class))
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def log_losses(self) -> FloatArray:
        """Return the negative log probability of each sample's class, in nats (N,); their mean is the log loss.

        >>> sure = Confidences.of(np.array([0, 1]), np.array([[1.0, 0.0], [0.5, 0.5]]), "scores")
        >>> sure.log_losses().round(3).tolist()
        [0.0, 0.693]
        """
        # A probability of 0 counts as 2.2e-16 (a loss of 36), as in scikit-learn's `log_loss`.
        smallest = np.finfo(np.float64).eps
        return np.asarray(-np.log(np.clip(self.own, smallest, 1 - smallest)))

    def brier_scores(self) -> FloatArray:
        """Return the squared distance of each sample's probabilities from its class, 0 to 2 (N,).

        The sum over all classes of (probability - truth)^2, as Brier defined it (1950, eq. 2); their mean is the score.

        >>> Confidences.of(np.array([0, 1]), np.array([[1.0, 0.0], [1.0, 0.0]]), "scores").brier_scores().tolist()
        [0.0, 2.0]
        """
        return np.asarray(self.squares - self.own**2 + (1 - self.own) ** 2)
