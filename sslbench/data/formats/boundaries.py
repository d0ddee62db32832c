"""Boundaries by annotators: BSDS500 (images/ and groundTruth/ with .mat files), or images/ and boundaries/ (0 and 255).

Martin et al., ICCV 2001; Arbelaez et al., 2011: images/SPLIT/ID.jpg and groundTruth/SPLIT/ID.mat, in which each of
several annotators has a map of lines.
"""

import dataclasses
import hashlib
import io
import struct
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, OfRows
from sslbench.config import setting
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.format import Reader, SourceFormat
from sslbench.data.images import Files, OfFiles
from sslbench.data.maps.classes import LabelMapOptions
from sslbench.data.maps.foreground import binary_masks
from sslbench.data.maps.layout import PairedFiles, Place, divided, paired
from sslbench.data.maps.types import SAME_SIZE, size_difference
from sslbench.data.source import Source
from sslbench.data.wording import part_name
from sslbench.errors import DataError, UsageError
from sslbench.metrics.dense.contours import thinned
from sslbench.targets.label_maps import Foreground, PixelLabels
from sslbench.targets.pixel_values import Boundaries

_ANNOTATED = "groundTruth"
_MAT_FILES = PairedFiles(
    "boundary file", ("images",), (_ANNOTATED,), wanted=(lambda name: name.lower().endswith(".mat"),)
)
# Folders of boundary maps beside images/
_MAPS = ("boundaries", "edges", "edge_maps")
# Largest share of boundary pixels in a map; a mask of regions has more
_MOST = 0.4


