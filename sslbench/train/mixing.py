"""Mixup and CutMix of the images of a batch."""

import functools
from collections.abc import Callable

from torch import Tensor, nn
from torchvision.transforms import v2


def make_mix(mixup: float, cutmix: float, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """Return mixup (Zhang et al. 2018), CutMix (Yun et al. 2019), or a random choice between both for each batch.

    >>> import torch
    >>> images, labels = make_mix(0.8, 0.0, 3)(torch.rand(2, 3, 4, 4), torch.tensor([0, 2]))
    >>> tuple(labels.shape), round(float(labels.sum()), 4)
    ((2, 3), 2.0)

    Args:
        mixup: alpha of mixup; 0: none.
        cutmix: alpha of CutMix; 0: none.
        classes: number of classes.

    Returns:
        A function of images (B, C, h, w) and int64 labels (B,) that returns mixed images and the shares of the classes
        (B, classes); None without either.
    """
    transforms: list[nn.Module] = []
    if mixup:
        transforms.append(v2.MixUp(alpha=mixup, num_classes=classes))
    if cutmix:
        transforms.append(v2.CutMix(alpha=cutmix, num_classes=classes))
    if not transforms:
        return None
    # A partial is no submodule of the method that keeps it, so it is not compiled.
    return functools.partial(v2.RandomChoice(transforms) if len(transforms) > 1 else transforms[0])
