"""COCO or kwcoco manifest (.json, .kwcoco.json, .kwcoco.zip): images, annotations, categories."""

import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.data._coco_objects import object_sources
from sslbench.data._object_types import ObjectSource
from sslbench.data.images import Files
from sslbench.data.source import Source
from sslbench.data.sources._coco_columns import ID_KEY, Columns, one_line, read_columns
from sslbench.data.sources._coco_labels import by_supercategory, exported_as, labels_as_exported, labels_of
from sslbench.data.sources._crops import WHOLE_IMAGES, Options, crops_of
from sslbench.data.sources._names import by_split, check_files, image_id, refuse_columns, split_name
from sslbench.data.sources._sniff import is_json_table
from sslbench.data.sources._view import viewed
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError

SUFFIXES = (".json", ".kwcoco.zip")


def recognises(spec: str) -> bool:
    """Whether the string ends like a manifest, is no folder, and does not hold a list of records (see the table)."""
    return spec.lower().endswith(SUFFIXES) and not Path(spec).is_dir() and not is_json_table(spec)


def open(
    spec: str,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    attribute_columns: Sequence[str] = (),
    options: Options = WHOLE_IMAGES,
) -> dict[str, Source]:
    """The images of a manifest, labelled with the categories of their annotations.

    The labels are single if each image has exactly one category, else multi: a category whose annotations on an image
    are all marked `iscrowd` or `ignore` is ignored there, and an image without annotations has none of the classes.

    Args:
        spec: the file. Paths in it are relative to its folder; of the COCO layout, `annotations/instances_val2017.json`
            finds its images in `val2017/`. A key `split` on the images is honoured.
        image_column: for tables only.
        label_column: for tables only.
        attribute_columns: keys of the images that are kept as attributes of the source, as text.
        options: see there; crops of boxes in place of images, and supercategories in place of categories.

    Returns:
        Split name -> source, or {"all": source}. Ids are the paths relative to the manifest's folder.

    Raises:
        DataError: the file is no COCO manifest, is inconsistent, or lists an image that is missing or listed twice.
        UsageError: a column was named, or no image has such a key.
    """
    refuse_columns(spec, image_column, label_column)
    if options.unit == "annotation":
        if attribute_columns:
            raise UsageError(f"{spec}?unit=annotation has no column '{attribute_columns[0]}' for its crops")
        columns = read_columns(spec)
        group = dict(zip(columns.names, columns.supers, strict=True)) if options.classes == "supercategory" else None
        return crops_of(spec, open_objects(spec), options, group)
    arguments = [[*attribute_columns], options.classes]
    return viewed(spec, "coco", arguments, lambda: _open(spec, attribute_columns, options))


def _open(spec: str, attribute_columns: Sequence[str], options: Options) -> dict[str, Source]:
    columns = read_columns(spec, attribute_columns)
    if options.classes == "supercategory":
        columns = by_supercategory(columns)
    folder = _image_folder(spec, columns.files)
    ids = [image_id(file, folder) for file in columns.files]
    check_files(spec, columns.files, ids, folder)
    splits = _splits(spec, columns.files, columns.splits)
    ids = _own_ids(columns.own_ids, splits) or ids
    exported = _as_exported(spec, columns, folder, splits)
    if exported is not None:
        return exported
    labels, notes = labels_of(spec, columns, ids)
    return by_split(spec, ids, labels, Files(columns.files, str(folder)), splits, notes, columns.attributes)


def _as_exported(spec: str, columns: Columns, folder: Path, splits: list[str] | None) -> dict[str, Source] | None:
    """The sources that `sslbench data to-kwcoco` wrote, with their ids and classes; None if it did not write this."""
    kept = exported_as(columns.info)
    split_of = splits or ["all"] * len(columns.files)
    if kept is None or set(split_of) - set(kept) or _own_ids(columns.own_ids, splits) is None:
        return None
    rows: dict[str, list[int]] = {split: [] for split in kept}
    for i, split in enumerate(split_of):
        rows[split].append(i)
    sources = {}
    for split, chosen in rows.items():
        chosen.sort(key=columns.own_ids.__getitem__)
        ids = tuple(columns.own_ids[i] for i in chosen)
        labels = labels_as_exported(columns, np.array(chosen, dtype=np.int64), kept[split])
        if labels is None:
            return None
        files = Files(tuple(columns.files[i] for i in chosen), str(folder))
        further = {key: tuple(column[i] for i in chosen) for key, column in columns.attributes.items()}
        sources[split] = Source(spec if splits is None else f"{spec} ({split})", ids, labels, files, (), further)
    return {split: source for split, source in sources.items() if len(source)}


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """The images of a manifest with the boxes and masks of their annotations; an image without any is kept.

    Boxes x, y, width, height become x1, y1, x2, y2. `iscrowd` makes a crowd, `ignore` a difficult object. Categories
    that have no annotation are left out.

    Args:
        spec: the file. Paths in it are relative to its folder; of the COCO layout, `annotations/instances_val2017.json`
            finds its images in `val2017/`.

    Returns:
        Split name -> source, or {"all": source}.

    Raises:
        DataError: as for `open`; or an annotation has no box, or one that is not finite, or a damaged segmentation.
    """
    manifest = _load(spec)
    images = list(manifest.imgs.values())
    without = [str(image["id"]) for image in images if not image.get("file_name")]
    if without:
        raise DataError(f"{spec}: images without a file_name are not supported: id {some(without)}")
    files = [str(image["file_name"]) for image in images]
    folder = _image_folder(spec, files)
    ids = [image_id(file, folder) for file in files]
    check_files(spec, files, ids, folder)
    splits = _splits(spec, files, [str(image.get("split") or "") for image in images])
    ids = _own_ids([str(image.get(ID_KEY) or "") for image in images], splits) or ids
    members: dict[str, list[int]] = {}
    for i, split in enumerate(splits or ()):
        members.setdefault(split, []).append(i)
    content = manifest.dataset | {"images": images}
    return object_sources(spec, content, ids, Files(files, str(folder)), members or None, ())


