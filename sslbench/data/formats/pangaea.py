"""HLS Burn Scars and Sen1Floods11 as published, in the splits of PANGAEA; `?bands=B4|B3|B2`, `?bands=VV|VH`.

Marsocci et al. 2024 (arXiv 2412.04204) and the configurations of its code; Phillips et al. 2023 (hls_burn_scars on
Hugging Face) and Bonafilia et al. (CVPR 2020 workshops). Images and label maps are GeoTIFF files; -1 in a map does not
count. HLS Burn Scars: test is `validation/`, a tenth of `training/` is val. Sen1Floods11: the hand-labelled images by
their lists, 13 bands of Sentinel-2 or two of Sentinel-1. Bands are scaled as those of GEO-Bench.
"""

import csv
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.config import setting
from sslbench.data.decode.files import tiff_array
from sslbench.data.decode.picture import UnreadableImage, Wanted
from sslbench.data.format import SourceFormat
from sslbench.data.formats._parts.bands import LabelBands, chosen_bands, scaled
from sslbench.data.images import Files
from sslbench.data.maps.classes import with_ignored
from sslbench.data.maps.foreground import map_readers
from sslbench.data.maps.layout import in_order
from sslbench.data.maps.types import CodedMaps, Coding, source_of_maps
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.data.wording import counted, part_name, some
from sslbench.errors import DataError, UsageError

_BURNS, _MASK = "_merged.tif", ".mask.tif"
_BURN_BANDS = ("1 - B2", "2 - B3", "3 - B4", "4 - B8A", "5 - B11", "6 - B12")
_FLOOD_BANDS = tuple(f"{i} - B{name}" for i, name in enumerate("1 2 3 4 5 6 7 8 8A 9 10 11 12".split(), 1))
_RADAR_BANDS = ("1 - VV", "2 - VH")
_FLOOD_LISTS = {"train": "flood_train_data.csv", "val": "flood_valid_data.csv", "test": "flood_test_data.csv"}
_MISSING = 9999  # of HLS Burn Scars
_PUBLISHED = 540  # images of its training/


@dataclasses.dataclass(frozen=True)
class PangaeaOptions:
    """Options behind a '?'."""

    bands: str | int = setting("", "names or numbers of bands, in order: B4|B3|B2, VV|VH; empty: all of Sentinel-2")
    ignore: str | int | None = setting(None, "values or classes that do not count, beside -1")


def read_tiff(path: str, bands: Sequence[str], *, number: int, missing: int | None = None) -> list[npt.NDArray[Any]]:
    """Return bands (H, W) of a TIFF with `number` bands, by the numbers in their names; `missing` becomes NaN."""
    try:
        array, turn = tiff_array(Path(path).read_bytes(), path, Wanted(number))
    except UnreadableImage as error:
        raise OSError(str(error)) from error
    if array.shape[2:] not in ((), (number,)) or turn != 1:
        raise OSError(f"{path}: an array of {array.shape}, turned {turn}; (height, width, {number}) is expected")
    array = array.reshape(*array.shape[:2], number)
    found = [array[..., int(band.partition(" ")[0]) - 1] for band in bands]
    return found if missing is None else [np.where(band == missing, np.nan, band) for band in found]


_READ_MAP = functools.partial(read_tiff, number=1)
_READERS = {
    _BURN_BANDS: functools.partial(read_tiff, number=len(_BURN_BANDS), missing=_MISSING),
    _FLOOD_BANDS: functools.partial(read_tiff, number=len(_FLOOD_BANDS)),
    _RADAR_BANDS: functools.partial(read_tiff, number=len(_RADAR_BANDS)),
}


def recognises(spec: str) -> bool:
    """Return whether the string is a folder of one of the two data sets."""
    burns = all(next(Path(spec).glob(f"{folder}/*{_BURNS}"), None) for folder in ("training", "validation"))
    return burns or _floods(Path(spec)) is not None


def _floods(root: Path) -> Path | None:
    """Return the folder of Sen1Floods11 that holds data/ and splits/."""
    tops = (root, root / "v1.1")
    return next((top for top in tops if (_lists(top) / _FLOOD_LISTS["train"]).is_file()), None)


def _lists(root: Path) -> Path:
    return root / "splits" / "flood_handlabeled"


