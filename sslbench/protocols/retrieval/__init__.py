"""Image retrieval on frozen features: each query ranks a database; images of the query's label are its positives.

Labels are instances (products, landmarks, originals of copies) or classes. By default every test image queries all
other test images (leave one out); with `database=train` it queries the train part. Images of the query's own group
(`Features.groups`, for instance crops of one picture) are taken out of its ranking. Images without a positive are no
queries, but stay in the database. Train and test may have different classes.

Similarity is the cosine of descriptors; optional steps are PCA-whitening learnt on train (Jegou and Chum 2012),
database augmentation (Arandjelovic and Zisserman 2012) and alpha-weighted query expansion (Radenovic et al. 2018).

Metrics are means over the queries, with the interval of a mean over independent queries or groups of them: recall@k,
R-precision, average precision by steps, and MAP@R. Chance is the exact expectation for databases in random order.
"""

import numpy as np

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.data.source import Labels
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.labels import LABELS
from sslbench.metrics.intervals import Interval, Units, ends, mean_errors
from sslbench.metrics.retrieval import RANKING, RETRIEVAL_MAP, GroundTruth, random_order_values, ranking_values
from sslbench.protocols._parts.selection import check_features
from sslbench.protocols.protocol import OnFeatures, Part, Protocol
from sslbench.protocols.retrieval.descriptors import expand_queries, unit_length
from sslbench.protocols.retrieval.search import positive_ranks
from sslbench.protocols.retrieval.settings import Settings
from sslbench.results import Outcome
from sslbench.solvers.neighbours import Engine, Scope
from sslbench.solvers.whitening import Whitening, fit_whitening

_ROWS = 8192  # rows prepared together, so that memory-mapped features are never copied whole in float64


def part(settings: Settings) -> Part | None:
    """Return 'test' where train is neither searched nor learnt from, else None: both parts are used."""
    return "test" if settings.database == "test" and not settings.whiten else None


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings that cannot work, before any feature is computed.

    Raises:
        UsageError: settings that are not possible, or have no effect.
        DataError: labels that are not one per sample.
    """
    if train.kind != "single":
        raise DataError(
            f"retrieval: images of one label are found by each other, and these samples have {LABELS[train.kind].text}",
            "Name the column of instances or classes with --label-col.",
        )
    for name in ("components", "query_expansion", "augmentation", "alpha"):
        if not getattr(settings, name) >= 0:
            raise UsageError(f"retrieval: {name} should not be negative, but is {getattr(settings, name)}")
    if not settings.max_memory > 0:
        raise UsageError(f"retrieval: max_memory should be greater than 0, not {settings.max_memory}")
    if settings.components and not settings.whiten:
        raise UsageError("retrieval: components has no effect without whitening", "Add whiten=true.")
    if settings.augmentation and settings.database == "test":
        raise UsageError(
            "retrieval: with augmentation, images of the database would contain the query that looks for them",
            "Give the queries apart: --data database/ --test-data queries/ database=train.",
        )


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Rank the database for every query.

    Args:
        train: the database with `database=train`; whitening is learnt on it.
        test: queries, and by default the database.
        settings: see `Settings`.
        seed: ignored; nothing is drawn.
        device: device of the matrix products; the result is the same.

    Returns:
        Metrics of rankings. There is no score per sample and class: `scores` is (N_test, 0).

    Raises:
        DataError: features that are not finite, labels that are not one per sample, or no query with a positive.
        UsageError: settings that are not possible.
    """
    check_features(train, test)
    check(settings, train.labels)
    database = test if settings.database == "test" else train
    answers = _Answers(test, database, alone=settings.database == "train")
    rows, notes = answers.queries()
    ranks = _search(train, test, rows, answers, settings, device)
    values = np.array([ranking_values(found) for found in ranks])
    sizes = np.array([answers.sizes(row) for row in rows])
    return Outcome(
        metrics=_means(values, None if test.groups is None else test.groups[rows]),
        headline=RETRIEVAL_MAP.name,
        scores=np.zeros((len(test), 0), dtype=np.float32),
        per_class=_per_class(values[:, RANKING.index(RETRIEVAL_MAP)], test.labels.select(rows)),
        notes=tuple(notes),
        chance=dict(zip((metric.name for metric in RANKING), _chance(sizes).tolist(), strict=True)),
    )


