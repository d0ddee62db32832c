"""Files of multi-channel images in a kwcoco manifest (keys `assets` and `auxiliary`)."""

import dataclasses
import functools
import json
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from sslbench.arrays import IntArray
from sslbench.data.formats.coco.asset_images import IDENTITY, AssetImages, BandMapping
from sslbench.data.images import Files
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError

_LONGEST_SIDE = 10**9


def side_of_image(value: object) -> int | None:
    """Return the height or width that a manifest gives, in pixels; None for what is no such number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value <= _LONGEST_SIDE:
        return None
    return int(value) if value == int(value) else None


def _place_in_coco(url: object) -> str:
    """Return 'train2017/000000391895.jpg' for LVIS's address of an image in COCO; '' for anything else."""
    parts = url.split("/") if isinstance(url, str) else []
    return "/".join(parts[-2:]) if len(parts) > 2 and ".." not in parts[-2:] else ""


@dataclasses.dataclass(frozen=True, eq=False)
class Assets:
    """Files of N images.

    Attributes:
        numbers: the N ids of the images.
        names: position -> name, of images that have no file of their own.
        own: N files of their own, '' where there is none.
        channels: position -> channel specification of an image's own file, where it says one.
        sizes: int64 (N, 2), height and width, 0 where nothing says.
        images: int64 (M,), positions of the assets' images, ascending.
        files: M files.
        kinds: int64 (M,), positions in `about`.
        about: pairs of a channel specification and the map to the image, as JSON.
    """

    numbers: Sequence[int]
    names: dict[int, str]
    own: list[str]
    channels: dict[int, str]
    sizes: IntArray
    images: IntArray
    files: list[str]
    kinds: IntArray
    about: list[tuple[str, str]]

    @property
    def without_file(self) -> list[int]:
        """Positions of the images that have no file of their own."""
        return [i for i, file in enumerate(self.own) if not file]


class AssetCollector:
    """Collector of the images of a manifest, row by row."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        self._numbers, self._own = array("q"), list[str]()
        self._names, self._channels = dict[int, str](), dict[int, str]()  # most of a million images may have none
        self._sizes, self._images, self._kinds = array("q"), array("q"), array("q")
        self._files: list[str] = []
        self._about: dict[tuple[str, str], int] = {}
        self._texts: dict[str, str] = {}

    def add(self, row: dict[str, Any]) -> None:
        """Take an image.

        Raises:
            DataError: its assets are not a list of mappings with a file_name.
        """
        place = len(self._own)
        file = str(row.get("file_name") or "") or _place_in_coco(row.get("coco_url"))
        self._numbers.append(row["id"])
        self._own.append(file)
        if not file and row.get("name"):
            self._names[place] = str(row["name"])
        if text := str(row.get("channels") or ""):
            self._channels[place] = self._texts.setdefault(text, text)
        sides = [side_of_image(row.get(key)) for key in ("height", "width")]
        self._sizes.extend(side or 0 if all(sides) else 0 for side in sides)
        assets = row.get("auxiliary") or row.get("assets") or []
        if not isinstance(assets, list) or not all(isinstance(a, dict) and a.get("file_name") for a in assets):
            raise DataError(f"{self.spec}, image {row['id']}: its assets are not a list of mappings with a file_name")
        for asset in assets:
            key = str(asset.get("channels") or ""), json.dumps(asset.get("warp_aux_to_img"), sort_keys=True)
            self._images.append(place)
            self._files.append(str(asset["file_name"]))
            self._kinds.append(self._about.setdefault(key, len(self._about)))

    def collected(self) -> Assets:
        """Return the files of all images.

        Raises:
            DataError: images have neither a file nor assets.
        """
        found = Assets(
            numbers=self._numbers,
            names=self._names,
            own=self._own,
            channels=self._channels,
            sizes=np.array(self._sizes, dtype=np.int64).reshape(-1, 2),
            images=np.array(self._images, dtype=np.int64),
            files=self._files,
            kinds=np.array(self._kinds, dtype=np.int64),
            about=list(self._about),
        )
        with_assets = set(self._images)
        empty = [str(found.numbers[i]) for i in found.without_file if i not in with_assets]
        if empty:
            many = counted(len(empty), "image")
            raise DataError(f"{self.spec}: {many} without a file_name and without assets: id {some(empty)}")
        return found


def images_of(spec: str, assets: Assets, channels: str) -> tuple[list[str] | AssetImages, list[str], tuple[str, ...]]:
    """Return the images of a manifest (files, or channels in several files), their names, and notes.

    Args:
        spec: the manifest.
        assets: of its images.
        channels: names joined by '|' or ',', in the order in which they are wanted; empty: the images' own files if all
            of them have one, else all channels of the assets, as long as they are the same for all images.

    Raises:
        DataError: an image lacks a channel or has one twice, images have different channels and none are named, or the
            place of an asset is invalid.
        UsageError: no image has such a channel.
    """
    if not channels and not assets.without_file:
        many = len(np.unique(assets.images))
        hint = "the images' own files are used; select with ?channels=A|B"
        notes = (f"{spec}: {counted(many, 'image')} with further channels in assets; {hint}",) if many else ()
        return assets.own, assets.own, notes
    parts = _parts(assets)
    names = _names(assets, parts)
    wanted = _wanted(spec, assets, parts, channels)
    position = {name: i for i, name in enumerate(wanted)}
    kinds: dict[BandMapping, int] = {}
    files, codes, starts = [], array("q"), array("q", [0])
    for i, of_image in enumerate(parts):
        missing = set(wanted)
        for file, spec_of, warp in of_image:
            taken = tuple((band, position[c]) for band, c in enumerate(_channels(spec_of)) if c in missing)
            if taken:
                missing -= {wanted[channel] for _, channel in taken}
                files.append(file)
                codes.append(kinds.setdefault(BandMapping(_channels(spec_of), taken, _matrix(spec, warp)), len(kinds)))
        if missing:
            has = "|".join(c for _, spec_of, _ in of_image for c in _channels(spec_of)) or "none that are named"
            raise DataError(f"{spec}, image {assets.numbers[i]} has no channel {some(sorted(missing))}; it has {has}")
        starts.append(len(files))
    at, of_kind = (np.array(column, dtype=np.int64) for column in (starts, codes))
    return AssetImages(Files(files), at, of_kind, tuple(kinds), assets.sizes, wanted), names, ()


_Part = tuple[str, str, str]
"""File, channel specification, affine map to the image."""


def _parts(assets: Assets) -> list[list[_Part]]:
    """Return the files of each image: its own first, if its channels are given."""
    parts: list[list[_Part]] = [
        [(file, assets.channels[i], "null")] if file and i in assets.channels else []
        for i, file in enumerate(assets.own)
    ]
    for place, file, kind in zip(assets.images.tolist(), assets.files, assets.kinds.tolist(), strict=True):
        spec, warp = assets.about[kind]
        parts[place].append((file, spec, warp))
    return parts


def _names(assets: Assets, parts: list[list[_Part]]) -> list[str]:
    """Return the name of each image: its file, else its key 'name', else its first asset's file."""
    whole = enumerate(zip(assets.own, parts, strict=True))
    return [own or assets.names.get(i) or of_image[0][0] for i, (own, of_image) in whole]


