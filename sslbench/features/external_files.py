"""Files of embeddings and their labels: NumPy (.npy, .npz), .csv, .tsv, .txt, .parquet, HDF5, torch.save."""

import csv
import dataclasses
import itertools
import logging
import pickle
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import UNREADABLE_HEADER
from sslbench.data.containers.hdf5 import open_hdf5
from sslbench.data.containers.sniff import encoding_of, head
from sslbench.data.regular import refuse_missing_file
from sslbench.data.wording import counted, in_python, some
from sslbench.errors import DataError, StoreError, UsageError
from sslbench.features.partial import reserve
from sslbench.paths import not_written, temporary_beside
from sslbench.runtime.folders import check_writable

if TYPE_CHECKING:
    from sslbench.features.extract import Extraction


_log = logging.getLogger("sslbench")

# Name of a column -> a cell per row; empty cells are ''.
Columns = Mapping[str, Sequence[Any]]

# Columns of a table that are no features, in lower case: those of `extract -o`, pandas' index, and names of images.
DESCRIPTIVE = (
    *("row", "id", "path", "label", "class", "target", "labels", "targets", "classes"),
    *("split", "digest", "width", "height"),
    *("", "unnamed: 0", "index", "image_id", "image", "filename", "file"),
)
_TEXTS = (".csv", ".tsv", ".txt")
_TABLES = (*_TEXTS, ".parquet")
_HDF5 = (".h5", ".hdf5")
_TORCH = (".pt", ".pth")
_FEATURE_KEYS = ("features", "embeddings", "x")
# Names of the column or array of labels, in lower case.
LABEL_KEYS = ("label", "class", "target", "labels", "targets", "classes", "y")
_RENAME = "Call the arrays 'features' and 'labels'; write train and test into files of their own (--test-features)."
_MOST_COMPRESSED = 1000  # an HDF5 array that claims to be larger than this times its file is not read


SUFFIXES = (".parquet", ".npz", ".h5")
# Names in files of `write_one_file`.
_WRITTEN = {"features", "id", "path", "split", "width", "height"}


def read_features(path: Path, leave_out: Sequence[str] = ()) -> npt.NDArray[np.floating]:
    """Return the features in a file, (N, D): float16 or float32; a .npy is memory-mapped.

    path: .npy; .npz, .h5 or .pt with one array (N, D) or one named 'features', 'embeddings' or 'x'; a .parquet with a
        column 'features' of lists, or a table with a column of numbers per feature, with or without a header.
    """
    _check_file(path)
    if path.suffix.lower() in _TABLES:
        content = _features_of_table(path, leave_out)
    else:
        content = _only_array(path, _FEATURE_KEYS, LABEL_KEYS, "features")
    if content.ndim != 2 or not np.issubdtype(content.dtype, np.floating):
        raise UsageError(
            f"{path}: features should be a float array (N, D), not {content.dtype} {content.shape}",
            "Whole numbers are features if you convert them: x.astype('float32')."
            if content.ndim == 2
            else "One row per sample: x.reshape(n, -1).",
        )
    if not content.size:
        raise UsageError(f"{path}: the array of {content.shape[0]} x {content.shape[1]} is empty")
    features: npt.NDArray[np.floating] = content
    return features if features.dtype in (np.float16, np.float32) else features.astype(np.float32)


def is_table(path: Path) -> bool:
    """Return whether labels are in columns beside others, rather than in an array alone."""
    if path.suffix.lower() not in (".npz", *_HDF5, *_TORCH):
        return path.suffix.lower() != ".npy"
    return path.is_file() and not {"id", "split"}.isdisjoint(_opened(path))


def features_are_columns(labels: Path, features: Path) -> bool:
    """Return whether a table holds labels and features side by side, a column per feature."""
    if labels.suffix.lower() not in _TABLES or not (labels.is_file() and features.is_file()):
        return False
    return labels.samefile(features) and (labels.suffix.lower() in _TEXTS or _lists_of_parquet(labels) is None)


