"""Files of multi-channel images in a kwcoco manifest (keys `assets` and `auxiliary`)."""

import dataclasses
import functools
import hashlib
import json
import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.decode.handlers import PictureDecoder, make_decoder
from sslbench.data.decode.picture import (
    GREY_TO_RGB,
    Decoded,
    OtherChannels,
    UnreadableImage,
    Wanted,
    as_wanted,
    check_size,
)
from sslbench.data.images import DIGEST_BYTES, UNREADABLE_DIGEST, Files
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError

IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


@dataclasses.dataclass(frozen=True)
class BandMapping:
    """Channels taken from a file, and their placement.

    Attributes:
        channels: names of its bands, in order.
        take: (band of the file, channel of the image) of those that are taken.
        matrix: the first two rows of the affine map from its pixels to those of the image, in coordinates in which the
            first pixel reaches from 0 to 1.
    """

    channels: tuple[str, ...]
    take: tuple[tuple[int, int], ...]
    matrix: tuple[float, ...] = IDENTITY


@dataclasses.dataclass(frozen=True, eq=False)
class AssetImages:
    """N images, each made of one file or more.

    Attributes:
        files: M files, those of an image behind each other.
        starts: int64 (N + 1,), where the files of each image start.
        kinds: int64 (M,), position in `about`.
        about: channels taken from a file.
        sizes: int64 (N, 2), height and width; zeros where nothing says: then they are those of the first file.
        channels: the names of the channels.
    """

    files: Files
    starts: IntArray
    kinds: IntArray
    about: tuple[BandMapping, ...]
    sizes: IntArray
    channels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Decode all channels of an image; files of other sizes are resampled linearly, uncovered pixels are zero."""
        import torch

        height, width = self.sizes[index].tolist()
        bands: dict[int, npt.NDArray[np.generic]] = {}
        conversions: list[str] = []
        for at in range(int(self.starts[index]), int(self.starts[index + 1])):
            kind = self.about[int(self.kinds[at])]
            path = self.files.path(at)
            # All bands at full size; 16 bits are kept, so that bands of all depths have one scale.
            wanted = dataclasses.replace(decoder.wanted, channels=len(kind.channels), deep=True, resize=None)
            try:
                part = decoder.wanting(wanted)(path, self.files.read(at))
            except OtherChannels as error:
                reason = f"{error.channels} channels in the file, the manifest names {'|'.join(kind.channels)}"
                raise UnreadableImage(path, reason) from error
            pixels = part.image.permute(1, 2, 0).numpy()
            if not height:
                height, width = pixels.shape[:2]
            check_size(width, height, self.path(index), decoder.wanted.max_pixels)
            pixels = placed(pixels, kind.matrix, height, width)
            bands |= {channel: pixels[:, :, band] for band, channel in kind.take}
            conversions += [done for done in part.conversions if done not in conversions]
        image = torch.from_numpy(np.stack([bands[channel] for channel in range(len(self.channels))]))
        if len(image) == 1 and decoder.wanted.channels == 3:
            image, conversions = image.repeat(3, 1, 1), [*conversions, GREY_TO_RGB]
        return as_wanted(Decoded(image, tuple(conversions)), self.path(index), decoder.wanted)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the stored image: uint8 (H, W, channels), or uint16 if a file has samples of 16 bits."""
        decoder = make_decoder((), Wanted(len(self.channels), deep=True), self.files)
        image = self.decoded(index, decoder).image.permute(1, 2, 0).numpy()
        if image.dtype == np.uint8:
            return np.ascontiguousarray(image)
        return np.ascontiguousarray(np.round(image * 257).astype(np.uint16))

    def parts(self, index: int) -> list[tuple[Path, BandMapping]]:
        """Return the files of an image, each with the channels taken from it."""
        rows = range(int(self.starts[index]), int(self.starts[index + 1]))
        return [(Path(self.files.root) / self.files.paths[row], self.about[int(self.kinds[row])]) for row in rows]

    def path(self, index: int) -> str:
        """Return the first file and the number of further ones: 'a.tif and 2 more'."""
        start, stop = int(self.starts[index]), int(self.starts[index + 1])
        more = stop - start - 1
        return self.files.path(start) + (f" and {more} more" if more else "")

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: hashes of the files' contents, of the channels taken and of their placement."""
        contents = self.files.digests()
        about = [repr(kind).encode() for kind in self.about]
        digests = np.zeros((len(self), DIGEST_BYTES), dtype=np.uint8)
        for i in range(len(self)):
            state = hashlib.blake2b(repr(self.sizes[i].tolist()).encode(), digest_size=DIGEST_BYTES)
            rows = range(int(self.starts[i]), int(self.starts[i + 1]))
            for row in rows:
                state.update(contents[row].tobytes() + about[int(self.kinds[row])])
            if all(contents[row].tobytes() != UNREADABLE_DIGEST for row in rows):
                digests[i] = np.frombuffer(state.digest(), dtype=np.uint8)
        return digests

    def select(self, indices: npt.NDArray[np.int64]) -> "AssetImages":
        """Return the images at `indices`, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        counts = np.diff(self.starts)[chosen]
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        rows = np.repeat(self.starts[:-1][chosen] - starts[:-1], counts) + np.arange(starts[-1])
        files = self.files.select(rows)
        return AssetImages(files, starts, self.kinds[rows], self.about, self.sizes[chosen], self.channels)


def placed(
    pixels: npt.NDArray[np.generic], matrix: tuple[float, ...], height: int, width: int
) -> npt.NDArray[np.generic]:
    """Warp a picture (H, W, C) to height x width: linear interpolation, antialiased where it shrinks.

    The outermost pixels reach to the edge of the picture; what lies outside of it is zero.
    """
    if matrix == IDENTITY and pixels.shape[:2] == (height, width):
        return pixels
    import kwimage

    forward = np.array([*matrix, 0, 0, 1], dtype=np.float64).reshape(3, 3)
    # A singular value below 1: the map shrinks along some direction.
    smooth = bool(np.abs(np.linalg.svd(forward[:2, :2], compute_uv=False)).min() < 1)
    options = {"dsize": (width, height), "origin_convention": "corner", "antialias": smooth}
    # Repeats the border: a border of zeros would darken a rim of half a pixel of the small image.
    source = np.ascontiguousarray(pixels.astype(np.float32))
    warped = kwimage.warp_affine(source, forward, border_mode="replicate", **options)
    # A pixel with its centre outside of the mapped picture becomes zero.
    size = pixels.shape[:2]
    back = np.linalg.inv(forward)
    x, y = np.arange(width)[None, :] + 0.5, np.arange(height)[:, None] + 0.5
    u, v = (back[row, 0] * x + back[row, 1] * y + back[row, 2] for row in (0, 1))
    inside: npt.NDArray[np.bool_] = (u >= 0) & (u <= size[1]) & (v >= 0) & (v <= size[0])
    warped = np.where(inside[:, :, None], warped.reshape(height, width, -1), 0)
    if pixels.dtype == np.uint8:
        return np.clip(np.rint(warped), 0, 255).astype(np.uint8)
    return np.clip(warped, 0, 255).astype(np.float32)


_LONGEST_SIDE = 10**9


def side_of_image(value: object) -> int | None:
    """Return the height or width that a manifest gives, in pixels; None for what is no such number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value <= _LONGEST_SIDE:
        return None
    return int(value) if value == int(value) else None


