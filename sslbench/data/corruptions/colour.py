"""Brightness, contrast, saturation; pixelation, JPEG, elastic deformation."""

import io

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
from scipy import ndimage

Image = npt.NDArray[np.floating]

# by severity 1 to 5
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
