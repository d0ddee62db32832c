"""Changes of the colours of a batch of views on the training device, and the draws of their random numbers.

Workers draw, and the training device changes. The changes are those of `ops` on 8-bit RGB, a batch at a time: values
are whole levels after each change, as there. Rows are selected by indices that are known on the processor, so nothing
waits for the device.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sslbench.data.views import COLOURS, Jitter, Solarize, View, entry_name
from sslbench.errors import UsageError

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as in Pillow and torchvision


def check_views(views: Sequence[View], channels: int) -> None:
    """Refuse views that only workers can make."""
    remedy = "Leave colours=device out: the workers change the colours."
    if channels != 3:
        raise UsageError(f"colours=device is for RGB images only; these have {channels} channels", remedy)
    if any(view.cells > 1 for view in views):
        raise UsageError("colours=device is not for views in a grid (jigsaw, pirl)", remedy)
    others = sorted({entry_name(entry) for view in views for entry in view.order} - set(COLOURS))
    if others:
        raise UsageError(f"colours=device cannot do augment.order: {', '.join(others)}", remedy)
    if not any(view.jitter.p or view.grayscale or view.blur.p or view.solarize.p for view in views):
        raise UsageError("colours=device has no effect: these views do not change colours", "Leave it out.")


def change_colours(images: Tensor, values: Tensor, order: Sequence[str | Mapping[str, Any]]) -> Tensor:
    """Return views with their colours changed.

    `images`: uint8 (B, 3, h, w) on any device; `values`: float32 (B, VALUES) on the CPU, see `draw_colours`; returns
    float32 (B, 3, h, w), whole numbers from 0 to 255.

    >>> red = torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    >>> grey = draw_colours(View(grayscale=1.0), Uniform())
    >>> change_colours(red, torch.tensor([grey]), ["grayscale"]).flatten().tolist()
    [76.0, 76.0, 76.0]
    """
    x = images.float()
    kinds, amounts, grey, sigma, reach, threshold = torch.split(values, [4, 4, 1, 1, 1, 1], dim=1)
    for name in order:
        if name == "jitter":
            # The four changes come in another order in each image: step by step, images with the same change together.
            for step in range(4):
                for kind, change in enumerate((_brightness, _contrast, _saturation, _hue)):
                    _replace(x, kinds[:, step] == kind, change, amounts[:, step])
        elif name == "grayscale":
            _replace(x, grey[:, 0] > 0, lambda part, _: _grey(part).round().expand_as(part), grey)
        elif name == "blur":
            _replace(x, sigma[:, 0] > 0, _blur, torch.cat([sigma, reach], dim=1))
        elif name == "solarize":
            limit = threshold[:, 0]
            _replace(x, limit < NEVER, lambda part, t: torch.where(part >= _each(t, part), 255 - part, part), limit)
    return x


def _replace(x: Tensor, chosen: Tensor, change: Callable[[Tensor, Tensor], Tensor], values: Tensor) -> None:
    """Change the chosen rows of a batch in place; `chosen` and `values` are on the CPU."""
    rows = chosen.nonzero()[:, 0]
    if len(rows):
        on_device = rows.to(x.device, non_blocking=True)
        x[on_device] = change(x[on_device], values[rows])


def _each(values: Tensor, x: Tensor) -> Tensor:
    """Return one number per image, (B,), on the device of the images and in their shape (B, 1, 1, 1)."""
    return values.to(x.device, non_blocking=True).view(-1, 1, 1, 1)


def _grey(x: Tensor) -> Tensor:
    """Return the luma, (B, 1, h, w), not rounded."""
    red, green, blue = torch.split(x, 1, dim=1)
    grey: Tensor = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    return grey


def _brightness(x: Tensor, factors: Tensor) -> Tensor:
    return (x * _each(factors, x)).clamp(0, 255).floor()


def _contrast(x: Tensor, factors: Tensor) -> Tensor:
    mean = (_grey(x).round().mean(dim=(1, 2, 3), keepdim=True) + 0.5).floor()
    return (mean + _each(factors, x) * (x - mean)).clamp(0, 255).floor()


def _saturation(x: Tensor, factors: Tensor) -> Tensor:
    grey = _grey(x)
    return (grey + _each(factors, x) * (x - grey)).clamp(0, 255).round()


def _hue(x: Tensor, turns: Tensor) -> Tensor:
    """Shift the hue, with 8 bits for hue and saturation."""
    value, least = x.amax(1), x.amin(1)
    spread = value - least
    red, green, blue = x.unbind(1)
    by_green, by_blue = (blue - red) / spread + 2, (red - green) / spread + 4
    # Grey pixels have no hue: 0 / 0 becomes 0.
    sixths = torch.where(value == red, (green - blue) / spread, torch.where(value == green, by_green, by_blue))
    hue = (sixths.nan_to_num() * 256 / 6).round()
    saturation = (255 * spread / value).nan_to_num().round() / 255
    hue = (hue + _each((turns * 256).round(), x)[:, 0]) % 256 * 6 / 256
    channels = []
    for offset in (5, 3, 1):  # red, green, blue: Smith, "Color gamut transform pairs", SIGGRAPH 1978
        place = (hue + offset) % 6
        channels.append(value - value * saturation * torch.minimum(place, 4 - place).clamp(0, 1))
    return torch.stack(channels, dim=1).round()


def _blur(x: Tensor, kernels: Tensor) -> Tensor:
    """Convolve with Gaussians of `kernels`, (B, 2): sigma, and reach of each; borders are mirrored."""
    sigma, reach = torch.split(kernels.double(), 1, dim=1)
    most = int(reach.max())
    # Kernels of all lengths in one: the weights beyond the reach of each are 0.
    taps = torch.arange(-most, most + 1)
    weights = torch.exp(-(taps**2) / (2 * sigma**2)) * (taps.abs() <= reach)
    weights = (weights / weights.sum(dim=1, keepdim=True)).float().to(x.device, non_blocking=True)
    for axis in (2, 3):
        side = x.shape[axis]
        # Mirrored at the centres of the first and last pixel.
        period = max(2 * side - 2, 1)
        places = torch.arange(-most, side + most) % period
        places = torch.minimum(places, period - places) if side > 1 else torch.zeros_like(places)
        padded = x.index_select(axis, places.to(x.device, non_blocking=True))
        shifted = (padded.narrow(axis, tap, side) * weights[:, tap].view(-1, 1, 1, 1) for tap in range(2 * most + 1))
        x = functools.reduce(torch.add, shifted)
    return x.round().clamp(0, 255)


NEVER = 256
"""Threshold that inverts no value."""

VALUES = 12
"""Numbers of `colours`."""

_DRAWS = 40  # crop: 2 x 10 + 2; flip 1; jitter 1 + 4 + 4; greyscale 1; blur 2; solarise 2


class Uniform:
    """Uniform random numbers of one view, drawn at once from torch's default generator: 40 cost as much as one.

    The constant number of draws keeps the views of a picture independent of each other's settings.
    """

    def __init__(self, count: int = _DRAWS) -> None:
        self._left: list[float] = torch.rand(count, dtype=torch.float64).tolist()

    def __call__(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return the next number, uniform between `low` and `high`."""
        return low + (high - low) * self._left.pop()


