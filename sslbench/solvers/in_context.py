"""Segmentation without training: patches of new images take the labels of the nearest patches of a memory.

Balazevic et al., NeurIPS 2023 (Hummingbird). The memory holds patches of training images with the share of each class
among their pixels. `class_counts` and `sample_patches` build it image by image; `neighbours.nearest` searches it
exactly, `upsampling.upsampled_classes` brings the result to the size of the image. A memory of 10^6 patches of 768
numbers takes 3 GB in float32 and its labels 600 MB for 150 classes; searching it for the 1,024 patches of an image
costs 1.6 * 10^12 operations. Working memory is bounded by the caller.
"""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray

_GATHERED = 8_000_000  # label shares in memory at a time


def class_counts(
    label: npt.NDArray[np.integer], grid: tuple[int, int], n_classes: int, *, ignore: tuple[int, ...]
) -> npt.NDArray[np.int32]:
    """Return the number of pixels of each class in each patch of a label map, (h * w, C), row by row.

    A pixel belongs to the patch that its upper left corner lies in, so that the map may have any size. Ignored pixels
    count for no class; Hummingbird's own code makes them class 0.

    Args:
        label: (H, W), 0 to n_classes - 1 or an ignored value.
        grid: number of rows and columns of patches.
        n_classes: C.
        ignore: values of pixels that do not count; () if all count.

    Raises:
        ValueError: a value that is neither a class nor ignored.

    >>> class_counts(np.array([[0, 0, 1, 255], [0, 1, 1, 255]]), (1, 2), 2, ignore=(255,)).tolist()
    [[3, 1], [0, 2]]
    """
    rows, columns = (np.arange(size) * n // size for size, n in zip(label.shape, grid, strict=True))
    # Runs of one class in a row of a patch, of which maps have few, are much quicker to count than pixels.
    starting = np.ones(label.shape, np.bool_)
    starting[:, 1:] = (label[:, 1:] != label[:, :-1]) | (columns[1:] != columns[:-1])
    starts = np.flatnonzero(starting)
    lengths, values = np.diff(starts, append=label.size), label.ravel()[starts]
    counted = ~np.isin(values, ignore)
    starts, lengths, values = starts[counted], lengths[counted], values[counted].astype(np.int64)
    if values.size and not 0 <= values.min() <= values.max() < n_classes:
        wrong = values.min() if values.min() < 0 else values.max()
        raise ValueError(f"label {wrong} is none of the {n_classes} classes and is not ignored")
    row, column = np.divmod(starts, label.shape[1])
    patch = rows[row] * grid[1] + columns[column]
    counts = np.bincount(patch * n_classes + values, lengths, grid[0] * grid[1] * n_classes)
    return counts.reshape(-1, n_classes).astype(np.int32)


def shares(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
    """Return the share of each class among the counted pixels of each patch, (P, C); zeros where none is counted.

    >>> shares(np.array([[3, 1], [0, 0]])).tolist()
    [[0.75, 0.25], [0.0, 0.0]]
    """
    total = counts.sum(axis=1, keepdims=True)
    found = np.zeros(counts.shape, np.float32)
    np.divide(counts, total, out=found, where=total > 0, dtype=np.float32)
    return found


def sample_patches(
    counts: npt.NDArray[np.integer], number: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return patches of one image for a bounded memory, (at most `number`,), so that its rare classes stay.

    A patch is left out the sooner, the more patches of the image share its classes: those of the smallest products of
    a random number and of the sum of these numbers of patches are kept. Patches without a counted pixel are never.

    Args:
        counts: (P, C) pixels of each class in each patch of the image.
        number: patches to keep: size of the memory divided by the number of images.
        generator: source of one random number per patch.

    >>> counts = np.array([[4, 0]] * 50 + [[0, 4]])
    >>> 50 in sample_patches(counts, 5, np.random.default_rng(0))
    True
    """
    return rarest_patches(counts, number, generator.random(len(counts)))


def rarest_patches(
    counts: npt.NDArray[np.integer], number: int, draws: npt.NDArray[np.floating]
) -> npt.NDArray[np.int64]:
    """Return the patches that `sample_patches` keeps for given random numbers (P,), the first to keep first."""
    present = np.asarray(counts > 0)
    scores = (present @ present.sum(axis=0)) * draws
    order = np.argsort(scores, kind="stable")
    counted = np.asarray(present.any(axis=1))
    return order[counted[order]][:number].astype(np.int64)


def weighted_labels(
    similarity: FloatArray, rows: IntArray, labels: npt.NDArray[np.floating], temperature: float
) -> npt.NDArray[np.float32]:
    """Return the means (Q, C) of the labels of neighbours, weighted by softmax(similarity / temperature).

    Args:
        similarity: (Q, k) cosines in descending order.
        rows: (Q, k) rows of the neighbours in `labels`.
        labels: (M, C) soft labels.
        temperature: of the softmax.
    """
    weights = np.exp((similarity - similarity[:, :1]) / temperature)
    weights = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    found = np.empty((len(rows), labels.shape[1]), np.float32)
    block = max(1, _GATHERED // max(1, rows.shape[1] * labels.shape[1]))
    for start in range(0, len(rows), block):
        part = slice(start, start + block)
        found[part] = np.matmul(weights[part, None], labels[rows[part]].astype(np.float32, copy=False))[:, 0]
    return found
