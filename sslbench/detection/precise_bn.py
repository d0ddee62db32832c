"""BatchNorm statistics over many batches, taken after training."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from sslbench.detection.batches import Batch
from sslbench.detection.models.detector import Detector
from sslbench.detection.step import losses_of
from sslbench.distributed.collectives import sum_, world_size


@torch.no_grad()
def precise_statistics(detector: Detector, batches: Iterator[Batch], *, seed: int) -> None:
    """BatchNorm statistics over many batches in place of the moving average (Wu and Johnson 2021, arXiv 2105.07576).

    The mean is that over the batches, the variance the mean of theirs plus the variance of their means (section 3.2).
    Nothing happens if every BatchNorm is frozen.
    """
    layers = [m for m in detector.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not layers:
        return
    before = [layer.momentum for layer in layers]
    device = next(detector.parameters()).device
    means = [torch.zeros_like(cast(Tensor, layer.running_mean)) for layer in layers]
    squares, variances = [m.clone() for m in means], [m.clone() for m in means]
    detector.train()
    for layer in layers:
        layer.momentum = 1.0  # so that the running values are those of the last batch alone
    count = 0
    for number, batch in enumerate(batches):
        losses_of(detector, batch, device, seed=seed, iteration=detector.recipe.iterations + number)
        count += 1
        for layer, mean, square, variance in zip(layers, means, squares, variances, strict=True):
            mean += cast(Tensor, layer.running_mean)
            square += cast(Tensor, layer.running_mean) ** 2
            variance += cast(Tensor, layer.running_var)
    total = count * world_size()
    for i, layer in enumerate(layers):
        layer.momentum = before[i]
        mean, square, variance = (sum_(x[i]) / total for x in (means, squares, variances))
        cast(Tensor, layer.running_mean).copy_(mean)
        cast(Tensor, layer.running_var).copy_(variance + square - mean**2)
