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

from sslbench.arrays import BoolArray, ByteArray, FloatArray
from sslbench.config import other_default, setting
from sslbench.data.source import Source
from sslbench.data.views import MapColours
from sslbench.errors import DataError
from sslbench.metrics.dense.contours import TOLERANCE, contour_counts
from sslbench.protocols._parts.dense import DenseProtocol, HeadSettings
from sslbench.protocols._parts.dense.task import Cells, enlarged, grey
from sslbench.protocols.protocol import Protocol
from sslbench.solvers.dense.losses import balanced_cross_entropy
from sslbench.targets.pixel_values import Boundaries

if TYPE_CHECKING:
    from torch import Tensor

    from sslbench.data.loading.joint import PixelTarget

# Bits that a float32 holds exactly.
_MOST_ANNOTATORS = 24


@dataclasses.dataclass(frozen=True)
class Settings(HeadSettings):
    """Settings of boundaries by trained heads. Images of BSDS500 keep their size."""

    consensus: float = setting(
        0.5,
        "share of the annotators that makes a boundary in training; pixels that fewer mark do not count",
        within="(0, 1]",
    )
    tolerance: float = setting(
        TOLERANCE, "largest distance of matched pixels as a share of the image's diagonal", within="(0, 0.1]"
    )
    # The shorter side of BSDS500's images.
    size: int | None = other_default(HeadSettings, "size", 321)
    crop: tuple[int, int] = other_default(HeadSettings, "crop", (321, 321))
    window: tuple[int, int] | None = other_default(HeadSettings, "window", None)
    resize_range: tuple[float, float] = other_default(HeadSettings, "resize_range", (1.0, 1.0))
    colours: MapColours = other_default(HeadSettings, "colours", "none")


class Edges(DenseProtocol[Settings]):
    """Boundaries as probabilities of pixels, (1, h, w).

    A target is (2, H, W): 1 for a boundary, 0 for none, nan where the annotators disagree; and the annotators that mark
    the pixel, annotator k as bit k of a whole number.
    """

    name = "edges"
    takes = Boundaries
    needs = "needs boundaries"
    outputs = 1

    def read(self, source: Source, index: int, size: tuple[int, int] | None = None) -> "PixelTarget":
        """Return the target of an image, float32 (2, H, W)."""
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
        """Refuse a part without any boundary."""
        if not sums.any():
            raise DataError(f"edges: no pixel of {part} is a boundary by enough annotators")

    def activated(self, channels: "Tensor") -> "Tensor":
        """Return probabilities."""
        return channels.sigmoid()

    def loss(self, outputs: "Tensor", targets: "Tensor", update: int) -> "Tensor":
        """Return the cross-entropy in which boundaries and other pixels have equal weight."""
        return balanced_cross_entropy(outputs, targets[:, :1])

    def row(self, output: "Tensor", target: "PixelTarget") -> FloatArray:
        """Return the counts of matched pixels of an image at each threshold."""
        probabilities = enlarged(output, target)[0].double().numpy()
        return contour_counts(probabilities, annotations(target), tolerance=self.settings.tolerance).ravel()

    def drawn(self, output: "Tensor", target: "PixelTarget") -> tuple[ByteArray, ByteArray]:
        """Return the boundaries, white where any annotator has one, and their probability."""
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
    kind=Edges.kind(),
)
