"""NYUv2, `nyu_depth_v2_labeled.mat`: 1,449 images with depth, and with 40 classes if classMapping40.mat lies beside it.

Silberman et al., ECCV 2012, label 894 classes; Gupta et al., CVPR 2013, score 40 groups of them, which the second file
lists. Value 0, nothing labelled, does not count; instances are not read. `splits.mat` has the official split of 795 and
654 images; without it, images of one scene stay together in a seeded split.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sslbench.arrays import OfRows
from sslbench.config import setting
from sslbench.data.containers.hdf5 import open_hdf5
from sslbench.data.decode.picture import check_size
from sslbench.data.format import Reader, SourceFormat
from sslbench.data.images import digests_of
from sslbench.data.maps.classes import make_coding, with_ignored
from sslbench.data.maps.foreground import map_readers
from sslbench.data.maps.types import CodedMaps, Coding, RawMap, source_of_maps
from sslbench.data.maps.values import DepthOptions, metres
from sslbench.data.source import Source
from sslbench.data.wording import part_name
from sslbench.errors import DataError
from sslbench.targets.pixel_values import Depth

SPLITS = "splits.mat"
_MAPPING = "classMapping40.mat"


@dataclasses.dataclass(frozen=True)
class NyuDepthOptions:
    """Options of the depth behind a '?'; the range is that of the Kinect."""

    min_depth: float = setting(0.001, "depths up to this are unknown", unit="m", within="[0, inf)")
    max_depth: float = setting(10.0, "depths from this on are unknown", unit="m", within="(0, inf)")


@dataclasses.dataclass(frozen=True)
class NyuMapOptions:
    """Options of the label maps behind a '?'."""

    ignore: str | int | None = setting(None, "values or classes that do not count")


def recognises(spec: str, _: Mapping[str, str]) -> bool:
    """Return whether the location is a MATLAB file."""
    return spec.lower().endswith(".mat") and Path(spec).is_file()


@functools.lru_cache(maxsize=2)
def opened(path: str) -> Any:
    """Return the open file; a worker process opens its own."""
    found = open_hdf5(Path(path))
    if missing := [name for name in ("images", "depths") if name not in found]:
        raise DataError(f"{path} has no '{missing[0]}'; expected nyu_depth_v2_labeled.mat")
    return found


@dataclasses.dataclass(frozen=True)
class _MatRows(OfRows):
    """Things in an array of the file.

    Attributes:
        file: path.
        rows: positions in the file.
    """

    of_rows = ("rows",)
    array: ClassVar[str]
    file: str
    rows: tuple[int, ...]

    def path(self, index: int) -> str:
        """Return the file, the array and the number of a thing in it."""
        return f"{self.file}[{self.array} {self.rows[index]}]"


@dataclasses.dataclass(frozen=True)
class MatImages(_MatRows):
    """Images of the file."""

    array = "images"

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return an image, uint8 (480, 640, 3)."""
        stored = np.asarray(opened(self.file)["images"][self.rows[index]])  # (3, W, H), as MATLAB stores columns first
        return np.ascontiguousarray(stored.transpose(2, 1, 0))

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: a hash of each image's pixels."""
        return digests_of(self.read(i).tobytes() for i in range(len(self)))


