"""Depth and normals of pixels in memory: pictures with cells of four colours, each with a value of its own."""

import dataclasses

import numpy as np

from helpers.sample_maps import map_pictures
from sslbench.data.source import Labels
from sslbench.errors import DataError
from sslbench.metrics.dense import depth, normals

DEPTHS = np.array([1.0, 2.0, 4.0, 8.0], dtype=np.float32)[:, None]
DIRECTIONS = np.array([[0, 0, -1], [0.6, 0, -0.8], [0, -1, 0], [0, 0.6, -0.8]], dtype=np.float32)
OF_COLOURS = {"depth": DEPTHS, "normals": DIRECTIONS}
COLUMNS = {"depth": len(depth.COLUMNS), "normals": len(normals.COLUMNS)}


@dataclasses.dataclass(frozen=True)
class ArrayValues:
    """Values (N, H, W, K), nan: unknown."""

    values: np.ndarray

    def path(self, index):
        return f"values[{index}]"

    def read_values(self, index, *, size=None):
        found = self.values[index]
        if size is not None and tuple(size) != found.shape[:2]:
            raise DataError("of another size")
        return found

    def select(self, indices):
        return ArrayValues(self.values[np.asarray(indices)])

    def fingerprint(self):
        return str(np.nansum(self.values))


def value_pictures(kind, n, seed, *, unknown=0.0):
    """Pictures whose colours say the depth or the normal of every pixel, a share of them unknown."""
    pictures = map_pictures(n, seed)
    values = OF_COLOURS[kind][pictures.maps.maps].copy()
    values[np.random.default_rng(seed).random(values.shape[:3]) < unknown] = np.nan
    labels = Labels(kind, (), np.zeros((n, 0), dtype=np.int8))
    return dataclasses.replace(pictures, labels=labels, maps=None, pixel_values=ArrayValues(values))
