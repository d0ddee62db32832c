"""Masks of the foreground: folders of images and binary masks, or label maps with a background class."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sslbench.arrays import OfRows
from sslbench.data.format import Reader
from sslbench.data.maps.classes import LabelMapOptions, names_folders
from sslbench.data.maps.files import ValueMaps
from sslbench.data.maps.layout import find_places, named_places, paired
from sslbench.data.maps.types import SAME_SIZE, Maps, size_and_turn, size_difference
from sslbench.data.source import Source
from sslbench.data.wording import part_name, some
from sslbench.errors import DataError
from sslbench.preprocessing import MAX_PIXELS
from sslbench.targets.label_maps import IGNORED, Foreground, LabelMap, LabelMaps, PixelLabels
from sslbench.targets.target import Images, Target

O = TypeVar("O")  # noqa: E741 - dataclass of options


@dataclasses.dataclass(frozen=True, eq=False)
class BinaryMasks(OfRows):
    """Masks with one grey value per pixel: 0 and 1, or black to white with soft edges, which are cut at one half.

    Attributes:
        name: of the source, for messages.
        images: the images of the masks.
        maps: of the same length.
    """

    of_rows = ("maps", "images")
    name: str
    images: Images
    maps: Maps

    def read_map(self, index: int, *, size: tuple[int, int] | None = None) -> LabelMap:
        """Return the mask of an image, 1 for foreground; see `PixelLabels`."""
        raw, path = self.maps.read(index, MAX_PIXELS), self.maps.path(index)
        values = raw.values
        if found := size_difference(values.shape, size or size_and_turn(self.images, index)[0]):
            raise DataError(f"{self.name}: {path}: {found}", SAME_SIZE)
        largest = int(values.max(initial=0))
        white = 255 if largest <= 255 < raw.white else raw.white  # 8 bits in a file of 16
        # Dark greys without white are class numbers, of which half would vanish at the threshold.
        if 1 < largest <= white / 2 or largest > white:
            raise DataError(
                f"{self.name}: {path} has values up to {largest}, so it is no mask of a foreground",
                "Masks have the values 0 and 1, or 0 and 255. Name the classes of label maps in classes.txt.",
            )
        return LabelMap((values > (0 if largest <= 1 else white / 2)).astype(np.int32), None)

    def fingerprint(self) -> str:
        """Return a hash of the masks, 32 hex digits."""
        return hashlib.sha256(b"masks" + self.maps.digests().tobytes()).hexdigest()[:32]


@dataclasses.dataclass(frozen=True, eq=False)
class ForegroundOfClasses(OfRows):
    """Label maps, of which every class but the background is foreground. Ignored pixels stay so.

    Attributes:
        maps: of classes.
        background: number of the background.
    """

    of_rows = ("maps",)
    maps: PixelLabels
    background: int

    def read_map(self, index: int, *, size: tuple[int, int] | None = None) -> LabelMap:
        """Return the mask of an image, 1 for foreground; see `PixelLabels`."""
        semantic = self.maps.read_map(index, size=size).semantic
        return LabelMap(np.where(semantic == IGNORED, IGNORED, semantic != self.background).astype(np.int32), None)

    def fingerprint(self) -> str:
        """Return a hash of maps, classes and background, 32 hex digits."""
        return hashlib.sha256(f"{self.maps.fingerprint()} {self.background}".encode()).hexdigest()[:32]


def binary_masks(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    """Open a folder of images and one of masks with the same names, as ECSSD, DUTS and DUT-OMRON are laid out."""
    places = named_places(spec, Path(spec), options) or find_places(Path(spec))
    found = {}
    for split, pairs in paired(places).items():
        name = part_name(spec, split)
        notes = (*pairs.notes, *pairs.left_out(f"{name}: ", "mask"))
        masks = BinaryMasks(name, pairs.images, ValueMaps(pairs.maps))
        found[split] = Source(name, pairs.ids, Foreground(masks), pairs.images, notes)
    return found


def map_readers(
    recognises: Callable[[str, Mapping[str, str]], bool],
    read: Callable[[str, O], Mapping[str, Source]],
    options: type[O],
    *,
    alone: Callable[[str], bool] = lambda _: False,
) -> dict[type[Target], Reader[Any]]:
    """Return the reader of label maps and that of the foreground in them; see `Reader`."""
    return {
        LabelMaps: Reader(recognises, read, options, alone),
        Foreground: Reader(recognises, lambda spec, given: foreground_of(read(spec, given)), options),
    }


def layout_readers(
    recognises: Callable[[str], bool], read: Callable[[str, LabelMapOptions], Mapping[str, Source]]
) -> dict[type[Target], Reader[Any]]:
    """Return such readers of a layout that holds nothing else, unless the options name its folders."""
    return map_readers(
        lambda spec, given: not names_folders(given) and recognises(spec), read, LabelMapOptions, alone=recognises
    )


def foreground_of(maps: Mapping[str, Source]) -> dict[str, Source]:
    """Return label maps with a class called background as masks of everything else."""
    found = {}
    for split, part in maps.items():
        names = [name.casefold() for name in part.target.classes]
        if "background" not in names:
            raise DataError(
                f"{part.name} has the classes {some(part.target.classes, 5)}, and none is called background",
                "Saliency needs masks of a foreground: a folder of images and one of masks with the values 0 and 255.",
            )
        masks = ForegroundOfClasses(LabelMaps.of(part.target).maps, names.index("background"))
        found[split] = dataclasses.replace(part, target=Foreground(masks))
    return found
