"""Label maps in memory, and grids of features that know the class of every cell."""

import dataclasses

import numpy as np

from sslbench.data.images import Arrays
from sslbench.data.label_map import LabelMap
from sslbench.data.source import Labels, Source
from sslbench.errors import DataError
from sslbench.features.array import Features


@dataclasses.dataclass(frozen=True)
class ArrayMaps:
    """Label maps (N, H, W); -1: ignored."""

    maps: np.ndarray

    def read_map(self, index, *, size=None):
        if self.maps[index].min() < -1:
            raise DataError("a value without a class")
        return LabelMap(self.maps[index].astype(np.int32), None)

    def select(self, indices):
        return ArrayMaps(self.maps[np.asarray(indices)])

    def fingerprint(self):
        return str(self.maps.sum())


def labels_of_maps(n, classes):
    return Labels("map", tuple(f"class {c}" for c in range(classes)), np.zeros((n, 0), dtype=np.int8))


def map_sample(n, seed, classes=4, *, grid=(2, 3), side=8, noise=1.0):
    """Images whose cells of side x side pixels have one class each, and features of the cells: one-hot and noise."""
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, classes, (n, *grid))
    x = noise * rng.normal(size=(n, grid[0] * grid[1], 6)) + 4 * np.eye(6)[cells.reshape(n, -1)]
    maps = np.kron(cells, np.ones((1, side, side), dtype=int))
    return Features(
        x.reshape(n, -1).astype(np.float32),
        labels_of_maps(n, classes),
        tuple(f"{seed}-{i:04d}" for i in range(n)),
        regions=grid[0] * grid[1],
        grid=grid,
        maps=ArrayMaps(maps),
    )


COLOURS = np.array([[250, 10, 10], [10, 250, 10], [10, 10, 250], [250, 250, 250]])


def map_pictures(n, seed, *, grid=(2, 3), side=8):
    """Pictures with a cell of side x side pixels of each colour, whose class is that colour, and their label maps."""
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 4, (n, *grid))
    maps = np.kron(cells, np.ones((1, side, side), dtype=int))
    pixels = (COLOURS[maps] + rng.integers(-10, 6, (*maps.shape, 3))).astype(np.uint8)
    ids = tuple(f"{seed}-{i:04d}" for i in range(n))
    images = Arrays(pixels, f"pictures {seed}")
    return Source(f"pictures {seed}", ids, labels_of_maps(n, 4), images, maps=ArrayMaps(maps))
