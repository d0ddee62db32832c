"""Propagation of the labels of a video's first frame by similarity of features.

DINO, CRW and DINOv3 compute the same with other settings: each cell of a frame takes the mean of the labels of the most
similar cells of the first frame and of a few frames before, weighted by softmax(cosine / temperature). Time is that of
the matrix products: 8 frames of 60 x 107 cells with a window of 12 cost 2 x 8 x 6,420 x 25 x 107 x D operations per
frame. Similarities are computed for a few rows of cells at a time, within the memory allowed.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_COPIES = 4  # tensors of the size of the similarities that are in memory together
# Width of the Gaussian around a joint in cells (Jabri et al. 2020).
SIGMA = 0.5


@dataclasses.dataclass(frozen=True)
class Propagation:
    """Settings of label propagation.

    Attributes:
        previous: number of frames before the current one that are searched, beside the first.
        topk: number of most similar cells that count.
        all_ties: count all cells that are as similar as the last of these. Otherwise it is arbitrary which of them
            count, and copies of the first frame crowd out other cells.
        temperature: of the softmax over their cosines.
        radius: reach of the window in cells; None for no window.
        shape: shape of the window: a square of 2 x radius + 1 cells, a disk with or without the cells at exactly the
            radius.
        window_on_first: the window holds for the first frame as well.
        repeat_first: until there are `previous` frames, the first one stands in for those that are missing.
    """

    previous: int = 7
    topk: int = 5
    all_ties: bool = True
    temperature: float = 0.1
    radius: float | None = 12.0
    shape: Literal["square", "disk", "open disk"] = "square"
    window_on_first: bool = True
    repeat_first: bool = False


# Settings of Caron et al. 2021.
DINO = Propagation()
# Settings of Simeoni et al. 2025.
DINOV3 = Propagation(temperature=0.2, shape="disk")
# Settings of Jabri et al. 2020.
CRW = Propagation(
    previous=20, topk=10, all_ties=False, temperature=0.05, shape="open disk", window_on_first=False, repeat_first=True
)


def frame_size(height: int, width: int, *, short: int = 480, multiple: int = 64) -> tuple[int, int]:
    """Return the size (height, width) to which DINO resizes the frames of a video.

    The shorter side becomes `short`, the longer one is rounded down to a multiple; the aspect is not kept exactly.

    >>> frame_size(1080, 1920)
    (480, 832)
    """
    long = int(short * max(height, width) / min(height, width)) // multiple * multiple
    return (long, short) if height > width else (short, long)


def sampled_labels(ids: npt.NDArray[np.integer], grid: tuple[int, int], number: int) -> npt.NDArray[np.float32]:
    """Return the ids 0 to `number` of a mask (H, W) at the cells of a grid as soft labels (number + 1, h, w), 0 or 1.

    Each cell has the id at its centre, so that a small object may vanish; `in_context.class_counts` keeps its share.
    DINO counts its objects after this step, and so loses those that vanish.

    >>> sampled_labels(np.array([[0, 0, 1, 1], [0, 0, 1, 1]]), (1, 2), 1).tolist()
    [[[1.0, 0.0]], [[0.0, 1.0]]]
    """
    rows, columns = (((np.arange(n) + 0.5) * size / n).astype(int) for n, size in zip(grid, ids.shape, strict=True))
    return np.asarray(ids[np.ix_(rows, columns)] == np.arange(number + 1)[:, None, None], dtype=np.float32)


def propagate_video(
    frames: "Iterable[Tensor]", first: "Tensor", settings: Propagation, *, max_memory: float = 0.5
) -> "Iterator[Tensor]":
    """Yield the soft labels (C, h, w) of every frame, from those of the first one.

    Labels are handed on as they are, without an argmax in between. Features and labels of 1 + `previous` frames are in
    memory, three times while a frame is computed.

    Args:
        frames: features (D, h, w) of each frame, in order; they may be computed while this runs.
        first: (C, h, w) labels of the first frame: shares of the objects and of the background.
        settings: number of frames, window, temperature.
        max_memory: memory for similarities in GB (10^9 bytes); one row of cells is computed at least.

    >>> import torch
    >>> video = torch.eye(2).reshape(2, 1, 2), torch.eye(2).flip(0).reshape(2, 1, 2)
    >>> labels = propagate_video(video, torch.eye(2).reshape(2, 1, 2), Propagation(topk=1))
    >>> [label[1].tolist() for label in labels]
    [[[0.0, 1.0]], [[1.0, 0.0]]]
    """
    import torch
    from torch.nn import functional

    start: tuple[Tensor, Tensor] | None = None
    recent: collections.deque[tuple[Tensor, Tensor]] = collections.deque(maxlen=settings.previous)
    for features in frames:
        unit = functional.normalize(features, dim=0)
        if start is None:
            label, start = first, (unit, first)
            recent.extend([start] * (settings.previous if settings.repeat_first else 0))
        else:
            sources = [start, *recent]
            windowed = [settings.window_on_first] + [True] * len(recent)
            label = propagate_frame(
                unit,
                torch.stack([source for source, _ in sources]),
                torch.stack([labels for _, labels in sources]),
                settings,
                windowed=windowed,
                max_memory=max_memory,
            )
            recent.append((unit, label))
        yield label


def propagate_frame(
    features: "Tensor",
    sources: "Tensor",
    labels: "Tensor",
    settings: Propagation,
    *,
    windowed: list[bool],
    max_memory: float = 0.5,
) -> "Tensor":
    """Return the soft labels of a frame, (C, h, w), from those of S source frames.

    Args:
        features: (D, h, w) of length 1 per cell.
        sources: (S, D, h, w) likewise.
        labels: (S, C, h, w) soft labels of the sources.
        settings: window and temperature.
        windowed: S flags, True for sources to which the window applies.
        max_memory: memory for similarities in GB (10^9 bytes); one row of cells is computed at least.
    """
    import torch

    height, width = features.shape[1:]
    reach = height if settings.radius is None else math.floor(settings.radius)
    near = torch.tensor(windowed) if settings.radius is not None else torch.zeros(len(windowed), dtype=torch.bool)
    near = near.to(features.device)
    everywhere = sources[~near].transpose(0, 1).flatten(1), labels[~near].transpose(0, 1).flatten(1)
    windows, window_labels = sources[near], labels[near]
    rows = _rows_at_once(features, int((~near).sum()), len(windows), reach, max_memory)
    found = torch.empty((labels.shape[1], height, width), dtype=labels.dtype, device=labels.device)
    for top in range(0, height, rows):
        bottom = min(height, top + rows)
        queries = features[:, top:bottom].flatten(1).T
        low, high = max(0, top - reach), min(height, bottom + reach)
        within = windows[:, :, low:high].transpose(0, 1).flatten(1)
        similarity = queries @ within
        if len(windows):
            inside = _window((top, bottom), (low, high), width, settings, features.device)
            blocks = similarity.reshape(len(queries), len(windows), -1)
            similarity = blocks.masked_fill(~inside[:, None], -math.inf).flatten(1)
        similarity = torch.cat([queries @ everywhere[0], similarity], dim=1)
        own = torch.cat([everywhere[1], window_labels[:, :, low:high].transpose(0, 1).flatten(1)], dim=1)
        found[:, top:bottom] = _weighted(similarity, own, settings).T.reshape(-1, bottom - top, width)
    return found


def _weighted(similarity: "Tensor", labels: "Tensor", settings: Propagation) -> "Tensor":
    """Return the mean (Q, C) of labels (C, N), weighted by the softmax of the largest similarities (Q, N)."""
    import torch

    largest, cells = similarity.topk(min(settings.topk, similarity.shape[1]), dim=1)
    weights = (largest / settings.temperature).softmax(dim=1).to(labels.dtype)
    found = torch.einsum("qk,cqk->qc", weights, labels[:, cells])
    if not settings.all_ties:
        return found
    least = largest[:, -1:]
    tied = ((similarity >= least).sum(dim=1) > largest.shape[1]).nonzero()[:, 0]
    if len(tied):
        own = similarity[tied]
        logits = own.masked_fill(own < least[tied], -math.inf) / settings.temperature
        found[tied] = logits.softmax(dim=1).to(labels.dtype) @ labels.T
    return found


def _window(
    rows: tuple[int, int], source_rows: tuple[int, int], width: int, settings: Propagation, device: "torch.device"
) -> "Tensor":
    """Return the source cells (Q, N) in the window of each cell of a few rows."""
    import torch

    radius = math.inf if settings.radius is None else settings.radius
    columns = torch.arange(width, device=device)
    across = (columns[:, None] - columns).abs()[None, :, None]
    down = (torch.arange(*rows, device=device)[:, None] - torch.arange(*source_rows, device=device)).abs()
    down = down[:, None, :, None]
    if settings.shape == "square":
        inside = (down <= radius) & (across <= radius)
    elif settings.shape == "disk":
        inside = down**2 + across**2 <= radius**2
    else:
        inside = down**2 + across**2 < radius**2
    return inside.reshape((rows[1] - rows[0]) * width, -1)


def _rows_at_once(features: "Tensor", everywhere: int, windowed: int, reach: int, max_memory: float) -> int:
    """Return the number of rows of cells whose similarities fit into the memory, at least 1."""
    height, width = features.shape[1:]
    rows = 1
    while rows < height:
        columns = width * (everywhere * height + windowed * min(height, rows + 1 + 2 * reach))
        if (rows + 1) * width * columns * features.element_size() * _COPIES > max_memory * 1e9:
            break
        rows += 1
    return rows


def joint_labels(places: FloatArray, grid: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return the soft labels (J, h, w) of joints: a Gaussian around the nearest cell, 1 there and 0 beyond one cell.

    Its neighbours have 0.135, at the corners 0.018. The published code has one more row and column, of 0.0003.

    Args:
        places: (J, 2) columns and rows of the joints on the grid, (0, 0) the centre of the first cell; NaN for a joint
            without a label.
        grid: h and w.

    >>> joint_labels(np.array([[0.4, 0.0], [np.nan, np.nan]]), (1, 3)).round(3).tolist()
    [[[1.0, 0.13500000536441803, 0.0]], [[0.0, 0.0, 0.0]]]
    """
    found = np.zeros((len(places), *grid), np.float32)
    rows, columns = np.mgrid[: grid[0], : grid[1]]
    for label, place in zip(found, places, strict=True):
        if np.isnan(place).any():
            continue
        column, row = np.clip(np.rint(place), 0, np.array(grid[::-1]) - 1)
        near = (abs(rows - row) <= 1) & (abs(columns - column) <= 1)
        label[near] = np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * SIGMA**2))[near]
    return found


def joint_places(labels: "Tensor", cells: int) -> FloatArray:
    """Return the columns and rows (J, 2) of joints: the mean of the cells of largest label, weighted by these.

    NaN for a joint without any label.

    Args:
        labels: (J, h, w), at least 0.
        cells: number of cells in the mean.

    >>> import torch
    >>> joint_places(torch.tensor([[[0.25, 0.75, 0.125]], [[0.0, 0.0, 0.0]]]), 2).tolist()
    [[0.75, 0.0], [nan, nan]]
    """
    flat = labels.flatten(1).double().cpu()
    largest, at = flat.topk(min(cells, flat.shape[1]), dim=1)
    weights = largest / largest.sum(dim=1, keepdim=True)  # NaN for labels that are all 0
    columns, rows = at % labels.shape[2], at // labels.shape[2]
    return np.stack([(weights * columns).sum(dim=1).numpy(), (weights * rows).sum(dim=1).numpy()], axis=1)