@dataclasses.dataclass(eq=False)
class Assets:
    """Files of N images, taken row by row.

    Attributes:
        spec: the manifest, for messages.
        numbers: the N ids of the images.
        names: position -> name, of images that have no file of their own.
        own: N files of their own, '' where there is none.
        channels: position -> channel specification of an image's own file, where it says one.
        sizes: 2 N numbers, height and width, 0 where nothing says.
        images: M positions of the assets' images, ascending.
        files: M files.
        kinds: M positions in `about`.
        about: pairs of a channel specification and the map to the image as JSON -> their positions.
    """

    spec: str
    # Arrays take 8 bytes a number, lists several times as much.
    numbers: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    names: dict[int, str] = dataclasses.field(default_factory=dict)  # most of a million images may have none
    own: list[str] = dataclasses.field(default_factory=list)
    channels: dict[int, str] = dataclasses.field(default_factory=dict)
    sizes: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    images: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    files: list[str] = dataclasses.field(default_factory=list)
    kinds: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    about: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)

    @property
    def without_file(self) -> list[int]:
        """Positions of the images that have no file of their own."""
        return [i for i, file in enumerate(self.own) if not file]

    def add(self, number: int, row: dict[str, Any]) -> None:
        """Take an image and its id."""
        place = len(self.own)
        # LVIS gives the address of an image in COCO, train2017/000000391895.jpg at its end, in place of a file.
        url = str(row.get("coco_url") or "").split("/")
        in_coco = "/".join(url[-2:]) if len(url) > 2 and ".." not in url[-2:] else ""
        file = str(row.get("file_name") or "") or in_coco
        self.numbers.append(number)
        self.own.append(file)
        if not file and row.get("name"):
            self.names[place] = str(row["name"])
        if text := str(row.get("channels") or ""):
            self.channels[place] = sys.intern(text)  # a million images share one object
        sides = [side_of_image(row.get(key)) for key in ("height", "width")]
        self.sizes.extend(side or 0 if all(sides) else 0 for side in sides)
        assets = row.get("auxiliary") or row.get("assets") or []
        if not isinstance(assets, list) or not all(isinstance(a, dict) and a.get("file_name") for a in assets):
            raise DataError(f"{self.spec}, image {number}: its assets are not a list of mappings with a file_name")
        for asset in assets:
            key = str(asset.get("channels") or ""), json.dumps(asset.get("warp_aux_to_img"), sort_keys=True)
            self.images.append(place)
            self.files.append(str(asset["file_name"]))
            self.kinds.append(self.about.setdefault(key, len(self.about)))

    def check(self) -> None:
        """Refuse images without any file."""
        with_assets = set(self.images)
        empty = [str(self.numbers[i]) for i in self.without_file if i not in with_assets]
        if empty:
            many = counted(len(empty), "image")
            raise DataError(f"{self.spec}: {many} without a file_name and without assets: id {some(empty)}")


