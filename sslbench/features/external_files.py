"""Files of embeddings and of their labels: NumPy (.npy, .npz), tables (.csv, .tsv, .parquet), HDF5, torch.save."""

import csv
import logging
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.hdf5 import open_hdf5
from sslbench.data.missing import refuse_missing_file
from sslbench.errors import DataError, UsageError
from sslbench.features.array import UNREADABLE_HEADER

_log = logging.getLogger("sslbench")

Columns = Mapping[str, Sequence[Any]]
"""Name of a column -> a cell per row; empty cells are ''."""

DESCRIPTIVE = (
    *("row", "id", "path", "label", "class", "target", "split", "digest", "width", "height"),
    *("", "Unnamed: 0", "index", "image_id", "image", "filename", "file"),
)
"""Columns of a table of features that are none: those of `sslbench extract -o`, pandas' index, and names of images."""
_TABLES = (".csv", ".tsv", ".parquet")
_HDF5 = (".h5", ".hdf5")
_TORCH = (".pt", ".pth")
_LABEL_KEYS = ("labels", "label", "y", "targets", "target", "classes")
_MOST_COMPRESSED = 1000  # an HDF5 array that claims to be larger than this times its file is not read


def read_features(path: Path) -> npt.NDArray[np.floating]:
    """Return the features in a file, (N, D): float16 or float32; a .npy is memory-mapped.

    Args:
        path: .npy; .npz, .h5 or .pt with one array (N, D) or one named 'features'; a .parquet with a column 'features'
            of lists, or a table with a column of numbers per feature.

    Raises:
        UsageError: the file is missing or holds no suitable array.
    """
    refuse_missing_file(path)
    if path.suffix.lower() in _TABLES:
        content = _features_of_table(path)
    else:
        content = _only_array(path, ("features",), "features")
    if content.ndim != 2 or not np.issubdtype(content.dtype, np.floating):
        raise UsageError(f"{path}: should be a float array (N, D), not {content.dtype} {content.shape}")
    if not content.size:
        raise UsageError(f"{path}: the array of {content.shape[0]} x {content.shape[1]} is empty")
    features: npt.NDArray[np.floating] = content
    return features if features.dtype in (np.float16, np.float32) else features.astype(np.float32)


def is_table(path: Path) -> bool:
    """Return whether labels are in columns beside others, rather than in an array alone."""
    if path.suffix.lower() not in (".npz", *_HDF5):
        return path.suffix.lower() not in (".npy", *_TORCH)
    return path.is_file() and not {"id", "split"}.isdisjoint(_opened(path))


def read_label_array(path: Path) -> npt.NDArray[Any]:
    """Return the array of labels in a file, (N,) or (N, C).

    Args:
        path: .npy; .npz, .h5 or .pt with one array, or one named 'labels' or 'y'.

    Raises:
        UsageError: the file is missing or holds no suitable array.
    """
    refuse_missing_file(path)
    labels = _only_array(path, _LABEL_KEYS, "labels")
    if labels.ndim not in (1, 2):
        raise UsageError(f"{path}: labels should be an array (N,) or (N, C), not {labels.shape}")
    return labels


def read_table(path: Path) -> Columns:
    """Return the columns of a .csv, .tsv or .parquet with a header, or the arrays (N,) of an .npz or .h5.

    The column of features is left out.

    Raises:
        UsageError: there is no such file.
        DataError: it cannot be read.
    """
    refuse_missing_file(path)
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path)
    if path.suffix.lower() in (".npz", *_HDF5):
        arrays = {name: array for name, array in _opened(path).items() if array.ndim == 1}
        return {name: [_plain(cell) for cell in array.tolist()] for name, array in arrays.items()}
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.DictReader(handle, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", restval="")
            lines = list(reader)
            return {name: [line[name] or "" for line in lines] for name in reader.fieldnames or ()}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a table in UTF-8: {error}", "Save it as CSV in UTF-8.") from error


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


def _features_of_table(path: Path) -> npt.NDArray[np.floating]:
    """Return the column 'features' of lists, or all columns of numbers but the descriptive ones."""
    columns = read_table(path)
    if path.suffix.lower() == ".parquet" and (lists := _lists_of_parquet(path)) is not None:
        return lists
    names = [name for name in columns if name not in DESCRIPTIVE]
    if not names:
        raise UsageError(f"{path} has no features: its columns are {', '.join(columns)}")
    left = [name or "without a name" for name in columns if name in DESCRIPTIVE]
    span = f"'{names[0]}' to '{names[-1]}'" if len(names) > 1 else f"'{names[0]}'"
    others = f"; not taken: {', '.join(left)}" if left else ""
    _log.info(f"{path}: {len(names):,} features, the columns {span}{others}")
    return np.stack([_as_numbers(path, name, columns[name]) for name in names], axis=1)


def _as_numbers(path: Path, name: str, cells: Sequence[Any]) -> npt.NDArray[np.floating]:
    try:
        numbers: npt.NDArray[np.floating] = np.array(cells, dtype=np.float32)
    except (TypeError, ValueError):
        raise UsageError(
            f"{path}: the column '{name}' does not hold numbers",
            f"Columns that are no features: {', '.join(filter(None, DESCRIPTIVE))}.",
        ) from None
    return numbers


def _plain(cell: Any) -> Any:
    return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell


def _opened(path: Path) -> Any:
    """Return the array of a file, or a mapping of its arrays.

    Raises:
        UsageError: it cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        content = _torch_arrays(path) if suffix in _TORCH else _hdf5_arrays(path) if suffix in _HDF5 else _numpy(path)
        return content if isinstance(content, np.ndarray) else {key: content[key] for key in content}
    except (OSError, zipfile.BadZipFile, *UNREADABLE_HEADER) as error:
        raise UsageError(f"{path} cannot be read as a NumPy array: {error}") from error


def _only_array(path: Path, known: Sequence[str], what: str) -> npt.NDArray[Any]:
    """Return the array of a file; of several, the one with a known name."""
    content = _opened(path)
    if isinstance(content, np.ndarray):
        return content
    keys = list(content)
    key = next((name for name in known if name in keys), keys[0] if len(keys) == 1 else None)
    if key is None:
        held = ", ".join(keys) or "no array"
        raise UsageError(f"{path} holds several arrays ({held}) and none is called '{what}'")
    array: npt.NDArray[Any] = content[key]
    return array


def _numpy(path: Path) -> Any:
    return np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)


def _hdf5_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays at the top of an HDF5 file; links to other files are not followed."""
    with open_hdf5(path) as file:
        inside = [key for key in file if type(file.get(key, getlink=True)).__name__ == "HardLink"]
        found = {key: file[key] for key in inside if hasattr(file[key], "nbytes")}
        for key, array in found.items():
            if array.nbytes > _MOST_COMPRESSED * path.stat().st_size:
                raise DataError(f"{path}: the array '{key}' of {array.nbytes:,} bytes is larger than its file can hold")
        return {key: array[()] for key, array in found.items()}


def _torch_arrays(path: Path) -> Any:
    """Return the tensor in a file of torch.save, or the dictionary of tensors; nothing else is unpickled."""
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise UsageError(
            f"{path} is no file of tensors by torch.save: {reason}", "Save a tensor, or a dict."
        ) from error
    tensors = {"": content} if isinstance(content, torch.Tensor) else content
    if not isinstance(tensors, dict):
        raise UsageError(f"{path} holds a {type(content).__name__}", "Save a tensor, or a dict of tensors.")
    return {str(key): value.numpy() for key, value in tensors.items() if isinstance(value, torch.Tensor)}
