"""Correspondence of points between two images by the nearest features, without training.

Keypoints (SPair-71k, PF-Pascal, TSS): each keypoint of the source image takes the features of its place on the grid,
bilinear, and its match is the centre of the cell of the target image with the largest cosine (`matcher=nearest`), or
the mean position around it (`matcher=soft`; Zhang et al., CVPR 2024). PCK@alpha is the share of keypoints whose match
lies within alpha times the longer side of the target's box, the threshold included, in pixels of the original image.
It is averaged over pairs ("per image", the authors of SPair-71k), over all points ("per point", most papers since
2023) and over classes: three numbers that differ by points. Intervals take pairs that share an image as dependent.

Homographies (HPatches, or any images: `--data homography:photos/`): each cell of the source image whose true place lies
in the target image is matched to the nearest cell. Errors are in pixels of the image whose longer side is `size`, and
recall is the share of matches within 1, 3, 5 and 10 of them. Pairs of one source image are kept together in intervals.

Beside the score stand a random cell (chance), the pixels of the cells and the untrained network; as variants the same
place as in the source image, and the ceiling: the cell nearest to the true place.

Time: two forward passes per image at most, and one product of K x D with D x cells per pair.
"""

import dataclasses
from typing import Literal

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.protocols._parts.untrained import FacetSettings, LayerRun, Shape
from sslbench.protocols.protocol import Cost, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.targets.pairs import Homographies, Points
from sslbench.targets.target import Target

_OF_SOFT = ("temperature", "radius")
_OF_POINTS = ("matcher",)
_OF_HOMOGRAPHIES = ("ratio", "mutual", "matches", "outside")


@dataclasses.dataclass(frozen=True)
class Settings(FacetSettings):
    """Settings of the search for corresponding points."""

    size: int = setting(
        448, "longer side of the network's input, rounded to a multiple of the patch", unit="pixels", within="[1, inf)"
    )
    shape: Shape = setting(
        "aspect", "shape of the input: that of the image; square: squashed to one; pad: a square with black borders"
    )
    matcher: Literal["nearest", "soft"] = setting(
        "nearest", "place of a keypoint: the centre of the most similar cell, or a mean weighted by softmax around it"
    )
    temperature: float = setting(0.02, "matcher=soft: divisor of the cosine in the softmax", within="(0, inf)")
    radius: int = setting(
        7,
        "matcher=soft: reach of the window around the most similar cell; 0: all cells",
        unit="cells",
        within="[0, inf)",
    )
    ratio: float = setting(
        1.0,
        "homographies: largest ratio of the distances to the nearest and the second nearest cell; 1: no test",
        within="(0, 1]",
    )
    mutual: bool = setting(False, "homographies: keep only matches that are nearest in both directions")
    matches: int = setting(
        0, "homographies: number of matches of a pair, those of smallest distance; 0: all", within="[0, inf)"
    )
    outside: bool = setting(False, "homographies: match also cells whose true place is outside the target image")
    max_memory: float = setting(
        1.0, "memory for the maps of images that wait for others", unit="GB", changes_result=False, within="[0, inf)"
    )


class Correspondence(LayerRun[Settings]):
    """Search of the corresponding places of the pairs of a test part."""

    name = "correspondence"
    takes = (Points, Homographies)
    needs = "needs pairs of images"

    @classmethod
    def check(cls, settings: Settings, target: Target) -> None:
        """Refuse settings and data that cannot work or have no effect, before any image is decoded."""
        super().check(settings, target)
        default, useless = Settings(), dict[str, str]()
        if settings.matcher == "nearest":
            useless |= dict.fromkeys(_OF_SOFT, "with matcher=nearest")
        if isinstance(target, Points):
            useless |= dict.fromkeys(_OF_HOMOGRAPHIES, "on keypoints, each of which has one match")
        else:
            useless |= dict.fromkeys(_OF_POINTS, "on homographies, where cells are matched to cells")
        for name, where in useless.items():
            if getattr(settings, name) != getattr(default, name):
                raise UsageError(f"correspondence: {name} has no effect {where}", "Leave it out.")

    def score(self) -> dict[str, Outcome]:
        """Match the pairs of the test part."""
        from sslbench.protocols.correspondence import homographies, points

        if isinstance(pairs := self.test.target, Points):
            return points.match_points(self, pairs)
        return homographies.match_homographies(self, Homographies.of(pairs))


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return one pass for each image of a pair."""
    return Cost(images=2 * shapes.test, rest="the search for places")


PROTOCOL = Protocol(
    version=2,
    summary="Correspondence of keypoints, or of cells under homographies, without training.",
    settings=Settings,
    kind=Correspondence.kind(cost),
)
