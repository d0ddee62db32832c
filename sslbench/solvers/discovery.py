"""Discovery of one object in the patch features of one image: LOST, TokenCut and DINO-seg.

Patches are counted row by row on a grid (h, w). An image of 30 x 40 patches takes about 20 ms by LOST and 0.2 s by
TokenCut, whose time grows with the cube of the number of patches; both hold a few matrices of all pairs of patches
(100 MB each for 3,600).
"""

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray

Mask = npt.NDArray[np.bool_]
# Order of patches of equal degree: from the first on, or as torch's unstable sort leaves them, which the authors' code
# uses; that order depends on the processor and the version of torch.
Ties = Literal["first", "torch"]


@dataclasses.dataclass(frozen=True)
class DiscoveredObject:
    """Region of an image, in patches.

    Attributes:
        region: (h, w) connected region of the object.
        seed: patch that it grew from, counted row by row; -1 for none.
    """

    region: Mask
    seed: int = -1

    def box(self, patch: float | tuple[float, float], height: int, width: int) -> tuple[float, float, float, float]:
        """Return left, upper, right and lower end in pixels, within an image padded at its right and lower side.

        >>> DiscoveredObject(np.array([[False, True], [False, True]])).box(16, 30, 31)
        (16, 0, 31, 30)

        Args:
            patch: side of a patch in pixels, or its height and width.
            height: height of the image without the padding.
            width: width of the image.
        """
        down, across = patch if isinstance(patch, tuple) else (patch, patch)
        rows, columns = np.flatnonzero(self.region.any(axis=1)), np.flatnonzero(self.region.any(axis=0))
        left, upper = across * int(columns[0]), down * int(rows[0])
        return left, upper, min(across * (int(columns[-1]) + 1), width), min(down * (int(rows[-1]) + 1), height)

    def pixels(self, patch: float | tuple[float, float], height: int, width: int) -> Mask:
        """Return the region in pixels, (height, width), of an image padded at its right and lower side.

        >>> DiscoveredObject(np.array([[False, True]])).pixels(2, 1, 3).tolist()
        [[False, False, True]]

        Args:
            patch: see `box`.
            height: see `box`.
            width: see `box`.
        """
        sides = patch if isinstance(patch, tuple) else (patch, patch)
        rows, columns = (
            np.minimum(((np.arange(n) + 0.5) / side).astype(int), cells - 1)
            for n, side, cells in zip((height, width), sides, self.region.shape, strict=True)
        )
        return np.asarray(self.region[rows][:, columns])


def lost(
    features: npt.NDArray[np.floating], grid: tuple[int, int], *, k: int = 100, ties: Ties = "first"
) -> DiscoveredObject:
    """Return the object that LOST finds (Simeoni et al., BMVC 2021).

    The seed is the patch that correlates positively with the fewest others, as objects are smaller than backgrounds.
    Degrees are integers with many ties.

    Args:
        features: (P, D) features, by default of LOST the keys of the last attention layer, not normalised.
        grid: rows and columns of patches.
        k: number of patches of lowest degree that the seed is expanded by.
        ties: see `Ties`.

    >>> features = np.array([[1.0, 0.1], [1.0, 0.1], [1.0, 0.1], [-1.0, 0.1], [-1.0, 0.1], [1.0, 0.1]])
    >>> lost(features, (2, 3), k=2).region.tolist()
    [[False, False, False], [True, True, False]]
    """
    correlation = correlations(features)
    return expand(correlation, by_degree(degrees(correlation), ties), grid, k)


def by_degree(degree: IntArray, ties: Ties = "first") -> IntArray:
    """Return the patches by ascending degree.

    >>> by_degree(np.array([3, 1, 1])).tolist()
    [1, 2, 0]
    """
    if ties == "first":
        return np.argsort(degree, kind="stable")
    import torch

    return np.asarray(torch.argsort(torch.from_numpy(-degree.astype(np.float32)), descending=True).numpy())


def correlations(features: npt.NDArray[np.floating]) -> FloatArray:
    """Return the inner products (P, P) of all pairs of patches, in float64."""
    x = features.astype(np.float64)
    return np.asarray(x @ x.T)


def degrees(correlation: FloatArray) -> IntArray:
    """Return the number of other patches with which each has a positive correlation, (P,)."""
    positive = correlation > 0
    return np.asarray(positive.sum(axis=1) - positive.diagonal())


