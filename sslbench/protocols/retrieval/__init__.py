"""Image retrieval on frozen features: each query ranks a database; images of the query's label are its positives.

Labels are instances (products, landmarks, originals of copies) or classes. By default every test image queries all
other test images (leave one out); with `database=train` it queries the train part. Images of the query's own group
(`Features.groups`, for instance crops of one picture) are taken out of its ranking. Images without a positive are no
queries, but stay in the database. Train and test may have different classes. Retrieval sets (`data/formats/retrieval`)
have queries, positives and ignored images of their own, for one or more tasks.

Descriptors are the features of a layer at unit length: of a plain pool (`gem(3)`, `cls`, `rmac`), of several layers
(`concat(A,B)`), the mean over scales (`--scales`), or the regions of R-MAC (`regions`), each of which is whitened
before they are summed. Similarity is the cosine of descriptors; optional steps are PCA-whitening learnt on train (Jegou
and Chum 2012), database augmentation (Arandjelovic and Zisserman 2012) and alpha-weighted query expansion (Radenovic et
al. 2018).

Metrics are means over the queries. Queries that the same images answer (of a label, of a landmark) are right and wrong
together, so that intervals resample labels, not queries. Metrics are recall@k, R-precision, average precision by steps,
and MAP@R; of retrieval sets those that are published for them, mean average
precision by trapezoids and precision at k. Chance is the exact expectation for databases in random order. Copy
detection also ranks the first images of all queries in one list (micro AP).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.config import setting
from sslbench.data.groups import source_groups
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.intervals import Interval, Units, means, paired_difference
from sslbench.metrics.measure import Measure
from sslbench.metrics.retrieval import COMPRESSION_LOSS, COPIES, GroundTruth, micro_values
from sslbench.metrics.summary import with_intervals
from sslbench.protocols._parts.compression import Code, CompressionSettings, compressions
from sslbench.protocols._parts.selection import check_features, check_finite, class_sizes
from sslbench.protocols.protocol import Cost, OnFeatures, Part, Protocol, Shapes
from sslbench.protocols.retrieval.descriptors import (
    aggregate_regions,
    expand_queries,
    positive_ranks,
    subtract_background,
    unit_length,
)
from sslbench.protocols.retrieval.tasks import (
    NO_PAIR,
    RetrievalTask,
    Search,
    by_ground_truth,
    by_label,
    no_positives,
    rows_by_number,
)
from sslbench.results import Neighbours, Outcome
from sslbench.solvers.neighbours import Scope, fastest_engine, nearest
from sslbench.solvers.whitening import Whitening, fit_whitening
from sslbench.targets.classes import Classes, Queries
from sslbench.targets.target import Target
from sslbench.text_rows import select_texts


@dataclasses.dataclass(frozen=True)
class Settings(CompressionSettings):
    """Settings of retrieval."""

    database: Literal["test", "train"] = setting(
        "test", "part that is searched: test, every test image is a query to the others; train, a query to train"
    )
    whiten: bool = setting(False, "PCA-whitening of the descriptors, learnt on train; then unit length again")
    components: int = setting(0, "dimensions that whitening keeps; 0: all", within="[0, inf)", needs="whiten=true")
    covariance: Literal["centred", "uncentred"] = setting(
        "centred", "covariance that is whitened; uncentred: second moments about 0, as DINO does", needs="whiten=true"
    )
    query_expansion: int = setting(0, "first neighbours that are added to every query; 0: none", within="[0, inf)")
    augmentation: int = setting(
        0,
        "first neighbours that are added to every image of the database; 0: none; needs queries apart from it",
        within="[0, inf)",
    )
    alpha: float = setting(
        3.0, "power of the similarity, by which added neighbours are weighted; 0: equal weights", within="[0, inf)"
    )
    predictions: int = setting(
        0,
        "copy detection: first images of each query that are predictions, all ranked in one list; 0: none",
        within="[0, inf)",
    )
    normalise_scores: bool = setting(
        False,
        "copy detection: subtract a query's mean similarity to its 3 nearest images of train",
        needs="predictions",
    )
    max_memory: float = setting(1.0, "working memory of the search", unit="GB", changes_result=False, within="(0, inf)")


_ROWS = 8192  # rows prepared together, so that memory-mapped features are never copied whole in float64
_SHOWN_QUERIES, _SHOWN_IMAGES = 10, 8  # rows and columns of the sheet of neighbours
_MOST_QUERIES = 4096  # per block, `retrieval.search`
_HALVES = 200  # half-samples of queries for the interval of micro AP


def part(settings: Settings) -> Part | None:
    """Return 'test' where train is neither searched nor learnt from, else None: both parts are used."""
    learns = settings.whiten or (settings.normalise_scores and settings.predictions > 0)
    return "test" if settings.database == "test" and not learns else None


def check(settings: Settings, train: Target) -> None:
    """Refuse impossible or ineffective settings and labels, before any feature is computed."""
    if not isinstance(train, Classes):
        raise DataError(
            f"retrieval: images of one label are found by each other, and these samples have {train.title}",
            "Name the column of instances or classes with --label-col.",
        )


def check_test(settings: Settings, test: Source) -> None:
    """Refuse settings and labels of the test part that do not go together, before any image is decoded."""
    labels = test.target
    if not isinstance(labels, Classes):
        return
    check_queries(settings, labels.queries)
    if labels.queries is not None or settings.database == "train":
        return
    sizes = class_sizes(labels.values, source_groups(test))
    if len(sizes) == 1:
        raise DataError(
            f"retrieval: all {len(test):,} test images have one label, '{labels.classes[int(labels.values[0])]}', so "
            "every ranking is right",
            "Give images of several instances or classes.",
        )
    if sizes.max(initial=0) < 2:
        raise no_positives(len(test), NO_PAIR)


def check_queries(settings: Settings, queries: Queries | None) -> None:
    """Refuse settings that contradict the queries of a retrieval set."""
    if queries is not None and settings.database == "train":
        raise UsageError(
            "retrieval: the data have queries and a database of their own, so database=train has no effect",
            "Leave it out.",
        )
    inside = queries is None or any(
        query not in queries.apart for answers in queries.tasks.values() for query in answers
    )
    if settings.augmentation and settings.database == "test" and inside:
        raise UsageError(
            "retrieval: with augmentation, images of the database would contain the query that looks for them",
            "Give the queries apart: --data database/ --test-data queries/ database=train.",
        )


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Rank the database for every query.

    `train`: the database with `database=train`; whitening and score normalisation learn from it; `seed`: of the
    half-samples for the interval of micro AP; nothing else is drawn; `device`: device of the matrix products; the
    result is the same.

    Metrics of rankings. There is no score per sample and class: `scores` is (N_test, 0).
    """
    check_finite(test, "test")  # before train, which may be the same samples
    check_features(train, test)
    check(settings, train.target)
    queries = Classes.of(test.target).queries
    check_queries(settings, queries)
    same_part = settings.database == "test"
    search = (
        by_ground_truth(test)
        if queries is not None
        else by_label(test, test if same_part else train, same_part=same_part)
    )
    index = _SearchIndex(train, test, search, settings, device)
    first = search.tasks[0]
    metrics: dict[str, Interval] = {}
    chance: dict[str, float] = {}
    evaluated = [_evaluate_task(task, test, index) for task in search.tasks]
    for found in evaluated:
        metrics |= found.metrics
        chance |= found.chance
    counts = {name: len(found.leading) for found in evaluated for name in found.metrics}
    if settings.predictions:
        metrics |= (micro := _micro_metrics(first, index, train, test, settings, seed))
        counts |= dict.fromkeys(micro, len(first.rows))
    headline = _metric_name(first, first.metric_set.headline.name)
    codes = compressions(settings, index.order)
    for compression, index.code in codes:
        other = _evaluate_task(first, test, index)
        units = _units(first, test, first.with_positives())
        losses = [paired_difference(evaluated[0].leading, other.leading, each) for each in units]
        of_code = {
            f"{headline}({compression})": other.metrics[headline],
            **_widest([{f"{COMPRESSION_LOSS.name}({compression})": loss} for loss in losses]),
        }
        metrics |= of_code
        counts |= dict.fromkeys(of_code, len(other.leading))
    return Outcome(
        metrics=metrics,
        headline=headline,
        scores=np.zeros((len(test), 0), dtype=np.float32),
        per_class=evaluated[0].per_class,
        notes=search.notes,
        chance=chance,
        neighbours=_example_rankings(first, evaluated[0].leading, index),
        counts=counts,
    )


