"""`skimage:motorcycle`: the stereo pair that comes with scikit-image, its left image with true depth, cut into tiles.

Scharstein et al., "High-resolution stereo datasets with subpixel-accurate ground truth", GCPR 2014 (Middlebury 2014,
motorcycle, at a quarter of its size). A real scene of 2.1 to 5.0 m, 7 % of it without depth: an example and no
benchmark.
Tiles of the left half are for training, those of the right half for test.

Normals are derived from the depth: inverse depth is linear in the pixels of a plane, so its gradient, fitted by least
squares in a window, gives the normal. Axes: x to the right, y down, z into the scene; normals point to the camera.
"""

import dataclasses
import functools
import hashlib
import importlib.resources

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, OfRows
from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.images import Arrays
from sslbench.data.maps.values import Quantity
from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.targets.pixel_values import Depth, Normals

PREFIX = "skimage:"
MOTORCYCLE = f"{PREFIX}motorcycle"

# Pixels, metres, and the difference of the principal points in pixels (calib.txt of the quarter size)
_FOCAL, _BASELINE, _OFFSET = 994.978, 0.193001, 31.086
# Row and column of the left camera's principal point
_CENTRE = (254.877, 311.193)
_TILE = (100, 92)
_WINDOW = 9
# Root mean square deviation of the disparity from a plane, in pixels, above which there is no normal
_MOST_ERROR = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class ValueArrays(OfRows):
    """Depth or normals of N images in one array.

    Attributes:
        values: float32 (N, H, W, K), NaN where unknown.
        name: of the data set, in messages.
    """

    of_rows = ("values",)
    values: npt.NDArray[np.float32]
    name: str

    def path(self, index: int) -> str:
        """Return the data set's name and the row in the array."""
        return f"{self.name}[{index}]"

    def read_values(self, index: int, *, size: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Return the values of an image; see `PixelValues`."""
        return np.asarray(self.values[index])

    def fingerprint(self) -> str:
        """Return a hash of the values, 32 hex digits."""
        digest = hashlib.sha256(repr(self.values.shape).encode())
        digest.update(np.ascontiguousarray(self.values).tobytes())
        return digest.hexdigest()[:32]


def open_tiles(spec: str, quantity: Quantity) -> dict[str, Source]:
    """Return the tiles of the left half (train) and of the right half (test)."""
    if spec != MOTORCYCLE:
        raise UsageError(f"there is no data set '{spec}' with {quantity}", did_you_mean(spec, [MOTORCYCLE]))
    image, inverse = _scene()
    notes = [
        "One scene cut into tiles, an example: scores are not comparable with those of a benchmark, and intervals are "
        "too narrow, as tiles beside each other are alike."
    ]
    if quantity == "depth":
        values = (1 / inverse)[..., None].astype(np.float32)
    else:
        values = normals_of(inverse)
        notes.append("The normals are derived from the depth.")
    half = image.shape[1] // 2
    sources = {}
    for split, part in (("train", slice(0, half)), ("test", slice(half, 2 * half))):
        name, height, width = f"{spec} ({split})", *_TILE
        half_image, half_values = image[:, part], values[:, part]
        places = [
            (top, left)
            for top in range(0, half_image.shape[0] - height + 1, height)
            for left in range(0, half_image.shape[1] - width + 1, width)
        ]
        pictures = np.stack([half_image[top : top + height, left : left + width] for top, left in places])
        targets = np.stack([half_values[top : top + height, left : left + width] for top, left in places])
        ids = tuple(f"row{top:03d}-column{left:03d}" for top, left in places)
        target = (Depth if quantity == "depth" else Normals)(ValueArrays(targets, name))
        sources[split] = Source(name, ids, target, Arrays(pictures, name), tuple(notes))
    return sources


@functools.cache
def _scene() -> tuple[npt.NDArray[np.uint8], FloatArray]:
    """Return the left image (H, W, 3) and the inverse depth (H, W) in 1/m; NaN where it is unknown."""
    from PIL import Image

    folder = importlib.resources.files("skimage") / "data"
    with (folder / "motorcycle_left.png").open("rb") as file, Image.open(file) as picture:
        image = np.asarray(picture.convert("RGB"))
    with (folder / "motorcycle_disp.npz").open("rb") as file, np.load(file) as arrays:
        disparity = arrays[arrays.files[0]].astype(np.float64)
    # Middlebury: depth = baseline * focal / (disparity + offset of the principal points).
    inverse = (disparity + _OFFSET) / (_BASELINE * _FOCAL)
    return image, np.where(np.isfinite(disparity), inverse, np.nan)


def normals_of(inverse: FloatArray) -> npt.NDArray[np.float32]:
    """Return unit normals (H, W, 3) from inverse depths (H, W) in 1/m.

    NaN where depth is unknown in the window, or is not that of a plane there. With inverse depth a u + b v + c, the
    normal is along (a f, b f, w), where w is the plane's inverse depth at the principal point.

    >>> floor = np.linspace(0.2, 0.5, 40)[:, None] + np.zeros((1, 40))
    >>> normal = normals_of(floor)[20, 20]
    >>> float(normal[0]), bool(normal[1] < -0.9)
    (-0.0, True)
    """
    radius = _WINDOW // 2
    windows = np.lib.stride_tricks.sliding_window_view(inverse, (_WINDOW, _WINDOW))
    offsets = np.arange(-radius, radius + 1, dtype=np.float64)
    # On a grid about 0, both slopes and the mean are fitted independently of each other.
    squares = _WINDOW * float(np.sum(offsets**2))
    down = np.einsum("ijkl,k->ij", windows, offsets) / squares
    right = np.einsum("ijkl,l->ij", windows, offsets) / squares
    mean, square = windows.mean(axis=(2, 3)), np.mean(windows**2, axis=(2, 3))
    rest = square - mean**2 - (down**2 + right**2) * squares / _WINDOW**2
    error = np.sqrt(np.maximum(rest, 0)) * _BASELINE * _FOCAL
    rows = np.arange(radius, inverse.shape[0] - radius)[:, None] - _CENTRE[0]
    columns = np.arange(radius, inverse.shape[1] - radius)[None, :] - _CENTRE[1]
    depthwise = mean - down * rows - right * columns
    # To the camera, as z points into the scene.
    vectors = -np.stack([right * _FOCAL, down * _FOCAL, depthwise], axis=2)
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    # Negated, so that NaN in the window counts as unknown, too.
    vectors[~(error < _MOST_ERROR)] = np.nan
    whole = np.full((*inverse.shape, 3), np.nan, dtype=np.float32)
    whole[radius : inverse.shape[0] - radius, radius : inverse.shape[1] - radius] = vectors
    return whole


def _recognises(spec: str) -> bool:
    return spec.startswith(PREFIX)


FORMAT = SourceFormat(
    __doc__,
    readers={
        Depth: plain_reader(_recognises, lambda spec: open_tiles(spec, "depth"), alone=_recognises),
        Normals: plain_reader(_recognises, lambda spec: open_tiles(spec, "normals")),
    },
)
