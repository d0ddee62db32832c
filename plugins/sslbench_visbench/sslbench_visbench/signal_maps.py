"""Maps of numbers as targets: folders with a file of one number per pixel for each image, such as Taskonomy's.

Taskonomy (Zamir et al., CVPR 2018) has rgb/BUILDING/point_0_view_0_domain_rgb.png, edge_texture/BUILDING/
point_0_view_0_domain_edge_texture.png and so on, numbers of 16 bits; mask_valid/ marks where its 3D model has a
surface, and splits/tiny_train.csv lists buildings, points and views. Images of one building stay together in splits and
intervals.
"""

import csv
import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import yaml

from sslbench import config
from sslbench.config import setting
from sslbench.data.containers.members import split_name
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.format import NoOptions, Reader
from sslbench.data.images import Files
from sslbench.data.location import Location, locate
from sslbench.data.maps import layout
from sslbench.data.maps.layout import Pairs, by_folder, by_key, in_order, pair, walk
from sslbench.data.maps.types import SAME_SIZE, size_difference
from sslbench.data.maps.values import NAMES, SUFFIXES, decode_values
from sslbench.data.open import kind_alone, open_as, open_data
from sslbench.data.source import Source
from sslbench.data.wording import some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.text import printable
from sslbench_visbench.targets import Orientations, Signals

_IMAGES = ("images", "image", "imgs", "rgb", "img", "photos")
_DOMAIN = "_domain_"
_MASKS = "depth_zbuffer"
"""Domain in the names of Taskonomy's masks, whatever they mask."""


@dataclasses.dataclass(frozen=True)
class SignalOptions:
    """Options behind a '?': DATA?maps=edges&scale=255."""

    maps: str | None = setting(None, "folder of the files with a number per pixel, relative to the location")
    images: str | None = setting(None, "folder of the images, relative to the location")
    valid: str | None = setting(None, "folder of masks: where they are 0 the number is unknown; empty: none")
    scale: float | None = setting(None, "stored number that counts as 1; needed for whole numbers")
    log: bool | None = setting(None, "take the logarithm, ln(1 + x), after the scale")
    partition: str | None = setting(None, "Taskonomy's splits: tiny, medium, full or fullplus")
    group: Literal["folder"] | None = setting(None, "folder: the images of a folder stay together in a split")


TASKONOMY: Mapping[str, SignalOptions] = {
    "edge_texture": SignalOptions(scale=1000.0),
    "keypoints2d": SignalOptions(scale=30.0),
    "edge_occlusion": SignalOptions(scale=50.0, log=True, valid="mask_valid"),
    "keypoints3d": SignalOptions(scale=5000.0, valid="mask_valid"),
}
"""Values and masks of Taskonomy's maps as VisBench 0.27 reads them: numbers of about 1, on which a mean absolute error
trains well; the logarithm for the few and strong edges of occlusion."""