def read_label_array(path: Path) -> npt.NDArray[Any]:
    """Return the array of labels in a file, (N,) or (N, C)."""
    _check_file(path)
    labels = _only_array(path, LABEL_KEYS, _FEATURE_KEYS, "labels")
    if labels.ndim not in (1, 2):
        raise UsageError(f"{path}: labels should be an array (N,) or (N, C), not {labels.shape}")
    return labels


def read_table(path: Path, rows: int) -> Columns:
    """Return the columns of a table with or without a header, or the arrays of an .npz, .h5 or .pt.

    Columns of a table without a header are named '0', '1', ... The column of features is left out.
    """
    _check_file(path)
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    if path.suffix.lower() in (".npz", *_HDF5, *_TORCH):
        arrays = {
            name: array
            for name, array in _opened(path).items()
            if array.ndim == 1 or (array.ndim == 2 and name.lower() in LABEL_KEYS)
        }
        return {
            name: [(cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell) for cell in array.tolist()]
            for name, array in arrays.items()
        }
    lines = list(_lines(path))
    if not lines:
        raise DataError(f"{path} is empty", "Its first line should be a header, such as: label")
    (_, first), others = lines[0], lines[1:]
    alone = len(first) == 1 and any(cells == first for _, cells in others)  # a class, which other rows have, too
    bare = len(lines) == rows and (_numbers(first) or alone)
    names, others = (list(map(str, range(len(first)))), lines) if bare else (first, others)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{path}: the header has the column '{twice[0]}' twice")
    for number, cells in others:
        if len(cells) != len(names):
            raise DataError(f"{path}, line {number}: {counted(len(cells), 'cell')}, but line 1 has {len(names)}")
    columns = list(zip(*(cells for _, cells in others), strict=True)) or [()] * len(names)
    return dict(zip(names, columns, strict=True))


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of each line of a table of text that is not blank."""
    try:
        with path.open(encoding=encoding_of(head(str(path))), newline="") as handle:
            separator = _separator(path, handle.readline())
            handle.seek(0)
            lines = (
                map(str.split, handle)
                if separator.isspace() and separator != "\t"
                else csv.reader(handle, delimiter=separator)
            )
            yield from ((number, cells) for number, cells in enumerate(lines, 1) if cells)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a table in UTF-8: {error}", "Save it as CSV in UTF-8.") from error


def _separator(path: Path, first: str) -> str:
    """Return the separator of cells: comma or tab, or spaces between numbers (`np.savetxt`)."""
    usual = {".csv": ",", ".tsv": "\t"}.get(path.suffix.lower(), "," if "," in first else "\t")
    cells = first.split()
    return " " if usual not in first and len(cells) > 1 and _numbers(cells) else usual


def _numbers(cells: Sequence[str]) -> bool:
    """Return whether all cells are numbers."""
    try:
        list(map(float, cells))
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> Columns:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"reading {path} needs pyarrow", "pip install 'sslbench[parquet]'") from error
    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = [name for name in file.schema_arrow.names if name != "features"]
        content = file.read(columns=names)
        return {name: content.column(name).to_pylist() for name in names}
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read {path} as Parquet: {error}") from error


def _check_file(path: Path) -> None:
    if path.suffix.lower() not in (*_TABLES, *_HDF5, *_TORCH, ".npy", ".npz"):
        held = "is a folder" if path.is_dir() else "has no suffix of features or labels"
        raise UsageError(f"{path} {held}", "Supported: .npy, .npz, .csv, .tsv, .txt, .parquet, .h5, .pt.")
    refuse_missing_file(path)


def _lists_of_parquet(path: Path) -> npt.NDArray[np.floating] | None:
    """Return the column 'features' of a .parquet, lists of equal length; None without it."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        if "features" not in file.schema_arrow.names:
            return None
        column = file.read(columns=["features"]).column(0).combine_chunks()
        rows: npt.NDArray[np.floating] = column.flatten().to_numpy(zero_copy_only=False)
        lengths = set(pyarrow.compute.list_value_length(column).to_pylist())
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read {path} as Parquet: {error}") from error
    if len(lengths) != 1 or None in lengths:
        raise UsageError(f"{path}: the lists in the column 'features' differ in length")
    return rows.reshape(len(column), -1)


