"""Mean and standard deviation of every channel, from a sample of the images: what normalises them."""

import dataclasses

import numpy as np
import torch

from sslbench.data.decode.handlers import DEFAULT, Reading
from sslbench.data.decode.picture import OtherChannels, UnreadableImage
from sslbench.data.loading import loader
from sslbench.data.loading.batch import as_trained, training_decoder
from sslbench.data.source import Source

SAMPLE = 512
"""Images that are enough: a channel's mean is then known to a few hundredths of its deviation."""

_DIGITS = 5
_TRIES = 16


@dataclasses.dataclass(frozen=True)
class ChannelStatistics:
    """What was found.

    Attributes:
        mean: per channel, values scaled to 0..1.
        std: per channel, over all pixels of all images; 1 where a channel is the same everywhere.
        images: that were read.
        constant: numbers of the channels that are the same everywhere, from 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    images: int
    constant: tuple[int, ...] = ()


def first_look(source: Source, channels: int, *, reading: Reading = DEFAULT) -> tuple[str, int] | None:
    """(path, channels) of an image with others than are wanted, if none of the first few has those; else None.

    Single images with other channels are left to training, which replaces them as it does unreadable ones.

    Raises:
        UsageError: a decoder's name leads nowhere.
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
    """Of at most `sample` images, drawn at random; every image counts the same, whatever its size.

    Images that cannot be read are left out. The same data and seed give the same numbers: they are rounded to five
    digits.

    Args:
        source: the images.
        channels: that they have; 1: the luminance of RGB.
        reading: how they are decoded.
        sample: images to read.
        seed: of the choice.

    Raises:
        UsageError: a decoder's name leads nowhere.
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
