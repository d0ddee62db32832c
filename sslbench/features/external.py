"""Features computed by other programs, in files or in memory, with the label of each row."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.members import split_name
from sslbench.data.groups import group_numbers
from sslbench.data.labels import (
    FLAGS,
    NONE_OF_THE_CLASSES,
    among_classes,
    decimals_note,
    labels_of,
    single_labels,
    times_of,
)
from sslbench.data.source import ranked
from sslbench.data.stratify import holdout
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.features.external_files import (
    DESCRIPTIVE,
    LABEL_KEYS,
    Columns,
    features_are_columns,
    is_table,
    read_features,
    read_label_array,
    read_table,
)
from sslbench.names import did_you_mean
from sslbench.results import KnownBy, canonical
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import OfClasses, Target
from sslbench.targets.times import Times

log = logging.getLogger("sslbench")
_ROWS = 4096
"""Rows of features in memory at a time."""


@dataclasses.dataclass(frozen=True)
class FeaturePair:
    """Train and test features with matching classes.

    Features of two networks on the same samples have equal `fingerprints` and another `features_sha256`.

    Attributes:
        how: origin of the two parts, in words.
        known_by: content of `fingerprints`: 'ids', classes and groups of the samples by their ids; 'rows', the same by
            their rows, as there are no ids; 'features', as there are no labels either.
        whole: all rows, if the parts are a seeded split of them.
    """

    train: Features
    test: Features
    how: str
    name: str
    data: str
    known_by: KnownBy
    whole: Features | None = None

    @functools.cached_property
    def features_sha256(self) -> str:
        """Digest of all features, 64 hex digits; all of them are read."""
        if self.whole is not None or self.train is self.test:
            return _sha256(self.whole or self.train)
        return _sha256(self.train, self.test)

    @functools.cached_property
    def fingerprints(self) -> tuple[str, str]:
        """Identity of the samples of train and of test, 32 hex digits each."""
        if self.train is self.test:
            return (_fingerprint(self.train),) * 2
        return _fingerprint(self.train), _fingerprint(self.test)


def read_unlabelled(features: Path) -> FeaturePair:
    """Read one file of features without labels; both parts are all of its rows."""
    return _unlabelled(read_features(features), features.name, features.name)


def read_train_test(  # noqa: PLR0913  two pairs of files and their columns
    features: Path,
    labels: Path,
    test_features: Path | None,
    test_labels: Path | None,
    *,
    label_column: str | None,
    test_fraction: float,
    seed: int,
    value_columns: Sequence[str] = (),
    attribute_columns: Sequence[str] = (),
    own_classes: bool = False,
) -> FeaturePair:
    """Read features and labels: one pair of files, which is split, or one pair for each part.

    features: .npy (N, D); .npz, .h5 or .pt with one such array or one named 'features', 'embeddings' or 'x'; a table of
        numbers, with or without a header.
    labels: an array (N,) of classes, or (N, C) of 0 and 1, in .npy, .npz, .h5 or .pt; or a table (.csv, .tsv, .txt,
        .parquet) with one line per row: the label column ('cat;dog' has several), the only column, or columns of 0 and
        1, and optionally 'id' and 'split' ('train' and 'test', otherwise 'val'). A suffix '?group=COLUMN' names the
        column of groups (see `Features.groups`); each empty cell is a group of its own.
    label_column: name of the label column; None: one of `LABEL_KEYS`.
    value_columns: columns of regression targets, in place of a label column.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     x, y = Path(folder) / "x.npy", Path(folder) / "y.csv"
    ...     np.save(x, np.ones((4, 2), dtype=np.float32))
    ...     rows = ["label,split", "cat,train", "dog,train", "cat,test", "dog,test"]
    ...     _ = y.write_text(chr(10).join(rows))
    ...     pair = read_train_test(x, y, None, None, label_column=None, test_fraction=0.5, seed=0)
    >>> pair.train.x.shape, pair.test.target.classes, pair.how
    ((2, 2), ('cat', 'dog'), 'the split column of the labels')
    """
    columns = [*([label_column] if label_column else []), *value_columns, *attribute_columns]
    x = _read_features(features, labels, columns)
    table = _read_labels(labels, label_column, value_columns, len(x), features, attribute_columns)
    if (test_features is None) != (test_labels is None):
        raise UsageError("--test-features and --test-labels belong together")
    test = None
    description = ""
    if test_features is not None and test_labels is not None:
        test_x = _read_features(test_features, test_labels, columns)
        test = (
            test_x,
            _read_labels(test_labels, label_column, value_columns, len(test_x), test_features, attribute_columns),
        )
        if test_x.shape[1] != x.shape[1]:
            raise DataError(f"{features} has {x.shape[1]} features per row, {test_features} has {test_x.shape[1]}")
        description = f"{features.name} against {test_features.name}"
    names = features.name, _without_options(labels)[0].name
    return _paired(names, (x, table), test, description, test_fraction, seed, own_classes=own_classes)


def are_features(data: object) -> bool:
    """Return whether data in memory are (features, labels), with features (N, D)."""
    return isinstance(data, tuple) and len(data) == 2 and hasattr(data[0], "ndim") and data[0].ndim == 2


def read_in_memory(
    train: tuple[Any, Any],
    test: tuple[Any, Any] | None,
    *,
    name: str,
    test_fraction: float,
    seed: int,
    own_classes: bool = False,
) -> FeaturePair:
    """Return features and labels in memory, as `read_train_test` returns those of files.

    train: features (N, D), an array or tensor of floats, and labels as for `labels_of`.
    test: the same of the test part; None: split off.

    >>> pair = read_in_memory((np.eye(4), [0, 1, 0, 1]), None, name="x", test_fraction=0.5, seed=0)
    >>> len(pair.train), pair.test.target.classes
    (2, ('0', '1'))
    """
    names = name, "labels in memory"
    if train[1] is None and test is None:
        return _unlabelled(_as_features(train[0], name), name, "features in memory")
    fitted = _in_memory(train, name)
    if test is None:
        return _paired(names, fitted, None, "", test_fraction, seed, own_classes=own_classes)
    if not are_features(test):
        raise UsageError(f"{name}: train holds features and test does not", "Pass (features, labels) as both.")
    scored = _in_memory(test, f"{name} (test)")
    if fitted[0].shape[1] != scored[0].shape[1]:
        raise DataError(f"{name}: {fitted[0].shape[1]} features per row in train, {scored[0].shape[1]} in test")
    how = "train against test, as given"
    return _paired(names, fitted, scored, how, test_fraction, seed, own_classes=own_classes)


def _unlabelled(x: npt.NDArray[np.floating], name: str, data: str) -> FeaturePair:
    whole = Features(x, Unlabelled(len(x)), _row_ids(len(x)))
    return FeaturePair(whole, whole, f"all of {data}", name, data, "features")


def _row_ids(n: int) -> tuple[str, ...]:
    # Of equal length, since ids are sorted as text.
    return tuple(f"{i:09d}" for i in range(n))


def _in_memory(given: tuple[Any, Any], name: str) -> tuple[npt.NDArray[np.floating], "_Table"]:
    x = _as_features(given[0], name)
    labels = labels_of(given[1], len(x), name=name)
    return x, _without_columns(labels)


def _as_features(given: Any, name: str) -> npt.NDArray[np.floating]:
    if hasattr(given, "detach"):  # a tensor, of bfloat16 too
        given = given.detach().cpu().float().numpy()
    if np.ma.is_masked(given):
        raise UsageError(
            f"{name}: features are masked in {int(np.ma.getmaskarray(given).sum()):,} places", "Fill or remove them."
        )
    x = np.asarray(given)
    if x.ndim != 2 or not x.size or not np.issubdtype(x.dtype, np.number) or np.iscomplexobj(x):
        raise UsageError(f"{name}: features should be an array of numbers (N, D), not {x.dtype} {x.shape}")
    return x if x.dtype in (np.float16, np.float32) else x.astype(np.float32)


def _paired(
    names: tuple[str, str],
    fitted: tuple[npt.NDArray[np.floating], "_Table"],
    scored: tuple[npt.NDArray[np.floating], "_Table"] | None,
    description: str,
    test_fraction: float,
    seed: int,
    *,
    own_classes: bool,
) -> FeaturePair:
    """Return two parts with matching classes; without a test part, the train part is split."""
    x, table = fitted
    if scored is not None:
        test_x, test_table = scored
        parts = [(x, table, np.arange(len(x))), (test_x, test_table, np.arange(len(test_x)))]
    else:
        test_table = table
        fit, held_out, description = _split(table, test_fraction, seed)
        parts = [(x, table, fit), (x, table, held_out)]
    matched = _matched(table.labels, test_table.labels, own_classes=own_classes)
    train, test = (_features(*part, labels) for part, labels in zip(parts, matched, strict=True))
    if isinstance(train.target, Classes) and not own_classes:
        learned = {train.target.classes[i] for i in np.unique(train.target.values)}
        _refuse_unknown({test.target.classes[i] for i in np.unique(test.target.values)}, learned)
    if scored is not None and not own_classes and _equal(x, scored[0]):
        raise DataError(
            f"{description}: the rows of test are those of train ({len(x):,}): scores would measure memorisation",
            "Give other rows as test, or no test: then a part of train is split off.",
        )
    split = scored is None and not _parts(table)
    whole = _features(x, table, np.arange(len(x)), matched[0]) if split else None
    return FeaturePair(train, test, description, *names, table.known_by, whole)


def _equal(x: npt.NDArray[np.floating], other: npt.NDArray[np.floating]) -> bool:
    """Return whether two arrays have the same rows in the same order; of large ones that differ, few rows are read."""
    steps = [1, *range(_ROWS, len(x) + _ROWS, _ROWS)]
    return x.shape == other.shape and all(
        np.array_equal(x[a:b], other[a:b]) for a, b in itertools.pairwise((0, *steps))
    )


@dataclasses.dataclass(frozen=True)
class _Table:
    """Labels of a file with its other columns; without ids, `id` has the numbers of the rows."""

    labels: Target
    id: Sequence[str]
    split: Sequence[str]
    attributes: dict[str, list[str]]
    groups: npt.NDArray[np.int64] | None
    grouped_by: str
    known_by: KnownBy


def _without_columns(labels: Target) -> _Table:
    return _Table(labels, _row_ids(len(labels)), [""] * len(labels), {}, None, "", "rows")


def _read_features(features: Path, labels: Path, columns: Sequence[str]) -> npt.NDArray[np.floating]:
    """Return features; columns that are read as labels or groups from the same table are no features."""
    path, grouped_by, times = _without_options(labels)
    return read_features(features, (*columns, grouped_by, *times) if features_are_columns(path, features) else ())


def _read_labels(
    given: Path, column: str | None, numbers: Sequence[str], rows: int, features: Path, further: Sequence[str]
) -> _Table:
    path, grouped_by, times = _without_options(given)
    if not is_table(path):
        if asked := [name for name in (column, *numbers, *further, grouped_by, *times) if name]:
            raise UsageError(f"{path} has no column '{asked[0]}': it holds an array", "Give the labels as a table.")
        array = read_label_array(path)
        if len(array) != rows:
            raise DataError(f"{path} has {len(array)} labels, {features} has {rows} rows")
        return _without_columns(labels_of(array, rows, name=str(path)))
    if numbers and column:
        raise UsageError("--label-col names classes and --value-col numbers: give only one")
    if times and (numbers or column):
        flag = "--label-col" if column else "--value-col"
        raise UsageError(f"{path}: {flag} has no effect beside ?time={times[0]}", "Give only one.")
    columns = read_table(path, rows)
    n = len(next(iter(columns.values()), ()))
    if n != rows and columns:
        remedy = "If its first line is a label, put a line above it: label." if n == rows - 1 else None
        raise DataError(f"{path} has {n:,} rows below its header, {features} has {rows:,}", remedy)
    named = ["" if cell is None else str(cell) for cell in columns.get("id", [""] * n)]
    ids = [cell or row for cell, row in zip(named, _row_ids(n), strict=True)]
    splits = [str(cell or "") for cell in columns.get("split", [""] * n)]
    if len(set(zip(splits, ids, strict=True))) != len(ids):  # class folders below train/ and test/ share names
        raise DataError(f"{path}: the column 'id' has the same value twice")
    attributes = {name: _column(path, name, columns) for name in further}
    groups = group_numbers(_column(path, grouped_by, columns)) if grouped_by else None
    shared = features_are_columns(path, features)
    labels: Target
    if times:
        flags = [FLAGS.get(str(cell).lower(), cell) for cell in columns.get(times[1], ())]
        numbered = {**columns, **({times[1]: flags} if flags else {})}
        lines = [f"line {row + 2}" for row in range(n)]
        labels = times_of(_numbers(path, times, numbered), times[0], times[1], lines, str(path))
    else:
        labels = _labels(path, columns, column, numbers, leave_out={*further, grouped_by, *("yY" if shared else "")})
    if shared and isinstance(labels, MultiLabel) and set(labels.classes) <= set(columns):
        raise UsageError(
            f"{path} holds the features, too, and has no column 'label': its columns of 0 and 1 could be either",
            "Name the column by --label-col, or give the labels in a file of their own.",
        )
    return _Table(labels, ids, splits, attributes, groups, grouped_by, "ids" if all(named) else "rows")


def _labels(path: Path, columns: Columns, column: str | None, numbers: Sequence[str], leave_out: set[str]) -> Target:
    """Return the labels in a column, those in columns of 0 and 1, or the numbers to predict."""
    n = len(next(iter(columns.values()), ()))
    others = [name for name in columns if name not in leave_out and name.lower() not in DESCRIPTIVE]
    if numbers:
        return Numbers(tuple(numbers), _numbers(path, numbers, columns))
    usual = [name for key in LABEL_KEYS for name in columns if name.lower() == key and name not in leave_out]
    found = column or next(iter(usual), None)
    if found is None and len(others) == 1 and others[0].isdigit():
        found = others[0]  # the only column, without a name
    if found is None:
        flags = {name: [FLAGS.get(str(cell).lower()) for cell in columns[name]] for name in others}
        if present := {name: cells for name, cells in flags.items() if None not in cells}:
            left = [name for name in others if name not in present]
            log.info(
                f"{path}: {counted(len(present), 'column')} of 0 and 1 as labels, {some(list(present))}"
                + (f"; not taken: {some(left)}" if left else "")
            )
            return MultiLabel(tuple(present), np.array(list(present.values()), dtype=np.int8).T)
    if found is None or found not in columns:
        wanted = column or "label"
        raise UsageError(
            f"{path} has no column '{wanted}'; its columns: {some(list(columns), 12)}",
            f"{did_you_mean(wanted, columns)} --label-col names the column of the labels.".strip(),
        )
    empty = [i for i, label in enumerate(columns[found]) if label is None or label == ""]
    if empty:
        raise DataError(f"{path}: {len(empty)} rows have no label, first line {empty[0] + 2}", NONE_OF_THE_CLASSES)
    target = labels_of(list(columns[found]), n, name=str(path))
    for line in decimals_note(str(path), found, target.classes) if isinstance(target, Classes) else ():
        log.warning(line)
    return target


def _without_options(path: Path) -> tuple[Path, str, tuple[str, ...]]:
    """Split '?group=COLUMN' and '?time=COLUMN&event=COLUMN' off the path.

    Returns the file, the column of groups ('' without one), and those of times and events, or ().
    """
    name, mark, text = path.name.partition("?")
    if path.is_file() or not mark:
        return path, "", ()
    options = dict(option.partition("=")[::2] for option in text.split("&"))
    times = tuple(options[key] for key in ("time", "event") if options.get(key))
    if not set(options) <= {"group", "time", "event"} or not all(options.values()) or len(times) == 1:
        raise UsageError(
            f"--labels {path}: '?{text}' is not an option of a table of labels",
            "The options are ?group=COLUMN and ?time=COLUMN&event=COLUMN.",
        )
    return path.with_name(name), options.get("group", ""), times


def _column(path: Path, name: str, columns: Columns) -> list[str]:
    if name not in columns:
        raise UsageError(
            f"{path} has no column '{name}'; its columns: {', '.join(columns)}",
            f"{did_you_mean(name, columns)} sslbench extract --groups {name} writes it into index.csv.".strip(),
        )
    return ["" if cell is None else str(cell) for cell in columns[name]]


def _numbers(path: Path, names: Sequence[str], columns: Columns) -> npt.NDArray[np.float64]:
    """Return the columns as numbers, (N, C)."""
    for name in names:
        if name not in columns:
            text = f"{path} has no column '{name}'; its columns: {', '.join(columns)}"
            raise UsageError(text, did_you_mean(name, columns))
    values = np.full((len(columns[names[0]]), len(names)), np.nan)
    for c, name in enumerate(names):
        for row, cell in enumerate(columns[name]):
            with contextlib.suppress(TypeError, ValueError):
                values[row, c] = float(cell)
            if not np.isfinite(values[row, c]):
                raise DataError(f"{path}: the column '{name}' has no number in line {row + 2} ({cell!r})")
    return values


def _matched(train: Target, test: Target, *, own_classes: bool = False) -> tuple[Target, Target]:
    """Return the labels of both tables over the classes of train; a class that a test table does not list is ignored.

    Where one table has several labels per row, so has the other. With `own_classes` and one label per row, test may
    have classes that train lacks: the classes are those of both.
    """
    numbers = train.of_numbers or test.of_numbers
    if numbers and (type(train) is not type(test) or len(train.classes) != len(test.classes)):
        kinds = (
            part.title
            if isinstance(part, Times)
            else f"{len(part.classes)} {'numbers' if part.of_numbers else 'classes'}"
            for part in (train, test)
        )
        raise DataError(f"the labels of train and test differ in kind: {' and '.join(kinds)}")
    if numbers:
        return train, test
    several = isinstance(train, MultiLabel) or isinstance(test, MultiLabel)
    fitted, scored = (
        MultiLabel(labels.classes, OfClasses.of(labels).flags()) if several else labels for labels in (train, test)
    )
    if own_classes and not several and set(scored.classes) - set(fitted.classes):
        names = [labels.classes[i] for labels in (train, test) for i in labels.values]
        both = single_labels(names)
        rows = np.arange(len(both.values))
        return both.select(rows[: len(train)]), both.select(rows[len(train) :])
    _refuse_unknown(set(scored.classes), set(fitted.classes))
    number = {name: i for i, name in enumerate(fitted.classes)}
    columns = np.array([number[name] for name in scored.classes], dtype=np.int64)
    if several:
        return fitted, MultiLabel(fitted.classes, among_classes(scored.values, columns, len(number)))
    return fitted, Classes(fitted.classes, columns[scored.values])


def _refuse_unknown(test: set[str], train: set[str]) -> None:
    """Refuse classes of test that train lacks."""
    if unknown := test - train:
        raise DataError(
            f"the test part has labels that the train part lacks: {', '.join(sorted(unknown)[:5])}",
            did_you_mean(min(unknown), train),
        )


def _parts(table: _Table) -> dict[str, npt.NDArray[np.int64]]:
    """Return the rows of each part that the column 'split' names; none where it names fewer than two."""
    names = np.array([split_name(cell) or cell for cell in table.split])
    parts = {str(name): np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
    return parts if len(parts) > 1 else {}


def _split(table: _Table, fraction: float, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], str]:
    if parts := _parts(table):
        scored = next((name for name in ("test", "val") if name in parts), None)
        if scored is None or "train" not in parts:
            listed = ", ".join(name or "(empty)" for name in parts)
            raise DataError(f"the column 'split' of the labels names the parts {listed}", "It needs train and test.")
        unused = [f"{name or '(empty)'} ({len(rows):,} rows)" for name, rows in parts.items()]
        unused = [text for text, name in zip(unused, parts, strict=True) if name not in ("train", scored)]
        description = "the split column of the labels" + (" (val is scored)" if scored == "val" else "")
        description = "; not used: ".join([description, *([", ".join(unused)] if unused else [])])
        return parts["train"], parts[scored], description
    order = np.argsort(np.array(table.id), kind="stable")  # embeddings of the same samples in another order: same parts
    groups = None if table.groups is None else table.groups[order]
    rank = ranked([table.id[i] for i in order], table.labels)
    fit, held_out = holdout(table.labels.select(order), fraction, seed, groups=groups, rank=rank)
    fit, held_out = order[fit], order[held_out]
    if table.groups is not None and not (len(fit) and len(held_out)):
        raise DataError(
            f"the {len(table.labels)} rows cannot be split without separating a {table.grouped_by}",
            "Every class of test needs two groups; or add a column 'split' with train and test.",
        )
    if not (len(fit) and len(held_out)):
        raise DataError(
            f"{len(table.labels):,} rows are too few of each class to split into train and test",
            "A class needs two rows to be on both sides; or add a column 'split', or give the test part of its own.",
        )
    kind, share = (
        "stratified" if not table.labels.of_numbers else "random",
        len(held_out) / max(1, len(table.labels)),
    )
    share = fraction if table.groups is None else share
    by = "" if table.groups is None else f" by {table.grouped_by}"
    return fit, held_out, f"seeded {kind} split{by}: {1 - share:.0%} train, {share:.0%} test (seed {seed})"


def _features(x: npt.NDArray[np.floating], table: _Table, rows: npt.NDArray[np.int64], labels: Target) -> Features:
    order = rows[np.argsort(np.array([table.id[i] for i in rows]), kind="stable")]
    ids = tuple(table.id[i] for i in order)
    attributes = {name: tuple(column[i] for i in order) for name, column in table.attributes.items()}
    groups = None if table.groups is None else table.groups[order]
    # A memory-mapped file whose rows are in order stays on disk: at ImageNet's size a copy of it is 5 to 10 GB.
    as_it_is = x.flags.c_contiguous and np.array_equal(order, np.arange(len(x)))
    x, rank = (x if as_it_is else x[order]), ranked(ids, labels)
    return Features(x, labels.select(order), ids, attributes, groups, rank=rank)


def _fingerprint(features: Features) -> str:
    """Return the identity of the samples, see `FeaturePair`."""
    labels = features.target
    digest = hashlib.sha256(canonical(["samples of features", features.ids, labels.name, labels.classes]).encode())
    digest.update(labels.values.tobytes())
    if features.groups is not None:
        # Which numbers groups have decides nothing.
        digest.update(np.unique(features.groups, return_inverse=True)[1].tobytes())
    if isinstance(labels, Unlabelled):
        digest.update(_sha256(features).encode())
    return digest.hexdigest()[:32]


def _sha256(*parts: Features) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part.x.dtype} {part.x.shape}".encode())
        digest.update(np.ascontiguousarray(part.x).data)
    return digest.hexdigest()
