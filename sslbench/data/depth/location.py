"""Opening of data locations with depth or surface normals."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sslbench import config
from sslbench.data.depth import layout, motorcycle, nyu
from sslbench.data.depth.layout import ValuePairs
from sslbench.data.depth.values import DepthOptions, NormalOptions, Quantity, ValueFiles
from sslbench.data.location import locate
from sslbench.data.maps.layout import FOLDER, by_folder
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.targets.pixel_values import Depth, Normals

_LISTS = {"train": "*train*_files_with_gt.txt", "test": "*test*_files_with_gt.txt"}
"""Lists of BTS in a folder: nyudepthv2_train_files_with_gt.txt, eigen_test_files_with_gt.txt."""
_KNOWN = {
    "nyu": DepthOptions(depth_scale=1000.0, min_depth=0.001, max_depth=10.0),
    "kitti": DepthOptions(depth_scale=256.0, min_depth=0.001, max_depth=80.0),
    "eigen": DepthOptions(depth_scale=256.0, min_depth=0.001, max_depth=80.0),
}
"""Scale and range of known data sets, by the first letters of a list's name."""
_LAYOUTS = (
    "Supported: images/ and {0}/ with equal names (also in train/, test/), a list (.txt: image and {0} file per line), "
    "a table or manifest with the columns image and {0}, and skimage:motorcycle; PLACE?images=photos&{0}=gt names "
    "other folders."
)


def open_depth(spec: str) -> dict[str, Source]:
    """Open images with depth; the layout is recognised.

    Args:
        spec: a folder, a list, a table, a manifest, nyu_depth_v2_labeled.mat or skimage:motorcycle. Behind a '?' may
            stand `depth_scale=1000` (stored number of one metre), `min_depth=0.001&max_depth=10` (other depths are
            unknown), `images=photos&depth=gt` (folders of other names) and `group=scene` (a column of a table: images
            of equal values stay together in splits and intervals) or `group=folder`.

    Returns:
        Split name -> source; {"all": source} if there are no splits. Images without depth are left out, with a note.

    Raises:
        UsageError: the location does not exist, has no depth, or an option is not known.
        DataError: it is damaged; the message names the file.

    >>> tiles = open_depth("skimage:motorcycle")["train"]
    >>> len(tiles), tiles.target.pixels.read_values(0).shape
    (20, (100, 92, 1))
    """
    return _open(spec, "depth")


def open_normals(spec: str) -> dict[str, Source]:
    """Open images with surface normals; see `open_depth`.

    Files hold vectors (.npy, .npz, .pfm) or pictures with (n + 1) / 2 of the largest number of each colour.

    >>> tiles = open_normals("skimage:motorcycle")["test"]
    >>> tiles.target.pixels.read_values(0).shape
    (100, 92, 3)
    """
    return _open(spec, "normals")


def holds_values(spec: str) -> Quantity | None:
    """Return the quantity that a location holds if its layout allows nothing else: images/ beside depth/ or normals/.

    Raises:
        UsageError: the location is empty, or a catalog cannot be read.
    """
    text = locate(spec).text
    if text.startswith(motorcycle.PREFIX):
        return "depth"
    root = Path(text)
    quantities: tuple[Quantity, ...] = ("depth", "normals")
    return next((quantity for quantity in quantities if layout.is_pair_folder(root, quantity)), None)


def _open(spec: str, quantity: Quantity) -> dict[str, Source]:
    location = locate(spec)
    text, path, where = location.text, Path(location.text), f"the options of {location.text}"
    given = {
        key: yaml.safe_load(value) if key.endswith(("depth", "scale")) and key != "depth" else value
        for key, value in location.options.items()
    }
    if quantity == "depth":
        options = config.build(DepthOptions, given, where)
        folders = (options.images, options.depth)
    else:
        other = config.build(NormalOptions, given, where)
        options, folders = DepthOptions(group=other.group), (other.images, other.normals)
    options.check(text)
    if text.startswith(motorcycle.PREFIX):
        _refuse(text, given, understood=())
        return motorcycle.open_tiles(text, quantity)
    if not path.exists():
        raise UsageError(f"'{spec}' does not exist", _LAYOUTS.format(quantity))
    if layout.is_table(path):
        _refuse(text, given, understood=("images", quantity, "depth_scale", "min_depth", "max_depth", "group"))
    if quantity == "depth" and nyu.recognises(path):
        _refuse(text, given, understood=("min_depth", "max_depth"))
        return nyu.open_labelled(path, options)
    try:
        return _of_files(text, path, quantity, options, folders)
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error


def _refuse(text: str, given: Mapping[str, Any], *, understood: Sequence[str]) -> None:
    """Raise for an option without effect."""
    if other := [key for key in given if key not in understood]:
        raise UsageError(f"'{text}' does not support the option '?{other[0]}='")


def _of_files(
    text: str, path: Path, quantity: Quantity, options: DepthOptions, folders: tuple[str | None, str | None]
) -> dict[str, Source]:
    if path.suffix.lower() == ".txt":
        pairs = {"all": layout.list_pairs(path, quantity, *folders)}
        options = _with_known(path.name, options)
    elif layout.is_table(path):
        column = None if options.group == FOLDER else options.group
        pairs = layout.table_pairs(path, quantity, *folders, column)
    elif path.is_dir():
        lists = {split: next(iter(sorted(path.glob(pattern))), None) for split, pattern in _LISTS.items()}
        pairs = {split: layout.list_pairs(file, quantity, *folders) for split, file in lists.items() if file}
        options = _with_known(next((file.name for file in lists.values() if file), ""), options)
        pairs = pairs or layout.folder_pairs(path, quantity, *folders)
    else:
        raise UsageError(f"{text} has no {quantity}", _LAYOUTS.format(quantity))
    if options.group not in (None, FOLDER) and not layout.is_table(path):
        raise UsageError(
            f"{text} is no table, so it has no column for group={options.group}",
            f"group={FOLDER} keeps the images of a folder together.",
        )
    sources = {split: _source(text, split, found, quantity, options) for split, found in pairs.items()}
    return {split: by_folder(part) for split, part in sources.items()} if options.group == FOLDER else sources


def _with_known(name: str, options: DepthOptions) -> DepthOptions:
    """Return the options with the scale and range of a known list where the user gives none."""
    known = next((each for prefix, each in _KNOWN.items() if name.lower().startswith(prefix)), DepthOptions())
    return dataclasses.replace(
        options,
        depth_scale=options.depth_scale or known.depth_scale,
        min_depth=options.min_depth or known.min_depth,
        max_depth=options.max_depth or known.max_depth,
    )


def _source(text: str, split: str, pairs: ValuePairs, quantity: Quantity, options: DepthOptions) -> Source:
    name = text if split == "all" else f"{text} ({split})"
    column = options.group if pairs.groups and options.group else ""
    return Source(
        name,
        pairs.ids,
        (Depth if quantity == "depth" else Normals)(ValueFiles(name, pairs.values, quantity, options)),
        pairs.images,
        pairs.notes,
        {column: pairs.groups} if column else {},
        column,
    )
