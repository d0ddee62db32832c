"""Colours of classes in pictures of label maps."""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import ByteArray

_UNLABELLED = (128, 128, 128)


def voc_palette() -> ByteArray:
    """Return VOC's palette, (256, 3): the bits of an index are dealt to red, green and blue, highest first.

    Everingham et al. 2010, VOCdevkit, `VOClabelcolormap`.
    """
    palette = np.zeros((256, 3), dtype=np.uint8)
    index = np.arange(256)
    for bit in range(8):
        for channel in range(3):
            palette[:, channel] |= ((index >> (3 * bit + channel) & 1) << (7 - bit)).astype(np.uint8)
    return palette


def class_colours(n: int) -> ByteArray:
    """Return n colours, uint8 (n, 3), neighbouring numbers far apart, with grey left for pixels without a label.

    Those of Pascal VOC's palette; after 256 they repeat. Grey (128, 128, 128), VOC's number 7, becomes (255, 170, 100).

    Examples:
        >>> class_colours(3).tolist()
        [[0, 0, 0], [128, 0, 0], [0, 128, 0]]
    """
    colours = voc_palette()[np.arange(n) % 256]
    colours[(colours == _UNLABELLED).all(axis=1)] = (255, 170, 100)
    return colours


def labelled(classes: npt.NDArray[np.integer], colours: ByteArray) -> ByteArray:
    """Return a map of class numbers (H, W) in their colours, (H, W, 3); numbers that are no class are grey."""
    table = np.concatenate([colours, np.array([_UNLABELLED], dtype=np.uint8)])
    known = (classes >= 0) & (classes < len(colours))
    return table[np.where(known, classes, len(colours)).astype(np.int64)]
