"""Depth or normals: images/ beside depth/ or normals/, a list of pairs (.txt), a table or manifest with such columns.

Files hold depths, or vectors (.npy, .npz, .pfm) or pictures with (n + 1) / 2 of the largest number of each colour.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from sslbench.data.containers.listed import find_listed, folders_beside
from sslbench.data.containers.members import split_name
from sslbench.data.containers.sniff import json_of, read_text
from sslbench.data.format import Reader, SourceFormat
from sslbench.data.formats.table import read_cells
from sslbench.data.images import Files
from sslbench.data.maps.layout import FOLDER, PairedFiles, Pairs, divided, find_places, in_order, paired
from sslbench.data.maps.values import SUFFIXES, DepthOptions, NormalOptions, Quantity, ValueFiles
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.data.wording import part_name, repeated, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.pixel_values import Depth, Normals
from sslbench.text import printable

_IMAGES = ("images", "image", "imgs", "rgb", "img", "photos")
_WANTED = (lambda name: PurePosixPath(name).suffix.lower() in SUFFIXES,)
_FILES: Mapping[Quantity, PairedFiles] = {
    "depth": PairedFiles(
        "depth file",
        _IMAGES,
        ("depth", "depths", "depth_maps", "depth_gt"),
        ("", "_depth", "-depth", ".depth"),
        _WANTED,
    ),
    "normals": PairedFiles(
        "normals file",
        _IMAGES,
        ("normals", "normal", "surface_normals"),
        ("", "_normal", "_normals", "-normal", ".normal"),
        _WANTED,
    ),
}
_IMAGE_COLUMNS = ("image", "image_path", "rgb", "path", "file", "file_name")
_VALUE_COLUMNS: Mapping[Quantity, tuple[str, ...]] = {
    "depth": ("depth", "depth_path", "depth_file"),
    "normals": ("normals", "normal", "normals_path", "normal_path"),
}
_TABLES = (".csv", ".tsv", ".jsonl", ".json")
# Folders beside a list in which its paths may begin: BTS keeps NYUv2 in sync/ and official_splits/test/
_BESIDE = ("", "sync", "train", "official_splits/test", "test", "input", "gt_depth", "raw", "data")
# Lists of BTS in a folder: nyudepthv2_train_files_with_gt.txt, eigen_test_files_with_gt.txt
_LISTS = {"train": "*train*_files_with_gt.txt", "test": "*test*_files_with_gt.txt"}
# Scale and range of known data sets, by the first letters of a list's name
_KNOWN = {
    "nyu": DepthOptions(depth_scale=1000.0, min_depth=0.001, max_depth=10.0),
    "kitti": DepthOptions(depth_scale=256.0, min_depth=0.001, max_depth=80.0),
    "eigen": DepthOptions(depth_scale=256.0, min_depth=0.001, max_depth=80.0),
}
# Depth file of a line of KITTI's lists whose image has none
_NONE = "None"


def is_pair_folder(root: Path, quantity: Quantity) -> bool:
    """Return whether a folder, or its folders of splits, have one of images and one of depth or normals."""
    try:
        return root.is_dir() and bool(find_places(root, _FILES[quantity]))
    except DataError:
        return False


def folder_pairs(root: Path, quantity: Quantity, images: str | None, values: str | None) -> dict[str, Pairs]:
    """Return the pairs of a folder by split."""
    kind = _FILES[quantity]
    places = find_places(root, kind, images, values)
    if not places:
        raise UsageError(
            f"{root} has no folders images/ and {quantity}/",
            f"Name them: {root}?images=photos&{quantity}=gt; or give a list or a table of the pairs.",
        )
    found = paired(divided(places[0]) if places[0].split == "all" else places, kind, whole=True)
    return {split: dataclasses.replace(one, notes=one.left_out("", kind.title)) for split, one in found.items()}


def is_table(path: Path) -> bool:
    """Return whether a file has the suffix of a table."""
    return path.suffix.lower() in _TABLES and path.is_file()


def table_pairs(
    path: Path,
    quantity: Quantity,
    image_folder: str | None = None,
    value_folder: str | None = None,
    group: str | None = None,
) -> dict[str, Pairs]:
    """Return the pairs that a table (.csv, .tsv, .jsonl) or a manifest (.json with images) lists, by split.

    Columns: image, depth or normals, perhaps split and groups. Paths are relative to the folder of the table, or to
    those given.
    """
    rows = _rows(path)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    image = next((name for name in _IMAGE_COLUMNS if name in columns), None)
    values = next((name for name in _VALUE_COLUMNS[quantity] if name in columns), None)
    if image is None or values is None:
        wanted = "image" if image is None else quantity
        raise UsageError(
            f"{path} has no column '{wanted}' among: {some(columns, 8) or 'none'}", did_you_mean(wanted, columns)
        )
    if group is not None and group not in columns:
        raise UsageError(f"{path} has no column '{group}' for group={group}", did_you_mean(group, [*columns, "folder"]))
    groups = {} if group is None else {str(row.get(image) or ""): str(row.get(group) or "") for row in rows}
    splits: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        split = str(row.get("split") or "all")
        listed = (str(row.get(image) or ""), str(row.get(values) or ""))
        splits.setdefault(split_name(split) or split, []).append(listed)
    image_folders, value_folders = (
        folders_beside(path) if given is None else [path.parent / given] for given in (image_folder, value_folder)
    )
    return in_order(
        {
            split: listed_pairs(str(path), found, image_folders, value_folders, quantity, groups)
            for split, found in splits.items()
        }
    )


def _rows(path: Path) -> list[Mapping[str, Any]]:
    if path.suffix.lower() == ".json":
        content = json_of(path)
        rows = content.get("images") if isinstance(content, dict) else content
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{path} should be a list of records, or a manifest with a list of images")
        return rows
    columns = read_cells(path).columns
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def list_pairs(path: Path, quantity: Quantity, images: str | None, values: str | None) -> Pairs:
    """Return the pairs of a list: a line has an image, its depth file and perhaps the focal length, as BTS has them."""
    lines = [line.split() for line in read_text(path)[0].splitlines() if line.strip()]
    if wrong := [number for number, line in enumerate(lines, 1) if len(line) not in (2, 3)]:
        raise DataError(
            f"{path}, line {wrong[0]} is no pair: expected an image, its {quantity} file and perhaps the focal length"
        )
    # Paths in BTS's lists may begin with a slash and are relative all the same.
    pairs = [(line[0].lstrip("/"), line[1].lstrip("/")) for line in lines]
    beside = [path.parent / folder for folder in _BESIDE]
    image_folders, value_folders = (beside if given is None else [path.parent / given] for given in (images, values))
    return listed_pairs(str(path), pairs, image_folders, value_folders, quantity)


def listed_pairs(
    where: str,
    pairs: list[tuple[str, str]],
    image_folders: Sequence[Path],
    value_folders: Sequence[Path],
    quantity: Quantity,
    groups: Mapping[str, str] | None = None,
) -> Pairs:
    """Return pairs of paths as they are listed, in order of the images; images without a file are left out.

    `groups` has the group of each image.
    """
    known = {image: values for image, values in pairs if image and values and values != _NONE}
    images = [image for image, _ in pairs]
    if twice := repeated(images):
        raise DataError(f"{where} lists {printable(twice[0])} twice")
    if not known:
        raise DataError(f"{where} lists no image with {quantity}")
    found = find_listed(where, list(known), image_folders, "?images=FOLDER")
    drawn = list(dict.fromkeys(known.values()))
    listed = find_listed(where, drawn, value_folders, f"?{quantity}=FOLDER")
    place = dict(zip(drawn, listed.paths, strict=True))
    notes = (*found.notes, *listed.notes)
    if without := [printable(image) for image in images if image not in known]:
        notes += (f"{len(without):,} images of {where} without {quantity} are left out: {some(without, 3)}",)
    order = np.array(sorted(range(len(known)), key=found.ids.__getitem__), dtype=np.int64)
    values, names = tuple(place[name] for name in known.values()), list(known)
    return Pairs(
        found.files.select(order),
        Files(values, str(listed.folder)).select(order),
        tuple(found.ids[i] for i in order),
        notes=notes,
        groups=tuple(groups[names[i]] for i in order) if groups else (),
    )


def recognises(spec: str, _: Mapping[str, str]) -> bool:
    """Return whether the location is a folder, a list or a table; `open` refuses one without such files."""
    path = Path(spec)
    return path.is_dir() or is_table(path) or (path.suffix.lower() == ".txt" and path.is_file())


def open_depth(spec: str, options: DepthOptions) -> dict[str, Source]:
    """Return the images with depth; images without are left out, with a note."""
    if options.max_depth is not None and options.max_depth <= options.min_depth:
        raise UsageError(f"the options of {spec}: max_depth should be above min_depth, {options.min_depth:g}")
    return _open(spec, "depth", options, (options.images, options.depth))


def _open(
    spec: str, quantity: Quantity, options: DepthOptions, folders: tuple[str | None, str | None]
) -> dict[str, Source]:
    path = Path(spec)
    if is_table(path):
        pairs = table_pairs(path, quantity, *folders, None if options.group == FOLDER else options.group)
    elif options.group not in (None, FOLDER):
        raise UsageError(
            f"{spec} is no table, so it has no column for group={options.group}",
            f"group={FOLDER} keeps the images of a folder together.",
        )
    elif path.is_dir():
        lists = {split: next(iter(matching(path, pattern)), None) for split, pattern in _LISTS.items()}
        pairs = {split: list_pairs(file, quantity, *folders) for split, file in lists.items() if file}
        options = _with_known(next((file.name for file in lists.values() if file), ""), options)
        pairs = pairs or folder_pairs(path, quantity, *folders)
    else:
        pairs = {"all": list_pairs(path, quantity, *folders)}
        options = _with_known(path.name, options)
    sources = {}
    for split, found in pairs.items():
        name = part_name(spec, split)
        column = options.group if found.groups and options.group else ""
        sources[split] = Source(
            name,
            found.ids,
            (Depth if quantity == "depth" else Normals)(ValueFiles(name, found.maps, quantity, options)),
            found.images,
            found.notes,
            {column: found.groups} if column else {},
            column,
        )
    return sources


def _with_known(name: str, options: DepthOptions) -> DepthOptions:
    """Return the options with the scale and range of a known list where the user gives none."""
    # BTS names its lists after the data set, and the files themselves say no scale.
    known = next((each for prefix, each in _KNOWN.items() if name.lower().startswith(prefix)), DepthOptions())
    return dataclasses.replace(
        options,
        depth_scale=options.depth_scale or known.depth_scale,
        min_depth=options.min_depth or known.min_depth,
        max_depth=options.max_depth or known.max_depth,
    )


FORMAT = SourceFormat(
    __doc__,
    readers={
        Depth: Reader(recognises, open_depth, DepthOptions, lambda spec: is_pair_folder(Path(spec), "depth")),
        Normals: Reader(
            recognises,
            lambda spec, given: _open(spec, "normals", DepthOptions(group=given.group), (given.images, given.normals)),
            NormalOptions,
            lambda spec: is_pair_folder(Path(spec), "normals"),
        ),
    },
    last_resort=True,
)
