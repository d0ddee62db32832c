"""Retrieval tasks: queries among the test rows, and their positives and ignored images in the database."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sslbench.arrays import BoolArray, FloatArray, IntArray
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.metrics.metric import Metric
from sslbench.metrics.retrieval import (
    IDENTITY,
    LANDMARK,
    RANKING,
    RETRIEVAL_MAP,
    TRAPEZOID_MAP,
    GroundTruth,
    identity_values,
    landmark_values,
    random_order_identity_values,
    random_order_landmark_values,
    random_order_values,
    ranking_values,
)
from sslbench.targets.classes import Answers, Classes


@dataclasses.dataclass(frozen=True)
class MetricSet:
    """Metrics of rankings that are reported together.

    Attributes:
        metrics: in the order of the values.
        values: function from the ranks of a query's positives to its values.
        chance: function from the numbers of positives and candidates to the expected values of a random order.
    """

    metrics: tuple[Metric, ...]
    values: Callable[[IntArray], FloatArray]
    chance: Callable[[int, int], FloatArray]
    headline: Metric


BY_LABEL = MetricSet(RANKING, ranking_values, random_order_values, RETRIEVAL_MAP)
BY_GROUND_TRUTH = MetricSet(LANDMARK, landmark_values, random_order_landmark_values, TRAPEZOID_MAP)
BY_IDENTITY = MetricSet(IDENTITY, identity_values, random_order_identity_values, RETRIEVAL_MAP)


@dataclasses.dataclass(frozen=True)
class RetrievalTask:
    """Retrieval task: queries with their answers.

    Attributes:
        name: in parentheses behind its metrics, `mAP_trapezoid(medium)`; '' for an only task.
        rows: (Q,) test rows of the queries, also those without positives.
        answers: function from a position in `rows` to the answers, as rows of the database.
        together: (Q,) numbers, equal for queries that the same images answer: those of a label, or of a landmark. They
            are right and wrong together, so that intervals resample them together.
    """

    name: str
    rows: IntArray
    answers: Callable[[int], GroundTruth]
    metric_set: MetricSet
    together: IntArray

    def with_positives(self) -> IntArray:
        """Return the positions in `rows` of the queries with a positive."""
        found = np.array([len(self.answers(i).positives) > 0 for i in range(len(self.rows))], dtype=bool)
        if not found.any():
            of_task = f" of {self.name}" if self.name else ""
            by_label = self.metric_set is BY_LABEL
            raise no_positives(len(self.rows), NO_PAIR if by_label else f"queries{of_task} has a positive")
        return np.flatnonzero(found)


NO_PAIR = "test images has another image of its label"


def no_positives(number: int, nothing: str) -> DataError:
    """Return the error for data in which no query has a positive."""
    return DataError(
        f"retrieval: none of the {number:,} {nothing} in the database",
        "Give data with several images of an instance or class; images of one group do not find each other.",
    )


@dataclasses.dataclass(frozen=True)
class Search:
    """Images that are searched, and the tasks on them.

    Attributes:
        in_test: (N_test,) mask of the test rows that form the database; None: train is the database.
        groups: (N_test,) numbers of groups whose images are ignored for each other; None: queries are not searched.
        tasks: tasks; the first one has the leading metric.
        notes: notes for the record.
    """

    in_test: BoolArray | None
    groups: IntArray | None
    tasks: tuple[RetrievalTask, ...]
    notes: tuple[str, ...] = ()


def by_label(test: Features, database: Features, *, same_part: bool) -> Search:
    """Return the task of finding images of the query's own label.

    `same_part`: queries and database are the same images; a query ignores itself and its group.
    """
    groups = None
    if same_part:
        groups = np.arange(len(test)) if test.groups is None else test.groups
    of_label = rows_by_number(database.target.values)
    of_group = {} if groups is None else rows_by_number(groups)
    labels, none = test.target.values, np.zeros(0, np.int64)

    def answers(row: int) -> GroundTruth:
        # Queries may have labels that no image of the database has.
        same = of_label.get(int(labels[row]), none)
        if groups is None:
            return GroundTruth(same)
        own = of_group[int(groups[row])]
        return GroundTruth(np.setdiff1d(same, own, assume_unique=True), own)

    task = RetrievalTask("", np.arange(len(test)), answers, BY_LABEL, labels)
    without = len(test) - len(task.with_positives())
    note = f"{without:,} of {len(test):,} test images have no positive in the database and are not queries."
    searched = np.ones(len(test), bool) if same_part else None
    return Search(searched, groups, (task,), (note,) if without else ())


def by_ground_truth(test: Features) -> Search:
    """Return the tasks of a retrieval set with its own queries.

    Answers that are no test images (unreadable ones, those beyond a limit) are left out, which is noted.
    """
    queries = Classes.of(test.target).queries
    assert queries is not None  # noqa: S101 - checked by the caller
    in_database = np.array([sample not in queries.apart for sample in test.ids])
    place = {test.ids[row]: i for i, row in enumerate(np.flatnonzero(in_database).tolist())}
    row_of = {sample: row for row, sample in enumerate(test.ids)}
    tasks, notes = [], []
    for name, answers in queries.tasks.items():
        known = [query for query in test.ids if query in answers]
        rows = np.array([row_of[query] for query in known], dtype=np.int64)
        lookup = _lookup(known, answers, place)
        if queries.identities:
            task = RetrievalTask(name, rows, lookup, BY_IDENTITY, test.target.values[rows])
        else:
            together = _sharing(rows, [lookup(i).positives for i in range(len(known))], np.flatnonzero(in_database))
            task = RetrievalTask(name, rows, lookup, BY_GROUND_TRUTH, together)
        title = name or "ground truth"
        lost = sum(i not in place for each in answers.values() for i in each.positives)
        if lost or len(known) < len(answers):
            notes.append(
                f"{title}: {len(answers) - len(known):,} queries and {lost:,} positives are not among the images."
            )
        if without := len(known) - len(task.with_positives()):
            notes.append(f"{title}: {without:,} of {len(known):,} queries have no positive.")
        tasks.append(task)
    inside = any(
        in_database[row_of[query]] for answers in queries.tasks.values() for query in answers if query in row_of
    )
    return Search(in_database, np.arange(len(test)) if inside else None, tuple(tasks), tuple(notes))


def _sharing(rows: IntArray, positives: Sequence[IntArray], database: IntArray) -> IntArray:
    """Return numbers (Q,), equal for queries that are joined by positives they share, or as answers of each other.

    `rows`: (Q,) test rows of the queries.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    found = np.concatenate([np.zeros(0, np.int64), *(database[each] for each in positives)])
    size = int(max(rows.max(initial=-1), found.max(initial=-1))) + 1
    pairs = np.repeat(rows, [len(each) for each in positives]), found
    _, part = connected_components(coo_array((np.ones(len(found)), pairs), shape=(size, size)), directed=False)
    return np.asarray(part[rows], np.int64)


def _lookup(
    queries: Sequence[str], answers: Mapping[str, Answers], place: Mapping[str, int]
) -> Callable[[int], GroundTruth]:
    """Return the function from the position of a query to its answers, as rows of the database."""

    def places(ids: tuple[str, ...]) -> IntArray:
        return np.array([place[i] for i in ids if i in place], dtype=np.int64)

    def of(i: int) -> GroundTruth:
        each = answers[queries[i]]
        return GroundTruth(places(each.positives), places(each.ignored))

    return of


def rows_by_number(numbers: IntArray) -> dict[int, IntArray]:
    """Return the rows of each number.

    >>> rows_by_number(np.array([7, 3, 7]))[7].tolist()
    [0, 2]
    """
    order = np.argsort(numbers, kind="stable")
    names, starts = np.unique(numbers[order], return_index=True)
    return dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True))