def images_of(spec: str, assets: Assets, channels: str) -> tuple[list[str] | AssetImages, list[str], tuple[str, ...]]:
    """Return the images of a manifest (files, or channels in several files), their names, and notes.

    `channels`: names joined by '|' or ',', in the order in which they are wanted; empty: the images' own files if all
    of them have one, else all channels of the assets, as long as they are the same for all images.
    """
    if not channels and not assets.without_file:
        many = len(set(assets.images))
        hint = "the images' own files are used; select with ?channels=A|B"
        notes = (f"{spec}: {counted(many, 'image')} with further channels in assets; {hint}",) if many else ()
        return assets.own, assets.own, notes
    # An image's own file comes first, if its channels are given.
    parts: list[list[_Part]] = [
        [(file, assets.channels[i], "null")] if file and i in assets.channels else []
        for i, file in enumerate(assets.own)
    ]
    about = list(assets.about)
    for place, file, kind in zip(assets.images, assets.files, assets.kinds, strict=True):
        parts[place].append((file, *about[kind]))
    # The name is that of the file, else the key 'name', else that of the first asset's file.
    whole = enumerate(zip(assets.own, parts, strict=True))
    names = [own or assets.names.get(i) or of_image[0][0] for i, (own, of_image) in whole]
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
    sizes = np.array(assets.sizes, dtype=np.int64).reshape(-1, 2)
    return AssetImages(Files(files), at, of_kind, tuple(kinds), sizes, wanted), names, ()


# File, channel specification, affine map to the image.
_Part = tuple[str, str, str]


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
