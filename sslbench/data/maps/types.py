"""Label maps of every format, as protocols read them, and the sizes that they share with their images."""

import dataclasses
import hashlib
import io
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import IO, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from sslbench.arrays import OfRows
from sslbench.data.changed import ChangedPictures
from sslbench.data.decode.files import orientation, stored_size, strict_and_silent, upright_size
from sslbench.data.decode.picture import UPRIGHT, UnreadableImage
from sslbench.data.images import Files
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.preprocessing import MAX_PIXELS
from sslbench.targets.label_maps import IGNORED, UNKNOWN, Grid, LabelMap, LabelMaps
from sslbench.targets.target import Images

_EXIF = (b"eXIf", b"exif", b"Orientation")
_THREADS = 8  # that read the heads of files
DRAWN_BEFORE = "it was probably drawn on the image before its EXIF rotation"
_UNTURNED = "if they were made on the stored pixels, remove the tag from the images: exiftool -Orientation= FILES"
SAME_SIZE = f"Give the images at the size of their annotations, never the other way round; {_UNTURNED}."
"""Remedy for a `size_difference`."""


def size_and_turn(images: Images, index: int) -> tuple[tuple[int, int] | None, bool]:
    """Read height and width of the upright image, and whether EXIF turns it, from the head of its file.

    The size is None if the file cannot be read: decoding the image says what is wrong with it.
    """
    size, turn, _ = _head(images, index)
    return size, turn in UPRIGHT


def _head(images: Images, index: int) -> tuple[tuple[int, int] | None, int, bool]:
    """Return the size of the upright image, its EXIF orientation, and whether the stored pixels have the same size."""
    try:
        if isinstance(images, Files):
            opened: IO[bytes] = images.open(index)
        elif isinstance(data := images.read(index), np.ndarray):
            return (data.shape[0], data.shape[1]), 1, True
        else:
            opened = io.BytesIO(data)
        # Only the head is read, whatever size it declares.
        with opened, strict_and_silent(2**40), Image.open(opened) as image:
            tagged = image.format != "PNG" or _marked(opened)  # getexif would decode all of a PNG
            turn = orientation(image) if tagged else 1
            size = upright_size(image, turn)
            return size, turn, size == stored_size(image)
    except (OSError, SyntaxError, ValueError, UnreadableImage, Image.DecompressionBombError):
        return None, 1, True


def _marked(png: IO[bytes]) -> bool:
    place = png.tell()
    png.seek(0)
    content = png.read()
    png.seek(place)  # the open image reads on from there
    return any(mark in content for mark in _EXIF)


def unknown_orientation(name: str, images: Images, *, sized: bool) -> str | None:
    """Return a note on images that EXIF turns while their annotations may be for the stored pixels; None without any.

    `sized` annotations say the size of their image, which tells a turn by 90 degrees of an image that is not square.
    """
    while hasattr(images, "images"):  # crops, or channels, of others
        images = images.images
    if isinstance(images, ChangedPictures):  # of upright pictures, with annotations of the changed ones
        return None
    with ThreadPoolExecutor(_THREADS) as pool:
        heads = list(pool.map(lambda index: _head(images, index), range(len(images))))
    turned = [index for index, (_, turn, same) in enumerate(heads) if turn in UPRIGHT and (same or not sized)]
    if not turned:
        return None
    verb = "is" if len(turned) == 1 else "are"
    return (
        f"{name}: {len(turned):,} of {counted(len(images), 'image')} {verb} turned by EXIF, and annotations are taken "
        f"for those of the turned pixels, which nothing in them tells: "
        f"{some([images.path(index) for index in turned], 3)}; {_UNTURNED}"
    )


