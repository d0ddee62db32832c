"""Random numbers of one view, and the changes of colours that they decide.

`ops` computes the changes on a core and `on_device` on the training device from the same numbers, so their views are
equal apart from rounding.
"""

import math

import torch

from sslbench.data.views import Jitter, Solarize, View

NEVER = 256
"""Threshold that inverts no value."""

VALUES = 12
"""Numbers of `colours`."""

_DRAWS = 40  # crop: 2 x 10 + 2; flip 1; jitter 1 + 4 + 4; greyscale 1; blur 2; solarise 2
_UNCHANGED = -1.0


class Uniform:
    """Uniform random numbers of one view, drawn at once from torch's default generator: 40 cost as much as one.

    The constant number of draws keeps the views of a picture independent of each other's settings.
    """

    def __init__(self, count: int = _DRAWS) -> None:
        self._left: list[float] = torch.rand(count, dtype=torch.float64).tolist()

    def __call__(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return the next number, uniform between `low` and `high`."""
        return low + (high - low) * self._left.pop()


def jitter(settings: Jitter, draw: Uniform) -> list[tuple[int, float]]:
    """Return the changes in their order: 0 brightness, 1 contrast, 2 saturation, 3 hue, each with its amount."""
    if draw() >= settings.p:
        return []
    middles = (
        (settings.brightness, 1.0),
        (settings.contrast, 1.0),
        (settings.saturation, 1.0),
        (settings.hue, 0.0),
    )
    chosen = [
        (draw(), change, draw(max(0.0, middle - s), middle + s) if middle else draw(-s, s), s)
        for change, (s, middle) in enumerate(middles)
    ]
    return [(change, amount) for _, change, amount, strength in sorted(chosen, key=lambda item: item[0]) if strength]


def grayscale(view: View, draw: Uniform) -> bool:
    """Return whether the view becomes grey."""
    return draw() < view.grayscale


def blur(view: View, draw: Uniform) -> tuple[float, int]:
    """Return sigma in pixels, 0 for none, and the reach of the kernel, at most 3 sigma: more changes no 8-bit value."""
    if draw() >= view.blur.p:
        return 0.0, 0
    sigma = draw(*view.blur.sigma)
    reach = math.ceil(3 * sigma)
    return sigma, reach if view.blur.kernel is None else min(reach, int(view.size * view.blur.kernel) // 2)


def solarize(settings: Solarize, draw: Uniform) -> int:
    """Return the threshold from which values are inverted, or NEVER."""
    if draw() >= settings.p:
        return NEVER
    return int(draw(0, NEVER + 1)) if settings.threshold == "random" else settings.threshold


def colours(view: View, draw: Uniform) -> list[float]:
    """Return all changes of a view's colours as numbers, drawn in the order of the view.

    Returns:
        Four kinds of jitter in their order (-1: none) and their four amounts; 1 for grey; sigma and reach of the blur;
        threshold of the inversion: VALUES numbers.
    """
    steps: list[tuple[int, float]] = []
    grey, sigma, reach, threshold = False, 0.0, 0, NEVER
    for name in view.order:
        if name == "jitter":
            steps = jitter(view.jitter, draw)
        elif name == "grayscale":
            grey = grayscale(view, draw)
        elif name == "blur":
            sigma, reach = blur(view, draw)
        elif name == "solarize":
            threshold = solarize(view.solarize, draw)
    steps += [(-1, 0.0)] * (4 - len(steps))
    return [*(float(kind) for kind, _ in steps), *(amount for _, amount in steps), float(grey), sigma, reach, threshold]
