"""Common corruptions of images: the 15 of ImageNet-C and the four that its authors keep for tuning, for any size.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019.
Strengths are theirs; what their code ties to 224 x 224 pixels follows `imagecorruptions` (Michaelis et al., 2019): fog
and frost cover any size, the elastic transform has no affine part. Scores on images corrupted here are therefore not
scores on ImageNet-C, whose files are fixed.

Every function maps an image (H, W, 3), float in [0, 1], to one of the same shape. All randomness comes from the
generator passed in: equal seeds give equal images.
"""

import functools
import hashlib
import io
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
from scipy import ndimage

from sslbench.arrays import ByteArray
from sslbench.errors import UsageError
from sslbench.names import did_you_mean

Image = npt.NDArray[np.floating]
Corruption = Callable[[Image, int, np.random.Generator], Image]


# Noise: Gaussian, shot (Poisson), impulse (salt and pepper), speckle (multiplicative). Tables are by severity, 1 to 5.

_GAUSSIAN_NOISE = (0.08, 0.12, 0.18, 0.26, 0.38)  # standard deviation
_SHOT = (60, 25, 12, 5, 3)  # photons of a white pixel
_IMPULSE = (0.03, 0.06, 0.09, 0.17, 0.27)  # share of the values replaced
_SPECKLE = (0.15, 0.2, 0.35, 0.45, 0.6)  # standard deviation as a share of the value


def gaussian_noise(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Add noise of one standard deviation to every value."""
    return x + rng.normal(size=x.shape, scale=_GAUSSIAN_NOISE[severity - 1])


def shot_noise(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Count photons: Poisson noise, stronger the fewer there are."""
    photons = _SHOT[severity - 1]
    return rng.poisson(x * photons) / photons


def impulse_noise(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Replace a share of all values by 0 or 1, evenly."""
    drawn, share = rng.uniform(size=x.shape), _IMPULSE[severity - 1]
    return np.where(drawn < share / 2, 0.0, np.where(drawn < share, 1.0, x))


def speckle_noise(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Add noise that is proportional to each value."""
    return x + x * rng.normal(size=x.shape, scale=_SPECKLE[severity - 1])


# Blur: defocus, frosted glass, motion, zoom, Gaussian.

_DEFOCUS = ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))  # radius in pixels; blur of the disk's edge
_GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))  # blur; furthest pixel; passes
_MOTION = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))  # radius; standard deviation along the path
_ZOOM = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))  # factors from 1 below END, by STEP
_GAUSSIAN_BLUR = (1, 2, 3, 4, 6)  # standard deviation in pixels


def gaussian(x: Image, sigma: float) -> Image:
    """Return x blurred in space, edge values repeated beyond the edge; the kernel ends at four standard deviations."""
    blurred: Image = ndimage.gaussian_filter(x, (sigma, sigma, 0)[: x.ndim], mode="nearest")
    return blurred


