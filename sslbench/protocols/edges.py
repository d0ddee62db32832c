"""Boundaries that persons see, by heads trained on frozen features, scored as the Berkeley benchmark does.

Xie and Tu, ICCV 2015 (HED): cross-entropy in which boundaries and other pixels have equal weight; pixels that some
annotators mark, but fewer than half, do not count in training (Liu et al., CVPR 2017). Scores are F at the best
threshold of the data set (ODS) and of each image (OIS), and average precision, by one-to-one matching of thinned
boundaries within 0.0075 of the diagonal (Arbelaez et al., 2011).

A linear head on a grid of patches finds where a boundary is, up to a patch: published networks for boundaries read
finer maps, and score higher. There is no non-maximum suppression: probabilities are thresholded, then thinned.

Floors: a constant; the share of boundaries at each position; the same head on raw colours; the untrained network.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from sslbench.arrays import BoolArray, FloatArray
from sslbench.config import setting
from sslbench.data.source import Source
from sslbench.data.views import MapColours
from sslbench.errors import DataError, UsageError
from sslbench.metrics.dense.contours import TOLERANCE, contour_counts
from sslbench.protocols._parts.dense import DenseTask, HeadSettings, trained_heads
from sslbench.protocols._parts.dense.task import Cells, enlarged
from sslbench.protocols.protocol import Protocol
from sslbench.targets.pixel_values import Boundaries

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from sslbench.data.loading.joint import PixelTarget

_MOST_ANNOTATORS = 24
"""Bits that a float32 holds exactly."""


@dataclasses.dataclass(frozen=True)
class Settings(HeadSettings):
    """Settings of boundaries by trained heads. Images of BSDS500 keep their size."""

    consensus: float = setting(
        0.5, "share of the annotators that makes a boundary in training; pixels that fewer mark do not count"
    )
    tolerance: float = setting(TOLERANCE, "largest distance of matched pixels as a share of the image's diagonal")
    size: int | None = setting(
        321, "short side of the resized images (larger ones lose pixels of lines in training); null: own", unit="pixels"
    )
    crop: tuple[int, int] = setting((321, 321), "height and width of the crops", unit="pixels")
    window: tuple[int, int] | None = setting(
        None, "height and width of the sliding window in scoring; null: the whole image", unit="pixels"
    )
    resize_range: tuple[float, float] = setting((1.0, 1.0), "range of a random factor of the size in training")
    colours: MapColours = setting(
        "none", "photometric: brightness, contrast, saturation, hue as SSD; gamma: as BTS; none"
    )


class Edges(DenseTask[Settings]):
    """Boundaries as probabilities of pixels, (1, h, w).

    A target is (2, H, W): 1 for a boundary, 0 for none, nan where the annotators disagree; and the annotators that mark
    the pixel, annotator k as bit k of a whole number.
    """

    name = "edges"
    takes = Boundaries
    needs = "needs boundaries"
    outputs = 1

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Refuse settings that are not possible, whatever the data and the backbone.

        Raises:
            UsageError: a setting is not possible.
        """
        super().check_settings(settings)
        if not 0 < settings.consensus <= 1:
            raise UsageError(f"edges: consensus should be from above 0 to 1, not {settings.consensus:g}")
        if not 0 < settings.tolerance <= 0.1:
            raise UsageError(f"edges: tolerance should be from above 0 to 0.1, not {settings.tolerance:g}")

    def read(self, source: Source, index: int, size: tuple[int, int] | None = None) -> "PixelTarget":
        """Return the target of an image, float32 (2, H, W).

        Raises:
            UnreadableImage: the boundaries cannot be read.
            DataError: they are of another size than the image, or there are more than 24 annotators.
        """
        marked = super().read(source, index, size) > 0
        if len(marked) > _MOST_ANNOTATORS:
            raise DataError(
                f"{source.name}: {source.ids[index]} has {len(marked)} annotators, more than {_MOST_ANNOTATORS}"
            )
        share = marked.mean(axis=0)
        label = np.where(share == 0, 0.0, np.where(share >= self.settings.consensus, 1.0, np.nan))
        bits = np.tensordot(2.0 ** np.arange(len(marked)), marked, axes=1)
        return np.stack([label, bits]).astype(np.float32)

    def cells(self, target: "PixelTarget", grid: tuple[int, int]) -> Cells:
        """Return the boundary pixels of each cell of a grid, and those that count."""
        return super().cells(target[:1], grid)

    def check_totals(self, part: str, sums: FloatArray) -> None:
        """Refuse a part without any boundary.

        Raises:
            DataError: no pixel is a boundary.
        """
        if not sums.any():
            raise DataError(f"edges: no pixel of {part} is a boundary by enough annotators")

    def activated(self, channels: "Tensor") -> "Tensor":
        """Return probabilities."""
        return channels.sigmoid()

    def loss(self, outputs: "Tensor", targets: "Tensor", update: int) -> "Tensor":
        """Return the cross-entropy in which boundaries and other pixels have equal weight."""
        from sslbench.solvers.dense.losses import balanced_cross_entropy

        return balanced_cross_entropy(outputs, targets[:, :1])

    def row(self, output: "Tensor", target: "PixelTarget") -> FloatArray:
        """Return the counts of matched pixels of an image at each threshold."""
        probabilities = enlarged(output, target)[0].double().numpy()
        return contour_counts(probabilities, annotations(target), tolerance=self.settings.tolerance).ravel()

    def drawn(self, output: "Tensor", target: "PixelTarget") -> "tuple[Image.Image, Image.Image]":
        """Return the boundaries, white where any annotator has one, and their probability."""
        from sslbench.protocols._parts.pictures import grey

        return grey(target[1] > 0, 0.0, 1.0), grey(enlarged(output, target)[0].double().numpy(), 0.0, 1.0)

    def caption(self, value: float) -> str:
        """Return F of an image at its best threshold."""
        return f"F {100 * value:.0f} %"

    def known(self, rows: FloatArray) -> BoolArray:
        """Return True for all images: also one without a boundary counts."""
        return np.ones(len(rows), dtype=np.bool_)


def annotations(target: "PixelTarget") -> BoolArray:
    """Return the map of each annotator, (A, H, W), from a target; annotators without any boundary may be missing."""
    bits = target[1].astype(np.int64)
    return np.asarray((bits >> np.arange(int(bits.max()).bit_length())[:, None, None]) & 1 > 0)


PROTOCOL = Protocol(
    version=2,
    summary="boundaries drawn by persons: heads on frozen features, ODS, OIS and AP.",
    settings=Settings,
    kind=trained_heads(Edges),
    check_settings=Edges.check_settings,
)