def size_difference(found: Sequence[int], size: Sequence[int] | None, what: str = "the map") -> str | None:
    """Return the difference between the size of an annotation and that of its image; None if they are equal.

    Sizes are height and width, of the upright image; None if it is not known.

    >>> size_difference((4, 6), (6, 4), "the depth")
    'the depth is 6 x 4 pixels, but its image 4 x 6: it was probably drawn on the image before its EXIF rotation'
    """
    height, width = found
    if size is None or tuple(size) == (height, width):
        return None
    message = f"{what} is {width} x {height} pixels, but its image {size[1]} x {size[0]}"
    return f"{message}: {DRAWN_BEFORE}" if tuple(size) == (width, height) else message


_TABLE = 1 << 16


def distinct(values: Grid) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct values of a map, ascending; the position of each pixel's value (H, W); and the counts.

    As np.unique gives them, but sorted are runs of equal pixels, of which a map has few.
    """
    flat = values.reshape(-1)
    starts = np.flatnonzero(np.concatenate([[flat.size > 0], flat[1:] != flat[:-1]]))
    found, place = np.unique(flat[starts], return_inverse=True)
    lengths = np.diff(np.append(starts, flat.size))
    counts = np.bincount(place, weights=lengths, minlength=len(found)).astype(np.int64)
    return found, np.repeat(place, lengths).reshape(values.shape).astype(np.int64), counts


@dataclasses.dataclass(frozen=True, eq=False)
class RawMap:
    """Map as stored in its file.

    Attributes:
        values: (H, W), the value of every pixel, not below -1.
        instances: as in `LabelMap`.
        broken: why it contradicts itself or its manifest, so that it cannot be used; one clause each.
        contradictions: differences from the manifest that change no pixel.
        crowds: regions with many objects, which are no instances.
        white: largest value that the file can hold.
    """

    values: Grid
    instances: Grid | None = None
    broken: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    crowds: int = 0
    white: int = 255


class Maps(Protocol):
    """N maps that can be read in any order, from any process (an implementation must be picklable)."""

    def __len__(self) -> int: ...

    def read(self, index: int, max_pixels: int) -> RawMap:
        """Read one map.

        Raises:
            UnreadableImage: there is no complete map, or it has more than `max_pixels`.
        """
        ...

    def path(self, index: int) -> str:
        """Return the name of a map in messages."""
        ...

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: a hash of each map."""
        ...

    def select(self, indices: npt.NDArray[np.int64]) -> "Maps":
        """Return the maps at `indices`, in that order."""
        ...


@dataclasses.dataclass(frozen=True)
class Coding:
    """Correspondence of values in maps to classes.

    Attributes:
        values: (C,) the value of each class, distinct.
        classes: (C,) the names, distinct.
        ignore: values of pixels that do not count.
        colours: the values are colours, red + 256 green + 65536 blue.
        named: the classes have names; if not, their values are used as names.
    """

    values: tuple[int, ...]
    classes: tuple[str, ...]
    ignore: tuple[int, ...] = ()
    colours: bool = False
    named: bool = True

    def __post_init__(self) -> None:
        known = (*self.values, *self.ignore)
        if len(self.values) != len(self.classes) or len(set(known)) < len(known):
            raise ValueError(f"{len(self.classes)} classes of the values {self.values}, ignored {self.ignore}")

    def positions(self, values: Grid) -> Grid:
        """Return the class of every pixel: -1 if it is ignored, -2 if its value is no class."""
        known = np.array([*self.values, *self.ignore], dtype=np.int64)
        places = np.array([*range(len(self.values)), *[IGNORED] * len(self.ignore)], dtype=np.int32)
        # A table of 65,536 entries is faster than searching; colours exceed it.
        if values.size and values.min() >= -1 and values.max() < _TABLE - 1:
            table = np.full(_TABLE, UNKNOWN, dtype=np.int32)
            small = known < _TABLE - 1
            # Moved by one, since maps may hold -1.
            table[known[small] + 1] = places[small]
            return np.asarray(table[values + 1], dtype=np.int32)
        found, inverse, _ = distinct(values)
        at = dict(zip(known.tolist(), places.tolist(), strict=True))
        table = np.array([at.get(value, UNKNOWN) for value in found.tolist()], dtype=np.int32)
        return np.asarray(table[inverse], dtype=np.int32)

    def text(self, value: int) -> str:
        """Return a value as users write it: the number, or red,green,blue."""
        return ",".join(str(value >> shift & 255) for shift in (0, 8, 16)) if self.colours else str(value)