@dataclasses.dataclass(frozen=True)
class _TaskResult:
    """Metrics of one task.

    Attributes:
        metrics: name -> mean over the queries with its interval.
        chance: name -> expected value for databases in random order.
        per_class: label of queries -> their mean leading metric.
        leading: (Q,) leading metric of each query with a positive.
    """

    metrics: dict[str, Interval]
    chance: dict[str, float]
    per_class: dict[str, float]
    leading: FloatArray


def _metric_name(task: RetrievalTask, metric: str) -> str:
    return f"{metric}({task.name})" if task.name else metric


def _evaluate_task(task: RetrievalTask, test: Features, index: "_SearchIndex") -> _TaskResult:
    """Rank the database for the queries of a task that have a positive, and average their metrics."""
    chosen, metric_set = task.with_positives(), task.metric_set
    rows = task.rows[chosen]
    ranks = index.ranks(rows, lambda i: task.answers(int(chosen[i])))
    values = np.array([metric_set.values(found) for found in ranks])
    truths = (task.answers(int(i)) for i in chosen)
    sizes = np.array([(len(t.positives), index.n_searched - len(t.ignored)) for t in truths])
    columns = dict(zip(metric_set.metrics, values.T, strict=True))
    metrics = _widest([means(columns, each) for each in _units(task, test, chosen)])
    # Queries of equal numbers of positives and of ranked images have one expectation, which is computed once.
    pairs, counts = np.unique(sizes, axis=0, return_counts=True)
    expected = (counts @ np.array([metric_set.chance(int(r), int(m)) for r, m in pairs]) / counts.sum()).tolist()
    labels = test.target.select(rows)
    leading = values[:, metric_set.metrics.index(metric_set.headline)]
    per_class = {labels.classes[n]: float(leading[own].mean()) for n, own in rows_by_number(labels.values).items()}
    return _TaskResult(
        {_metric_name(task, name): value for name, value in metrics.items()},
        {_metric_name(task, metric.name): value for metric, value in zip(metric_set.metrics, expected, strict=True)},
        per_class,
        leading,
    )


