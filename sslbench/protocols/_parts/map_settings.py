"""Settings that protocols on the maps of a frozen network share, without torch."""

import dataclasses
from typing import Literal

from sslbench.arrays import FloatArray
from sslbench.backbones.facets import Facet
from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.protocols.protocol import ImageWork, Shapes
from sslbench.solvers.discovery import DiscoveredObject, Ties, lost, token_cut

Shape = Literal["aspect", "square", "pad"]
"""Shape of the network's input: that of the image, a square that the image is squashed to, or one with borders."""
Fit = Literal["pad", "resize"]
"""Size that is a multiple of the patch: by zeros at the right and lower side, or the nearest one by Lanczos."""
Method = Literal["tokencut", "lost", "dino_seg"]
Features = Literal["auto", "key", "query", "value", "token"]


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """Settings of the search for an object; a protocol's `Settings` extends them. See `solvers.discovery`."""

    method: Method = setting("tokencut", "tokencut, lost or dino_seg")
    features: Features = setting(
        "auto", "key, query or value of the layer's attention, or token: its output; auto: keys where there are any"
    )
    longest_side: int = setting(0, "larger images are reduced to this longer side; 0: none is", unit="pixels")
    part: Literal["train", "test"] = setting("test", "part of the data that is scored, where it has parts")
    k: int = setting(100, "lost: number of patches of lowest degree that the seed is expanded by")
    ties: Ties = setting(
        "first", "lost: order of patches of equal degree: first, or torch, the unstable order of the authors' code"
    )
    threshold: float = setting(0.2, "tokencut: cosine above which two patches are joined")
    epsilon: float = setting(1e-5, "tokencut: weight of all other pairs of patches")
    weighted: bool = setting(False, "tokencut: weigh joined pairs by their cosine instead of 1")
    head: int = setting(4, "dino_seg: head of the attention, counted from 0")
    mass: float = setting(0.6, "dino_seg: share of the attention that the region's patches hold")

    def in_features(self, features: FloatArray, grid: tuple[int, int]) -> DiscoveredObject:
        """Return the object in features (P, C) of patches, by LOST or TokenCut."""
        if self.method == "lost":
            return lost(features, grid, k=self.k, ties=self.ties)
        how = {"threshold": self.threshold, "epsilon": self.epsilon}
        return token_cut(features, grid, weighted=self.weighted, **how)


def check_search(settings: SearchSettings, protocol: str) -> None:
    """Refuse settings that cannot work, or that the method does not use.

    Raises:
        UsageError: a number is out of its range, or belongs to another method.
    """
    if settings.method == "dino_seg" and settings.features != "auto":
        raise UsageError(f"{protocol}: dino_seg takes the attention, so features has no effect on it")
    if settings.longest_side < 0:
        raise UsageError(f"{protocol}: longest_side must not be negative, not {settings.longest_side}")
    own = {
        "lost": ("k", "ties"),
        "tokencut": ("threshold", "epsilon", "weighted"),
        "dino_seg": ("head", "mass"),
    }
    values, defaults = vars(settings), vars(SearchSettings())
    for method, names in own.items():
        for name in names:
            if method != settings.method and values[name] != defaults[name]:
                raise UsageError(
                    f"{protocol}: {name} has no effect on method={settings.method}", f"Give method={method}."
                )
    if settings.k < 1 or settings.head < 0:
        raise UsageError(f"{protocol}: k must be at least 1 and head at least 0, not {settings.k} and {settings.head}")
    if not -1 <= settings.threshold < 1 or not settings.epsilon > 0 or not 0 < settings.mass <= 1:
        raise UsageError(
            f"{protocol}: threshold must be a cosine, epsilon positive and mass a share, not "
            f"{settings.threshold:g}, {settings.epsilon:g} and {settings.mass:g}"
        )


def search_work(settings: SearchSettings, shapes: Shapes) -> ImageWork:
    """Return one pass per image."""
    return ImageWork(shapes.test, rest="the search for regions in the maps")


@dataclasses.dataclass(frozen=True)
class FacetSettings:
    """Choice among the vectors of a block of a vision transformer; a protocol's `Settings` extends it."""

    facet: Facet = setting("token", "output of the block, or the query, key or value of its attention")
