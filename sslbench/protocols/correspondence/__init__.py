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

from sslbench.errors import UsageError
from sslbench.protocols._parts.untrained import LayerRun
from sslbench.protocols.correspondence.settings import Settings
from sslbench.protocols.protocol import Cost, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.targets.pairs import Homographies, Points
from sslbench.targets.target import Target

_OF_SOFT = ("temperature", "radius")
_OF_POINTS = ("matcher",)
_OF_HOMOGRAPHIES = ("ratio", "mutual", "matches", "outside")


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
        from sslbench.protocols.correspondence.homographies import match_homographies
        from sslbench.protocols.correspondence.points import match_points

        if isinstance(pairs := self.test.target, Points):
            return match_points(self, pairs)
        return match_homographies(self, Homographies.of(pairs))


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return one pass for each image of a pair."""
    return Cost(images=2 * shapes.test, rest="the search for places")


PROTOCOL = Protocol(
    version=2,
    summary="Correspondence of keypoints, or of cells under homographies, without training.",
    settings=Settings,
    kind=Correspondence.kind(cost),
)