def _wanted(spec: str, assets: Assets, parts: list[list[_Part]], asked: str) -> tuple[str, ...]:
    known: dict[tuple[str, ...], int] = {}
    for i, of_image in enumerate(parts):
        known.setdefault(tuple(dict.fromkeys(c for _, s, _ in of_image for c in _channels(s))), i)
    every = list(dict.fromkeys(c for names in known for c in names))
    if asked:
        wanted = _channels("|".join(part.strip() for part in asked.replace(",", "|").split("|")))
        unknown = [c for c in wanted if c not in every]
        if unknown or len(set(wanted)) < len(wanted):
            what = f"no image has the channel {some(unknown)}" if unknown else f"a channel occurs twice in '{asked}'"
            named = f"There are: {'|'.join(every)}." if every else "None are named: give numbers, such as 1|2|3."
            raise UsageError(f"{spec}: {what}", named)
        return wanted
    if len(known) > 1:
        shown = [f"image {assets.numbers[i]} has {'|'.join(names) or 'none'}" for names, i in list(known.items())[:3]]
        shared = [c for c in every if all(c in names for names in known)]
        remedy = f"Those that all have are: ?channels={'|'.join(shared)}" if shared else "They share no channel."
        raise DataError(f"{spec}: the images have different channels: {'; '.join(shown)}", remedy)
    if not every:
        raise DataError(
            f"{spec}: the images have no file_name, and their assets name no channels",
            "Give each asset a key 'channels', such as 'red|green|blue' or 'nir'.",
        )
    return tuple(every)


@functools.cache
def _channels(spec: str) -> tuple[str, ...]:
    """Split 'red|green' into names; kwcoco's short forms ('rgb', 'Y:2:6' for Y.2 to Y.5) are understood."""
    if not spec:
        return ()
    import delayed_image

    parsed: Any = delayed_image.FusedChannelSpec.coerce(spec)  # untyped
    return tuple(parsed.normalize().as_list())


@functools.cache
def _matrix(spec: str, warp: str) -> tuple[float, ...]:
    """Return the first two rows of the affine map from asset to image."""
    import kwimage

    given = json.loads(warp)
    if given is None:
        return IDENTITY
    try:
        matrix = np.asarray(kwimage.Affine.coerce(given).matrix, dtype=np.float64)
        rows = tuple(float(value) for value in matrix[:2].reshape(-1))
        good = matrix.shape == (3, 3) and np.isfinite(matrix).all() and abs(np.linalg.det(matrix)) > 1e-12
    except Exception as error:  # kwimage raises many kinds of errors
        raise DataError(f"{spec}: warp_aux_to_img {warp:.100} is invalid: {error}") from error
    if not good:
        raise DataError(f"{spec}: warp_aux_to_img {warp:.100} gives the asset no area")
    return rows