class _Answers:
    """Positives and ignored images of every test image.

    Args:
        test: images that may be queries.
        database: images that are ranked.
        alone: the database is another part, so that no image is a query and in the database.
    """

    def __init__(self, test: Features, database: Features, *, alone: bool) -> None:
        self.labels, self.database_labels = test.labels.values, database.labels.values
        # Without groups, an image is its own group: it does not find itself.
        self.groups = None if alone else np.arange(len(test)) if test.groups is None else test.groups
        self.rows_of_label = _rows_by_number(self.database_labels)
        self.rows_of_group = {} if self.groups is None else _rows_by_number(self.groups)

    def of(self, row: int) -> GroundTruth:
        """Return the answers to a test image as a query."""
        same = self.rows_of_label.get(int(self.labels[row]), np.zeros(0, np.int64))
        if self.groups is None:
            return GroundTruth(same)
        own = self.rows_of_group[int(self.groups[row])]
        return GroundTruth(np.setdiff1d(same, own, assume_unique=True), own)

    def sizes(self, row: int) -> tuple[int, int]:
        """Return the numbers of positives and of ranked images of a query."""
        truth = self.of(row)
        return len(truth.positives), len(self.database_labels) - len(truth.ignored)

    def queries(self) -> tuple[IntArray, list[str]]:
        """Return the rows that have a positive, and a note on the others.

        Raises:
            DataError: there are none.
        """
        found = np.array([len(self.of(row).positives) > 0 for row in range(len(self.labels))])
        without = len(found) - int(found.sum())
        if without == len(found):
            raise DataError(
                f"retrieval: none of the {len(found)} test images has another image of its label to find",
                "Give data with several images of an instance or class; images of one group do not find each other.",
            )
        note = f"{without:,} of {len(found):,} test images have no positive: they are searched, but are no queries."
        return np.flatnonzero(found), [note] if without else []


def _rows_by_number(numbers: IntArray) -> dict[int, IntArray]:
    order = np.argsort(numbers, kind="stable")
    names, starts = np.unique(numbers[order], return_index=True)
    return dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True))


def _search(
    train: Features, test: Features, rows: IntArray, answers: _Answers, settings: Settings, device: str
) -> list[IntArray]:
    """Return the ranks of the positives of the queries `rows`."""
    engine = Engine("faiss") if device == "cpu" else Engine("torch", device)
    whitening = None
    if settings.whiten:
        whitening = _whitening(descriptors(train.x), settings)
    queries = descriptors(test.x, whitening)
    database, scope = queries, Scope(apart=answers.groups)
    if settings.database == "train":
        database, scope = descriptors(train.x, whitening), Scope()
    memory = settings.max_memory
    if settings.augmentation:
        database = expand_queries(
            database,
            database,
            n_neighbours=settings.augmentation,
            alpha=settings.alpha,
            max_memory=memory,
            scope=Scope(without_self=True),
            engine=engine,
        ).astype(np.float32)
    if settings.query_expansion:
        queries = expand_queries(
            queries,
            database,
            n_neighbours=settings.query_expansion,
            alpha=settings.alpha,
            max_memory=memory,
            scope=scope,
            engine=engine,
        ).astype(np.float32)
    return list(
        positive_ranks(queries[rows], database, lambda i: answers.of(rows[i]), max_memory=memory, device=device)
    )


def descriptors(x: Matrix, whitening: Whitening | None = None) -> Matrix:
    """Return descriptors of unit length, (N, K) float32, of features (N, D): L2, and whitening and L2 again if given.

    >>> descriptors(np.array([[3.0, 4.0], [0.0, 0.0]])).round(1).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    width = x.shape[1] if whitening is None else len(whitening.axes)
    found = np.empty((len(x), width), np.float32)
    for start in range(0, len(x), _ROWS):
        rows = unit_length(x[start : start + _ROWS].astype(np.float64))
        found[start : start + _ROWS] = rows if whitening is None else unit_length(whitening.apply(rows))
    return found


def _whitening(x: Matrix, settings: Settings) -> Whitening:
    most = min(len(x) - 1, x.shape[1])
    if settings.components > most:
        raise UsageError(
            f"retrieval: {len(x)} training images of {x.shape[1]} features have {max(most, 0)} components to whiten, "
            f"not {settings.components}"
        )
    # Of fewer images than dimensions, further directions have no variance: whitening would blow up rounding errors.
    return fit_whitening(x, settings.components or max(most, 1))


def _means(values: FloatArray, groups: IntArray | None) -> dict[str, Interval]:
    """Return the means over the queries of the metrics `RANKING` (Q, 6), with intervals."""
    units = Units.of(len(values), groups)
    errors = mean_errors(values, units)
    found = {}
    for metric, mean, error in zip(RANKING, values.mean(axis=0).tolist(), errors.tolist(), strict=True):
        found[metric.name] = (mean, *ends(mean, error, size=units.number, bounds=metric.bounds))
    return found


def _chance(sizes: IntArray) -> FloatArray:
    """Return the expected means of `RANKING` for databases in random order.

    Args:
        sizes: (Q, 2) numbers of positives and of ranked images of the queries.
    """
    pairs, counts = np.unique(sizes, axis=0, return_counts=True)
    expected = np.array([random_order_values(int(r), int(m)) for r, m in pairs])
    return np.asarray(counts @ expected / counts.sum())


def _per_class(values: FloatArray, labels: Labels) -> dict[str, float]:
    """Return the mean average precision of the queries of each class that has any."""
    rows = _rows_by_number(labels.values)
    return {labels.classes[number]: float(values[own].mean()) for number, own in rows.items()}


PROTOCOL = Protocol(
    version=1,
    summary="Image retrieval by frozen features: instances or classes, leave one out or queries apart.",
    settings=Settings,
    kind=OnFeatures(check, run, label_kinds=frozenset({"single"}), part=part, own_classes=True),
)
