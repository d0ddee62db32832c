"""COCO or kwcoco manifest (.json, .kwcoco.json, .kwcoco.zip): images, annotations, categories."""

import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sslbench.data._coco_objects import object_sources
from sslbench.data._object_types import ObjectSource
from sslbench.data.images import Files
from sslbench.data.labels import multi_labels, no_labels, single_labels
from sslbench.data.source import Labels, Source
from sslbench.data.sources._names import by_split, check_files, image_id, refuse_columns, split_name
from sslbench.data.sources._sniff import is_json_table
from sslbench.data.wording import counted, some
from sslbench.errors import DataError

SUFFIXES = (".json", ".kwcoco.zip")


def recognises(spec: str) -> bool:
    """Whether the string ends like a manifest, is no folder, and does not hold a list of records (see the table)."""
    return spec.lower().endswith(SUFFIXES) and not Path(spec).is_dir() and not is_json_table(spec)


def open(spec: str, *, image_column: str | None = None, label_column: str | None = None) -> dict[str, Source]:
    """The images of a manifest, labelled with the categories of their annotations.

    The labels are single if each image has exactly one category, else multi: a category whose annotations on an image
    are all marked `iscrowd` or `ignore` is ignored there, and an image without annotations has none of the classes.

    Args:
        spec: the file. Paths in it are relative to its folder. A key `split` on the images is honoured.
        image_column: for tables only.
        label_column: for tables only.

    Returns:
        Split name -> source, or {"all": source}. Ids are the paths relative to the manifest's folder.

    Raises:
        DataError: the file is no COCO manifest, is inconsistent, or lists an image that is missing or listed twice.
        UsageError: a column was named.
    """
    refuse_columns(spec, image_column, label_column)
    manifest = _load(spec)
    folder = Path(manifest.bundle_dpath)
    images, files, ids = _files(spec, manifest, folder)
    labels, notes = _labels(spec, manifest, [image["id"] for image in images], ids)
    return by_split(spec, ids, labels, Files(files, str(folder)), _splits(spec, images), notes)


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
    folder = _image_folder(spec, manifest)
    images, files, ids = _files(spec, manifest, folder)
    splits = _splits(spec, images)
    members: dict[str, list[int]] = {}
    for i, split in enumerate(splits or ()):
        members.setdefault(split, []).append(i)
    content = manifest.dataset | {"images": images}
    return object_sources(spec, content, ids, Files(files, str(folder)), members or None, ())


def _files(spec: str, manifest: Any, folder: Path) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """The manifest's images, their files and their ids."""
    images = list(manifest.imgs.values())
    without = [str(image["id"]) for image in images if not image.get("file_name")]
    if without:
        raise DataError(f"{spec}: images without a file_name are not supported: id {some(without)}")
    files = [str(image["file_name"]) for image in images]
    ids = [image_id(file, folder) for file in files]
    check_files(spec, files, ids, folder)
    return images, files, ids


def _image_folder(spec: str, manifest: Any) -> Path:
    """Where relative paths start: beside the manifest, or in `../val2017` for `annotations/instances_val2017.json`."""
    folder = Path(manifest.bundle_dpath)
    first = next((str(image["file_name"]) for image in manifest.imgs.values() if image.get("file_name")), "")
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
            raise DataError(f"{spec} is not a COCO manifest: {_one_line(error)}") from error
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
            raise DataError(f"{spec} is an inconsistent COCO manifest: {_one_line(error)}") from error
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
            raise DataError(f"{spec}: an entry of '{table}' has no '{key}': {_one_line(without[0])}")
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


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]


def _labels(spec: str, manifest: Any, image_ids: list[Any], names: list[str]) -> tuple[Labels, tuple[str, ...]]:
    """The labels, decided over all images so that every split has the same kind and classes; and notes."""
    present, ignored, skipped = _categories_by_image(manifest, image_ids)
    notes = (f"{spec}: {counted(skipped, 'annotation')} without category left out",) if skipped else ()
    ordered = [str(manifest.cats[key]["name"]) for key in sorted(manifest.cats)]
    if not any(present) and not any(ignored):
        return no_labels(len(image_ids)), (*notes, f"{spec}: no image has a category, so there are no labels")
    odd = [name for name, p, i in zip(names, present, ignored, strict=True) if len(p) != 1 or i]
    if odd:
        note = f"{spec}: multi-label, since {counted(len(odd), 'image')} have not exactly one category: {some(odd)}"
        return multi_labels(present, ignored, ordered), (*notes, note)
    used = set().union(*present)
    unused = [name for name in ordered if name not in used]
    if unused:
        notes = (*notes, f"{spec}: categories without any image left out: {some(unused)}")
    return single_labels([next(iter(p)) for p in present], [name for name in ordered if name in used]), notes


def _categories_by_image(manifest: Any, image_ids: list[Any]) -> tuple[list[set[str]], list[set[str]], int]:
    """Per image the categories with a clean annotation, those with marked ones only; and how many had no category."""
    names = {key: str(category["name"]) for key, category in manifest.cats.items()}
    present: dict[Any, set[str]] = {key: set() for key in image_ids}
    marked: dict[Any, set[str]] = {key: set() for key in image_ids}
    skipped = 0
    for annotation in manifest.anns.values():
        category = annotation.get("category_id")
        if category is None or annotation.get("image_id") is None:
            skipped += 1
            continue
        is_marked = bool(annotation.get("iscrowd")) or bool(annotation.get("ignore"))
        (marked if is_marked else present)[annotation["image_id"]].add(names[category])
    return [present[k] for k in image_ids], [marked[k] - present[k] for k in image_ids], skipped


def _splits(spec: str, images: list[dict[str, Any]]) -> list[str] | None:
    splits = [image.get("split") for image in images]
    if not any(splits):
        return None
    without = [str(image["file_name"]) for image, split in zip(images, splits, strict=True) if not split]
    if without:
        raise DataError(f"{spec}: {len(without):,} of {counted(len(images), 'image')} without a split: {some(without)}")
    return [split_name(str(split)) or str(split).strip().lower() for split in splits]