@dataclasses.dataclass(frozen=True)
class MatDepths(_MatRows):
    """Depths of the file in metres, holes filled in as NYU publishes them; `options` have their range."""

    array = "depths"
    options: DepthOptions

    def read_values(self, index: int, *, size: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Return the depth of an image; see `PixelValues`."""
        stored = np.asarray(opened(self.file)["depths"][self.rows[index]], dtype=np.float32).T
        return metres(stored, self.options, self.path(index))

    def fingerprint(self) -> str:
        """Return a hash of the depths and their range, 32 hex digits."""
        state = hashlib.sha256(repr((self.options.min_depth, self.options.max_depth)).encode())
        for row in self.rows:
            state.update(np.asarray(opened(self.file)["depths"][row]).tobytes())
        return state.hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class MatMaps(_MatRows):
    """Label maps of the file, grouped; `groups` has the value of each class of the file, from 0, nothing labelled."""

    array = "labels"
    groups: tuple[int, ...]

    def read(self, index: int, max_pixels: int) -> RawMap:
        """Read one map; see `Maps`."""
        stored = opened(self.file)["labels"][self.rows[index]]  # (W, H), as MATLAB stores columns first
        width, height = (int(side) for side in stored.shape)
        check_size(width, height, self.path(index), max_pixels)
        classes = np.asarray(stored).T.astype(np.int64)
        if classes.max() >= len(self.groups):
            found = f"it holds the class {classes.max()}, but {_MAPPING} groups {len(self.groups) - 1}"
            return RawMap(np.zeros(classes.shape, np.int32), broken=(found,))
        return RawMap(np.array(self.groups, dtype=np.int32)[classes])

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: a hash of each map before grouping, and of the groups."""
        groups = repr(self.groups).encode()
        labels = opened(self.file)["labels"]
        return digests_of(np.asarray(labels[row]).tobytes() + groups for row in self.rows)


def _open_depth(spec: str, options: NyuDepthOptions) -> dict[str, Source]:
    file = opened(spec)
    number = len(file["depths"])
    scenes = _scenes(file, number)
    # Holes are filled in the file, so 0 occurs only where the filling failed: it is never a depth.
    range_ = DepthOptions(min_depth=max(options.min_depth, 0.001), max_depth=options.max_depth)
    return {
        split: Source(
            part_name(spec, split),
            tuple(f"{row:04d}" for row in rows),
            Depth(MatDepths(spec, rows, range_)),
            MatImages(spec, rows),
            attributes={"scene": tuple(scenes[row] for row in rows)},
            grouped_by="scene",
        )
        for split, rows in _split_rows(Path(spec), number).items()
    }


def _open_maps(spec: str, options: NyuMapOptions) -> dict[str, Source]:
    path, file = Path(spec), opened(spec)
    groups, coding = _groups(path.parent / _MAPPING)
    coding = with_ignored(spec, coding, options.ignore)
    if "labels" not in file or len(file["labels"]) != len(file["images"]):
        raise DataError(f"{spec} does not hold 'labels' for every image; expected nyu_depth_v2_labeled.mat")
    number = len(file["labels"])
    scenes, sources = _scenes(file, number), dict[str, Source]()
    for split, rows in _split_rows(path, number).items():
        ids = tuple(f"{row:04d}" for row in rows)
        maps = CodedMaps(part_name(spec, split), ids, MatImages(spec, rows), MatMaps(spec, rows, groups), coding)
        sources[split] = source_of_maps(maps, (), {"scene": tuple(scenes[row] for row in rows)}, "scene")
    return sources


def _groups(path: Path) -> tuple[tuple[int, ...], Coding]:
    """Return the value of each class of the file, and the names of the values."""
    if not path.is_file():
        raise DataError(
            f"{path} is missing, which groups the 894 classes of NYUv2 into 40",
            "Its mapClass has a number from 1 to 40 per class, its className the names. Maps that are grouped already "
            "(PNG) are a folder of images and masks: FOLDER?ignore=0 with classes.txt.",
        )
    from scipy.io import loadmat

    try:
        found = loadmat(path, squeeze_me=True)
        numbers = [int(number) for number in found["mapClass"]]
        names = [str(name) for name in found["className"]]
    except Exception as error:  # scipy raises errors of many kinds
        raise DataError(f"{path} should hold mapClass and className: {error!r:.200}") from error
    if outside := sorted(set(numbers) - set(range(1, len(names) + 1))):
        raise DataError(f"{path}: mapClass has the number {outside[0]}, but className has {len(names)} names")
    coding = make_coding(path, enumerate(names, start=1))
    return (0, *numbers), dataclasses.replace(coding, ignore=(0,))


def _split_rows(path: Path, number: int) -> dict[str, tuple[int, ...]]:
    """Return split -> positions in the file, by `splits.mat` beside it; all of them without one."""
    splits = path.parent / SPLITS
    if not splits.is_file():
        return {"all": tuple(range(number))}
    from scipy.io import loadmat

    listed = loadmat(splits)
    return {
        # MATLAB counts from 1.
        split: tuple(np.sort(listed[f"{split}Ndxs"].reshape(-1).astype(int) - 1).tolist())
        for split in ("train", "test")
    }


def _scenes(file: Any, number: int) -> list[str]:
    """Return the scene of each image; without names, each image is one."""
    if "scenes" not in file:
        return [str(row) for row in range(number)]
    places = np.asarray(file["scenes"]).reshape(-1)
    # In MATLAB's HDF5 a list of texts is one of references to arrays of character codes.
    return ["".join(map(chr, np.asarray(file[place]).reshape(-1).tolist())) for place in places]


FORMAT = SourceFormat(
    __doc__,
    readers={
        Depth: Reader(recognises, _open_depth, NyuDepthOptions),
        **map_readers(
            recognises,
            _open_maps,
            NyuMapOptions,
            alone=lambda spec: recognises(spec, {}) and (Path(spec).parent / _MAPPING).is_file(),
        ),
    },
)
