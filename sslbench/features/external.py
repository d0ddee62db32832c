"""Features computed by other programs: an array file and a CSV with the label of each row."""

import csv
import dataclasses
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.names import split_name
from sslbench.data.groups import group_numbers
from sslbench.data.labels import among_classes, has_separator, multi_labels, no_labels, single_labels, split_cell
from sslbench.data.source import Labels
from sslbench.data.splits import holdout
from sslbench.errors import DataError, UsageError
from sslbench.features.array import UNREADABLE_HEADER, Features
from sslbench.names import did_you_mean


@dataclasses.dataclass(frozen=True)
class FeaturePair:
    """Train and test features with matching classes.

    Attributes:
        train: features to fit on.
        test: features to score.
        how: origin of the two parts, in words.
        fingerprints: hash of the features, ids and labels of train and of test, 32 hex digits each.
        name: name of the file.
        whole: all rows, if the parts are a seeded split of them.
    """

    train: Features
    test: Features
    how: str
    fingerprints: tuple[str, str]
    name: str
    whole: Features | None = None


def read_unlabelled(features: Path) -> FeaturePair:
    """Read one file of features without labels; both parts are all of its rows.

    Args:
        features: as for `read_train_test`.

    Raises:
        UsageError: the file is missing or holds no suitable array.
    """
    x = _read_array(features)
    whole = Features(x, no_labels(len(x)), tuple(f"{i:09d}" for i in range(len(x))))
    return FeaturePair(whole, whole, f"all of {features.name}", (_fingerprint(whole),) * 2, features.name)


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

    Args:
        features: .npy (N, D), or .npz with one such array or one named 'features'.
        labels: .csv with a header and one line per row: the label column ('cat;dog' has several), and optionally 'id'
            and 'split' ('train' and 'test', otherwise 'val'). A suffix '?group=COLUMN' names the column of groups (see
            `Features.groups`); each empty cell is a group of its own.
        test_features: features of the test part, if in a file of its own.
        test_labels: labels of the test part.
        label_column: name of the label column; None: 'label', 'class' or 'target'.
        test_fraction: share of the test part in a seeded split.
        seed: of that split.
        value_columns: columns of regression targets, in place of a label column.
        attribute_columns: further columns to keep as attributes, such as those of `sslbench extract --groups`.
        own_classes: the test part may have classes that the train part lacks.

    Raises:
        UsageError: a file is missing or its content is unsuitable.
        DataError: the rows of the files do not match.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     x, y = Path(folder) / "x.npy", Path(folder) / "y.csv"
        ...     np.save(x, np.ones((4, 2), dtype=np.float32))
        ...     rows = ["label,split", "cat,train", "dog,train", "cat,test", "dog,test"]
        ...     _ = y.write_text(chr(10).join(rows))
        ...     pair = read_train_test(x, y, None, None, label_column=None, test_fraction=0.5, seed=0)
        >>> pair.train.x.shape, pair.test.labels.classes, pair.how
        ((2, 2), ('cat', 'dog'), 'the split column of the labels')
    """
    x = _read_array(features)
    table = _read_labels(labels, label_column, value_columns, len(x), features, attribute_columns)
    if (test_features is None) != (test_labels is None):
        raise UsageError("--test-features and --test-labels belong together")
    if test_features is not None and test_labels is not None:
        test_x = _read_array(test_features)
        test_table = _read_labels(
            test_labels, label_column, value_columns, len(test_x), test_features, attribute_columns
        )
        if test_x.shape[1] != x.shape[1]:
            raise DataError(f"{features} has {x.shape[1]} features per row, {test_features} has {test_x.shape[1]}")
        description = f"{features.name} against {test_features.name}"
        parts = [(x, table, np.arange(len(x))), (test_x, test_table, np.arange(len(test_x)))]
    else:
        test_table = table
        fit, held_out, description = _split(table, test_fraction, seed)
        parts = [(x, table, fit), (x, table, held_out)]
    matched = _matched(table, test_table, tuple(value_columns), own_classes=own_classes)
    train, test = (_features(*part, labels) for part, labels in zip(parts, matched, strict=True))
    if train.labels.kind == "single" and not own_classes:
        learned = {train.labels.classes[i] for i in np.unique(train.labels.values)}
        _refuse_unknown({test.labels.classes[i] for i in np.unique(test.labels.values)}, learned)
    split = test_features is None and not _parts(table)
    whole = _features(x, table, np.arange(len(x)), matched[0]) if split else None
    return FeaturePair(train, test, description, (_fingerprint(train), _fingerprint(test)), features.name, whole)


@dataclasses.dataclass(frozen=True)
class _Table:
    """Lines of a CSV of labels: class names, or regression targets (N, C) in their place."""

    label: list[str]
    values: npt.NDArray[np.float64] | None
    id: list[str]
    split: list[str]
    attributes: dict[str, list[str]]
    groups: npt.NDArray[np.int64] | None
    grouped_by: str


def _read_array(path: Path) -> npt.NDArray[np.floating]:
    if not path.is_file():
        raise UsageError(f"there is no file {path}", did_you_mean(path.name, _siblings(path)))
    try:
        content = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
        if not isinstance(content, np.ndarray):
            content = content[_key_of_features(path, list(content.keys()))]
    except (OSError, zipfile.BadZipFile, *UNREADABLE_HEADER) as error:
        raise UsageError(f"{path} cannot be read as a NumPy array: {error}") from error
    if content.ndim != 2 or not np.issubdtype(content.dtype, np.floating):
        raise UsageError(f"{path}: should be a float array (N, D), not {content.dtype} {content.shape}")
    if not content.size:
        raise UsageError(f"{path}: the array of {content.shape[0]} x {content.shape[1]} is empty")
    features: npt.NDArray[np.floating] = content
    return features if features.dtype in (np.float16, np.float32) else features.astype(np.float32)


def _key_of_features(path: Path, keys: Sequence[str]) -> str:
    key = "features" if "features" in keys else keys[0] if len(keys) == 1 else None
    if key is None:
        raise UsageError(f"{path} holds several arrays ({', '.join(keys)}) and none is called 'features'")
    return key


def _read_labels(
    given: Path, column: str | None, numbers: Sequence[str], rows: int, features: Path, further: Sequence[str]
) -> _Table:
    path, grouped_by = _without_group(given)
    if not path.is_file():
        raise UsageError(f"there is no file {path}", did_you_mean(path.name, _siblings(path)))
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle)
            header = list(reader.fieldnames or ())
            lines = list(reader)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a table in UTF-8: {error}", "Save it as CSV in UTF-8.") from error
    if numbers and column:
        raise UsageError("--label-col names classes and --value-col numbers: give only one")
    candidates = list(numbers) or ([column] if column else [c for c in ("label", "class", "target") if c in header])
    if not candidates or candidates[0] not in header:
        label_column = column or "label"
        raise UsageError(
            f"{path} has no column '{label_column}'; its columns: {', '.join(header)}",
            did_you_mean(label_column, header),
        )
    if len(lines) != rows:
        raise DataError(f"{path} has {len(lines)} lines, {features} has {rows} rows")
    values = _numbers(path, candidates, lines) if numbers else None
    labels = [line[candidates[0]] or "" for line in lines]
    empty = [i for i, label in enumerate(labels) if not label]
    if empty:
        raise DataError(f"{path}: {len(empty)} rows have no label, first line {empty[0] + 2}")
    ids = [line.get("id") or f"{i:09d}" for i, line in enumerate(lines)]
    if len(set(ids)) != len(ids):
        raise DataError(f"{path}: the column 'id' has the same value twice")
    attributes = {name: _column(path, name, header, lines) for name in further}
    groups = group_numbers(_column(path, grouped_by, header, lines)) if grouped_by else None
    return _Table(labels, values, ids, [line.get("split") or "" for line in lines], attributes, groups, grouped_by)


def _without_group(path: Path) -> tuple[Path, str]:
    """Split '?group=COLUMN' off the path, and return the file and the column ('' without one)."""
    name, mark, option = path.name.partition("?")
    key, _, column = option.partition("=")
    if path.is_file() or not mark:
        return path, ""
    if key != "group" or not column:
        raise UsageError(
            f"--labels {path}: '?{option}' is not an option of a table of labels", "The only option is ?group=COLUMN."
        )
    return path.with_name(name), column


def _column(path: Path, name: str, header: Sequence[str], lines: Sequence[Mapping[str, str]]) -> list[str]:
    if name not in header:
        raise UsageError(
            f"{path} has no column '{name}'; its columns: {', '.join(header)}",
            f"{did_you_mean(name, header)} sslbench extract --groups {name} writes it into index.csv.".strip(),
        )
    return [line[name] or "" for line in lines]


def _numbers(path: Path, names: Sequence[str], lines: Sequence[Mapping[str, str]]) -> npt.NDArray[np.float64]:
    """Return the columns as numbers, (N, C)."""
    values = np.empty((len(lines), len(names)))
    for c, name in enumerate(names):
        if name not in lines[0]:
            raise UsageError(f"{path} has no column '{name}'", did_you_mean(name, lines[0]))
        for row, line in enumerate(lines):
            try:
                values[row, c] = float(line[name])
            except (TypeError, ValueError):
                values[row, c] = np.nan
            if not np.isfinite(values[row, c]):
                raise DataError(f"{path}: the column '{name}' has no number in line {row + 2} ({line[name]!r})")
    return values


def _labels(texts: Sequence[str], *, several: bool) -> Labels:
    """Return the labels of the cells of a column; with `several`, a cell may hold any number of them."""
    if not several:
        return single_labels(texts)
    present, ignored = zip(*map(split_cell, texts), strict=True)
    return multi_labels(present, ignored)


def _matched(
    train: _Table, test: _Table, numbers: tuple[str, ...], *, own_classes: bool = False
) -> tuple[Labels, Labels]:
    """Return the labels of both tables over the classes of train; a class that a test table does not list is ignored.

    With `own_classes` and one label per row, test may have classes that train lacks: the classes are those of both.

    Raises:
        DataError: test has a class that train lacks.
    """
    if train.values is not None and test.values is not None:
        return Labels("value", numbers, train.values), Labels("value", numbers, test.values)
    several = any(map(has_separator, (*train.label, *test.label)))
    fitted, scored = (_labels(table.label, several=several) for table in (train, test))
    if own_classes and not several and set(scored.classes) - set(fitted.classes):
        both = single_labels([*train.label, *test.label])
        rows = np.arange(len(both.values))
        return both.select(rows[: len(train.label)]), both.select(rows[len(train.label) :])
    _refuse_unknown(set(scored.classes), set(fitted.classes))
    number = {name: i for i, name in enumerate(fitted.classes)}
    columns = np.array([number[name] for name in scored.classes], dtype=np.int64)
    if several:
        return fitted, Labels("multi", fitted.classes, among_classes(scored.values, columns, len(number)))
    return fitted, Labels("single", fitted.classes, columns[scored.values])


def _refuse_unknown(test: set[str], train: set[str]) -> None:
    """Refuse classes of test that train lacks.

    Raises:
        DataError: there are any.
    """
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
    labels = _matched(table, table, ())[0]
    fit, held_out = holdout(labels, fraction, seed, groups=table.groups)
    if table.groups is not None and not (len(fit) and len(held_out)):
        raise DataError(
            f"the {len(table.label)} rows cannot be split without separating a {table.grouped_by}",
            "Every class of test needs two groups; or add a column 'split' with train and test.",
        )
    kind, share = "stratified" if table.values is None else "random", len(held_out) / max(1, len(table.label))
    share = fraction if table.groups is None else share
    by = "" if table.groups is None else f" by {table.grouped_by}"
    return fit, held_out, f"seeded {kind} split{by}: {1 - share:.0%} train, {share:.0%} test (seed {seed})"


def _features(x: npt.NDArray[np.floating], table: _Table, rows: npt.NDArray[np.int64], labels: Labels) -> Features:
    order = rows[np.argsort(np.array([table.id[i] for i in rows]), kind="stable")]
    ids = tuple(table.id[i] for i in order)
    attributes = {name: tuple(column[i] for i in order) for name, column in table.attributes.items()}
    groups = None if table.groups is None else table.groups[order]
    return Features(x[order], labels.select(order), ids, attributes, groups)


def _fingerprint(features: Features) -> str:
    digest = hashlib.sha256("\n".join((*features.ids, *features.labels.classes)).encode())
    digest.update(np.ascontiguousarray(features.x).tobytes())
    digest.update(features.labels.values.tobytes())
    if features.groups is not None:
        digest.update(np.unique(features.groups, return_inverse=True)[1].tobytes())
    return digest.hexdigest()[:32]


def _siblings(path: Path) -> list[str]:
    return [f.name for f in path.parent.iterdir()] if path.parent.is_dir() else []
