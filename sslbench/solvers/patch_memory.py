"""Memories of patches: greedy coresets, and distances of other patches to their nearest in memory.

Coresets: Sener and Savarese, ICLR 2018, algorithm 1 (k-centre greedy), on a sparse random projection (Roth et al., CVPR
2022, section 3.2 and algorithm 1).
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sslbench.arithmetic import arithmetic
from sslbench.arrays import BoolArray, FloatArray, IntArray, Matrix
from sslbench.solvers.neighbours import fastest_engine, nearest
from sslbench.steps import counted

if TYPE_CHECKING:
    import torch

# Largest relative error of distances in the projection, as published.
_ERROR = 0.9
Map = npt.NDArray[np.float32]
Distance = Literal["cosine", "l2"]


@dataclasses.dataclass(frozen=True, eq=False)
class PatchMemory:
    """Patches of good images.

    Attributes:
        x: (M, C) their features.
        distance: 1 - cosine, or Euclidean.
        device: of the search; the result is the same.
        max_memory: of the search, in GB.
    """

    x: Matrix
    distance: Distance = "cosine"
    device: str = "cpu"
    max_memory: float = 1.0

    def nearest(self, patches: Matrix, k: int) -> tuple[FloatArray, IntArray]:
        """Return the distances (P, k) of patches (P, C) to the nearest in memory, k or all, and their rows (P, k)."""
        engine = fastest_engine(self.device, 2.0 * patches.size * len(self.x))
        similarity, rows = nearest(
            self.x, patches, min(k, len(self.x)), metric=self.distance, max_memory=self.max_memory, engine=engine
        )
        return (1 - similarity if self.distance == "cosine" else np.sqrt(np.maximum(0, -similarity))), rows

    def scored(
        self,
        maps: Sequence[Map],
        *,
        k: int,
        top: float,
        reweight: int = 0,
        foregrounds: Sequence[BoolArray] | None = None,
    ) -> list[tuple[Map, float]]:
        """Return the distances (h, w) of the patches of each image, and its score.

        >>> memory = PatchMemory(np.array([[0.0], [1.0]], np.float32), "l2")
        >>> [(distances, score)] = memory.scored([np.array([[[1.0], [4.0]]], np.float32)], k=1, top=0, reweight=0)
        >>> distances.tolist(), score
        ([[0.0, 3.0]], 3.0)

        Args:
            maps: (h, w, C) features of each image.
            k: nearest patches whose distances are averaged.
            top: share of the patches of an image whose mean distance is its score, at least one of them.
            reweight: neighbours b of the nearest patch in memory, itself among them, by which the score is multiplied:
                1 - the softmax, over these, of the distances to the patch of the largest (Roth et al., equation 7).
            foregrounds: patches (h, w) of each image that count; the distances of the others are 0. None: all.
        """
        patches = np.concatenate([each.reshape(-1, each.shape[2]) for each in maps])
        each, rows = self.nearest(patches, k)
        ends = np.cumsum([value.shape[0] * value.shape[1] for value in maps])
        distances = np.split(each.mean(axis=1), ends[:-1])
        if foregrounds is not None:
            distances = [own * mask.ravel() for own, mask in zip(distances, foregrounds, strict=True)]
        scores = np.array([np.sort(own)[::-1][: max(1, int(top * len(own)))].mean() for own in distances])
        # One patch in memory has no neighbours that could weigh it.
        if reweight and len(self.x) > 1:
            places = np.array([own.argmax() for own in distances]) + np.concatenate([[0], ends[:-1]])
            _, support = self.nearest(self.x[rows[places, 0]], reweight)
            to = np.linalg.norm(self.x[support].astype(np.float64) - patches[places, None], axis=2)
            weights = np.exp(to - to.max(axis=1, keepdims=True))
            scores = scores * (1 - weights[:, 0] / weights.sum(axis=1))
        shaped = [own.reshape(value.shape[:2]).astype(np.float32) for own, value in zip(distances, maps, strict=True)]
        return list(zip(shaped, scores.tolist(), strict=True))


def pixel_scores(distances: Map, size: tuple[int, ...], smoothing: float) -> Map:
    """Return distances (h, w) of patches as scores (H, W) of pixels: bilinear, then smoothed by a Gaussian.

    `smoothing`: its standard deviation in pixels; 0: none.
    """
    import torch
    from scipy.ndimage import gaussian_filter

    large = torch.nn.functional.interpolate(torch.from_numpy(distances)[None, None], size, mode="bilinear")[0, 0]
    return np.asarray(gaussian_filter(large.numpy(), smoothing) if smoothing else large.numpy(), np.float32)


def greedy_coreset(x: Matrix, number: int, *, seed: int, device: str = "cpu") -> IntArray:
    """Return the rows of a coreset in the order of their choice, each the farthest from those before.

    The first is random. Distances are those of a sparse random projection with the dimensions of Johnson and
    Lindenstrauss for an error of 0.9, where these are fewer than D. Of equally far rows the first is taken.

    Time: `number` passes over the projection, (N, about 300) float32 on the device.

    >>> greedy_coreset(np.array([[0.0], [0.1], [5.0], [9.0]], np.float32), 3, seed=1).tolist()
    [1, 3, 2]

    Args:
        x: (N, D) finite.
        number: rows to choose, at most N.
        seed: of the projection and the first row.
        device: of the distances. Rounding differs between devices, which may change the choice.
    """
    import torch

    start = int(np.random.default_rng(seed).integers(len(x)))
    with arithmetic(device), torch.inference_mode(), counted("coreset", "rows", number) as advance:
        points = _projected(x, seed).to(device)
        norms = points.square().sum(dim=1)
        nearest = torch.full_like(norms, torch.inf)
        chosen = [torch.tensor(start, device=points.device)]
        while True:
            last = chosen[-1]
            distances = norms + norms[last] - 2 * (points @ points[last])
            nearest = torch.minimum(nearest, distances)
            nearest[last] = -torch.inf
            advance(1)
            if len(chosen) == number:
                return np.asarray(torch.stack(chosen).cpu().numpy(), np.int64)
            chosen.append(nearest.argmax())


def _projected(x: Matrix, seed: int) -> "torch.Tensor":
    import torch
    from sklearn.random_projection import SparseRandomProjection, johnson_lindenstrauss_min_dim

    width = int(johnson_lindenstrauss_min_dim(max(2, len(x)), eps=_ERROR))
    if width >= x.shape[1]:
        return torch.from_numpy(np.array(x, np.float32))
    projection = SparseRandomProjection(width, random_state=seed).fit(x[:1])
    components = projection.components_.astype(np.float32)
    blocks = [np.asarray(x[start : start + 8192] @ components.T) for start in range(0, len(x), 8192)]
    return torch.from_numpy(np.concatenate(blocks).astype(np.float32))
