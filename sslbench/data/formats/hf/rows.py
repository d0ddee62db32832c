"""Images in rows of Parquet and Arrow files, as `datasets` writes them; read by pyarrow, one row group at a time."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.cache.digests import cached_digests
from sslbench.data.hashes import Stamp, check_unchanged
from sslbench.data.images import refuse_other_content
from sslbench.data.regular import read_image
from sslbench.errors import DataError
from sslbench.text import printable

_MAX_OPEN = 16
_MAX_GROUPS = 2


class RowFile:
    """Open file, read without threads: a forked process would wait for them for ever.

    Attributes:
        schema: of its columns.
        n: the number of rows.
    """

    def __init__(self, path: str) -> None:
        import pyarrow.ipc
        import pyarrow.parquet

        self._groups: dict[tuple[str, int], Any] = {}
        if path.endswith(".parquet"):
            # Read as a single file: a parent folder named split=train must not become a column.
            self._parquet = pyarrow.parquet.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
            self.schema = self._parquet.schema_arrow
            sizes = [self._parquet.metadata.row_group(i).num_rows for i in range(self._parquet.num_row_groups)]
        else:
            self._parquet = None
            self._table = _arrow_table(path)
            self._table.validate(full=True)  # damaged offsets would be followed out of the file
            self.schema = self._table.schema
            sizes = [self._table.num_rows]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self.n = int(self._ends[-1]) if len(sizes) else 0

    def column(self, name: str) -> Any:
        """Return a column as a pyarrow array; a name with a dot selects a field of a struct."""
        first, _, rest = name.partition(".")
        if self._parquet is not None:
            column = self._parquet.read(columns=[name], use_threads=False).column(0)
        else:
            column = self._table.column(first)
        if len(column) != self.n:
            raise ValueError(f"the column '{name}' has {len(column)} rows, the file {self.n}")
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        return column.field(rest) if rest else column

    def cell(self, name: str, row: int) -> Any:
        """Return a cell of a column as Python values; the row groups read last are cached."""
        if self._parquet is None:
            return self._table.column(name)[row].as_py()
        group = int(np.searchsorted(self._ends, row, side="right"))
        key = (name, group)
        if key not in self._groups:
            while len(self._groups) >= _MAX_GROUPS:
                self._groups.pop(next(iter(self._groups)))
            self._groups[key] = self._parquet.read_row_group(group, columns=[name], use_threads=False).column(0)
        return self._groups[key][row - (int(self._ends[group - 1]) if group else 0)].as_py()


def _arrow_table(path: str) -> Any:
    """Map a file of Arrow's stream format, or of its file format, into memory."""
    import pyarrow

    mapped = pyarrow.memory_map(path)
    try:
        return pyarrow.ipc.open_stream(mapped).read_all()
    except pyarrow.ArrowInvalid:
        mapped.seek(0)
        return pyarrow.ipc.open_file(mapped).read_all()


def open_row_file(path: Path) -> RowFile:
    """Open a file and check that it is readable.

    Raises:
        DataError: it is damaged, or pyarrow is not there.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(f"reading {path} needs pyarrow", "pip install 'sslbench[parquet]'") from error
    try:
        return RowFile(str(path))
    except (OSError, pyarrow.ArrowException, MemoryError, ValueError, LookupError) as error:
        raise damaged(path, error) from error


def holds_bytes(kind: Any) -> bool:
    """Return whether the cells of a type of pyarrow hold the content of a file: bytes, or a struct with them."""
    import pyarrow

    if pyarrow.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind))


def has_images_in_rows(path: Path) -> bool:
    """Return whether a file has a column of images, and is no table of their paths; a damaged .arrow counts as one."""
    if path.suffix.lower() != ".parquet":
        return True
    try:
        import pyarrow.parquet

        schema = pyarrow.parquet.read_schema(path)
    except (ImportError, OSError, ValueError, LookupError, NotImplementedError, MemoryError):  # the table says so
        return False
    return any(holds_bytes(field.type) for field in schema)


def damaged(path: Path, error: object) -> DataError:
    """Return the error for a file that is not what its suffix says."""
    return DataError(f"cannot read {path}: {' '.join(str(error).split())[:200]}", "It may be incomplete: get it again.")


class _RowFiles:
    """Files that this process has open; every process opens its own."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, str], RowFile] = {}

    def __reduce__(self) -> tuple[type["_RowFiles"], tuple[()]]:
        return _RowFiles, ()

    def get(self, path: str) -> RowFile:
        key = (os.getpid(), path)
        if key not in self._open:
            while len(self._open) >= _MAX_OPEN:
                self._open.pop(next(iter(self._open)))
            self._open[key] = RowFile(path)
        return self._open[key]


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnImages:
    """Encoded images in a column of Parquet or Arrow files.

    Attributes:
        containers: the files.
        stamps: their state when they were opened; reading from one that has changed since is an error.
        column: of the images: bytes, or {bytes, path}.
        places: int64 (N, 2): container, row.
    """

    containers: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    column: str
    places: npt.NDArray[np.int64]
    _files: _RowFiles = dataclasses.field(default_factory=_RowFiles, repr=False)
    _digests: npt.NDArray[np.uint8] | None = dataclasses.field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.places)

    def read(self, index: int) -> bytes:
        """Return the encoded image of a row; of a row with only a path, that file.

        Raises:
            OSError: they cannot be read.
        """
        content, file = self._cell(index)
        if content is not None:
            return content
        if file is None:
            raise OSError(f"{self.path(index)} has no image")
        content = read_image(file)
        if self._digests is not None:
            refuse_other_content(content, self._digests[index])
        return content

    def _cell(self, index: int) -> tuple[bytes | None, str | None]:
        """Return the bytes in a row, else the file that it names."""
        import pyarrow

        container, row = self.places[index].tolist()
        path = self.containers[container]
        try:
            check_unchanged(path, os.stat(path), self.stamps[container])  # noqa: PTH116
            cell = self._files.get(path).cell(self.column, row)
        except (pyarrow.ArrowException, MemoryError, ValueError, LookupError) as error:
            raise OSError(f"row {row} of {path}: {' '.join(str(error).split())[:200]}") from error
        content, file = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
        if isinstance(content, bytes):
            return content, None
        if isinstance(file, str) and file and "\0" not in file:
            return None, str(Path(path).parent / file)
        return None, None

    def path(self, index: int) -> str:
        """Return file and row: 'train-00000-of-00001.parquet[17]'."""
        container, row = self.places[index].tolist()
        return printable(f"{self.containers[container]}[{row}]")

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: BLAKE2b of each image, zeros for one that cannot be read."""
        order = np.lexsort((self.places[:, 1], self.places[:, 0]))
        object.__setattr__(self, "_digests", None)
        # The stamp of the container does not cover files named in rows: those are read again every time.
        digests = cached_digests(
            order, self._key, lambda i: self.stamps[self.places[i, 0]], self.read, keep=lambda i: not self._cell(i)[1]
        )
        object.__setattr__(self, "_digests", digests.copy())
        return digests

    def _key(self, index: int) -> str:
        container, row = self.places[index].tolist()
        return f"{os.path.abspath(self.containers[container])}\0bytes of {self.column}[{row}]"  # noqa: PTH100

    def select(self, indices: npt.NDArray[np.int64]) -> "ColumnImages":
        """Return the images at `indices`, in that order."""
        chosen = dataclasses.replace(self, places=self.places[np.asarray(indices, dtype=np.int64)])
        if self._digests is not None:
            object.__setattr__(chosen, "_digests", self._digests[indices])
        return chosen
