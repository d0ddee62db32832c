"""Hugging Face data set: Parquet or Arrow files with images, folders of them, `hf:owner/name` of the hub's cache."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sslbench.config import setting
from sslbench.data.cache.index import container_stamp
from sslbench.data.containers.members import safe_name
from sslbench.data.containers.names import by_split, split_name
from sslbench.data.format import SampleReader, SampleRequest, SourceFormat
from sslbench.data.formats._parts.layout import file_names, has_images, some_folders
from sslbench.data.formats.hf.files import find_files
from sslbench.data.formats.hf.rows import ColumnImages, RowFile, damaged, has_images_in_rows, holds_bytes, open_row_file
from sslbench.data.formats.table import IMAGE_COLUMNS, LABEL_COLUMNS
from sslbench.data.labels import has_separator, multi_labels, single_labels, split_cell
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Target
from sslbench.text import printable

PREFIX = "hf:"
_SUFFIXES = (".parquet", ".arrow")
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
        return saved or (path.is_dir() and not has_images(path) and any(map(_has_rows, _tops(path))))
    except OSError:
        return False


def _tops(folder: Path) -> list[Path]:
    """Return the folders in which the hub keeps files of rows: the folder, data/ in it, those of splits."""
    return [folder, *(f for f in some_folders(folder) if f.name == "data" or split_name(f.name) is not None)]


def _has_rows(folder: Path) -> bool:
    return any(name.lower().endswith(_SUFFIXES) and not name.startswith("metadata.") for name in file_names(folder))


@dataclasses.dataclass(frozen=True)
class HubOptions:
    """Options behind a '?'."""

    download: Literal[0, 1] = setting(0, "1: download the data set from the hub if it is not in the local cache")


def open(
    spec: str, *, image_column: str | None = None, label_column: str | None = None, download: bool = False
) -> dict[str, Source]:
    """Return the images of a data set in Parquet or Arrow files; nothing is downloaded unless requested.

    Args:
        spec: a folder, a Parquet file, or the name of a data set in the local cache of the hub, with a configuration
            or revision if there are several: hf:owner/name, hf:owner/name/configuration, hf:owner/name@revision.
            hf:owner/name?download=1 fetches it.
        image_column: the column with the images; by default the one that is declared as Image, or holds bytes.
        label_column: the column with the labels; by default recognised by its name. Class numbers are named as the
            data set declares.
        download: fetch the data set from the hub if it is not in the local cache.

    Returns:
        Split name -> source, or {"all": source}. Ids are the paths that the images carry, if every one has its own;
        else the split and the number of the row.

    Raises:
        DataError: it is not there, a file is damaged, no column holds images, or pyarrow is needed.
        UsageError: there is no such column.
    """
    if download:
        spec = f"{spec}?download=1"
    files = find_files(spec, spec.removeprefix(PREFIX))
    sources = {}
    for split, paths in files.items():
        name = split_name(split) or split
        sources[name] = _source(spec if split == "all" else f"{spec} ({name})", name, paths, image_column, label_column)
    return sources


def _source(name: str, split: str, paths: Sequence[Path], image: str | None, label: str | None) -> Source:
    stamps = [container_stamp(path) for path in paths]
    opened = [open_row_file(path) for path in paths]
    features = _features(paths[0], opened[0])
    columns = opened[0].schema.names
    for path, file in zip(paths, opened, strict=True):
        if file.schema.names != columns:
            raise DataError(
                f"{path} and {paths[0]} have different columns: {some(columns, 5)}; {some(file.schema.names, 5)}"
            )
    image = _column(name, image, columns) or _image_column(name, opened[0], features)
    label = _column(name, label, columns) or next((c for c in _LABEL_COLUMNS if c in columns and c != image), None)
    n = sum(file.n for file in opened)
    if not n:
        raise DataError(f"{name} has no rows")
    ids = _ids(split, _image_paths(paths, opened, image), n)
    notes = () if label else (f"{name}: no column with labels was recognised among: {', '.join(columns)}",)
    labels: Target = Unlabelled(n)
    about: tuple[str, ...] = ()
    if label:
        cells = [cell for path, file in zip(paths, opened, strict=True) for cell in _cells(path, file, label)]
        labels, about = _labels(name, label, cells, _class_names(features.get(label)))
    places = np.concatenate([np.column_stack([np.full(f.n, i), np.arange(f.n)]) for i, f in enumerate(opened)])
    images = ColumnImages(tuple(map(str, paths)), tuple(stamps), image, places.astype(np.int64))
    return by_split(name, ids, labels, images, None, (*notes, *about))["all"]


def _features(path: Path, file: RowFile) -> dict[str, Any]:
    """Return the declared features of the columns: in the file's metadata, else in dataset_info.json beside it."""
    written = (file.schema.metadata or {}).get(b"huggingface")
    beside = path.parent / "dataset_info.json"
    try:
        if written is not None:
            features = json.loads(written)["info"]["features"]
        else:
            features = json.loads(beside.read_text(encoding="utf-8"))["features"] if beside.is_file() else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: the declaration of its columns is damaged: {error!r:.200}") from error
    return features if isinstance(features, dict) else {}


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


def _image_paths(paths: Sequence[Path], files: Sequence[RowFile], image: str) -> list[str | None]:
    import pyarrow

    names: list[str | None] = []
    for path, file in zip(paths, files, strict=True):
        kind = file.schema.field(image).type
        if pyarrow.types.is_struct(kind) and kind.get_field_index("path") >= 0:
            names += _cells(path, file, f"{image}.path")
        else:
            names += [None] * file.n
    return names


def _cells(path: Path, file: RowFile, column: str) -> list[Any]:
    import pyarrow

    try:
        cells: list[Any] = file.column(column).to_pylist()
    except (OSError, pyarrow.ArrowException, MemoryError, ValueError, LookupError) as error:
        raise damaged(path, error) from error
    return cells


def _ids(split: str, names: Sequence[str | None], n: int) -> list[str]:
    ids = []
    for name in names:
        text = name.replace("\\", "/") if isinstance(name, str) else ""
        relative = safe_name(text.rpartition("/")[2] if text.startswith("/") else text)
        ids.append(printable(relative) if relative else "")
    if all(ids) and len(set(ids)) == n:
        return ids
    width = len(str(n - 1))
    return [f"{split}/{i:0{width}d}" for i in range(n)]


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
    if all(cell is None or cell == -1 for cell in cells):
        return Unlabelled(len(cells)), (f"{name}: the labels are all empty or -1, so there are none",)
    several = any(isinstance(cell, list) for cell in cells)
    rows = [[_text(name, column, v, classes) for v in (cell if isinstance(cell, list) else [cell])] for cell in cells]
    if several:
        used = {one for row in rows for one in row}
        return multi_labels(rows, classes=[c for c in classes if c in used] or None), ()
    texts = [row[0] for row in rows]
    if not classes and any(map(has_separator, texts)):
        present, ignored = zip(*map(split_cell, texts), strict=True)
        return multi_labels(present, ignored), ()
    used = set(texts)
    unused = [c for c in classes if c not in used]
    notes = (f"{name}: {counted(len(unused), 'class')} without any image left out: {some(unused)}",) if unused else ()
    return single_labels(texts, [c for c in classes if c in used] or None), notes


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


def _read(request: SampleRequest[HubOptions]) -> dict[str, Source]:
    columns = {"image_column": request.image_column, "label_column": request.label_column}
    return open(request.spec, **columns, download=bool(request.options.download))


FORMAT = SourceFormat(__doc__, SampleReader(recognises, _read, HubOptions, frozenset(("image", "label"))))