@dataclasses.dataclass(frozen=True, eq=False)
class SignalFiles:
    """Maps of one number per pixel, one file per image; see `source.PixelValues`.

    Attributes:
        name: of the data, in messages.
        files: N files of numbers.
        valid: N masks, unknown where 0; None: every number is known.
        scale: stored number that counts as 1; None: files hold fractions.
        log: ln(1 + x) of the scaled numbers.
    """

    name: str
    files: Files
    valid: Files | None = None
    scale: float | None = None
    log: bool = False

    def __len__(self) -> int:
        return len(self.files)

    def path(self, index: int) -> str:
        """Return the file of an image's numbers."""
        return self.files.path(index)

    def read_values(self, index: int, *, size: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Return float32 (H, W, 1) of an image, NaN where it is unknown; see `source.PixelValues`."""
        path = self.path(index)
        stored = self._read(self.files, index, size)
        if stored.dtype.kind != "f" and self.scale is None:
            raise DataError(
                f"{self.name}: {path} holds whole numbers up to {int(stored.max()):,}, {stored.mean():.3g} on average",
                f"Say which of them counts as 1, best about the average: &scale={max(stored.mean(), 1):.0f}.",
            )
        values = stored.astype(np.float32)
        values[np.isinf(values)] = np.nan
        values /= np.float32(1.0 if self.scale is None else self.scale)
        if self.log:
            if np.nanmin(values, initial=0) < 0:
                raise DataError(f"{self.name}: {path} has negative numbers, which have no logarithm", "Leave log out.")
            values = np.log1p(values)
        if self.valid is not None:
            mask = self._read(self.valid, index, (values.shape[0], values.shape[1]), ("valid", "mask", *NAMES))
            values[mask == 0] = np.nan
        return values[..., None]

    def _read(
        self, files: Files, index: int, size: tuple[int, int] | None, names: Sequence[str] = NAMES
    ) -> npt.NDArray[Any]:
        """Return the numbers (H, W) of a file, of several arrays in it the first that has one of the names."""
        path = files.path(index)
        try:
            stored = decode_values(files.read(index), path, names)
        except OSError as error:
            raise UnreadableImage(path, f"cannot be read ({error.strerror or error})") from error
        if stored.ndim != 2:
            raise DataError(f"{self.name}: {path} has three numbers per pixel, a map has one")
        if found := size_difference(stored.shape, size):
            raise DataError(f"{self.name}: {path}: {found}", SAME_SIZE)
        return stored

    def select(self, indices: npt.NDArray[np.int64]) -> "SignalFiles":
        """Return the maps at `indices`, in that order."""
        valid = None if self.valid is None else self.valid.select(indices)
        return dataclasses.replace(self, files=self.files.select(indices), valid=valid)

    def fingerprint(self) -> str:
        """Return a hash of the files, of the masks, and of what is done with the numbers; 32 hex digits."""
        digest = hashlib.sha256(repr(("signal", self.scale, self.log)).encode())
        for files in (self.files, self.valid):
            digest.update(b"none" if files is None else files.digests().tobytes())
        return digest.hexdigest()[:32]


def open_signals(spec: str) -> dict[str, Source]:
    """Open images for signals of their pixels; labels of other kinds are left out.

    Args:
        spec: any images, of which the signal is computed. Where maps lie beside them (images/ and labels/, depth/ or
            normals/; Taskonomy's rgb/), the images alone count. With `DATA?maps=NAME` the files of that folder are the
            signal, see the module.

    >>> open_signals("textures:images")["test"].target.name
    'signal'
    """
    location = locate(spec)
    if "maps" in location.options:
        return open_signal_maps(location)
    return _as(_images_alone(spec), Signals)


def open_orientations(spec: str) -> dict[str, Source]:
    """Open images whose orientations are computed from them; maps and labels beside them are left out."""
    return _as(_images_alone(spec), Orientations)


def _images_alone(spec: str) -> Mapping[str, Source]:
    location = locate(spec)
    root = Path(location.text)
    if "maps" in location.options:
        raise UsageError(f"{spec}: orientations are computed from the images, so maps= has no effect", "Leave it out.")
    if is_taskonomy(root):
        if other := location.options.keys() - {"images", "partition"}:
            raise UsageError(f"{spec}: {min(other)}= has no effect without maps=", "Name the maps, or leave it out.")
        maps = next(name for name in TASKONOMY if (root / name).is_dir())
        options = {"maps": maps, "valid": "", **location.options}
        return open_signal_maps(dataclasses.replace(location, options=options))
    if not location.options and root.is_dir() and layout.recognises(root):
        return _of_places(location.text, layout.find_places(root))
    kind = kind_alone(spec)
    return open_data(spec) if kind is None else open_as(spec, kind)


def _of_places(text: str, places: list[layout.Place]) -> dict[str, Source]:
    """Return the images of images/, or of train/images/ and so on, with the name of the whole location."""
    if [place.split for place in places] == ["all"]:
        return open_data(str(places[0].images))
    found = {}
    for place in places:
        for part in open_data(str(place.images)).values():
            found[place.split] = dataclasses.replace(part, name=f"{text} ({place.split})")
    return in_order(found)


def _as(sources: Mapping[str, Source], kind: type[Signals] | type[Orientations]) -> dict[str, Source]:
    return {split: dataclasses.replace(found, target=kind(len(found))) for split, found in sources.items()}


def open_signal_maps(location: Location) -> dict[str, Source]:
    """Open images with a map of numbers each, `DATA?maps=NAME`.

    Returns:
        Split name -> source of `Signals` with `pixels`; {"all": source} if there are no splits.
    """
    given = {key: yaml.safe_load(text) if key in ("scale", "log") else text for key, text in location.options.items()}
    options = config.build(SignalOptions, given, f"the options of {location.text}")
    root = Path(location.text)
    if not root.is_dir():
        raise UsageError(f"there is no folder {location.text}", "Give a folder with images/ and one of maps.")
    if options.scale is not None and not 0 < options.scale < np.inf:
        raise UsageError(f"{location.text}: scale should be above 0, not {options.scale:g}")
    name = options.maps or ""
    if is_taskonomy(root) and name in TASKONOMY:
        known = TASKONOMY[name]
        changes = {f.name: getattr(known, f.name) for f in dataclasses.fields(known)}
        own = {field: value for field, value in changes.items() if value is not None and field not in given}
        options = dataclasses.replace(options, **own)
    if (root / "splits").is_dir() and is_taskonomy(root):
        if not (root / name).is_dir():
            raise UsageError(f"{location.text} has no folder {name}/", _nearest(root, name))
        return _listed(location.text, root, options)
    if options.partition is not None:
        raise UsageError(f"{location.text} has no splits/, so partition={options.partition} has no effect")
    places = _places(root, options)
    if not places:
        raise UsageError(
            f"{location.text} has no folders {options.images or 'images'}/ and {name}/", _nearest(root, name)
        )
    found = in_order({split: _source(location.text, split, place, options) for split, place in places.items()})
    return {split: by_folder(part) for split, part in found.items()} if options.group else found


def is_taskonomy(root: Path) -> bool:
    """Return whether a folder has rgb/ beside maps of Taskonomy."""
    return (root / "rgb").is_dir() and any((root / name).is_dir() for name in TASKONOMY)


def _nearest(root: Path, name: str) -> str:
    folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    return f"{did_you_mean(name, folders)} It has {some(folders, 8) or 'no folders'}; images=NAME names another one."


@dataclasses.dataclass(frozen=True)
class _Place:
    """Folders of images, of their maps and, if they are known only in part, of masks."""

    images: Path
    maps: Path
    valid: Path | None


def _places(root: Path, options: SignalOptions) -> dict[str, _Place]:
    """Return split -> folders: images/ and NAME/, or train/ and test/ with these, or these with train/ and test/."""
    whole = _place(root, options)
    if whole.images.is_dir() and whole.maps.is_dir():
        halves = {split: (name, whole.maps / name) for split, name in _splits(whole.images).items()}
        inside = any(entry.is_file() and entry.name.lower().endswith(SUFFIXES) for entry in os.scandir(whole.maps))
        if halves and all(maps.is_dir() for _, maps in halves.values()) and not inside:
            return {
                split: _Place(whole.images / name, maps, None if whole.valid is None else whole.valid / name)
                for split, (name, maps) in halves.items()
            }
        return {"all": whole}
    inner = {split: _place(root / name, options) for split, name in _splits(root).items()}
    return {split: place for split, place in inner.items() if place.images.is_dir() and place.maps.is_dir()}


def _splits(folder: Path) -> dict[str, str]:
    """Return split -> name of the folder in this one that is called so."""
    names = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
    return {split: name for name in sorted(names) if (split := split_name(name)) is not None}


def _place(folder: Path, options: SignalOptions) -> _Place:
    names = [options.images] if options.images is not None else [n for n in _IMAGES if (folder / n).is_dir()]
    images = folder / (names[0] if names else _IMAGES[0])
    return _Place(images, folder / (options.maps or ""), folder / options.valid if options.valid else None)


def _source(
    text: str, split: str, place: _Place, options: SignalOptions, wanted: frozenset[str] | None = None
) -> Source:
    """Return the images of a place that have a map; of `wanted` keys only, if there are any."""
    images, maps = place.images, place.maps
    taskonomy = is_taskonomy(images.parent)
    keys, found = _keys(images, walk(images), "rgb"), _keys(maps, _files(maps), options.maps or "")
    if wanted is not None:
        if absent := sorted(wanted - (keys.keys() & found.keys())):
            raise DataError(
                f"{text} ({split}): {len(absent):,} of {len(wanted):,} listed images have no file in {images.name}/ or "
                f"{maps.name}/: {some(absent, 3)}"
            )
        keys, found = ({key: path for key, path in each.items() if key in wanted} for each in (keys, found))
    pairs = pair(keys, found, images, maps)
    name = text if split == "all" else f"{text} ({split})"
    left = (("images without a map", pairs.without_map), ("maps without an image", pairs.without_image))
    notes = tuple(f"{name}: {len(paths):,} {what} are left out: {some(paths, 3)}" for what, paths in left if paths)
    of_image = {printable(path): key for key, path in keys.items()}
    valid = None if place.valid is None else _masks(name, place.valid, pairs, of_image)
    values = SignalFiles(name, pairs.maps, valid, options.scale, bool(options.log))
    target = Signals(len(pairs.ids), (options.maps or "",), values)
    buildings = tuple(each.rpartition("/")[0] for each in pairs.ids) if taskonomy else ()
    source = Source(name, pairs.ids, target, pairs.images, notes)
    if not any(buildings):
        return source
    return dataclasses.replace(source, attributes={"building": buildings}, grouped_by="building")


def _masks(name: str, folder: Path, pairs: Pairs, of_image: Mapping[str, str]) -> Files:
    if not folder.is_dir():
        raise DataError(f"{name}: there is no folder {folder}, whose masks say where the maps are known")
    masks = _keys(folder, _files(folder), _MASKS)
    if absent := [image for image in pairs.ids if of_image[image] not in masks]:
        raise DataError(f"{name}: {len(absent):,} images have no mask in {folder}: {some(absent, 3)}")
    return Files(tuple(masks[of_image[image]] for image in pairs.ids), str(folder))


def _files(folder: Path) -> list[str]:
    """Return the files of numbers below a folder, relative to it and sorted."""
    found = []
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inner = Path(top).relative_to(folder)
        found += [(inner / name).as_posix() for name in names if name.lower().endswith(SUFFIXES) and name[0] != "."]
    return sorted(found)


def _keys(folder: Path, files: list[str], domain: str) -> dict[str, str]:
    """Return key -> file; of Taskonomy's names the key has no domain."""
    named = by_key(folder, files, f"{_DOMAIN}{domain}")
    return named or by_key(folder, files)


def _listed(text: str, root: Path, options: SignalOptions) -> dict[str, Source]:
    """Return the splits of Taskonomy's lists."""
    lists: dict[str, dict[str, Path]] = {}
    for file in sorted((root / "splits").glob("*_*.csv")):
        partition, _, split = file.stem.rpartition("_")
        lists.setdefault(partition, {})[split_name(split) or split] = file
    if not lists:
        raise DataError(f"{root / 'splits'} has no lists such as tiny_train.csv")
    partition = options.partition or ("tiny" if "tiny" in lists else next(iter(lists)))
    if partition not in lists:
        raise UsageError(f"{text} has no lists of the partition '{partition}'", did_you_mean(partition, list(lists)))
    return in_order(
        {
            split: _source(text, split, _place(root, options), options, _listed_keys(file))
            for split, file in lists[partition].items()
        }
    )


def _listed_keys(path: Path) -> frozenset[str]:
    """Return BUILDING/point_P_view_V of each row of a list."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    columns = ("building", "point", "view")
    if not rows or any(row.get(column) in (None, "") for row in rows for column in columns):
        raise DataError(f"{path} should list building, point and view, one image per row")
    return frozenset(f"{row['building']}/point_{row['point']}_view_{row['view']}" for row in rows)


def _reader(read: Callable[[str], dict[str, Source]]) -> Reader[NoOptions]:
    """Return a reader of any location, with the options of whatever format it has."""
    return Reader(lambda *_: True, lambda spec, _: read(spec), NoOptions, unresolved=lambda _: True)


READERS = {Signals: _reader(open_signals), Orientations: _reader(open_orientations)}
