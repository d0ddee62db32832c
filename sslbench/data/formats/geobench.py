"""GEO-Bench V1: a folder of one HDF5 file per sample with *_partition.json; `?bands=red|green|blue`, `?scale=none`.

Lacoste et al., NeurIPS 2023 (arXiv 2306.03831). Classes are those of label_map.json, several per image those of
label_stats.json, classes of pixels the array `label` of each file. Pickles in the files are not read, so classes have
numbers for names; classes.txt beside them names those of pixels.

Bands have any type and range. `scale=train` maps mean minus and plus two standard deviations of each band in train to 0
and 255; see `_parts.bands.scaled`. (Statistics in band_stats.json are of all parts.)
`scale=none` gives bands of 16 bits without a sign as they are.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sslbench.config import setting
from sslbench.data.containers.hdf5 import open_hdf5
from sslbench.data.containers.members import by_split, split_name
from sslbench.data.containers.sniff import json_of
from sslbench.data.format import SampleReader, SampleRequest, SourceFormat
from sslbench.data.formats._parts.bands import BandImages, LabelBands, chosen_bands, scaled
from sslbench.data.images import Files
from sslbench.data.labels import multi_labels, single_labels
from sslbench.data.maps.classes import LabelMapOptions, coding_beside, make_coding, with_ignored
from sslbench.data.maps.foreground import map_readers
from sslbench.data.maps.layout import in_order
from sslbench.data.maps.types import CodedMaps, Coding, source_of_maps
from sslbench.data.source import Source
from sslbench.data.wording import counted, one_line, part_name, repeated, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.target import Target

_LABEL = "label"
_DATE = re.compile(r"_(?:\d{4}-\d{2}-\d{2}.*|NoDate)$")
_PARTITION = "{}_partition.json"
_STATS = "band_stats.json"


@dataclasses.dataclass(frozen=True)
class GeoBenchOptions:
    """Options behind a '?'."""

    bands: str | int = setting("", "names or numbers of bands, in order: red|green|blue, 04|03|02; empty: all")
    scale: Literal["train", "none"] = setting(
        "train", "train: mean and two standard deviations of train become 8 bits; none: 16 bits as they are"
    )
    partition: str = setting("default", "name of the partition: default, 0.10x_train, ...")
    ignore: str | int | None = setting(None, "label maps: values or classes that do not count")


def recognises(spec: str) -> bool:
    """Return whether a folder has partitions and statistics of bands."""
    return (Path(spec) / _STATS).is_file() and any(Path(spec).glob(_PARTITION.format("*")))


def _read_bands(path: str, bands: Sequence[str]) -> list[npt.NDArray[Any]]:
    """Return the bands (H, W) of a file."""
    try:
        with open_hdf5(Path(path)) as file:
            keys = {_DATE.sub("", key): key for key in file}
            found = [np.asarray(file[keys[band]]).squeeze() for band in bands]
    except (OSError, KeyError, DataError) as error:
        reason = f"no band {error}" if isinstance(error, KeyError) else one_line(error, 300)
        raise OSError(f"{path}: {reason}") from error
    if wrong := next((shape for band in found if len(shape := band.shape) != 2), None):
        raise OSError(f"{path}: a band has the shape {wrong}, and height and width are expected")
    return found


def _partition(spec: str, options: GeoBenchOptions) -> dict[str, list[str]]:
    """Return split -> names of the samples, sorted."""
    file = Path(spec) / _PARTITION.format(options.partition)
    if not file.is_file():
        names = [found.name.removesuffix(_PARTITION.format("")) for found in Path(spec).glob(_PARTITION.format("*"))]
        raise UsageError(f"{spec} has no partition '{options.partition}'", did_you_mean(options.partition, names))
    parts = {split_name(split) or split: sorted(names) for split, names in _lists(file).items() if names}
    if twice := repeated(name for names in parts.values() for name in names):
        raise DataError(f"{file} names {counted(len(twice), 'sample')} twice, in one part or two: {some(twice)}")
    return parts


def _json(file: Path) -> dict[str, Any]:
    content = json_of(file)
    if not isinstance(content, dict):
        raise DataError(f"{file} should be an object of names")
    return content


def _lists(file: Path) -> dict[str, list[str]]:
    """Return name -> names."""
    content = _json(file)
    for key, names in content.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(f"{file}: '{key}' is {names!r:.60}, and a list of samples is expected")
    return content


def _images(spec: str, names: Sequence[str], train: Sequence[str], options: GeoBenchOptions) -> BandImages:
    """Return the images of samples; scales are those of train."""
    first = str(Path(spec) / f"{names[0]}.hdf5")
    with open_hdf5(Path(first)) as file:
        there = sorted({_DATE.sub("", key) for key in file} - {_LABEL})
        if len(there) + (_LABEL in file) < len(list(file)):
            raise DataError(f"{first} has several dates of a band, and one is expected")
    bands = chosen_bands(spec, str(options.bands), there)
    files = Files(tuple(f"{name}.hdf5" for name in names), str(spec))
    if options.scale == "none":
        return BandImages(files, _read_bands, bands, np.zeros(0), np.zeros(0))
    return scaled(files, [Path(spec) / f"{name}.hdf5" for name in train], bands, _read_bands)


def _labels(spec: str, names: Sequence[str]) -> Target:
    """Return the classes of samples, by label_map.json or label_stats.json."""
    root = Path(spec)
    if (root / "label_map.json").is_file():
        of = {name: label for label, members in _lists(root / "label_map.json").items() for name in members}
        if missing := [name for name in names if name not in of]:
            raise DataError(
                f"{root / 'label_map.json'}: {counted(len(missing), 'sample')} without a class: {some(missing)}"
            )
        return single_labels([str(of[name]) for name in names])
    if not (root / "label_stats.json").is_file():
        raise DataError(
            f"{spec} has neither label_map.json nor label_stats.json",
            "They are part of the published archives, and make_benchmark/label_map.py of GEO-Bench writes them.",
        )
    stats = _stats(root, names)
    if not all(value in (0, 1) for row in stats for value in row):
        raise DataError(f"{spec} has a class for every pixel", "Evaluate it by segmentation.")
    classes = [str(c) for c in range(len(stats[0]))]
    return multi_labels(
        [[c for c, present in zip(classes, row, strict=True) if present] for row in stats], classes=classes
    )


def _stats(root: Path, names: Sequence[str]) -> list[list[float]]:
    stats = _json(root / "label_stats.json")
    rows = {name: row for name in names if isinstance(row := stats.get(name), list)}
    number = len(next(iter(rows.values()), []))
    if wrong := [name for name in names if len(rows.get(name, [])) != number or not number]:
        raise DataError(f"{root / 'label_stats.json'}: no numbers of classes for {some(wrong)}")
    return [rows[name] for name in names]


def open(request: SampleRequest[GeoBenchOptions]) -> dict[str, Source]:
    """Return the images of every split with their classes."""
    spec, options = request.spec, request.options
    if options.ignore is not None:
        raise UsageError(f"{spec}: ignore is for label maps")
    parts = _partition(spec, options)
    names = [name for part in parts.values() for name in part]
    splits = [split for split, part in parts.items() for _ in part]
    images = _images(spec, names, parts.get("train", names), options)
    return by_split(spec, names, _labels(spec, names), images, splits, ())


def open_maps(spec: str, options: GeoBenchOptions) -> dict[str, Source]:
    """Return the images of every split with the classes of their pixels."""
    parts, sources, root = _partition(spec, options), dict[str, Source](), Path(spec)
    every = [name for part in parts.values() for name in part]
    coding: Coding | None = coding_beside(root, LabelMapOptions())
    if coding is None:
        number = len(_stats(root, every[:1])[0])
        coding = dataclasses.replace(make_coding(spec, [(c, str(c)) for c in range(number)]), named=False)
    coding = with_ignored(spec, coding, options.ignore)
    for split, names in parts.items():
        images = _images(spec, names, parts.get("train", every), options)
        maps = CodedMaps(
            part_name(spec, split), tuple(names), images, LabelBands(images.files, _read_bands, _LABEL), coding
        )
        sources[split] = source_of_maps(maps)
    return in_order(sources)


def _has_maps(spec: str) -> bool:
    if not recognises(spec) or (Path(spec) / "label_map.json").is_file():
        return False
    first = next(Path(spec).glob("*.hdf5"), None)
    if first is None:
        return False
    with open_hdf5(first) as file:
        return any(_DATE.sub("", key) == _LABEL for key in file)


FORMAT = SourceFormat(
    __doc__,
    SampleReader(recognises, open, GeoBenchOptions),
    readers=map_readers(lambda spec, _: _has_maps(spec), open_maps, GeoBenchOptions, alone=_has_maps),
)
