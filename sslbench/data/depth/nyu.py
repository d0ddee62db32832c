"""NYUv2's labelled data set: 1,449 images with depth in one MATLAB file, `nyu_depth_v2_labeled.mat`.

Silberman et al., ECCV 2012. The file is HDF5 and read by h5py. `splits.mat` beside it has the official split of 795 and
654 images; without it, images of one scene are kept together in a seeded split.
"""

import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.hdf5 import open_hdf5
from sslbench.data.depth.values import DepthOptions, metres
from sslbench.data.images import DIGEST_BYTES, digest
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.targets.pixel_values import Depth

SPLITS = "splits.mat"
_RANGES = DepthOptions(min_depth=0.001, max_depth=10.0)


def recognises(path: Path) -> bool:
    """Return whether a file is a MATLAB file."""
    return path.suffix.lower() == ".mat" and path.is_file()


@functools.lru_cache(maxsize=2)
def opened(path: str) -> Any:
    """Return the open file; a worker process opens its own.

    Raises:
        DataError: the file is another one or damaged, or h5py is not installed.
    """
    found = open_hdf5(Path(path))
    if missing := [name for name in ("images", "depths") if name not in found]:
        raise DataError(f"{path} has no '{missing[0]}'; expected nyu_depth_v2_labeled.mat")
    return found


@dataclasses.dataclass(frozen=True)
class MatImages:
    """Images of the file.

    Attributes:
        file: path.
        rows: positions in the file.
    """

    file: str
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return an image, uint8 (480, 640, 3)."""
        stored = np.asarray(opened(self.file)["images"][self.rows[index]])  # (3, W, H), as MATLAB stores columns first
        return np.ascontiguousarray(stored.transpose(2, 1, 0))

    def path(self, index: int) -> str:
        """Return the file and the number of the image in it."""
        return f"{self.file}[{self.rows[index]}]"

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: a hash of each image's pixels."""
        found = b"".join(digest(self.read(i).tobytes()) for i in range(len(self)))
        return np.frombuffer(found, dtype=np.uint8).reshape(-1, DIGEST_BYTES)

    def select(self, indices: npt.NDArray[np.int64]) -> "MatImages":
        """Return the images at `indices`, in that order."""
        return MatImages(self.file, tuple(self.rows[i] for i in indices.tolist()))


@dataclasses.dataclass(frozen=True)
class MatDepths:
    """Depths of the file in metres, holes filled in as NYU publishes them.

    Attributes:
        file: path.
        rows: positions in the file.
        options: range of depths.
    """

    file: str
    rows: tuple[int, ...]
    options: DepthOptions

    def __len__(self) -> int:
        return len(self.rows)

    def path(self, index: int) -> str:
        """Return the file and the number of the depth in it."""
        return f"{self.file}[depths {self.rows[index]}]"

    def read_values(self, index: int, *, size: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Return the depth of an image; see `PixelValues`."""
        stored = np.asarray(opened(self.file)["depths"][self.rows[index]], dtype=np.float32).T
        return metres(stored, self.options, self.path(index))

    def select(self, indices: npt.NDArray[np.int64]) -> "MatDepths":
        """Return the depths at `indices`, in that order."""
        return dataclasses.replace(self, rows=tuple(self.rows[i] for i in indices.tolist()))

    def fingerprint(self) -> str:
        """Return a hash of the depths and their range, 32 hex digits."""
        state = hashlib.sha256(repr((self.options.min_depth, self.options.max_depth)).encode())
        for row in self.rows:
            state.update(np.asarray(opened(self.file)["depths"][row]).tobytes())
        return state.hexdigest()[:32]


def open_labelled(path: Path, options: DepthOptions) -> dict[str, Source]:
    """Return the images of the file by split, or all of them, grouped by scene.

    Raises:
        DataError: the file is another one or damaged, or h5py is not installed.
    """
    file = opened(str(path))
    number = len(file["depths"])
    range_ = options if options.max_depth is not None else dataclasses.replace(options, max_depth=_RANGES.max_depth)
    range_ = dataclasses.replace(range_, min_depth=max(range_.min_depth, _RANGES.min_depth))
    scenes = scenes_of(file, number)

    def part(name: str, rows: list[int]) -> Source:
        chosen = tuple(rows)
        return Source(
            name,
            tuple(f"{row:04d}" for row in rows),
            Depth(MatDepths(str(path), chosen, range_)),
            MatImages(str(path), chosen),
            attributes={"scene": tuple(scenes[row] for row in rows)},
            grouped_by="scene",
        )

    return {s: part(str(path) if s == "all" else f"{path} ({s})", rows) for s, rows in split_rows(path, number).items()}


def split_rows(path: Path, number: int) -> dict[str, list[int]]:
    """Return split -> positions in the file, by `splits.mat` beside it; all of them without one."""
    splits = path.parent / SPLITS
    if not splits.is_file():
        return {"all": list(range(number))}
    from scipy.io import loadmat

    listed = loadmat(splits)
    return {split: sorted(int(i) - 1 for i in listed[f"{split}Ndxs"].reshape(-1)) for split in ("train", "test")}


def scenes_of(file: Any, number: int) -> list[str]:
    """Return the scene of each image; without names, each image is one."""
    if "scenes" not in file:
        return [str(row) for row in range(number)]
    places = np.asarray(file["scenes"]).reshape(-1)
    return ["".join(map(chr, np.asarray(file[place]).reshape(-1).tolist())) for place in places]