@dataclasses.dataclass(frozen=True, eq=False)
class CodedMaps(OfRows):
    """Label maps of N images whose values stand for classes; the content of a target `LabelMaps`.

    Attributes:
        name: of the source, for messages.
        ids: of the images.
        images: images that the maps must fit in size.
        maps: of the same length.
        coding: correspondence of values to classes.
        without_map: images that were left out since they have no map.
        without_image: maps that were left out since they have no image.
    """

    of_rows = ("ids", "images", "maps")
    name: str
    ids: Sequence[str]
    images: Images
    maps: Maps
    coding: Coding
    without_map: tuple[str, ...] = ()
    without_image: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.images) == len(self.maps):
            raise ValueError(f"{self.name}: {len(self.ids)} ids, {len(self.images)} images, {len(self.maps)} maps")

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the C classes."""
        return self.coding.classes

    def read_map(self, index: int, *, size: tuple[int, int] | None = None) -> LabelMap:
        """Read the label map of one image.

        `size` is that of the upright image, if it is decoded already; else its file's head is read.
        """
        raw, path = self.maps.read(index, MAX_PIXELS), self.maps.path(index)
        if raw.broken:
            raise DataError(f"{self.name}: {path}: {'; '.join(raw.broken)}")
        if found := size_difference(raw.values.shape, size or size_and_turn(self.images, index)[0]):
            raise DataError(f"{self.name}: {path}: {found}", SAME_SIZE)
        semantic = self.coding.positions(raw.values)
        if (semantic == UNKNOWN).any():
            values = [self.coding.text(value) for value in np.unique(raw.values[semantic == UNKNOWN]).tolist()]
            raise DataError(
                f"{self.name}: {path} has values without a class: {some(values, 8)}",
                "Add them to the classes, or ignore them: DATA?ignore=255 (several with commas).",
            )
        return LabelMap(semantic, raw.instances)

    def fingerprint(self) -> str:
        """Return a hash of ids, image contents, maps and classes, 32 hex digits; scores depend on these."""
        coding = self.coding
        digest = hashlib.sha256("\n".join((*self.ids, "", *coding.classes)).encode())
        digest.update(repr((coding.values, sorted(coding.ignore), coding.colours)).encode())
        digest.update(self.images.digests().tobytes())
        digest.update(self.maps.digests().tobytes())
        return digest.hexdigest()[:32]

    def left_out(self) -> tuple[str, ...]:
        """Return a sentence on the images and on the maps that were left out."""
        left = ("images without a map", self.without_map), ("maps without an image", self.without_image)
        return notes_of_left_out(f"{self.name}: ", *left)


def notes_of_left_out(where: str, *groups: tuple[str, Sequence[str]]) -> tuple[str, ...]:
    """Return a sentence for each group of things that were left out: what they are, their names.

    >>> notes_of_left_out("photos/: ", ("images without a mask", ["a.png", "b.png"]), ("masks without an image", []))
    ('photos/: 2 images without a mask are left out: a.png, b.png',)
    """
    return tuple(f"{where}{len(names):,} {what} are left out: {some(names, 3)}" for what, names in groups if names)


def source_of_maps(
    maps: CodedMaps,
    notes: Sequence[str] = (),
    attributes: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    grouped_by: str = "",
) -> Source:
    """Return the source of images with label maps; what was left out becomes a note."""
    target = LabelMaps(maps.classes, maps)
    return Source(maps.name, maps.ids, target, maps.images, (*notes, *maps.left_out()), attributes, grouped_by)


def coded(source: Source) -> CodedMaps:
    """Return the maps of a source as their files hold them."""
    maps = LabelMaps.of(source.target).maps
    if not isinstance(maps, CodedMaps):
        raise TypeError(f"{source.name} has other maps")
    return maps
