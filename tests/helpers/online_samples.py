"""Coloured pictures in memory and small frozen networks, for the tests of protocols on images."""

import dataclasses

import numpy as np
import torch
from torch import nn

from sslbench.backbones.in_memory import from_module
from sslbench.data.images import Arrays
from sslbench.data.source import Source
from sslbench.preprocessing import Preprocessing
from sslbench.targets import kinds

PLAIN = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")


class Small(nn.Module):
    """A convolution with BatchNorm, whose statistics must not move, and an average: (B, 3, H, W) -> (B, 12)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 12, 3, stride=2)
        self.bn = nn.BatchNorm2d(12)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x))).mean((2, 3))


def small(module=None, preprocessing=PLAIN):
    module = (Small() if module is None else module).eval().requires_grad_(False)
    return from_module("small", module, preprocessing)


def pictures(n, seed, kind="single", classes=4, noise=30, size=10):
    """Each class has a colour of its own; with 'multi' the next class is present, absent or unknown as well."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    colours = np.random.default_rng(99).integers(40, 216, (classes, 3))
    array = colours[y][:, None, None, :] + rng.normal(0, noise, (n, size, size, 3))
    values = y.astype(np.int64)
    if kind == "multi":
        values = np.zeros((n, classes), dtype=np.int8)
        values[np.arange(n), y] = 1
        values[np.arange(n), (y + 1) % classes] = rng.integers(-1, 1, n)
    labels = kinds()[kind](tuple(f"class {c}" for c in range(classes)), values)
    ids = tuple(f"{seed}-{i:04d}" for i in range(n))
    return Source(f"pictures {seed}", ids, labels, Arrays(array.clip(0, 255).astype(np.uint8), f"pictures {seed}"))


class _Damaged(Arrays):
    """Images of which those at 3 and 50 cannot be read."""

    def read(self, index):
        if self._row(index) in (3, 50):
            raise OSError(5, "damaged")
        return super().read(index)


def damaged(source):
    """Return the source with two images that cannot be read."""
    return dataclasses.replace(source, images=_Damaged(source.images.array, "broken"))


def relabelled(source, values):
    return dataclasses.replace(source, target=source.target.changed(values=values))
