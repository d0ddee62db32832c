"""Features of one layer in one file, with the names, labels and sizes of their images: .parquet, .npz or .h5."""

import dataclasses
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sslbench.errors import StoreError, UsageError
from sslbench.features.partial import reserve
from sslbench.paths import not_written, temporary_beside
from sslbench.runtime.folders import check_writable

if TYPE_CHECKING:
    from sslbench.features.extract import Extraction

SUFFIXES = (".parquet", ".npz", ".h5")


def check_path(path: Path) -> None:
    """Refuse a file of a format that is not written, or in a place where nothing can be written; make its folder.

    Raises:
        UsageError: its suffix is not among `SUFFIXES`, it is a folder, or its folder is not writable.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} should end in one of {', '.join(SUFFIXES)}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", "Give the name of a file.")
    check_writable(path.parent)


def write_one_file(found: Mapping[str, "Extraction"], path: Path) -> None:
    """Write the features of all splits, a row per image; `eval --features FILE --labels FILE` reads them.

    Columns: id, path, split, width, height (of the upright image; 0 where it cannot be read), label (of labelled
    images; several are joined by ';') and features (D).

    Args:
        found: split -> its extraction, of one layer.
        path: the file, replaced if it exists.

    Raises:
        UsageError: another suffix, or a missing library.
        StoreError: the file cannot be written.
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
        images: number of rows.
        dimensions: numbers per image.
        dtype: of the features.
        splits: split -> number of images.
        columns: names of the columns, without the features.
    """

    images: int
    dimensions: int
    dtype: str
    splits: Mapping[str, int]
    columns: tuple[str, ...]


def read_summary(path: Path) -> Summary | None:
    """Return the content of a file of features without reading them; None for any other file."""
    readers = {".parquet": _summary_of_parquet, ".npz": _summary_of_npz, ".h5": _summary_of_hdf5}
    reader = readers.get(path.suffix.lower())
    if reader is None or not path.is_file():
        return None
    try:
        return reader(path)
    except (OSError, ValueError, KeyError, ImportError, zipfile.BadZipFile):
        return None


def _summary_of_parquet(path: Path) -> Summary | None:
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(path)
    if "features" not in schema.names or not set(schema.names) >= _FIXED:
        return None
    splits = pyarrow.parquet.read_table(path, columns=["split"])["split"].to_pylist()
    features = schema.field("features").type
    columns = tuple(name for name in schema.names if name != "features")
    return Summary(len(splits), features.list_size, str(features.value_type), Counter(splits), columns)


def _summary_of_npz(path: Path) -> Summary | None:
    with np.load(path, allow_pickle=False) as file:
        if "features" not in file or not set(file.files) >= _FIXED:
            return None
        x, splits = file["features"], file["split"].tolist()
        columns = tuple(name for name in file.files if name != "features")
    return Summary(len(x), x.shape[1], str(x.dtype), Counter(splits), columns)


def _summary_of_hdf5(path: Path) -> Summary | None:
    import h5py  # type: ignore[import-untyped]

    with h5py.File(path, locking=False) as file:
        if "features" not in file or not set(file) >= _FIXED:
            return None
        x = file["features"]
        splits = [str(split) for split in file["split"].asstr()[:]]
        return Summary(
            len(x), x.shape[1], str(x.dtype), Counter(splits), tuple(name for name in file if name != "features")
        )


_FIXED = {"id", "path", "split", "width", "height"}


def _columns(found: Mapping[str, "Extraction"]) -> dict[str, list[Any]]:
    """Return the columns that describe the images."""
    from sslbench.data.maps.sizes import size_and_turn

    columns: dict[str, list[Any]] = {name: [] for name in ("id", "path", "split", "width", "height", "label")}
    for split, extraction in found.items():
        source = extraction.source
        left_out = {row["id"] for row in extraction.unreadable}
        for i, sample in enumerate(source.ids):
            if sample in left_out:
                continue
            height, width = size_and_turn(source.images, i)[0] or (0, 0)
            row = (sample, source.images.path(i), split, width, height, _label(extraction, i))
            for cells, cell in zip(columns.values(), row, strict=True):
                cells.append(cell)
    if not any(columns["label"]):
        del columns["label"]
    return columns


def _label(extraction: "Extraction", index: int) -> str:
    labels = extraction.source.target
    return labels.text(index) if labels.labelled else ""


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