def gaussian_blur(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Blur with a Gaussian."""
    return gaussian(x, _GAUSSIAN_BLUR[severity - 1])


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


# Brightness, contrast, saturation; pixelation, JPEG, elastic deformation.

_BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)  # added to the value of HSV
_CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)  # share of the distance to the mean that is left
_SATURATE = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))  # saturation times, plus
_PIXELATE = (0.6, 0.5, 0.4, 0.3, 0.25)  # share of the sides
_JPEG = (25, 18, 15, 10, 7)  # quality
_ELASTIC = (12.5, 16.25, 21.25, 25.0, 30.0)  # displacement, times a smoothed uniform draw within 0.5 % of the height


def brightness(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Raise the value of HSV."""
    return _in_hsv(x, channel=2, times=1.0, plus=_BRIGHTNESS[severity - 1])


def saturate(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Weaken (severity 1, 2) or strengthen (3 to 5) the saturation of HSV."""
    times, plus = _SATURATE[severity - 1]
    return _in_hsv(x, channel=1, times=times, plus=plus)


def _in_hsv(x: Image, *, channel: int, times: float, plus: float) -> Image:
    hsv = cv2.cvtColor(x.astype(np.float32), cv2.COLOR_RGB2HSV)
    hsv[:, :, channel] = np.clip(hsv[:, :, channel] * times + plus, 0, 1)
    changed: Image = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB).astype(x.dtype, copy=False)
    return changed


def contrast(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Draw every value towards the mean of its channel."""
    mean = x.mean(axis=(0, 1), keepdims=True)
    changed: Image = (x - mean) * _CONTRAST[severity - 1] + mean
    return changed


def pixelate(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Shrink by averages and enlarge by repetition, to the same size."""
    picture = _as_picture(x)
    share = _PIXELATE[severity - 1]
    small = picture.resize((int(picture.width * share), int(picture.height * share)), PIL.Image.Resampling.BOX)
    return np.asarray(small.resize(picture.size, PIL.Image.Resampling.NEAREST)) / 255.0


def jpeg_compression(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Write as a JPEG of low quality and read again."""
    file = io.BytesIO()
    _as_picture(x).save(file, "JPEG", quality=_JPEG[severity - 1])
    return np.asarray(PIL.Image.open(file)) / 255.0


def _as_picture(x: Image) -> PIL.Image.Image:
    return PIL.Image.fromarray(np.rint(x * 255).astype(np.uint8))


def elastic_transform(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Move pixels by a smooth random field (Simard, Steinkraus and Platt, ICDAR 2003), without an affine part."""
    height, width = x.shape[:2]
    reach, strength = height * 0.005, _ELASTIC[severity - 1]
    smooth = (height * 0.01, width * 0.01)  # standard deviation in pixels
    right, down = (
        ndimage.gaussian_filter(rng.uniform(-reach, reach, size=(height, width)), smooth, mode="reflect", truncate=3)
        * strength
        for _ in range(2)
    )
    rows, columns = np.mgrid[:height, :width]
    places = np.stack([rows + down, columns + right])
    return np.stack([ndimage.map_coordinates(x[:, :, c], places, order=1, mode="reflect") for c in range(3)], axis=2)


# Snow, frost, fog, spatter of water and mud.

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
    """Overlay a random crop of a picture of frost from the folder named by $SSLBENCH_FROST."""
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
    """Return a digest of the pictures of frost, 16 hex digits."""
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
    # Light on the drops: distance to their edges, embossed from the upper left.
    distance = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
    near = cv2.equalizeHist(cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    light = cv2.blur(cv2.filter2D(near, cv2.CV_8U, emboss), (3, 3)).astype(np.float32) * drops
    wet: Image = x + light[:, :, None] / max(float(light.max()), 1e-12) * last * np.array(_TURQUOISE)
    return wet


MAIN: Mapping[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
    "snow": snow,
    "frost": frost,
    "fog": fog,
    "brightness": brightness,
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
}
"""The 15 corruptions of mCE, in the paper's order."""

EXTRA: Mapping[str, Corruption] = {
    "speckle_noise": speckle_noise,
    "gaussian_blur": gaussian_blur,
    "spatter": spatter,
    "saturate": saturate,
}
"""The four for tuning; they do not enter mCE."""

CORRUPTIONS_VERSION = 1
"""Version of the corruptions, raised when the same image and seed give another one."""
SEVERITIES = (1, 2, 3, 4, 5)
SMALLEST = 32  # pixels of a side: below it the kernels are larger than the image


def corrupt(image: npt.NDArray[np.uint8], name: str, severity: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Return a corrupted copy of an image, (H, W, 3) uint8; grey images (H, W) or (H, W, 1) become three channels.

    Args:
        image: (H, W, 3), (H, W, 1) or (H, W), 8 bits, at least 32 pixels a side.
        name: of the corruption, such as 'fog'.
        severity: 1 (weak) to 5 (strong).
        rng: source of all randomness.

    >>> grey = np.full((40, 40, 3), 128, np.uint8)
    >>> corrupt(grey, "brightness", 1, np.random.default_rng(0))[0, 0].tolist()
    [153, 153, 153]
    """
    known = {**MAIN, **EXTRA}
    if name not in known:
        raise UsageError(f"there is no corruption '{name}'", did_you_mean(name, known))
    if severity not in SEVERITIES:
        raise UsageError(f"the severity of {name} is 1, 2, 3, 4 or 5, not {severity}")
    if min(image.shape[:2]) < SMALLEST:
        size = "x".join(map(str, image.shape[:2]))
        raise UsageError(f"an image of {size} pixels is too small to corrupt", f"Take at least {SMALLEST} a side.")
    channels = image if image.ndim == 3 else image[:, :, None]
    if channels.shape[2] not in (1, 3):
        raise UsageError(f"corruptions are defined for 1 or 3 channels, not {channels.shape[2]}")
    rgb = np.repeat(channels, 3 // channels.shape[2], axis=2) / 255.0
    corrupted: ByteArray = (np.clip(known[name](rgb, severity, rng), 0, 1) * 255).astype(np.uint8)
    return corrupted


def code_of(name: str) -> str:
    """Return the version of a corruption, with a digest of the pictures that frost reads, for keys."""
    pictures = f", pictures {frost_digest()}" if name == "frost" else ""
    return f"corruptions {CORRUPTIONS_VERSION}{pictures}"
