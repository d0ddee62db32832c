"""Image sizes: resizing, padding to whole patches, sliding windows, and averages over flips."""

import itertools
import math
from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

Forward = Callable[[Tensor], Tensor]
"""Function from images (N, C, H, W) to logits (N, K, H, W) of the same height and width."""


def resized(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Return maps (N, C, H, W) at another height and width, bilinear, with pixels as areas (`align_corners=False`)."""
    return x if x.shape[-2:] == size else functional.interpolate(x, size=size, mode="bilinear", align_corners=False)


def centre_padded(x: Tensor, multiple: int) -> tuple[Tensor, tuple[slice, slice]]:
    """Return images padded with zeros to multiples of a patch, and the rows and columns of the images in them.

    Half of the padding is on each side, an odd row or column at the lower or right edge. DINOv2 and DINOv3 pad so for
    depth and stretch the map of the padded image to the size of the image, which shifts it; cut it out instead.

    >>> import torch
    >>> padded, (rows, columns) = centre_padded(torch.zeros(1, 3, 30, 37), 14)
    >>> tuple(padded.shape), rows, columns
    ((1, 3, 42, 42), slice(6, 36, None), slice(2, 39, None))
    """
    height, width = x.shape[-2:]
    (top, bottom), (left, right) = (_both_sides(length, multiple) for length in (height, width))
    padded = functional.pad(x, (left, right, top, bottom))
    return padded, (slice(top, top + height), slice(left, left + width))


def window_starts(length: int, window: int, stride: int) -> list[int]:
    """Return the first pixels of windows that cover an axis; the last one is moved back inside.

    >>> window_starts(112, 48, 32), window_starts(40, 48, 32)
    ([0, 32, 64], [0])
    """
    number = max(math.ceil((length - window) / stride), 0) + 1
    return [max(min(i * stride, length - window), 0) for i in range(number)]


def sliding_logits(forward: Forward, images: Tensor, *, window: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Return the logits of images (N, K, H, W), averaged where windows overlap.

    An image that is smaller than the window along an axis is used whole along that axis, as in MMSegmentation. (DINOv3
    does so along one axis; along both it slides squares of the shorter side.)

    Args:
        forward: see `Forward`.
        images: (N, C, H, W).
        window: height and width.
        stride: step between windows, vertical and horizontal.

    >>> import torch
    >>> sliding_logits(lambda x: x.mean(1, keepdim=True), torch.ones(1, 3, 5, 7), window=(4, 4), stride=(2, 2)).shape
    torch.Size([1, 1, 5, 7])
    """
    height, width = images.shape[-2:]
    tops, lefts = (window_starts(*axis) for axis in zip((height, width), window, stride, strict=True))
    number = images.new_zeros(height, width)
    for place, (top, left) in enumerate(itertools.product(tops, lefts)):
        region = (..., slice(top, top + window[0]), slice(left, left + window[1]))
        logits = forward(images[region])
        if place == 0:
            total = logits.new_zeros(*logits.shape[:2], height, width)
        total[region] += logits
        number[region] += 1
    return total / number


def _both_sides(length: int, multiple: int) -> tuple[int, int]:
    """Return the padding before and after an axis."""
    missing = -length % multiple
    return missing // 2, missing - missing // 2
