"""Per-channel mean and standard deviation of a sample of the images, for normalisation."""

import dataclasses

import numpy as np
import torch

from sslbench.data.decode.handlers import DEFAULT, Reading
from sslbench.data.decode.picture import OtherChannels, UnreadableImage
from sslbench.data.loading import loader
from sslbench.data.loading.batch import as_trained, training_decoder
from sslbench.data.source import Source

SAMPLE = 512
"""Default number of images: the standard error of a channel's mean is then a few hundredths of its deviation."""

_DIGITS = 5
_TRIES = 16


@dataclasses.dataclass(frozen=True)
class ChannelStatistics:
    """Statistics of every channel over a sample of images.

    Attributes:
        mean: per channel, of values scaled to 0..1.
        std: per channel, over all pixels of all images; 1 for a constant channel.
        images: number of images read.
        constant: numbers of the constant channels, from 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: int
    constant: tuple[int, ...] = ()


def first_look(source: Source, channels: int, *, reading: Reading = DEFAULT) -> tuple[str, int] | None:
    """Return (path, channels) of an image with other channels, if none of a few images has `channels`; else None.

    Training replaces single images with other channels, as it does unreadable ones.

    Raises:
        UsageError: there is no decoder of that name.
    """
    decoder = training_decoder(source.images, reading, channels)
    other: tuple[str, int] | None = None
    for index in np.unique(np.linspace(0, len(source) - 1, _TRIES).astype(int)).tolist():
        try:
            loader.read(source.images, index, decoder)
        except OtherChannels as error:
            other = other or (error.path, error.channels)
        except UnreadableImage:
            continue
        else:
            return None
    return other


def measure(
    source: Source, channels: int, *, reading: Reading = DEFAULT, sample: int = SAMPLE, seed: int = 0
) -> ChannelStatistics:
    """Return the statistics of at most `sample` random images; every image has the same weight, whatever its size.

    Unreadable images are left out. The numbers are rounded to five digits, so that the same data and seed give the
    same.

    Args:
        source: the images.
        channels: number of channels; 1: the luminance of RGB.
        reading: the decoder and its limit.
        sample: number of images to read.
        seed: of the sample.

    Raises:
        UsageError: there is no decoder of that name.
    """
    decoder = training_decoder(source.images, reading, channels)
    n = len(source)
    chosen = np.sort(np.random.default_rng(seed).permutation(n)[:sample])
    sums, squares, count = np.zeros(channels), np.zeros(channels), 0
    for index in chosen.tolist():
        try:
            image = as_trained(loader.read(source.images, index, decoder).image, channels)
        except UnreadableImage:
            continue
        values = image.to(torch.float64) / 255
        sums += values.mean((1, 2)).numpy()
        squares += values.square().mean((1, 2)).numpy()
        count += 1
    mean = sums / max(count, 1)
    std = np.sqrt(np.maximum(squares / max(count, 1) - mean**2, 0))
    constant = std < 10.0**-_DIGITS
    return ChannelStatistics(
        mean=tuple(round(float(value), _DIGITS) for value in mean),
        std=tuple(round(float(value), _DIGITS) for value in np.where(constant, 1.0, std)),
        images=count,
        constant=tuple(np.flatnonzero(constant).tolist()),
    )
