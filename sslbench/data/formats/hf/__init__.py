"""Hugging Face data set: Parquet or Arrow files with images, folders of them, `hf:owner/name` of the hub's cache."""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from sslbench.config import setting
from sslbench.data import remote
from sslbench.data.containers.index import InContainers, Index, OpenFiles, container_stamp, indexed
from sslbench.data.containers.members import by_split, safe_name, split_name
from sslbench.data.format import SampleReader, SampleRequest, SourceFormat
from sslbench.data.formats._parts.layout import file_names, has_images, some_folders
from sslbench.data.formats.hf.files import find_files, streamed_files
from sslbench.data.formats.table import IMAGE_COLUMNS, LABEL_COLUMNS
from sslbench.data.hashes import Stamp, check_unchanged
from sslbench.data.images import refuse_other_content
from sslbench.data.labels import labels_of_cells, multi_labels, single_labels
from sslbench.data.regular import read_image
from sslbench.data.source import Source
from sslbench.data.wording import counted, one_line, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Target
from sslbench.text import printable

_MAX_OPEN = 16
_MAX_STREAMED = 4
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
            # The stream format of Arrow, or its file format.
            import pyarrow

            mapped = pyarrow.memory_map(path)
            try:
                self._table = pyarrow.ipc.open_stream(mapped).read_all()
            except pyarrow.ArrowInvalid:
                # The attempt above has read the beginning.
                mapped.seek(0)
                self._table = pyarrow.ipc.open_file(mapped).read_all()
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
        # Right: the end of a group is the first row of the next.
        group = int(np.searchsorted(self._ends, row, side="right"))
        key = (name, group)
        if key not in self._groups:
            while len(self._groups) >= _MAX_GROUPS:
                self._groups.pop(next(iter(self._groups)))
            self._groups[key] = self._parquet.read_row_group(group, columns=[name], use_threads=False).column(0)
        return self._groups[key][row - (int(self._ends[group - 1]) if group else 0)].as_py()


