"""Common corruptions of images: the 15 of ImageNet-C and the four that its authors keep for tuning, for any size.

Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019.
Strengths are theirs; what their code ties to 224 x 224 pixels follows `imagecorruptions` (Michaelis et al., 2019): fog
and frost cover any size, the elastic transform has no affine part. Scores on images corrupted here are therefore not
scores on ImageNet-C, whose files are fixed.

Every function maps an image (H, W, 3), float in [0, 1], to one of the same shape. All randomness comes from the
generator passed in: equal seeds give equal images.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from sslbench.arrays import ByteArray
from sslbench.data.corruptions import blur, colour, noise, weather
from sslbench.errors import UsageError
from sslbench.names import did_you_mean

Image = npt.NDArray[np.floating]
Corruption = Callable[[Image, int, np.random.Generator], Image]

MAIN: Mapping[str, Corruption] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": colour.brightness,
    "contrast": colour.contrast,
    "elastic_transform": colour.elastic_transform,
    "pixelate": colour.pixelate,
    "jpeg_compression": colour.jpeg_compression,
}
"""The 15 corruptions of mCE, in the paper's order."""

EXTRA: Mapping[str, Corruption] = {
    "speckle_noise": noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": weather.spatter,
    "saturate": colour.saturate,
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

    Raises:
        UsageError: no such corruption or severity, or an image that is too small.

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
    """Return the version of a corruption, with a digest of the pictures that frost reads, for keys of what is stored.

    Raises:
        UsageError: frost without its pictures.
    """
    pictures = f", pictures {weather.frost_digest()}" if name == "frost" else ""
    return f"corruptions {CORRUPTIONS_VERSION}{pictures}"
