"""COCO or kwcoco manifest (.json, .kwcoco.json, .kwcoco.zip, its view .sqlite): images, annotations, categories."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sslbench.config import setting
from sslbench.data.containers.listed import find_listed, folders_beside, image_id, images_folder
from sslbench.data.containers.members import by_split, refuse_twice, split_name
from sslbench.data.containers.sniff import is_json_table
from sslbench.data.format import Reader, SampleReader, SourceFormat, plain_reader
from sslbench.data.formats.coco import masks, panoptic
from sslbench.data.formats.coco.assets import AssetImages, images_of
from sslbench.data.formats.coco.columns import (
    CHANNELS_KEY,
    Columns,
    provenance,
    read_columns,
    refuse_unknown_keys,
    text_of,
)
from sslbench.data.formats.coco.labels import by_supercategory, exported_as, labels_as_exported, labels_of
from sslbench.data.formats.coco.objects import object_sources
from sslbench.data.images import Files
from sslbench.data.maps.classes import LabelMapOptions
from sslbench.data.maps.foreground import map_readers
from sslbench.data.objects import ObjectOptions, ObjectSource
from sslbench.data.objects.crops import ElsewhereOptions, crops_of
from sslbench.data.objects.view import viewed
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.objects import Boxes
from sslbench.targets.target import Images
from sslbench.targets.videos import Tracks

SUFFIXES = (".json", ".kwcoco.zip", ".sqlite")


@dataclasses.dataclass(frozen=True)
class CocoOptions(ElsewhereOptions):
    """Options of a manifest: photos.json?unit=annotation&margin=0.1."""

    channels: str = setting("", "channels of multi-file images by name, in order: red|green|blue|nir")
    group: str = setting("", "key of the images (or boxes); a seeded split keeps equal values on one side")


WHOLE_IMAGES = CocoOptions()


def recognises(spec: str) -> bool:
    """Return whether the string ends like a manifest, is no folder, and holds no list of records (a table)."""
    return spec.lower().endswith(SUFFIXES) and not Path(spec).is_dir() and not is_json_table(spec)


def open(spec: str, *, attribute_columns: Sequence[str] = (), options: CocoOptions = WHOLE_IMAGES) -> dict[str, Source]:
    """Return the images of a manifest, labelled with the categories of their annotations.

    The labels are single if each image has exactly one category, else multi: a category whose annotations on an image
    are all marked `iscrowd`, `ignore` or `difficult` is ignored there, and an image without annotations has none of
    the classes.

    Images that are frames of videos have the attribute 'video', and a seeded split keeps those of one video together.
    An image may lie in several files with different channels (`assets` or `auxiliary`).

    Args:
        spec: the file. Paths in it are relative to its folder; of the COCO layout, `annotations/instances_val2017.json`
            finds its images in `val2017/`. A key `split` on the images is honoured.
        attribute_columns: keys of the images (for crops also of the annotations) that are kept as attributes, as text.
        options: crops of boxes in place of images, supercategories in place of categories, channels.

    Returns:
        Split name -> source, or {"all": source}. Ids are the paths relative to the manifest's folder, of images without
        a file of their own their names, or the paths of their first files.

    Raises:
        DataError: the file is no COCO manifest, is inconsistent, or lists an image that is missing or listed twice.
        UsageError: no image has a key of `attribute_columns`.
    """
    if options.group and options.group not in attribute_columns:
        attribute_columns = (*attribute_columns, options.group)
    if options.unit == "annotation":
        return _crops_of(spec, attribute_columns, options)
    arguments = [[*attribute_columns], options.classes, options.channels, options.group, options.images]
    return viewed(spec, "coco", arguments, lambda: _open(spec, attribute_columns, options))


def _open(spec: str, attribute_columns: Sequence[str], options: CocoOptions) -> dict[str, Source]:
    columns = read_columns(spec, attribute_columns)
    refuse_unknown_keys(spec, columns, attribute_columns)
    if options.group:
        columns.grouped_by = options.group
    if options.classes == "supercategory":
        columns = by_supercategory(columns)
    images, ids, splits, notes = _images(spec, columns, options.channels, images_folder(spec, options.images))
    exported = _as_exported(spec, columns, images, splits)
    if exported is not None:
        return exported
    labels, more = labels_of(spec, columns, ids)
    sources = by_split(spec, ids, labels, images, splits, (*notes, *more), columns.attributes)
    return {split: dataclasses.replace(source, grouped_by=columns.grouped_by) for split, source in sources.items()}


def _images(
    spec: str, columns: Columns, channels: str, below: Path | None = None
) -> tuple[Files | AssetImages, list[str], list[str] | None, tuple[str, ...]]:
    """Return the images, their ids, their splits and notes."""
    listed, names, notes = images_of(spec, columns.assets, channels or provenance(columns.info, CHANNELS_KEY))
    # Images may share an asset, and `find_listed` refuses a name that stands there twice.
    files = listed if isinstance(listed, list) else list(dict.fromkeys(map(str, listed.files.paths)))
    found = find_listed(spec, files, [below] if below else folders_beside(Path(spec)), "?images=FOLDER")
    images: Files | AssetImages
    if isinstance(listed, list):
        images, ids = found.files, found.ids
    else:
        place = dict(zip(files, found.paths, strict=True))
        paths = [place[str(path)] for path in listed.files.paths]
        images = dataclasses.replace(listed, files=Files(paths, str(found.folder)))
        ids = [image_id(place.get(name, name), found.folder) for name in names]
        refuse_twice(spec, ids)
    if not any(columns.splits):
        splits = None
    else:
        without = [file for file, split in zip(ids, columns.splits, strict=True) if not split]
        if without:
            raise DataError(
                f"{spec}: {len(without):,} of {counted(len(ids), 'image')} without a split: {some(without)}"
            )
        named = {split: split_name(split) or split.strip().lower() for split in set(columns.splits)}
        splits = [named[split] for split in columns.splits]
    return images, _own_ids(columns.own_ids, splits) or ids, splits, (*columns.notes, *notes, *found.notes)


def _as_exported(spec: str, columns: Columns, images: Images, splits: list[str] | None) -> dict[str, Source] | None:
    """Return the sources that `sslbench data to-kwcoco` wrote, with ids and classes; None for other manifests."""
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


def _crops_of(spec: str, attribute_columns: Sequence[str], options: CocoOptions) -> dict[str, Source]:
    if not (attribute_columns or options.channels or options.classes == "supercategory"):
        return crops_of(spec, open_objects(spec, images_folder(spec, options.images)), options)  # keeps a view
    columns = read_columns(spec, attribute_columns, rows=True)
    annotations = columns.rows["annotations"]
    of_objects = [key for key in attribute_columns if key not in columns.attributes]
    if of_objects:
        plain = {k for row in annotations for k, v in row.items() if isinstance(v, str | int | float)}
        for key in of_objects:
            if key not in plain:
                known = plain | columns.keys
                raise UsageError(f"no image and no annotation of {spec} has a key '{key}'", did_you_mean(key, known))
    group = dict(zip(columns.names, columns.supers, strict=True)) if options.classes == "supercategory" else None
    texts = {key: {row["id"]: text_of(row.get(key)) for row in annotations} for key in of_objects}
    sources = _objects(spec, columns, options.channels, images_folder(spec, options.images))
    return crops_of(spec, sources, options, group, columns=texts, grouped_by=options.group)


def open_objects(spec: str, below: Path | None = None, group: str = "") -> dict[str, ObjectSource]:
    """Return the images of a manifest with the boxes and masks of their annotations; images without any are kept.

    Boxes x, y, width, height become x1, y1, x2, y2. `iscrowd` makes a crowd, `ignore` and `difficult` a difficult
    object. Categories that have no annotation are left out.

    `spec`: the file. Paths in it are relative to its folder; of the COCO layout, `annotations/instances_val2017.json`
    finds its images in `val2017/`. `group`: key of the images whose equal values a seeded split keeps on one side; '':
    by videos, if there are any.

    Returns:
        Split name -> source, or {"all": source}.
    """
    arguments = ["" if below is None else str(below.resolve()), group] if below is not None or group else []

    def read() -> dict[str, ObjectSource]:
        columns = read_columns(spec, (group,) if group else (), rows=True)
        if group:
            refuse_unknown_keys(spec, columns, (group,))
            columns.grouped_by = group
        return _objects(spec, columns, below=below)

    return viewed(spec, "coco objects", arguments, read)


def _objects(spec: str, columns: Columns, channels: str = "", below: Path | None = None) -> dict[str, ObjectSource]:
    images, ids, splits, notes = _images(spec, columns, channels, below)
    return object_sources(spec, columns, ids, images, splits, notes)


def open_videos(spec: str) -> dict[str, Source]:
    """Return the videos of a manifest with the masks of their objects, followed by their `track_id`."""
    columns = read_columns(spec, rows=True)
    tracks = {row["id"]: row.get("track_id") for row in columns.rows["annotations"]}
    return {split: masks.videos_of(source, tracks) for split, source in _objects(spec, columns).items()}


def _own_ids(ids: list[str], splits: list[str] | None) -> list[str] | None:
    """Return the ids that `sslbench data to-kwcoco` wrote, if every image has one and no split has one twice."""
    once = len(set(zip(splits, ids, strict=True) if splits else ids)) == len(ids)
    return ids if all(ids) and once else None


def _recognises_objects(spec: str) -> bool:
    return Path(spec).exists() and recognises(spec)


def open_maps(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    """Return the maps of a panoptic file or folder, else the masks of a manifest as label maps."""
    if panoptic.recognises(spec):
        return panoptic.open_maps(spec, options)
    below = images_folder(spec, options.images or "")
    return masks.open_maps(spec, options, lambda manifest: open_objects(manifest, below))


FORMAT = SourceFormat(
    __doc__,
    SampleReader(
        recognises,
        lambda request: open(request.spec, attribute_columns=request.attribute_columns, options=request.options),
        CocoOptions,
        frozenset(("attribute",)),
    ),
    {
        Boxes: Reader(
            lambda spec, _: _recognises_objects(spec),
            lambda spec, options: open_objects(spec, images_folder(spec, options.images), options.group),
            ObjectOptions,
        ),
        **map_readers(
            lambda spec, _: panoptic.recognises(spec) or (Path(spec).is_file() and recognises(spec)),
            open_maps,
            LabelMapOptions,
            alone=panoptic.recognises,
        ),
        Tracks: plain_reader(lambda spec: _recognises_objects(spec) and masks.has_tracks(Path(spec)), open_videos),
    },
)