@dataclasses.dataclass(frozen=True, eq=False)
class MatFiles(OfFiles):
    """Boundaries by several annotators, one .mat file per image.

    Attributes:
        name: of the data, in messages.
        files: one per image.
    """

    name: str
    files: Files

    def read_values(self, index: int, *, size: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Return 0 and 1 of K annotators, (H, W, K); see `PixelValues`."""
        path = self.path(index)
        try:
            annotators = decode_mat(self.files.read(index), path)
        except OSError as error:
            raise UnreadableImage(path, f"cannot be read ({error.strerror or error})") from error
        if found := size_difference(annotators.shape[:2], size, "a file of boundaries"):
            raise DataError(f"{self.name}: {path}: {found}", SAME_SIZE)
        return annotators.astype(np.float32)

    def fingerprint(self) -> str:
        """Return a hash of the files, 32 hex digits."""
        return hashlib.sha256(b"boundaries" + self.files.digests().tobytes()).hexdigest()[:32]


@dataclasses.dataclass(frozen=True, eq=False)
class MaskBoundaries(OfRows):
    """Boundaries by one annotator from masks: lines, which are thinned, or regions, of which the outline is taken.

    Attributes:
        name: of the data, in messages.
        masks: of the same images, 1 for lines or regions.
        regions: True for regions.
    """

    of_rows = ("masks",)
    name: str
    masks: PixelLabels
    regions: bool

    def path(self, index: int) -> str:
        """Return a name of an image's boundaries."""
        return f"boundaries of image {index + 1} of {self.name}"

    def read_values(self, index: int, *, size: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Return 0 and 1, (H, W, 1); see `PixelValues`."""
        mask = self.masks.read_map(index, size=size).semantic == 1
        # Masks of regions given as lines would be thinned to skeletons, and score as boundaries.
        if not self.regions and mask.mean() > _MOST:
            raise DataError(
                f"{self.path(index)}: {mask.mean():.0%} of the pixels are marked, so this is no map of boundaries",
                "Boundaries are 255 (or 1), everything else 0.",
            )
        return (outline(mask) if self.regions else thinned(mask)).astype(np.float32)[..., None]

    def fingerprint(self) -> str:
        """Return a hash of the masks and their meaning, 32 hex digits."""
        return hashlib.sha256(f"{self.masks.fingerprint()} {self.regions}".encode()).hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class BoundaryOptions:
    """Options behind a '?': DATA?images=photos&maps=lines."""

    images: str | None = setting(None, "folder of the images, relative to the location")
    maps: str | None = setting(None, "folder of the boundary maps, relative to the location")
    group: Literal["folder"] | None = setting(None, "folder: images of a folder stay together in splits and intervals")


def open(spec: str, options: BoundaryOptions) -> dict[str, Source]:
    """Return the images with boundaries of BSDS500, or of a folder of images and one of boundary maps."""
    root = Path(spec)
    images, maps = options.images, options.maps
    if not images and not maps:
        if (root / _ANNOTATED).is_dir():
            return _bsds(spec, root)
        images, maps = "images", next((name for name in _MAPS if (root / name).is_dir()), None)
        if maps is None or not (root / images).is_dir():
            raise UsageError(
                f"{spec} has no images/ with {_ANNOTATED}/ or {_MAPS[0]}/",
                f"Name the folders: {spec}?images=photos&maps=lines",
            )
    masks = binary_masks(spec, LabelMapOptions(images=images, maps=maps))
    return {split: with_boundaries(part, regions=False) for split, part in masks.items()}


def outline(mask: BoolArray) -> BoolArray:
    """Return the pixels of a region (H, W) beside a pixel outside of it, to the left, right, above or below.

    The border of the image is no boundary.

    >>> int(outline(np.ones((3, 3), dtype=bool)).sum()), int(outline(np.eye(3, dtype=bool)).sum())
    (0, 3)
    """
    padded = np.pad(mask, 1, mode="edge")
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return np.asarray(mask & ~inner)


def decode_mat(data: bytes, path: str) -> BoolArray:
    """Return the boundaries in a .mat file of BSDS500, (H, W, K) of K annotators."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        cells = loadmat(io.BytesIO(data), variable_names=["groundTruth"])["groundTruth"]
        maps = [np.asarray(cell["Boundaries"][0, 0]) for cell in cells.ravel()]
    except KeyError as error:
        raise UnreadableImage(path, f"has no {error}, which files of BSDS500 have") from error
    except NotImplementedError as error:
        raise UnreadableImage(path, "a MATLAB 7.3 file; files of BSDS500 are of version 5") from error
    except (ValueError, TypeError, IndexError, AttributeError, OSError, EOFError, MemoryError) as error:
        raise UnreadableImage(path, "damaged, or no file of BSDS500") from error
    except (MatReadError, struct.error, zlib.error) as error:
        raise UnreadableImage(path, "damaged, or no file of BSDS500") from error
    if not maps or any(each.ndim != 2 or each.dtype.kind not in "biu" or each.shape != maps[0].shape for each in maps):
        raise UnreadableImage(path, "has no boundary maps of one size")
    return np.stack(maps, axis=2) > 0


def _bsds(spec: str, root: Path) -> dict[str, Source]:
    if not (root / "images").is_dir():
        raise DataError(f"{spec} has {_ANNOTATED}/, and no images/ beside it")
    found: dict[str, Source] = {}
    places = divided(Place("all", root / "images", root / _ANNOTATED), others=True)
    for split, pairs in paired(places, _MAT_FILES, whole=True).items():
        title = part_name(spec, split)
        values, notes = MatFiles(title, pairs.maps), pairs.left_out(f"{title}: ", _MAT_FILES.title)
        found[split] = Source(title, pairs.ids, Boundaries(values), pairs.images, notes)
    return found


def with_boundaries(source: Source, *, regions: bool) -> Source:
    """Return the images with the outlines of their masks, or with masks of lines as they are."""
    masks = Foreground.of(source.target).maps
    return dataclasses.replace(source, target=Boundaries(MaskBoundaries(source.name, masks, regions)))


FORMAT = SourceFormat(
    __doc__, readers={Boundaries: Reader(lambda spec, _: Path(spec).is_dir(), open, BoundaryOptions)}, last_resort=True
)
