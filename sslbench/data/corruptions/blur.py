"""Blur: defocus, frosted glass, motion, zoom, Gaussian."""

import math

import cv2
import numpy as np
import numpy.typing as npt
from scipy import ndimage

Image = npt.NDArray[np.floating]

# by severity 1 to 5
_DEFOCUS = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))  # radius in pixels; blur of the disk's edge
_GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))  # blur; furthest pixel; passes
_MOTION = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))  # radius; standard deviation along the path
_ZOOM = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))  # factors from 1 below END, by STEP
_GAUSSIAN = (1, 2, 3, 4, 6)  # standard deviation in pixels


def gaussian(x: Image, sigma: float) -> Image:
    """Return x blurred in space, edge values repeated beyond the edge; the kernel ends at four standard deviations."""
    blurred: Image = ndimage.gaussian_filter(x, (sigma, sigma, 0)[: x.ndim], mode="nearest")
    return blurred


def gaussian_blur(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Blur with a Gaussian."""
    return gaussian(x, _GAUSSIAN[severity - 1])


def defocus_blur(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Blur with a disk, as a lens out of focus."""
    radius, edge = _DEFOCUS[severity - 1]
    reach = np.arange(-max(8, radius), max(8, radius) + 1)
    disk = (reach[:, None] ** 2 + reach[None, :] ** 2 <= radius**2).astype(np.float32)
    kernel = cv2.GaussianBlur(disk / disk.sum(), (3, 3) if radius <= 8 else (5, 5), sigmaX=edge)
    return np.stack([cv2.filter2D(x[:, :, c], -1, kernel) for c in range(3)], axis=2)


def glass_blur(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Overwrite every pixel by a near one, between two blurs, as behind frosted glass.

    The paper swaps the two; in the authors' code the second assignment reads what the first one wrote, so that the near
    pixel stays as it is. ImageNet-C was made by that code, pixel after pixel from the lower right.
    """
    sigma, reach, passes = _GLASS[severity - 1]
    pixels = np.floor(np.clip(gaussian(x, sigma), 0, 1) * 255) / 255
    height, width = pixels.shape[:2]
    rows, columns = range(height - reach, reach, -1), range(width - reach, reach, -1)
    place = np.arange(height * width).reshape(height, width).tolist()  # a list of numbers: 10 times as fast as pixels
    for _ in range(passes):
        steps = rng.integers(-reach, reach, size=(len(rows), len(columns), 2)).tolist()
        for h, row in zip(rows, steps, strict=True):
            for w, (dx, dy) in zip(columns, row, strict=True):
                place[h][w] = place[h + dy][w + dx]
    return gaussian(pixels.reshape(height * width, 3)[np.array(place)], sigma)


def motion_blur(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Blur along a straight path in a random direction between -45 and 45 degrees."""
    radius, sigma = _MOTION[severity - 1]
    return along_path(x, radius, sigma, angle=rng.uniform(-45, 45))


def along_path(x: Image, radius: int, sigma: float, *, angle: float) -> Image:
    """Return the weighted sum of x moved step by step along a straight path; weights fall as half a Gaussian.

    Args:
        x: (H, W) or (H, W, C).
        radius: the path has 2 radius + 1 steps of a pixel.
        sigma: standard deviation of the weights, in steps.
        angle: direction in degrees, 0 is along the rows.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    dy, dx = (-math.sin(math.radians(angle)), -math.cos(math.radians(angle)))
    blurred = np.zeros(x.shape)
    for step, weight in zip(steps, weights, strict=True):
        down, right = -math.ceil(-step * dy - 0.5), -math.ceil(-step * dx - 0.5)
        if abs(down) >= x.shape[0] or abs(right) >= x.shape[1]:
            break
        rows, columns = _moved(x.shape[0], down), _moved(x.shape[1], right)
        blurred += weight * x[rows][:, columns]
    return blurred


def _moved(length: int, by: int) -> npt.NDArray[np.int64]:
    """Return places to read from for a move by so many pixels; the edge that moved in is repeated outwards."""
    return np.clip(np.arange(length) - by, 0, length - 1)


def zoom_blur(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Average the image with enlargements of its centre."""
    end, step = _ZOOM[severity - 1]
    factors = np.arange(1, end, step)
    total = x.astype(np.float32)
    for factor in factors:
        layer = enlarged_centre(x.astype(np.float32), factor)
        total[: layer.shape[0], : layer.shape[1]] += layer[: x.shape[0], : x.shape[1]]
    return total / (len(factors) + 1)


def enlarged_centre(x: Image, factor: float) -> Image:
    """Return the centre of x, (H / factor, W / factor), enlarged linearly by the factor."""
    height, width = (math.ceil(n / factor) for n in x.shape[:2])
    top, left = (x.shape[0] - height) // 2, (x.shape[1] - width) // 2
    centre = x[top : top + height, left : left + width]
    zoomed: Image = ndimage.zoom(centre, (factor, factor, 1)[: x.ndim], order=1)
    return zoomed