class _SearchIndex:
    """Descriptors of the database, 4 bytes per dimension and image, and of queries on demand."""

    def __init__(self, train: Features, test: Features, search: Search, settings: Settings, device: str) -> None:
        self.settings, self.device, self.search = settings, device, search
        self.test, self.test_ids = test, test.ids
        self.code: Code | None = None  # of descriptors, before they are ranked
        self.whitening = _whitening(train, settings) if settings.whiten else None
        if search.in_test is None:
            self.database, self.ids, self.order = descriptors(train, self.whitening), train.ids, train.order
        else:
            rows = np.flatnonzero(search.in_test)
            self.database, self.ids = descriptors(test, self.whitening, rows), select_texts(test.ids, rows)
            self.order = np.argsort(np.argsort(test.order)[rows])
        self.n_searched = len(self.database)
        self.engine = fastest_engine(device, 2.0 * self.n_searched * len(test) * self.database.shape[1])
        if settings.augmentation:
            # Queries are no part of this database, see `check_queries`.
            own = Scope(without_self=True)
            self.database = self._expanded(self.database, self.database, settings.augmentation, own)

    def queries(self, rows: IntArray) -> Matrix:
        """Return the descriptors of test rows as queries, (Q, D), with query expansion if it is set."""
        number, in_test, groups = self.settings.query_expansion, self.search.in_test, self.search.groups
        # An augmented database no longer has the descriptors that queries begin with.
        whole = in_test is not None and in_test.all() and not self.settings.augmentation
        if not number:
            return self.database if whole and len(rows) == len(self.test) else self._of_test(rows)
        if groups is None or in_test is None:
            return self._expanded(self._of_test(rows), self.database, number, Scope())
        # The queries are images of the database: none of the own group is added.
        test = self.database if whole else self._of_test(np.arange(len(self.test)))
        left_out = None if whole else ~in_test
        return self._expanded(test, test, number, Scope(rows, left_out, apart=groups))

    def _of_test(self, rows: IntArray) -> Matrix:
        return descriptors(self.test, self.whitening, rows)

    def ranks(self, rows: IntArray, truth: Callable[[int], GroundTruth]) -> list[IntArray]:
        """Return the ranks of the positives of the queries at `rows`."""
        queries, database, memory = self.queries(rows), self.database, self.settings.max_memory
        if self.code is not None:
            database, queries = (unit_length(x).astype(np.float32) for x in self.code(database, queries))
        return list(positive_ranks(queries, database, truth, max_memory=memory, device=self.device))

    def _expanded(self, queries: Matrix, database: Matrix, number: int, scope: Scope) -> Matrix:
        found = expand_queries(
            queries,
            database,
            n_neighbours=number,
            alpha=self.settings.alpha,
            max_memory=self.settings.max_memory,
            scope=scope,
            engine=self.engine,
        )
        return found.astype(np.float32)


