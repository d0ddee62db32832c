"""COCO or kwcoco manifest (.json, .kwcoco.json, .kwcoco.zip): images, annotations, categories."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.config import setting
from sslbench.data.containers.names import by_split, check_files, image_id, refuse_columns, split_name
from sslbench.data.containers.sniff import is_json_table
from sslbench.data.containers.view import viewed
from sslbench.data.formats.coco.asset_images import AssetImages
from sslbench.data.formats.coco.assets import AssetCollector, Assets, images_of
from sslbench.data.formats.coco.columns import (
    CHANNELS_KEY,
    GROUPED_KEY,
    ID_KEY,
    Columns,
    read_columns,
    text_of,
    told,
)
from sslbench.data.formats.coco.labels import by_supercategory, exported_as, labels_as_exported, labels_of
from sslbench.data.formats.coco.manifest import load
from sslbench.data.formats.coco.objects import object_sources
from sslbench.data.formats.coco.videos import FRAME, VIDEO, Videos
from sslbench.data.images import Files
from sslbench.data.objects import crops
from sslbench.data.objects.crops import crops_of
from sslbench.data.objects.types import ObjectSource
from sslbench.data.source import Images, Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean

SUFFIXES = (".json", ".kwcoco.zip")


@dataclasses.dataclass(frozen=True)
class Options(crops.Options):
    """What may stand behind a '?': photos.json?unit=annotation&margin=0.1."""

    channels: str = setting("", "of images in several files, which and in which order: red|green|blue|nir")
    group: str = setting("", "key of the images (or boxes) whose equal values a seeded split keeps on one side")


WHOLE_IMAGES = Options()


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
    are all marked `iscrowd`, `ignore` or `difficult` is ignored there, and an image without annotations has none of
    the classes.

    Images that are frames of videos have the attribute 'video', and a seeded split keeps those of one video together.
    An image may lie in several files with different channels (`assets` or `auxiliary`).

    Args:
        spec: the file. Paths in it are relative to its folder; of the COCO layout, `annotations/instances_val2017.json`
            finds its images in `val2017/`. A key `split` on the images is honoured.
        image_column: for tables only.
        label_column: for tables only.
        attribute_columns: keys of the images (for crops also of the annotations) that are kept as attributes, as text.
        options: see there; crops of boxes in place of images, supercategories in place of categories, channels.

    Returns:
        Split name -> source, or {"all": source}. Ids are the paths relative to the manifest's folder, of images without
        a file of their own their names, or the paths of their first files.

    Raises:
        DataError: the file is no COCO manifest, is inconsistent, or lists an image that is missing or listed twice.
        UsageError: a column was named, or no image has such a key.
    """
    refuse_columns(spec, image_column, label_column)
    if options.group and options.group not in attribute_columns:
        attribute_columns = (*attribute_columns, options.group)
    if options.unit == "annotation":
        return _crops_of(spec, attribute_columns, options)
    arguments = [[*attribute_columns], options.classes, options.channels, options.group]
    return viewed(spec, "coco", arguments, lambda: _open(spec, attribute_columns, options))


def _open(spec: str, attribute_columns: Sequence[str], options: Options) -> dict[str, Source]:
    columns = read_columns(spec, attribute_columns)
    if options.group:
        columns = dataclasses.replace(columns, grouped_by=options.group)
    if options.classes == "supercategory":
        columns = by_supercategory(columns)
    images, ids, notes = _images(spec, columns.assets, options.channels or told(columns.info, CHANNELS_KEY))
    splits = _splits(spec, ids, columns.splits)
    ids = _own_ids(columns.own_ids, splits) or ids
    exported = _as_exported(spec, columns, images, splits)
    if exported is not None:
        return exported
    labels, more = labels_of(spec, columns, ids)
    sources = by_split(spec, ids, labels, images, splits, (*notes, *more), columns.attributes)
    return {split: dataclasses.replace(source, grouped_by=columns.grouped_by) for split, source in sources.items()}


def _images(spec: str, assets: Assets, channels: str) -> tuple[Files | AssetImages, list[str], tuple[str, ...]]:
    """The images, their ids, and notes; every file is there, and no image twice."""
    folder = _image_folder(spec, assets.own[0] or assets.files[0])
    images, names, notes = images_of(spec, assets, folder, channels)
    ids = [image_id(name, folder) for name in names]
    files = images if isinstance(images, Files) else images.files
    check_files(spec, files.paths, ids, folder)  # type: ignore[arg-type]  # what a manifest lists are texts
    return images, ids, notes


def _as_exported(spec: str, columns: Columns, images: Images, splits: list[str] | None) -> dict[str, Source] | None:
    """The sources that `sslbench data to-kwcoco` wrote, with their ids and classes; None if it did not write this."""
    kept = exported_as(columns.info)
    split_of = splits or ["all"] * len(images)
    if kept is None or set(split_of) - set(kept) or _own_ids(columns.own_ids, splits) is None:
        return None
    rows: dict[str, list[int]] = {split: [] for split in kept}
    for i, split in enumerate(split_of):
        rows[split].append(i)
    sources = {}
    for split, chosen in rows.items():
        chosen.sort(key=columns.own_ids.__getitem__)
        at = np.array(chosen, dtype=np.int64)
        ids = tuple(columns.own_ids[i] for i in chosen)
        labels = labels_as_exported(columns, at, kept[split])
        if labels is None:
            return None
        further = {key: tuple(column[i] for i in chosen) for key, column in columns.attributes.items()}
        name = spec if splits is None else f"{spec} ({split})"
        sources[split] = Source(name, ids, labels, images.select(at), (), further, columns.grouped_by)
    return {split: source for split, source in sources.items() if len(source)}