def open_row_file(path: Path) -> RowFile:
    """Open a file and check that it is readable."""
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
    return DataError(f"cannot read {path}: {one_line(error)}", "It may be incomplete: get it again.")


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnImages(InContainers):
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
    _files: OpenFiles = dataclasses.field(default_factory=OpenFiles, repr=False)
    _digests: npt.NDArray[np.uint8] | None = dataclasses.field(default=None, init=False, repr=False)

    def read(self, index: int) -> bytes:
        """Return the encoded image of a row; of a row with only a path, that file."""
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
            cell = self._file(container).cell(self.column, row)
        except (pyarrow.ArrowException, MemoryError, ValueError, LookupError) as error:
            raise OSError(f"row {row} of {path}: {one_line(error)}") from error
        content, file = (cell.get("bytes"), cell.get("path")) if isinstance(cell, dict) else (cell, None)
        if isinstance(content, bytes):
            return content, None
        if isinstance(file, str) and file and "\0" not in file:
            return None, str(Path(path).parent / file)
        return None, None

    def _file(self, container: int) -> RowFile:
        path = self.containers[container]
        check_unchanged(path, os.stat(path), self.stamps[container])  # noqa: PTH116
        return self._files.get(path, _MAX_OPEN, RowFile)

    def path(self, index: int) -> str:
        """Return file and row: 'train-00000-of-00001.parquet[17]'."""
        container, row = self.places[index].tolist()
        return printable(f"{self.containers[container]}[{row}]")

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: BLAKE2b of each image, zeros for one that cannot be read."""
        object.__setattr__(self, "_digests", None)
        digests = super().digests()
        object.__setattr__(self, "_digests", digests.copy())
        return digests

    def place_key(self, index: int) -> str:
        """Return column and row of an image."""
        return f"bytes of {self.column}[{self.places[index, 1]}]"

    def changes_with_stamp(self, index: int) -> bool:
        """Return whether the image lies in the row; files named in rows are read again every time."""
        return not self._cell(index)[1]

    def select(self, indices: npt.NDArray[np.int64]) -> Self:
        """Return the images at `indices`, in that order."""
        chosen = super().select(indices)
        if self._digests is not None:
            object.__setattr__(chosen, "_digests", self._digests[indices])
        return chosen


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedImages(ColumnImages):
    """Encoded images in Parquet files of the hub, each of which is fetched when an image in it is read.

    Attributes:
        origins: of the files, whose copies are `containers`.
    """

    origins: tuple[remote.Origin, ...] = ()

    def _file(self, container: int) -> RowFile:
        # A copy that is open stays readable, and takes its room, though it is evicted from the cache.
        def fetch(path: str) -> RowFile:
            with remote.opened(self.origins[container]):
                return RowFile(path)

        return self._files.get(self.containers[container], _MAX_STREAMED, fetch)

    def path(self, index: int) -> str:
        """Return address and row."""
        container, row = self.places[index].tolist()
        return printable(f"{self.origins[container].url}[{row}]")

    def fetched(self) -> npt.NDArray[np.int64]:
        """Return the bytes to fetch before each file can be read, int64 (files,)."""
        return np.array([origin.size or 0 for origin in self.origins], dtype=np.int64)


PREFIX = "hf:"
_SUFFIXES = (".parquet", ".arrow")
# CIFAR-100 on the hub has two columns of labels.
_LABEL_COLUMNS = (*LABEL_COLUMNS, "fine_label", "coarse_label")


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'hf:', or is a file of rows with images, or a folder of such files."""
    if spec.startswith(PREFIX):
        return True
    path = Path(spec)
    if path.suffix.lower() in _SUFFIXES and path.is_file():
        return has_images_in_rows(path)
    saved = (path / "dataset_dict.json").is_file() or (
        (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    )
    try:
        # A folder of images with a metadata file is an image folder, whatever Parquet lies beside it.
        if saved or not path.is_dir() or has_images(path):
            return saved
        # The hub keeps files of rows in the folder, in data/ in it, or in those of splits.
        tops = [path, *(f for f in some_folders(path) if f.name == "data" or split_name(f.name) is not None)]
        names = (name for folder in tops for name in file_names(folder))
        return any(name.lower().endswith(_SUFFIXES) and not name.startswith("metadata.") for name in names)
    except OSError:
        return False


@dataclasses.dataclass(frozen=True)
class HubOptions:
    """Options behind a '?'."""

    download: Literal[0, 1] = setting(0, "1: download the data set from the hub if it is not in the local cache")
    streaming: Literal[0, 1] = setting(0, "1: fetch each Parquet file from the hub when images in it are read")


def open(request: SampleRequest[HubOptions]) -> dict[str, Source]:
    """Return the images of a data set in Parquet or Arrow files; nothing is downloaded unless requested.

    The location is a folder, a Parquet file, or the name of a data set in the local cache of the hub, with a
    configuration or revision if there are several: hf:owner/name, hf:owner/name/configuration, hf:owner/name@revision.
    By default the image column is the one that is declared as Image, or holds bytes, and the label column is recognised
    by its name. Ids are the paths that the images carry, if every one has its own; else the split and the number of the
    row. With `streaming` the Parquet files of a data set of the hub are fetched one by one, into the cache of remote
    files, and may be larger than it.
    """
    spec, download, streaming = request.spec, request.options.download, request.options.streaming
    if download and streaming:
        raise UsageError(f"{spec}: download=1 and streaming=1 exclude each other", "Give one of them.")
    if streaming:
        addresses = streamed_files(spec, spec.removeprefix(PREFIX))
        spec = f"{spec}?streaming=1"
    if download:
        spec = f"{spec}?download=1"
    files = (
        {split: remote.shards(urls) for split, urls in addresses.items()}
        if streaming
        else find_files(spec, spec.removeprefix(PREFIX))
    )
    sources = {}
    for split, paths in files.items():
        name = split_name(split) or split
        shown = spec if split == "all" else f"{spec} ({name})"
        sources[name] = _source(shown, name, paths, request.image_column, request.label_column)
    return sources


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Content of a file of rows, but for its images.

    Attributes:
        columns: names of all columns.
        image: name of the column of images.
        label: name of the column of labels; None without one.
        features: declaration of the columns.
        names: paths that the images carry.
        cells: labels; empty without any.
    """

    columns: list[str]
    image: str
    label: str | None
    features: dict[str, Any]
    names: list[str | None]
    cells: list[Any]


def _source(name: str, split: str, paths: Sequence[Path], image: str | None, label: str | None) -> Source:
    origins = [remote.origin_of(path) if remote.is_copy(path) else None for path in paths]
    stamps = [
        container_stamp(path) if origin is None else origin.stamp for path, origin in zip(paths, origins, strict=True)
    ]
    parts = [
        _rows(name, path, image, label) if origin is None else _streamed_rows(name, path, image, label, origin)
        for path, origin in zip(paths, origins, strict=True)
    ]
    first = parts[0]
    for path, part in zip(paths, parts, strict=True):
        if part.columns != first.columns:
            raise DataError(
                f"{path} and {paths[0]} have different columns: {some(first.columns, 5)}; {some(part.columns, 5)}"
            )
    n = sum(len(part.names) for part in parts)
    if not n:
        raise DataError(f"{name} has no rows")
    ids = _ids(split, [own for part in parts for own in part.names])
    label = first.label
    notes = () if label else (f"{name}: no column with labels was recognised among: {', '.join(first.columns)}",)
    labels: Target = Unlabelled(n)
    about: tuple[str, ...] = ()
    if label:
        cells = [cell for part in parts for cell in part.cells]
        labels, about = _labels(name, label, cells, _class_names(first.features.get(label)))
    sizes = [len(part.names) for part in parts]
    places = np.concatenate([np.column_stack([np.full(size, i), np.arange(size)]) for i, size in enumerate(sizes)])
    files = tuple(map(str, paths)), tuple(stamps), first.image, places.astype(np.int64)
    fetched = tuple(origin for origin in origins if origin is not None)
    images = StreamedImages(*files, origins=fetched) if fetched else ColumnImages(*files)
    return by_split(name, ids, labels, images, None, (*notes, *about))["all"]


def _rows(name: str, path: Path, image: str | None, label: str | None) -> _Rows:
    """Read a file of rows, but for its images."""
    file = open_row_file(path)
    import pyarrow  # after the message on its absence

    # Declared in the file's metadata, else in dataset_info.json beside it.
    written = (file.schema.metadata or {}).get(b"huggingface")
    beside = path.parent / "dataset_info.json"
    try:
        if written is not None:
            features = json.loads(written)["info"]["features"]
        else:
            features = json.loads(beside.read_text(encoding="utf-8"))["features"] if beside.is_file() else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: the declaration of its columns is damaged: {error!r:.200}") from error
    features = features if isinstance(features, dict) else {}
    columns = file.schema.names
    image = _column(name, image, columns) or _image_column(name, file, features)
    label = _column(name, label, columns) or next((c for c in _LABEL_COLUMNS if c in columns and c != image), None)
    kind = file.schema.field(image).type
    with_path = pyarrow.types.is_struct(kind) and kind.get_field_index("path") >= 0
    names = _cells(path, file, f"{image}.path") if with_path else [None] * file.n
    return _Rows(columns, image, label, features, names, _cells(path, file, label) if label else [])


def _streamed_rows(name: str, path: Path, image: str | None, label: str | None, origin: remote.Origin) -> _Rows:
    """Return the rows of a file of the hub, which is fetched for it once."""

    def build(copy: Path) -> Index:
        rows = _rows(name, copy, image, label)
        number = np.arange(len(rows.names), dtype=np.int64)[:, None]
        cells = rows.cells if rows.label else [None] * len(rows.names)
        # Cells of other types are no labels, and refused as empty ones are.
        texts = [json.dumps(both, default=lambda _: None) for both in zip(rows.names, cells, strict=True)]
        about = json.dumps([rows.columns, rows.image, rows.label, rows.features])
        return Index(("",) * len(texts), number, tuple(texts), (about,))

    index, _ = indexed(path, f"hf {json.dumps([image, label])}", build, origin)
    columns, image, label, features = json.loads(index.notes[0])
    both = [json.loads(text) for text in index.texts]
    cells = [cell for _, cell in both] if label else []
    return _Rows(columns, str(image), label, features, [own for own, _ in both], cells)


def _column(name: str, asked: str | None, columns: Sequence[str]) -> str | None:
    if asked is not None and asked not in columns:
        raise UsageError(f"{name} has no column '{asked}'", did_you_mean(asked, columns))
    return asked


def _image_column(name: str, file: RowFile, features: dict[str, Any]) -> str:
    declared = [
        key for key, feature in features.items() if isinstance(feature, dict) and feature.get("_type") == "Image"
    ]
    holding = [field.name for field in file.schema if holds_bytes(field.type)]
    candidates = [key for key in declared if key in file.schema.names] or holding
    if not candidates:
        raise DataError(
            f"{name}: no column holds images, there are: {', '.join(file.schema.names)}",
            "A table of paths is given by its file: --data FOLDER/FILE.parquet",
        )
    chosen = [key for key in IMAGE_COLUMNS if key in candidates] or candidates
    if len(candidates) > 1 and not any(key in IMAGE_COLUMNS for key in candidates):
        raise UsageError(f"{name} has several columns with images: {some(candidates)}", "Name one with --image-col.")
    return chosen[0]


def _ids(split: str, names: Sequence[str | None]) -> list[str]:
    """Return the paths that the images carry, if every one has its own; else the split and the number of the row."""
    ids = []
    for name in names:
        text = name.replace("\\", "/") if isinstance(name, str) else ""
        relative = safe_name(text.rpartition("/")[2] if text.startswith("/") else text)
        ids.append(printable(relative) if relative else "")
    if all(ids) and len(set(ids)) == len(names):
        return ids
    width = len(str(len(names) - 1))
    return [f"{split}/{i:0{width}d}" for i in range(len(names))]


def _cells(path: Path, file: RowFile, column: str) -> list[Any]:
    import pyarrow

    try:
        cells: list[Any] = file.column(column).to_pylist()
    except (OSError, pyarrow.ArrowException, MemoryError, ValueError, LookupError) as error:
        raise damaged(path, error) from error
    return cells


def _class_names(feature: Any) -> tuple[str, ...]:
    """Return the names of a ClassLabel, or of a list of them; empty for other features."""
    if isinstance(feature, list) and len(feature) == 1:
        feature = feature[0]
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        feature = feature.get("feature")
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return ()
    names = feature.get("names")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _labels(name: str, column: str, cells: Sequence[Any], classes: tuple[str, ...]) -> tuple[Target, tuple[str, ...]]:
    # Test parts whose labels are not public have -1 on the hub.
    if all(cell is None or cell == -1 for cell in cells):
        return Unlabelled(len(cells)), (f"{name}: the labels are all empty or -1, so there are none",)
    several = any(isinstance(cell, list) for cell in cells)
    rows = [[_text(name, column, v, classes) for v in (cell if isinstance(cell, list) else [cell])] for cell in cells]
    if several:
        used = {one for row in rows for one in row}
        return multi_labels(rows, classes=[c for c in classes if c in used] or None), ()
    texts = [row[0] for row in rows]
    if not classes:
        return labels_of_cells(texts), ()
    used = set(texts)
    unused = [c for c in classes if c not in used]
    notes = (f"{name}: {counted(len(unused), 'class')} without any image left out: {some(unused)}",) if unused else ()
    return single_labels(texts, [c for c in classes if c in used]), notes


def _text(name: str, column: str, value: object, classes: tuple[str, ...]) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and classes:
        if not 0 <= value < len(classes):
            raise DataError(f"{name}: '{column}' has the value {value}, but there are {len(classes)} classes")
        return classes[value]
    if isinstance(value, int | str) and str(value):
        return str(value)
    raise DataError(f"{name}: a label (column '{column}') is {value!r:.40}", "Every image needs one.")


FORMAT = SourceFormat(__doc__, SampleReader(recognises, open, HubOptions, frozenset(("image", "label"))))