def _units(task: RetrievalTask, test: Features, chosen: IntArray) -> list[Units]:
    """Return the units that intervals resample of some queries: of a label or landmark, and of a group."""
    each = [task.together] if test.groups is None else [task.together, test.groups[task.rows]]
    return [Units.of(len(chosen), numbers[chosen]) for numbers in each]


def _micro_metrics(
    task: RetrievalTask, index: _SearchIndex, train: Features, test: Features, settings: Settings, seed: int
) -> dict[str, Interval]:
    """Return the metrics of all predicted pairs in one list, with their intervals."""
    queries, database = index.queries(task.rows), index.database
    if settings.normalise_scores:
        background = descriptors(train, index.whitening)
        queries, database = subtract_background(queries, database, background)
    truths = [task.answers(i) for i in range(len(task.rows))]
    found = _nearest_images(queries, database, truths, settings.predictions, index)
    correct = [np.isin(places, truth.positives) for (_, places), truth in zip(found, truths, strict=True)]
    of_query = [np.full(len(places), i) for i, (_, places) in enumerate(found)]
    pairs = np.array([len(truth.positives) for truth in truths], dtype=np.float64)
    scores = np.concatenate([scores for scores, _ in found])
    predicted = scores, np.concatenate(correct), np.concatenate(of_query), pairs
    measure = Measure(COPIES, lambda weights: micro_values(weights, *predicted))
    units = _units(task, test, np.arange(len(truths)))
    return _widest([with_intervals(measure, each, seed, _HALVES) for each in units])


def _nearest_images(
    queries: Matrix, database: Matrix, truths: Sequence[GroundTruth], number: int, index: _SearchIndex
) -> list[tuple[FloatArray, IntArray]]:
    """Return scores and database rows of the nearest images of each query, without its ignored images."""
    most = max(len(truth.ignored) for truth in truths)
    # The nearest of a query may all be images that it ignores.
    k = min(number + most, len(database))
    memory, engine = index.settings.max_memory, index.engine
    scores, places = nearest(database, queries, k, metric="dot", max_memory=memory, engine=engine)
    kept = [np.flatnonzero(~np.isin(row, t.ignored))[:number] for row, t in zip(places, truths, strict=True)]
    return [(scores[i, own], places[i, own]) for i, own in enumerate(kept)]


def _example_rankings(task: RetrievalTask, per_query: FloatArray, index: _SearchIndex) -> tuple[Neighbours, ...]:
    """Return the nearest images of a few queries, from the worst average precision to the best.

    `per_query`: (Q,) average precision of the queries with a positive.
    """
    chosen = task.with_positives()
    spread = np.unique(np.linspace(0, len(chosen) - 1, _SHOWN_QUERIES).round().astype(int))
    some = chosen[np.argsort(per_query, kind="stable")[spread]]
    truths = [task.answers(int(i)) for i in some]
    found = _nearest_images(index.queries(task.rows[some]), index.database, truths, _SHOWN_IMAGES, index)
    shown = []
    for i, truth, (_, places) in zip(some, truths, found, strict=True):
        right = np.isin(places, truth.positives).tolist()
        images = tuple(index.ids[place] for place in places)
        query, answers = index.test_ids[task.rows[i]], tuple(zip(images, right, strict=True))
        shown.append(Neighbours(query, answers, index.settings.database))
    return tuple(shown)