def _features_of_table(path: Path, leave_out: Sequence[str]) -> npt.NDArray[np.floating]:
    """Return the column 'features' of lists, or all columns of numbers but the descriptive ones."""
    if path.suffix.lower() == ".parquet":
        columns = _read_parquet(path)
        if (lists := _lists_of_parquet(path)) is not None:
            return lists
        frame = {name: np.asarray(cells) for name, cells in columns.items()}
    else:
        frame = _read_numbers(path)
    names = [name for name in frame if name.lower() not in DESCRIPTIVE and name not in leave_out]
    if not names:
        raise UsageError(f"{path} has no features: its columns are {some(list(frame), 12)}")
    left = [name or "without a name" for name in frame if name not in names]
    span = f"'{names[0]}' to '{names[-1]}'" if len(names) > 1 else f"'{names[0]}'"
    others = f"; not taken: {', '.join(left)}" if left else ""
    _log.info(f"{path}: {len(names):,} features, the columns {span}{others}")
    for name in names:
        if not np.issubdtype(frame[name].dtype, np.number):
            raise UsageError(
                f"{path}: the column '{name}' does not hold numbers",
                f"Columns that are no features: {', '.join(filter(None, DESCRIPTIVE))}.",
            )
        if (holes := np.flatnonzero(np.isnan(frame[name]))).size:
            rows = f"{counted(len(holes), 'row')}, the first is row {holes[0] + 1}"
            raise DataError(f"{path}: the column '{name}' has no number in {rows}")
    return np.stack([frame[name].astype(np.float32) for name in names], axis=1)