def open_maps(spec: str, options: PangaeaOptions) -> dict[str, Source]:
    """Return the images of every split with the classes of their pixels."""
    root = _floods(Path(spec))
    if root is None:
        return _sources(spec, Path(spec), _burns(Path(spec)), _BURN_BANDS, ("Not burned", "Burn scar"), options)
    sensor = _FLOOD_BANDS
    if options.bands:
        bands = chosen_bands(spec, str(options.bands), (*_FLOOD_BANDS, *_RADAR_BANDS))
        if all(band in _RADAR_BANDS for band in bands):
            sensor = _RADAR_BANDS
        elif any(band in _RADAR_BANDS for band in bands):
            raise UsageError(f"{spec}: bands={options.bands} names bands of two sensors", "Name bands of one of them.")
    folder = "S1Hand" if sensor is _RADAR_BANDS else "S2Hand"
    return _sources(spec, root, _flood_files(root, folder), sensor, ("Not Water", "Water"), options)


def _sources(
    spec: str,
    root: Path,
    files: Mapping[str, Sequence[tuple[str, str]]],
    sensor: tuple[str, ...],
    classes: tuple[str, str],
    options: PangaeaOptions,
) -> dict[str, Source]:
    """Return the sources of split -> image and map of each sample."""
    bands = chosen_bands(spec, str(options.bands), sensor)
    coding = with_ignored(spec, Coding((0, 1), classes, ignore=(-1,)), options.ignore)
    train, sources = [root / image for image, _ in files["train"]], {}
    notes: tuple[str, ...] = ()
    if sensor is _BURN_BANDS and (number := len(train) + len(files["val"])) != _PUBLISHED:
        notes = (f"{spec}: {counted(number, 'image')} in training/, so train and val are not those of {_PUBLISHED}",)
    for split, pairs in files.items():
        ordered = sorted(pairs)
        ids, names = (tuple(column) for column in zip(*ordered, strict=True))
        images, maps = Files(ids, str(root)), Files(names, str(root))
        name, labels = part_name(spec, split), LabelBands(maps, _READ_MAP, "1")
        found = CodedMaps(name, ids, scaled(images, train, bands, _READERS[sensor]), labels, coding)
        sources[split] = source_of_maps(found, notes)
    return in_order(sources)


def _burns(root: Path) -> dict[str, list[tuple[str, str]]]:
    """Return split -> image and map; the split of PANGAEA, of scikit-learn with the seed 23."""
    from sklearn.model_selection import train_test_split

    pairs = {}
    for folder in ("training", "validation"):
        names = [path.name.removesuffix(_BURNS) for path in matching(root / folder, f"*{_BURNS}")]
        if lost := [name for name in names if not (root / folder / f"{name}{_MASK}").is_file()]:
            raise DataError(f"{root / folder} has no map of {counted(len(lost), 'image')}: {some(lost)}")
        pairs[folder] = [(f"{folder}/{name}{_BURNS}", f"{folder}/{name}{_MASK}") for name in sorted(names)]
    if len(pairs["training"]) < 2:
        raise DataError(f"{root / 'training'} has one image, and a tenth of them is val")
    rows = train_test_split(np.arange(len(pairs["training"])), test_size=0.1, random_state=23)
    train, val = ([pairs["training"][i] for i in part] for part in rows)
    return {"train": train, "val": val, "test": pairs["validation"]}


def _flood_files(root: Path, sensor: str) -> dict[str, list[tuple[str, str]]]:
    """Return split -> image and map, by the lists."""
    data, found = "data/flood_events/HandLabeled", {}
    for split, name in _FLOOD_LISTS.items():
        file = _lists(root) / name
        with file.open(encoding="utf-8", newline="", errors="replace") as stream:
            rows = [row for row in csv.reader(stream) if row]
        for line, row in enumerate(rows, 1):
            if len(row) != 2 or not row[0].endswith("_S1Hand.tif") or "/" in "".join(row):
                raise DataError(f"{file}, row {line}: {','.join(row)[:80]!r} is not NAME_S1Hand.tif,NAME_LabelHand.tif")
        found[split] = [
            (f"{data}/{sensor}/{image.replace('S1Hand', sensor)}", f"{data}/LabelHand/{label}") for image, label in rows
        ]
        if not rows:
            raise DataError(f"{file} is empty")
    return found


FORMAT = SourceFormat(
    __doc__, readers=map_readers(lambda spec, _: recognises(spec), open_maps, PangaeaOptions, alone=recognises)
)