def descriptors(features: Features, whitening: Whitening | None = None, rows: IntArray | None = None) -> Matrix:
    """Return descriptors of unit length, (N, K) float32, of features (N, D): L2, and whitening and L2 again if given.

    Features by regions (N, R * C) become one descriptor per image, see `aggregate_regions`.

    Args:
        features: read in blocks, so that they may be larger than the memory.
        whitening: applied to vectors of unit length; None: not whitened.
        rows: rows to describe, in this order; None: all.
    """
    x, regions = features.x, features.regions
    rows = np.arange(len(x)) if rows is None else rows
    width = x.shape[1] // regions if whitening is None else len(whitening.axes)
    found = np.empty((len(rows), width), np.float32)
    step = max(1, _ROWS // regions)
    for start in range(0, len(rows), step):
        block = x[rows[start : start + step]].astype(np.float64)
        if regions > 1:
            found[start : start + step] = aggregate_regions(block.reshape(len(block), regions, -1), whitening)
            continue
        units = unit_length(block)
        found[start : start + step] = units if whitening is None else unit_length(whitening.apply(units))
    return found


def _whitening(train: Features, settings: Settings) -> Whitening:
    """Learn the whitening on the descriptors of train, or on those of all its regions."""
    if train.regions > 1:
        # Each of unit length, (M, C) float32; padding is left out.
        parts = []
        for start in range(0, len(train), 256):
            block = train.x[start : start + 256].astype(np.float32)
            rows = block.reshape(-1, block.shape[1] // train.regions)
            parts.append(unit_length(rows[rows.any(axis=1)]))
        x = np.concatenate(parts)
        n, what = len(x), f"{len(x):,} regions of {len(train):,} training images"
    else:
        x, n = descriptors(train), len(train)
        what = f"{n:,} training images"
    most = min(n - 1, x.shape[1])
    if settings.components > most:
        raise UsageError(
            f"retrieval: {what} of {x.shape[1]} features have {max(most, 0)} components to whiten, "
            f"not {settings.components}"
        )
    # Of fewer images than dimensions, further directions have no variance: whitening would blow up rounding errors.
    try:
        return fit_whitening(x, settings.components or max(most, 1), covariance=settings.covariance)
    except ValueError as error:
        raise DataError(
            f"retrieval: {what} do not suffice to learn whitening: {error}", "Give more images as --data."
        ) from error


def _widest(found: Sequence[dict[str, Interval]]) -> dict[str, Interval]:
    """Return values with the hull of their intervals over units of several kinds."""
    return {
        name: (value, min(each[name][1] for each in found), max(each[name][2] for each in found))
        for name, (value, _, _) in found[0].items()
    }


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the similarities of every query with the database, once per ranking and expansion, and the whitening."""
    database = float(shapes.train if settings.database == "train" else shapes.test)
    queries, width = float(shapes.test), shapes.width // shapes.regions
    kept = (settings.components or width) if settings.whiten else width
    vectors = (shapes.train + database + queries) * shapes.regions if settings.whiten else 0.0
    compared = database * (2 * queries + (queries if settings.query_expansion else 0))
    compared += database**2 if settings.augmentation else 0
    block = min(8 * queries * database, settings.max_memory * 1e9) + 8 * min(queries, _MOST_QUERIES) * _MOST_QUERIES
    return Cost(
        products=2 * compared * kept + 4 * vectors * width * max(width, kept),
        passes=600 * queries * database,  # rounding, and the ranks of all images for every query
        memory=block + 4.0 * kept * (database + queries),
        products_on_device=True,
    )


PROTOCOL = Protocol(
    version=2,
    summary="Image retrieval by frozen features: leave one out, queries apart, or published ground truth.",
    settings=Settings,
    kind=OnFeatures(
        check, run, cost=cost, takes=(Classes,), part=part, own_classes=True, own_metric=True, check_test=check_test
    ),
)
