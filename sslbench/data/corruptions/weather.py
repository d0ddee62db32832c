"""Snow, frost, fog, spatter of water and mud."""

import functools
import hashlib
import os
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image

from sslbench.data.corruptions.blur import along_path, enlarged_centre, gaussian
from sslbench.errors import UsageError

Image = npt.NDArray[np.floating]

# by severity 1 to 5
_FOG = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))  # density; fall of the detail per octave
_FROST = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))  # share of the image, of the frost
_SNOW = (  # noise of the flakes: mean, deviation; enlargement; threshold; fall: radius, deviation; clearness
    (0.1, 0.3, 3.0, 0.5, 10, 4, 0.8),
    (0.2, 0.3, 2.0, 0.5, 12, 4, 0.7),
    (0.55, 0.3, 4.0, 0.9, 12, 8, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
_WATER = ((0.65, 0.3, 4, 0.69, 0.6), (0.65, 0.3, 3, 0.68, 0.6), (0.65, 0.3, 2, 0.68, 0.5))  # noise, blur, cut, opacity
_MUD = ((0.65, 0.3, 1, 0.65, 1.5), (0.67, 0.4, 1, 0.65, 1.5))  # noise: mean, deviation; blur; cut; blur of the mask
_TURQUOISE, _BROWN = (175 / 255, 238 / 255, 238 / 255), (63 / 255, 42 / 255, 20 / 255)

FROST_FOLDER = "SSLBENCH_FROST"
"""Environment variable: folder of pictures of frost. The authors' six pictures carry no licence to pass them on."""


def fog(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Add a plasma fractal and bring the maximum back to that of the image."""
    density, fall = _FOG[severity - 1]
    side = 1 << (max(x.shape[:2]) - 1).bit_length()
    plasma = plasma_fractal(side, fall, rng)[: x.shape[0], : x.shape[1], None]
    fogged: Image = (x + density * plasma) * x.max() / (x.max() + density)
    return fogged


def plasma_fractal(side: int, fall: float, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return a periodic height map in [0, 1], (side, side), by the diamond-square algorithm.

    Fournier, Fussell and Carpenter, "Computer rendering of stochastic models", CACM 1982.

    Args:
        side: a power of two.
        fall: factor by which the random displacement shrinks from one octave to the next.
        rng: source of the displacements.
    """
    heights = np.zeros((side, side), np.float32)
    step, size = side, 100.0

    def displaced(sums: npt.NDArray[np.float32]) -> npt.NDArray[np.floating]:
        """Return means of four neighbours plus the displacement of this octave."""
        return sums / 4 + size * rng.uniform(-size, size, sums.shape)

    while step >= 2:
        half = step // 2
        corners = heights[::step, ::step]
        pairs = corners + np.roll(corners, -1, axis=0)
        heights[half::step, half::step] = displaced(pairs + np.roll(pairs, -1, axis=1))
        centres = heights[half::step, half::step]
        for axis, place in (
            (0, (slice(None, None, step), slice(half, None, step))),
            (1, (slice(half, None, step), slice(None, None, step))),
        ):
            across = corners + np.roll(corners, -1, axis=1 - axis)
            heights[place] = displaced(centres + np.roll(centres, 1, axis=axis) + across)
        step, size = half, size / fall
    heights -= heights.min()
    scaled: npt.NDArray[np.float32] = heights / heights.max()
    return scaled


def frost(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Overlay a random crop of a picture of frost from the folder named by $SSLBENCH_FROST.

    Raises:
        UsageError: the folder is not set, or has no picture.
    """
    pictures = _frost_pictures(os.environ.get(FROST_FOLDER, ""))
    picture = pictures[int(rng.integers(len(pictures)))]
    height, width = x.shape[:2]
    scale = 1.1 * max(1.0, height / picture.shape[0], width / picture.shape[1])
    size = (int(np.ceil(picture.shape[1] * scale)), int(np.ceil(picture.shape[0] * scale)))
    enlarged = cv2.resize(picture, size, interpolation=cv2.INTER_CUBIC)
    top = int(rng.integers(enlarged.shape[0] - height))
    left = int(rng.integers(enlarged.shape[1] - width))
    of_image, of_frost = _FROST[severity - 1]
    return of_image * x + of_frost * enlarged[top : top + height, left : left + width] / 255.0


def frost_digest() -> str:
    """Return a digest of the pictures of frost, 16 hex digits.

    Raises:
        UsageError: the folder is not set, or has no picture.
    """
    digest = hashlib.sha256()
    for picture in _frost_pictures(os.environ.get(FROST_FOLDER, "")):
        digest.update(repr(picture.shape).encode() + picture.tobytes())
    return digest.hexdigest()[:16]


@functools.cache
def _frost_pictures(folder: str) -> list[npt.NDArray[np.uint8]]:
    remedy = f"Set {FROST_FOLDER} to a folder of pictures of frost, or leave frost out of corrupt=[...]."
    if not folder:
        raise UsageError("frost needs pictures of frost, and no folder of them is named", remedy)
    files = [f for f in sorted(Path(folder).glob("*")) if f.suffix.lower() in (".png", ".jpg", ".jpeg")]
    if not files:
        raise UsageError(f"{folder}: no .png or .jpg pictures of frost", remedy)
    return [np.asarray(PIL.Image.open(file).convert("RGB")) for file in files]


def snow(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Whiten the image and add flakes that fall in a random direction, and the same turned by 180 degrees."""
    mean, deviation, enlargement, threshold, radius, sigma, clear = _SNOW[severity - 1]
    flakes = enlarged_centre(rng.normal(size=x.shape[:2], loc=mean, scale=deviation), enlargement)
    flakes = np.clip(np.where(flakes < threshold, 0, flakes), 0, 1)
    flakes = along_path(flakes, int(radius), sigma, angle=rng.uniform(-135, -45))
    flakes = np.round(flakes * 255)[: x.shape[0], : x.shape[1], None] / 255.0
    grey = cv2.cvtColor(x.astype(np.float32), cv2.COLOR_RGB2GRAY)[:, :, None]
    whitened = clear * x + (1 - clear) * np.maximum(x, grey * 1.5 + 0.5)
    snowy: Image = whitened + flakes + np.rot90(flakes, k=2)
    return snowy


def spatter(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Cover the lens with drops of water (severity 1 to 3) or mud (4 and 5)."""
    mean, deviation, blur, cut, last = (*_WATER, *_MUD)[severity - 1]
    liquid = gaussian(rng.normal(size=x.shape[:2], loc=mean, scale=deviation), blur)
    liquid = np.where(liquid < cut, 0, liquid)
    if severity > len(_WATER):
        mask = gaussian((liquid > cut).astype(np.float32), last)
        mask = np.where(mask < 0.8, 0, mask)[:, :, None]
        return x * (1 - mask) + np.array(_BROWN) * mask
    drops = (liquid * 255).astype(np.uint8)
    light = _lit_edges(drops) * drops
    wet: Image = x + light[:, :, None] / max(float(light.max()), 1e-12) * last * np.array(_TURQUOISE)
    return wet


def _lit_edges(drops: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return light on the drops: distance to their edges, embossed from the upper left."""
    distance = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
    near = cv2.equalizeHist(cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    light: npt.NDArray[np.float32] = cv2.blur(cv2.filter2D(near, cv2.CV_8U, emboss), (3, 3)).astype(np.float32)
    return light