def draw_jitter(settings: Jitter, draw: Uniform) -> list[tuple[int, float]]:
    """Return the changes in their order: 0 brightness, 1 contrast, 2 saturation, 3 hue, each with its amount."""
    if draw() >= settings.p:
        return []
    middles = ((settings.brightness, 1.0), (settings.contrast, 1.0), (settings.saturation, 1.0), (settings.hue, 0.0))
    # All amounts are drawn, also of changes without strength: later draws do not depend on the settings.
    chosen = [
        (draw(), change, draw(max(0.0, middle - s), middle + s) if middle else draw(-s, s), s)
        for change, (s, middle) in enumerate(middles)
    ]
    return [(change, amount) for _, change, amount, strength in sorted(chosen, key=lambda item: item[0]) if strength]


def draw_grayscale(view: View, draw: Uniform) -> bool:
    """Return whether the view becomes grey."""
    return draw() < view.grayscale


def draw_blur(view: View, draw: Uniform) -> tuple[float, int]:
    """Return sigma in pixels, 0 for none, and the reach of the kernel, at most 3 sigma: more changes no 8-bit value."""
    if draw() >= view.blur.p:
        return 0.0, 0
    sigma = draw(*view.blur.sigma)
    reach = math.ceil(3 * sigma)
    return sigma, reach if view.blur.kernel is None else min(reach, int(view.size * view.blur.kernel) // 2)


def draw_solarize(settings: Solarize, draw: Uniform) -> int:
    """Return the threshold from which values are inverted, or NEVER."""
    if draw() >= settings.p:
        return NEVER
    return int(draw(0, NEVER + 1)) if settings.threshold == "random" else settings.threshold


def draw_colours(view: View, draw: Uniform) -> list[float]:
    """Return all changes of a view's colours as numbers, drawn in the order of the view.

    Returns four kinds of jitter in their order (-1: none) and their four amounts; 1 for grey; sigma and reach of the
    blur; threshold of the inversion: VALUES numbers.
    """
    steps: list[tuple[int, float]] = []
    grey, sigma, reach, threshold = False, 0.0, 0, NEVER
    for name in view.order:
        if name == "jitter":
            steps = draw_jitter(view.jitter, draw)
        elif name == "grayscale":
            grey = draw_grayscale(view, draw)
        elif name == "blur":
            sigma, reach = draw_blur(view, draw)
        elif name == "solarize":
            threshold = draw_solarize(view.solarize, draw)
    # Of equal length, so the images of a batch make one tensor.
    steps += [(-1, 0.0)] * (4 - len(steps))
    return [*(float(kind) for kind, _ in steps), *(amount for _, amount in steps), float(grey), sigma, reach, threshold]
