"""Label maps of every format, as protocols read them."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sslbench.data.maps.sizes import SAME_SIZE, size_and_turn, size_difference
from sslbench.data.source import Source
from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.preprocessing import MAX_PIXELS
from sslbench.targets.images import Images
from sslbench.targets.label_maps import IGNORED, UNKNOWN, Grid, LabelMap, LabelMaps

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
        if values.size and values.min() >= -1 and values.max() < _TABLE - 1:
            table = np.full(_TABLE, UNKNOWN, dtype=np.int32)
            small = known < _TABLE - 1
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
class CodedMaps:
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

    name: str
    ids: tuple[str, ...]
    images: Images
    maps: Maps
    coding: Coding
    without_map: tuple[str, ...] = ()
    without_image: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.images) == len(self.maps):
            raise ValueError(f"{self.name}: {len(self.ids)} ids, {len(self.images)} images, {len(self.maps)} maps")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the C classes."""
        return self.coding.classes

    def select(self, indices: npt.NDArray[np.int64]) -> "CodedMaps":
        """Return the maps of the images at `indices`, in that order."""
        ids = tuple(self.ids[i] for i in indices)
        return dataclasses.replace(self, ids=ids, images=self.images.select(indices), maps=self.maps.select(indices))

    def read_map(self, index: int, *, size: tuple[int, int] | None = None, max_pixels: int = MAX_PIXELS) -> LabelMap:
        """Read the label map of one image.

        Args:
            index: of the image.
            size: height and width of the upright image, if it is decoded already; else its file's head is read.
            max_pixels: larger maps are refused before they are decoded.

        Raises:
            UnreadableImage: there is no complete map.
            DataError: it is of another size than the image, has a value that is no class, or contradicts its manifest.
        """
        raw, path = self.maps.read(index, max_pixels), self.maps.path(index)
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
        return tuple(
            f"{self.name}: {len(names):,} {what} left out: {some(names, 3)}"
            for what, names in (
                ("images without a map are", self.without_map),
                ("maps without an image are", self.without_image),
            )
            if names
        )


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
    """Return the maps of a source as their files hold them.

    Raises:
        TypeError: its maps have no values that stand for classes.
    """
    maps = LabelMaps.of(source.target).maps
    if not isinstance(maps, CodedMaps):
        raise TypeError(f"{source.name} has other maps")
    return maps