def _read_numbers(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a table of text; without a header, they are named '0', '1', ..."""
    import pandas as pd

    lines = list(itertools.islice(_lines(path), 2))
    if not lines or (len(lines) == 1 and not _numbers(lines[0][1])):
        raise UsageError(f"{path} has no rows" + (" below its header" if lines else ""))
    first, second = lines[0][1], lines[-1][1]
    if len(first) != len(second):
        raise DataError(f"{path}, line {lines[-1][0]}: {counted(len(second), 'cell')}, but line 1 has {len(first)}")
    if len(first) == 1 and ";" in first[0]:
        raise DataError(f"{path}: its cells are separated by ';'", "Separate them by commas.")
    # pandas writes columns without names as 0, 1, ...
    bare = _numbers(first) and first != [str(i) for i in range(len(first))]
    encoding = encoding_of(head(str(path)))
    with path.open(encoding=encoding) as handle:
        separator = _separator(path, handle.readline())
    try:
        frame = pd.read_csv(
            path,
            sep=r"\s+" if separator == " " else separator,
            header=None if bare else 0,
            # Otherwise pandas takes the first column for an index where rows end in a separator.
            index_col=False,
            encoding=encoding,
        )
    except (ValueError, OSError) as error:
        reason = str(error).removeprefix("Error tokenizing data. C error: ").strip()
        raise DataError(f"{path} is no table: {reason}") from error
    frame.columns = [str(i) for i in range(len(first))] if bare else pd.Index(first)
    if bare:
        _log.info(f"{path} has no header: its first line is a row of features")
    return {name: frame[name].to_numpy() for name in frame.columns}


def _opened(path: Path) -> Any:
    """Return the array of a file, or a mapping of its arrays."""
    suffix = path.suffix.lower()
    try:
        content = (
            _torch_arrays(path)
            if suffix in _TORCH
            else _hdf5_arrays(path)
            if suffix in _HDF5
            else np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
        )
        return content if isinstance(content, np.ndarray) else {key: content[key] for key in content}
    except (OSError, zipfile.BadZipFile, *UNREADABLE_HEADER) as error:
        if "Object arrays" in str(error) or "Python objects" in str(error):
            remedy = "Save numbers or text: np.save(path, np.array(labels, dtype=str))."
            raise UsageError(f"{path} holds other objects than numbers and text", remedy) from error
        raise UsageError(f"{path} cannot be read as a NumPy array: {error}") from error


def _only_array(path: Path, known: Sequence[str], others: Sequence[str], what: str) -> npt.NDArray[Any]:
    """Return the array of a file; of several, the one with a known name."""
    content = _opened(path)
    if isinstance(content, np.ndarray):
        return content
    named = [name for name in content if name.lower() in known]
    named = [what] if what in named else named
    if not named and len(content) == 1:
        named = [name for name in content if name.lower() not in others]
    if len(named) != 1:
        held = ", ".join(f"{name or 'without a name'} {array.shape}" for name, array in content.items()) or "no array"
        text = f"could be the {what}: {', '.join(named)}" if named else f"has none that is called '{what}'"
        suits = "x_train" in content and path.suffix == ".npz"
        raise UsageError(f"{path} {text}; it holds {held}", _RENAME + (f" {in_python(path)}" if suits else ""))
    array: npt.NDArray[Any] = content[named[0]]
    return array


def _hdf5_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays at the top of an HDF5 file; links to other files are not followed."""
    with open_hdf5(path) as file:
        inside = [key for key in file if type(file.get(key, getlink=True)).__name__ == "HardLink"]
        found = {key: file[key] for key in inside if hasattr(file[key], "nbytes")}
        for key, array in found.items():
            if array.nbytes > _MOST_COMPRESSED * path.stat().st_size:
                raise DataError(f"{path}: the array '{key}' of {array.nbytes:,} bytes is larger than its file can hold")
        return {key: array[()] for key, array in found.items()}


def _torch_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors and lists in a file of torch.save; nothing else is unpickled."""
    import torch

    remedy = "Save tensors: torch.save({'features': torch.as_tensor(x), 'labels': torch.as_tensor(y)}, path)."
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        culprit = re.search(r"GLOBAL ([\w.]+)", str(error))
        held = "" if culprit is None else ": an array of NumPy" if "numpy" in culprit[1] else f": {culprit[1]}"
        raise UsageError(f"{path} holds other objects than tensors, which are not unpickled{held}", remedy) from error
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise UsageError(f"{path} is no file of tensors by torch.save: {reason}", remedy) from error
    tensors = {"": content} if isinstance(content, torch.Tensor) else content
    if not isinstance(tensors, dict):
        raise UsageError(f"{path} holds a {type(content).__name__}", remedy)
    found = {}
    for key, value in tensors.items():
        if isinstance(value, torch.Tensor):
            value = value.detach().to_dense()
            found[str(key)] = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        elif isinstance(value, list) and value and all(isinstance(cell, str | int | float) for cell in value):
            found[str(key)] = np.array(value)
    return found


def check_path(path: Path) -> None:
    """Refuse a file of a format that is not written, or in a place where nothing can be written; make its folder."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} should end in one of {', '.join(SUFFIXES)}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "Give the name of a file.")
    check_writable(path.parent)


def write_one_file(found: Mapping[str, "Extraction"], path: Path) -> None:
    """Write the features of all splits, a row per image; `eval --features FILE --labels FILE` reads them.

    Columns: id, path, split, width, height (of the upright image; 0 where it cannot be read), label (of labelled
    images; several are joined by ';') and features (D).

    found: split -> its extraction, of one layer.
    """
    check_path(path)
    columns = _columns(found)
    x = np.concatenate([np.asarray(next(iter(each.features.values())).x) for each in found.values()])
    writers = {".parquet": _write_parquet, ".npz": _write_npz, ".h5": _write_hdf5}
    try:
        with temporary_beside(path) as temporary:
            writers[path.suffix.lower()](temporary, columns, x)
            temporary.replace(path)
    except OSError as error:
        raise StoreError(not_written(path, error)) from error


@dataclasses.dataclass(frozen=True)
class Summary:
    """Content of a file that `write_one_file` wrote.

    Attributes:
        splits: split -> number of images.
    """

    images: int
    dimensions: int
    dtype: str
    splits: Mapping[str, int]
    columns: tuple[str, ...]


def read_summary(path: Path) -> Summary | None:
    """Return the content of a file of features without reading them; None for any other file."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES or not path.is_file():
        return None
    try:
        if suffix == ".parquet":
            import pyarrow.parquet

            schema = pyarrow.parquet.read_schema(path)
            if not set(schema.names) >= _WRITTEN:
                return None
            features = schema.field("features").type
            splits = pyarrow.parquet.read_table(path, columns=["split"])["split"].to_pylist()
            width, dtype, names = features.list_size, str(features.value_type), schema.names
        elif suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                if not set(arrays.files) >= _WRITTEN:
                    return None
                splits, names = arrays["split"].tolist(), arrays.files
                width, dtype = arrays["features"].shape[1], str(arrays["features"].dtype)
        else:
            import h5py  # type: ignore[import-untyped]

            with h5py.File(path, locking=False) as file:
                if not set(file) >= _WRITTEN:
                    return None
                splits, names = [str(split) for split in file["split"].asstr()[:]], list(file)
                width, dtype = file["features"].shape[1], str(file["features"].dtype)
    except (OSError, ValueError, KeyError, ImportError, zipfile.BadZipFile):
        return None
    return Summary(len(splits), width, dtype, Counter(splits), tuple(name for name in names if name != "features"))


def _columns(found: Mapping[str, "Extraction"]) -> dict[str, list[Any]]:
    """Return the columns that describe the images."""
    columns: dict[str, list[Any]] = {name: [] for name in ("id", "path", "split", "width", "height", "label")}
    for split, extraction in found.items():
        source = extraction.source
        left_out = {row["id"] for row in extraction.unreadable}
        for i, sample in enumerate(source.ids):
            if sample in left_out:
                continue
            height, width = extraction.image_size(i) or (0, 0)
            row = (
                sample,
                source.images.path(i),
                split,
                width,
                height,
                source.target.text(i) if source.target.labelled else "",
            )
            for cells, cell in zip(columns.values(), row, strict=True):
                cells.append(cell)
    if not any(columns["label"]):
        del columns["label"]
    return columns


def _write_parquet(path: Path, columns: Mapping[str, list[Any]], x: npt.NDArray[np.floating]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(f"writing {path} needs pyarrow", "pip install 'sslbench[parquet]'") from error
    arrays = {name: pyarrow.array(cells) for name, cells in columns.items()}
    features = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), x.shape[1])
    pyarrow.parquet.write_table(pyarrow.table({**arrays, "features": features}), path)


def _write_npz(path: Path, columns: Mapping[str, list[Any]], x: npt.NDArray[np.floating]) -> None:
    arrays: dict[str, Any] = {name: np.asarray(cells) for name, cells in columns.items()}
    # An open file: numpy adds .npz to a path that does not end in it, as that of a temporary file.
    with path.open("wb") as file:
        np.savez(file, features=x, **arrays)


def _write_hdf5(path: Path, columns: Mapping[str, list[Any]], x: npt.NDArray[np.floating]) -> None:
    try:
        import h5py
    except ImportError as error:
        raise UsageError(f"writing {path} needs h5py", "pip install h5py") from error
    text = sum(len(str(cell)) + 16 for cells in columns.values() for cell in cells)
    with path.open("wb") as file:
        reserve(file, x.nbytes + text + (1 << 16))  # on a full disk HDF5 itself ends the process
    with h5py.File(path, "w", locking=False) as file:  # temporary files are locked already
        file["features"] = x
        for name, cells in columns.items():
            file[name] = cells if isinstance(cells[0], int) else np.array(cells, dtype=h5py.string_dtype())
