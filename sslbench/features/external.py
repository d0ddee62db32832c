"""Features computed by other programs: an array file and a CSV with the label of each row."""

import csv
import dataclasses
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.data.groups import group_numbers
from sslbench.data.labels import no_labels, single_labels
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


def read_train_test(  # noqa: PLR0913  two pairs of files, and which columns of them
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
        labels: .csv with a header and one line per row: the label column, and optionally 'id' and 'split' ('train' or
            'test'). A suffix '?group=COLUMN' names the column of groups (see `Features.groups`); each empty cell is a
            group of its own.
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
        how = f"{features.name} against {test_features.name}"
        parts = [(x, table, np.arange(len(x))), (test_x, test_table, np.arange(len(test_x)))]
    else:
        fit, held, how = _split(table, test_fraction, seed)
        parts = [(x, table, fit), (x, table, held)]
    unknown = set[str]() if value_columns else set(parts[1][1].label) - set(parts[0][1].label)
    if unknown and not own_classes:
        raise DataError(
            f"the test part has labels that the train part lacks: {', '.join(sorted(unknown)[:5])}",
            did_you_mean(min(unknown), set(parts[0][1].label)),
        )
    named = [*parts[0][1].label, *unknown]
    classes = tuple(value_columns) or single_labels(named).classes
    train, test = (_features(array, rows, indices, classes) for array, rows, indices in parts)
    split = test_features is None and not _has_parts(table)
    whole = _features(x, table, np.arange(len(x)), classes) if split else None
    return FeaturePair(train, test, how, (_fingerprint(train), _fingerprint(test)), features.name, whole)


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
        raise UsageError(f"{path}: should be a float array (N, D), is {content.dtype} {content.shape}")
    if not content.size:
        raise UsageError(f"{path}: there is nothing in an array of {content.shape[0]} x {content.shape[1]}")
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
        raise DataError(f"{path} is no table in UTF-8: {error}", "Save it as CSV in UTF-8.") from error
    if numbers and column:
        raise UsageError("--label-col names classes and --value-col numbers: give one of them")
    candidates = list(numbers) or ([column] if column else [c for c in ("label", "class", "target") if c in header])
    if not candidates or candidates[0] not in header:
        wanted = column or "label"
        raise UsageError(
            f"{path} has no column '{wanted}'; its columns: {', '.join(header)}", did_you_mean(wanted, header)
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


def _without_group(given: Path) -> tuple[Path, str]:
    """Split '?group=COLUMN' off the path, and return the file and the column ('' without one)."""
    name, mark, option = given.name.partition("?")
    key, _, column = option.partition("=")
    if given.is_file() or not mark:
        return given, ""
    if key != "group" or not column:
        raise UsageError(f"--labels {given}: '?{option}' is no option of a table of labels", "It knows ?group=COLUMN.")
    return given.with_name(name), column


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
                raise DataError(f"{path}: the column '{name}' holds no number in line {row + 2} ({line[name]!r})")
    return values


def _has_parts(table: _Table) -> bool:
    return set(table.split) >= {"train", "test"}


def _split(table: _Table, fraction: float, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], str]:
    splits = np.array(table.split)
    if _has_parts(table):
        return np.flatnonzero(splits == "train"), np.flatnonzero(splits == "test"), "the split column of the labels"
    labels = single_labels(table.label) if table.values is None else Labels("value", (), table.values)
    fit, held = holdout(labels, fraction, seed, groups=table.groups)
    if table.groups is not None and not (len(fit) and len(held)):
        raise DataError(
            f"the {len(table.label)} rows cannot be split without separating those of one {table.grouped_by}",
            "Every class of the test part needs two groups; or add a column 'split' with train and test.",
        )
    kind, share = "stratified" if table.values is None else "random", len(held) / max(1, len(splits))
    share = fraction if table.groups is None else share
    by = "" if table.groups is None else f" by {table.grouped_by}"
    return fit, held, f"seeded {kind} split{by}: {1 - share:.0%} train, {share:.0%} test (seed {seed})"


def _features(
    x: npt.NDArray[np.floating], table: _Table, rows: npt.NDArray[np.int64], classes: tuple[str, ...]
) -> Features:
    order = rows[np.argsort(np.array([table.id[i] for i in rows]), kind="stable")]
    ids = tuple(table.id[i] for i in order)
    attributes = {name: tuple(column[i] for i in order) for name, column in table.attributes.items()}
    groups = None if table.groups is None else table.groups[order]
    if table.values is not None:
        return Features(x[order], Labels("value", classes, table.values[order]), ids, attributes, groups)
    number = {name: i for i, name in enumerate(classes)}
    values = np.array([number[table.label[i]] for i in order], dtype=np.int64)
    return Features(x[order], Labels("single", classes, values), ids, attributes, groups)


def _fingerprint(features: Features) -> str:
    digest = hashlib.sha256("\n".join((*features.ids, *features.labels.classes)).encode())
    digest.update(np.ascontiguousarray(features.x).tobytes())
    digest.update(features.labels.values.tobytes())
    if features.groups is not None:
        digest.update(np.unique(features.groups, return_inverse=True)[1].tobytes())
    return digest.hexdigest()[:32]


def _siblings(path: Path) -> list[str]:
    return [f.name for f in path.parent.iterdir()] if path.parent.is_dir() else []
