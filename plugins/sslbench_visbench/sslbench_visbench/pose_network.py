"""Regression of the relative poses of two cameras from the features of their images, by a small network.

BatchNorm, hidden layers of 512, 256 and 128 with ReLU, and the numbers of the pose; mean squared error, AdamW, cosine
schedule without warm-up: the pairwise protocol of probe3d (El Banani et al., CVPR 2024) as VisBench 0.27 states it.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from sslbench.arrays import FloatArray, Matrix

_ROWS = 8192  # rows predicted together


@dataclasses.dataclass(frozen=True)
class PoseTraining:
    """Network and training.

    Attributes:
        hidden: widths of the hidden layers; () for a linear map.
        epochs: passes over the pairs.
        lr: learning rate of AdamW at the start.
        weight_decay: of AdamW.
        batch_size: pairs per update, at least 2.
    """

    hidden: tuple[int, ...]
    epochs: int
    lr: float
    weight_decay: float
    batch_size: int


def fit_poses(
    x: Matrix, poses: FloatArray, training: PoseTraining, *, seed: int, device: str = "cpu"
) -> Callable[[Matrix], FloatArray]:
    """Train a network; return the function from features (M, D) to poses (M, P).

    A last batch of one row is left out, since BatchNorm has no variance of it.

    Args:
        x: (N, D), features of both images side by side; read by batches.
        poses: (N, P).
        training: network and training.
        seed: of the weights and the order.
        device: of the network.

    >>> x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    >>> predict = fit_poses(x, x.astype(float), PoseTraining((), 200, 0.05, 0.0, 32), seed=0)
    >>> bool(np.abs(predict(x) - x).max() < 0.2)
    True
    """
    generator = torch.Generator().manual_seed(seed)
    network = _network(x.shape[1], (*training.hidden, poses.shape[1]), generator).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=training.epochs)
    targets = torch.from_numpy(poses.astype(np.float32)).to(device)
    network.train()
    for _ in range(training.epochs):
        for rows in torch.split(torch.randperm(len(x), generator=generator), training.batch_size):
            if len(rows) < 2:
                continue
            optimizer.zero_grad()
            batch = torch.from_numpy(np.asarray(x[rows.numpy()], dtype=np.float32)).to(device)
            loss: torch.Tensor = nn.functional.mse_loss(network(batch), targets[rows.to(device)])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
    network.eval()

    @torch.no_grad()
    def predict(features: Matrix) -> FloatArray:
        found = []
        for start in range(0, len(features), _ROWS):
            block = torch.from_numpy(np.asarray(features[start : start + _ROWS], dtype=np.float32)).to(device)
            found.append(network(block).cpu().numpy())
        return np.concatenate(found).astype(np.float64)

    return predict


def _network(inputs: int, widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Return the network with weights of torch's usual distribution, drawn from a generator."""
    layers: list[nn.Module] = [nn.BatchNorm1d(inputs)]
    for i, width in enumerate(widths):
        linear = nn.Linear(inputs, width)
        bound = inputs**-0.5
        for parameter in linear.parameters():
            with torch.no_grad():
                parameter.uniform_(-bound, bound, generator=generator)
        layers += [linear, nn.ReLU()] if i < len(widths) - 1 else [linear]
        inputs = width
    return nn.Sequential(*layers)
