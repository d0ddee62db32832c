"""One class per sample, and queries of a retrieval data set."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.metrics import classification
from sslbench.metrics.answers import predicted_classes, top_k_correct
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.metrics.metric import ClassFrequencies
from sslbench.metrics.summary import class_measures
from sslbench.targets.target import OfClasses, Rows


@dataclasses.dataclass(frozen=True)
class Answers:
    """Answers to one query.

    Attributes:
        positives: ids of the images to be found.
        ignored: ids of images that are taken out of the ranking ("junk" of Oxford and Paris).
    """

    positives: tuple[str, ...]
    ignored: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Queries:
    """Queries of a retrieval data set.

    Attributes:
        tasks: name -> (id of the query -> its answers). Several tasks on the same images (medium, hard, easy; strong
            copies, crops) are reported one by one, the first leads; an only task is called ''.
        apart: ids of queries that are not part of the database.
        identities: labels are identities, and metrics those of re-identification.

    >>> queries = Queries({"": {"q.jpg": Answers(("a.jpg",))}}, frozenset({"q.jpg"}))
    >>> len(queries.digest())
    32
    """

    tasks: Mapping[str, Mapping[str, Answers]]
    apart: frozenset[str] = frozenset()
    identities: bool = False

    def digest(self) -> str:
        """Return a hash of all of it, 32 hex digits."""
        state = hashlib.sha256("\n".join(sorted(self.apart)).encode())
        # The order of tasks counts, as the first leads; that of queries and of answers does not.
        for name, answers in self.tasks.items():
            for query, each in sorted(answers.items()):
                # The empty text ends the positives: an id that moves to the ignored ones changes the hash.
                parts = (name, query, *sorted(each.positives), "", *sorted(each.ignored))
                state.update("\0".join(parts).encode() + b"\n")
        # Keys of the other sets are those before there were identities.
        state.update(b"identities" if self.identities else b"")
        return state.hexdigest()[:32]


@dataclasses.dataclass(frozen=True, eq=False)
class Classes(OfClasses):
    """One class per sample.

    Attributes:
        values: int64 (N,), positions in `classes`.
        queries: of a retrieval data set: queries among the samples, and their answers; None: classes tell the answers.
    """

    name: ClassVar[str] = "single"
    title = "one class each"
    metric = "top1"
    of_one_class = True
    classes: tuple[str, ...]
    values: npt.NDArray[np.int64]
    queries: Queries | None = None

    def text(self, index: int) -> str:
        """Return the name of a sample's class."""
        return self.classes[int(self.values[index])]

    def content_key(self) -> bytes:
        """Return the key of the queries."""
        return b"" if self.queries is None else ("queries" + self.queries.digest()).encode()

    def counts(self) -> IntArray:
        """Return the number of samples of each class, (C,)."""
        # By itself bincount ends at the largest number that occurs: the last classes would be missing.
        return np.bincount(self.values, minlength=len(self.classes)).astype(np.int64)

    def by_first_sample(self) -> IntArray:
        """Return the class numbers in the order of the first samples that have them, (C,)."""
        # Classes without a sample follow in their own order: nothing is drawn from them.
        found, first = np.unique(self.values, return_index=True)
        known = found[np.argsort(first)]
        return np.concatenate([known, np.setdiff1d(np.arange(len(self.classes)), known)])

    def among(self, kept: IntArray) -> "Classes":
        """Return the labels with the classes at `kept`, in that order; samples of other classes are not allowed."""
        number = np.full(len(self.classes), -1, dtype=np.int64)
        number[kept] = np.arange(len(kept))
        return self.changed(classes=tuple(self.classes[c] for c in kept), values=number[self.values])

    def flags(self) -> npt.NDArray[np.int8]:
        """Return 1 for the class that a sample has and 0 for all others, (N, C)."""
        flags = np.zeros((len(self), len(self.classes)), dtype=np.int8)
        flags[np.arange(len(self)), self.values] = 1
        return flags

    def frequencies(self) -> ClassFrequencies:
        """Return the number of samples of each class, for chance levels."""
        positives = np.bincount(self.values, minlength=len(self.classes))
        return ClassFrequencies(positives, np.full(len(positives), len(self)))

    @classmethod
    def leads_by_right(cls) -> bool:
        """Return True for the kinds with this leading metric."""
        return cls.metric == Classes.metric

    @classmethod
    def of_right(cls, right: npt.NDArray[Any], samples: IntArray) -> npt.NDArray[np.floating]:
        """Return the share of all samples whose class is predicted."""
        return np.asarray(right.sum(axis=-1) / float(samples.sum()))

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return accuracies, ranking metrics, and with probabilities calibration."""
        return class_measures(values.astype(np.int64), scores, units, how)

    @classmethod
    def headline(cls, values: Rows, scores: Rows) -> float:
        """Return the top-1 accuracy, or what else leads a kind that extends this one."""
        if not cls.leads_by_right():
            return super().headline(values, scores)
        true, classes = values.astype(np.int64), scores.shape[1]
        right = true[top_k_correct(true, scores, 1)]
        return float(cls.of_right(*(np.bincount(each, minlength=classes) for each in (right, true))))

    @classmethod
    def per_class(cls, values: Rows, scores: Rows, classes: int) -> list[float]:
        """Return the recall of every class."""
        predicted = predicted_classes(scores)
        return list(map(float, classification.per_class_recall(values.astype(np.int64), predicted, classes)))