def _own_ids(ids: list[str], splits: list[str] | None) -> list[str] | None:
    """The ids that `sslbench data to-kwcoco` wrote, if every image has one and no split has one twice."""
    once = len(set(zip(splits, ids, strict=True) if splits else ids)) == len(ids)
    return ids if all(ids) and once else None


def _image_folder(spec: str, files: Sequence[str]) -> Path:
    """Where relative paths start: beside the manifest, or in `../val2017` for `annotations/instances_val2017.json`."""
    folder, first = Path(spec).parent, files[0]
    other = folder.parent / Path(spec).stem.rpartition("_")[2]
    return other if not (folder / first).exists() and (other / first).is_file() else folder


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Kwcoco prints progress on stdout, where the results go, and warns about packages that it can do without."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _load(spec: str) -> Any:
    """The manifest as a kwcoco.CocoDataset, checked to be one."""
    with _quiet():
        import kwcoco

        try:
            manifest = kwcoco.CocoDataset(spec, autobuild=False)
        except OSError as error:
            raise DataError(f"cannot read {spec}: {error.strerror or error}") from error
        except Exception as error:  # kwcoco raises bare Exceptions too
            raise DataError(f"{spec} is not a COCO manifest: {one_line(error)}") from error
    content = manifest.dataset
    tables = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        keys = (
            f"a mapping with the keys {some(sorted(map(str, content)), 6)}" if isinstance(content, dict) else "a list"
        )
        raise DataError(
            f"{spec} is not a COCO manifest: it has no list 'images', it is {keys}",
            "A manifest is a mapping with the lists images, annotations and categories.",
        )
    for table in tables:
        rows = content.setdefault(table, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{spec}: '{table}' is not a list of mappings")
    if not content["images"]:
        raise DataError(f"{spec} lists no images")
    _check_references(spec, content)
    with _quiet(), _silent_logging():
        try:
            manifest.rebuild_index()
        except Exception as error:
            raise DataError(f"{spec} is an inconsistent COCO manifest: {one_line(error)}") from error
    return manifest


@contextlib.contextmanager
def _silent_logging() -> Iterator[None]:
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(previous)


def _check_references(spec: str, content: dict[str, Any]) -> None:
    """Ids are unique numbers, names are unique, and no annotation points nowhere."""
    for table, key in (("images", "id"), ("annotations", "id"), ("categories", "id"), ("categories", "name")):
        rows = content[table]
        without = [row for row in rows if row.get(key) is None]
        if without:
            raise DataError(f"{spec}: an entry of '{table}' has no '{key}': {one_line(without[0])}")
        counts = Counter(_plain(spec, table, key, row[key]) for row in rows)
        twice = [str(value) for value, n in counts.items() if n > 1]
        if twice:
            raise DataError(f"{spec}: the same {key} occurs twice in '{table}': {some(twice)}")
    for key, table in (("image_id", "images"), ("category_id", "categories")):
        known = {row["id"] for row in content[table]}
        used = {
            _plain(spec, "annotations", key, row[key]) for row in content["annotations"] if row.get(key) is not None
        }
        if used - known:
            wrong = sorted(map(repr, used - known))
            raise DataError(f"{spec}: annotations have {key} {some(wrong)}, which is not in '{table}'")


def _plain(spec: str, table: str, key: str, value: object) -> int | str:
    # kwcoco takes whole numbers only as ids, as COCO does.
    if isinstance(value, int) or (key == "name" and isinstance(value, str)):
        return value
    kind = "text" if key == "name" else "a whole number"
    raise DataError(f"{spec}: {key} of '{table}' should be {kind}, not {value!r}")


def _splits(spec: str, files: Sequence[str], splits: Sequence[str]) -> list[str] | None:
    if not any(splits):
        return None
    without = [file for file, split in zip(files, splits, strict=True) if not split]
    if without:
        raise DataError(f"{spec}: {len(without):,} of {counted(len(files), 'image')} without a split: {some(without)}")
    named = {split: split_name(split) or split.strip().lower() for split in set(splits)}
    return [named[split] for split in splits]
