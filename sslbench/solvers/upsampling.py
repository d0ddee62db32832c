"""Classes at the size of the image from class scores on a grid."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 4_000_000  # values at the size of the image in memory at a time


def upsampled_classes(scores: "Tensor", size: tuple[int, int], *, min_max: bool = False) -> "Tensor":
    """Return the class of highest score per pixel, (H, W), after bilinear interpolation to the size of the image.

    The corners of the grid and of the image are aligned as areas (`align_corners=False`). Classes that cannot be the
    highest anywhere are left out, the others interpolated in blocks: memory does not grow with their number. Of equal
    scores the lower class is taken.

    Args:
        scores: (C, h, w) scores of each class.
        size: height and width of the image.
        min_max: scale every class to 0 to 1 over the image first, if it is positive anywhere, as DINO does to track.

    >>> import torch
    >>> upsampled_classes(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), (1, 4)).tolist()
    [[0, 0, 1, 1]]
    """
    import torch
    from torch.nn import functional

    best = torch.full(size, -math.inf, dtype=scores.dtype, device=scores.device)
    found = torch.zeros(size, dtype=torch.long, device=scores.device)
    block = max(1, _BLOCK // (size[0] * size[1]))
    able = torch.arange(len(scores), device=scores.device) if min_max else _able_to_win(scores)
    for own in torch.split(able, block):
        coarse = scores[None, own].contiguous(memory_format=torch.channels_last)  # half the time
        large = functional.interpolate(coarse, size, mode="bilinear", align_corners=False)[0]
        if min_max:
            # To 0 to 1 each; constant maps and those without a positive value stay as they are.
            low, high = large.amin(dim=(1, 2), keepdim=True), large.amax(dim=(1, 2), keepdim=True)
            scaled = (large - low) / torch.where(high > low, high - low, 1)
            large = torch.where((high > 0) & (high > low), scaled, large)
        value, place = large.max(dim=0)
        better = value > best
        best, found = torch.where(better, value, best), torch.where(better, own[place], found)
    return found


def _able_to_win(scores: "Tensor") -> "Tensor":
    """Return the classes that may have the highest score at some pixel, ascending, int64.

    Between four neighbouring places of the grid a score lies between their least and their largest. A class whose
    largest is below the least of another class wins nowhere there.
    """
    from torch.nn import functional

    kernel = (min(2, scores.shape[1]), min(2, scores.shape[2]))
    largest = functional.max_pool2d(scores[None], kernel, stride=1)[0]
    least = -functional.max_pool2d(-scores[None], kernel, stride=1)[0]
    bound = least.amax(dim=0)
    slack = 1e-5 * largest.abs().amax()  # interpolation rounds
    return (largest >= bound - slack).flatten(1).any(dim=1).nonzero()[:, 0]