def expand(correlation: FloatArray, order: IntArray, grid: tuple[int, int], k: int) -> DiscoveredObject:
    """Return the object of LOST for a given order of the patches.

    Args:
        correlation: (P, P) inner products.
        order: (P,) patches by ascending degree; the first is the seed.
        grid: rows and columns of patches.
        k: number of patches of lowest degree that the seed is expanded by.
    """
    seed = int(order[0])
    candidates = order[:k]
    similar = candidates[correlation[seed, candidates] > 0]
    positive = correlation[similar].sum(axis=0) > 0
    positive[seed] = True  # also where the seed's features are zeros
    return DiscoveredObject(_component_of(positive.reshape(grid), seed), seed)


def token_cut(
    features: npt.NDArray[np.floating],
    grid: tuple[int, int],
    *,
    threshold: float = 0.2,
    epsilon: float = 1e-5,
    weighted: bool = False,
) -> DiscoveredObject:
    """Return the object that TokenCut finds (Wang et al., CVPR 2022): a normalised cut of the graph of patches.

    The patches are cut at the mean of the second eigenvector; the object's side is that of its largest absolute value,
    and the object the connected region around it.

    Args:
        features: (P, D) features; their length does not count.
        grid: rows and columns of patches.
        threshold: cosine above which two patches are joined.
        epsilon: weight of all other pairs.
        weighted: weigh joined pairs by their cosine instead of 1.

    >>> features = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    >>> token_cut(features, (2, 3)).region.tolist()
    [[False, False, False], [True, False, False]]
    """
    vector = second_eigenvector(features, threshold=threshold, epsilon=epsilon, weighted=weighted)
    seed = int(np.abs(vector).argmax())
    side = vector > vector.mean()
    return DiscoveredObject(_component_of((side == side[seed]).reshape(grid), seed), seed)


def second_eigenvector(
    features: npt.NDArray[np.floating], *, threshold: float, epsilon: float, weighted: bool
) -> FloatArray:
    """Return the second smallest eigenvector x (P,) of (D - A) x = l D x, the entry of largest absolute value positive.

    A has the edges of `token_cut` and D their sums. It is not defined where the second and third eigenvalue are equal.
    """
    from scipy.linalg import eigh

    x = features.astype(np.float64)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    x = x / np.where(norms > 0, norms, 1)
    cosine = x @ x.T
    edges = np.where(cosine > threshold, cosine if weighted else 1.0, epsilon)
    degree = edges.sum(axis=1)
    # The same vectors by a symmetric matrix: y = sqrt(D) x belongs to 1 - l.
    root = np.sqrt(degree)
    last = len(edges) - 1
    _, vectors = eigh(edges / root[:, None] / root, subset_by_index=[max(0, last - 1), last])
    vector = np.asarray(vectors[:, 0] / root)
    return np.asarray(vector * np.sign(vector[np.abs(vector).argmax()]))


def dino_seg(attention: FloatArray, grid: tuple[int, int], *, mass: float = 0.6) -> DiscoveredObject | None:
    """Return the largest connected region of the patches that hold most of the attention; None if it is zero.

    The authors' code never considers the last region, and takes the background where there is only one.

    Args:
        attention: (P,) attention of the class token to the patches in one head.
        grid: rows and columns of patches.
        mass: share of the attention that the patches hold, those of highest attention first.

    >>> dino_seg(np.array([0.3, 0.1, 0.3, 0.0, 0.1, 0.2]), (2, 3), mass=0.7).region.tolist()
    [[False, False, True], [False, False, True]]
    """
    from scipy import ndimage

    if attention.sum() <= 0:
        return None
    regions, number = ndimage.label(attended(attention, mass).reshape(grid))
    sizes = np.bincount(regions.ravel(), minlength=number + 1)[1:]
    return DiscoveredObject(regions == 1 + int(sizes.argmax()))


def attended(attention: FloatArray, mass: float) -> Mask:
    """Return the patches that hold the given share of the attention, (P,), the last that reaches it included."""
    order = np.argsort(attention, kind="stable")
    rest = np.cumsum(attention[order] / attention.sum())
    found = np.zeros(len(attention), np.bool_)
    found[order] = rest > 1 - mass
    return found


def _component_of(mask: Mask, seed: int) -> Mask:
    """Return the region of a mask (h, w) that is connected with a patch by sides, not by corners."""
    from scipy import ndimage

    regions, _ = ndimage.label(mask)
    return np.asarray(regions == regions.ravel()[seed])