def _crops_of(spec: str, attribute_columns: Sequence[str], options: Options) -> dict[str, Source]:
    if not (attribute_columns or options.channels or options.classes == "supercategory"):
        return crops_of(spec, open_objects(spec), options)  # which a view is kept of
    manifest = load(spec)
    rows = manifest.dataset["images"], manifest.dataset["annotations"]
    given = {key for row in rows[0] for key in row} | ({VIDEO} if manifest.dataset.get("videos") else set())
    of_images = [key for key in attribute_columns if key in given]
    of_objects = [key for key in attribute_columns if key not in of_images]
    for key in of_objects:
        known = {k for table in rows for row in table for k, v in row.items() if isinstance(v, str | int | float)}
        if key not in known:
            raise UsageError(f"no image and no annotation of {spec} has a key '{key}'", did_you_mean(key, known))
    sources = _objects(spec, manifest, of_images, options.channels)
    group = None
    if options.classes == "supercategory":
        categories = manifest.dataset["categories"]
        group = {str(row["name"]): str(row.get("supercategory") or row["name"]) for row in categories}
    columns = {key: {row["id"]: text_of(row.get(key)) for row in rows[1]} for key in of_objects}
    return crops_of(spec, sources, options, group, columns=columns, grouped_by=options.group)


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """The images of a manifest with the boxes and masks of their annotations; an image without any is kept.

    Boxes x, y, width, height become x1, y1, x2, y2. `iscrowd` makes a crowd, `ignore` and `difficult` a difficult
    object. Categories that have no annotation are left out.

    Args:
        spec: the file. Paths in it are relative to its folder; of the COCO layout, `annotations/instances_val2017.json`
            finds its images in `val2017/`.

    Returns:
        Split name -> source, or {"all": source}.

    Raises:
        DataError: as for `open`; or an annotation has no box, or one that is not finite, or a damaged segmentation.
    """
    return viewed(spec, "coco objects", [], lambda: _objects(spec, load(spec)))


def _objects(
    spec: str, manifest: Any, attribute_columns: Sequence[str] = (), channels: str = ""
) -> dict[str, ObjectSource]:
    rows = list(manifest.imgs.values())
    info = manifest.dataset.get("info")
    collector, videos = AssetCollector(spec), Videos(spec)
    videos.table(manifest.dataset.get("videos") or [])
    for row in rows:
        collector.add(row)
        videos.add(row)
    images, ids, notes = _images(spec, collector.collected(), channels or told(info, CHANNELS_KEY))
    splits = _splits(spec, ids, [str(row.get("split") or "") for row in rows])
    ids = _own_ids([str(row.get(ID_KEY) or "") for row in rows], splits) or ids
    members: dict[str, list[int]] = {}
    for i, split in enumerate(splits or ()):
        members.setdefault(split, []).append(i)
    grouped_by = told(info, GROUPED_KEY)
    grouped_by = grouped_by if any(grouped_by in row for row in rows) else ""
    own = [key for key in (*attribute_columns, grouped_by) if any(key in row for row in rows)]
    attributes = {key: [text_of(row.get(key)) for row in rows] for key in dict.fromkeys(own)}
    of_videos = videos.attributes(without=[key for key in (VIDEO, FRAME) if key in attributes])
    grouped_by = grouped_by or (VIDEO if VIDEO in of_videos else "")
    attributes |= of_videos
    content = manifest.dataset | {"images": rows}
    further: dict[str, Any] = {"attributes": attributes, "grouped_by": grouped_by}
    return object_sources(spec, content, ids, images, members or None, notes, **further)


def _own_ids(ids: list[str], splits: list[str] | None) -> list[str] | None:
    """The ids that `sslbench data to-kwcoco` wrote, if every image has one and no split has one twice."""
    once = len(set(zip(splits, ids, strict=True) if splits else ids)) == len(ids)
    return ids if all(ids) and once else None


def _image_folder(spec: str, first: str) -> Path:
    """Where relative paths start: beside the manifest, or in `../val2017` for `annotations/instances_val2017.json`."""
    folder = Path(spec).parent
    other = folder.parent / Path(spec).stem.rpartition("_")[2]
    return other if not (folder / first).exists() and (other / first).is_file() else folder


def _splits(spec: str, files: Sequence[str], splits: Sequence[str]) -> list[str] | None:
    if not any(splits):
        return None
    without = [file for file, split in zip(files, splits, strict=True) if not split]
    if without:
        raise DataError(f"{spec}: {len(without):,} of {counted(len(files), 'image')} without a split: {some(without)}")
    named = {split: split_name(split) or split.strip().lower() for split in set(splits)}
    return [named[split] for split in splits]
