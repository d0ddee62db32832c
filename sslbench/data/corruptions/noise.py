"""Noise: Gaussian, shot (Poisson), impulse (salt and pepper), speckle (multiplicative)."""

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.floating]

# by severity 1 to 5
_GAUSSIAN = (0.08, 0.12, 0.18, 0.26, 0.38)  # standard deviation
_SHOT = (60, 25, 12, 5, 3)  # photons of a white pixel
_IMPULSE = (0.03, 0.06, 0.09, 0.17, 0.27)  # share of the values replaced
_SPECKLE = (0.15, 0.2, 0.35, 0.45, 0.6)  # standard deviation as a share of the value


def gaussian_noise(x: Image, severity: int, rng: np.random.Generator) -> Image:
    """Add noise of one standard deviation to every value."""
    return x + rng.normal(size=x.shape, scale=_GAUSSIAN[severity - 1])


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
