"""Dense task: what distinguishes classes, depths and surface normals of pixels where heads are trained and scored.

Shapes: B images; k values of a target and H x W pixels; K values of an output; R numbers of an image's score.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from sslbench.arrays import FloatArray
from sslbench.data.loading.joint import ReadTarget, Target, unchanged

ReadCells = Callable[[Target, tuple[int, int]], tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]]
"""Sums (K, h, w) and numbers (h, w) in the cells of a grid, from a target and the grid's height and width."""

ALL_IGNORED = "all are ignored; `sslbench check-data` shows which values are classes"
"""Reason why no pixel of label maps counts."""


def _any_totals(part: str, totals: FloatArray) -> None:
    """Accept every part with a known pixel."""


@dataclasses.dataclass(frozen=True)
class DenseTask:
    """Task with a target for every pixel. Functions that workers call (`read`, `cells`, `mirrored`) are picklable.

    Attributes:
        name: name of the protocol, for messages.
        outputs: channels of a head: classes, or bins of depth.
        read: target of an image, float32 (k, H, W), nan where unknown; raises DataError for one that cannot be used.
        loss: scalar from outputs (B, K, H, W) at the size of the targets, targets (B, k, H, W) and the number of the
            update, which counts from 0 to `steps`.
        row: score of an image, float64 (R,), from its output (K, h, w) and its target (k, H, W). The output may have
            another size, mostly that at which the network saw the image: the function brings it to that of the target.
        value: leading metric of rows (N, R), larger is better; heads are chosen by it.
        cells: sums (K, h, w) over the known pixels of each cell of a grid of what the best output would be there, and
            their numbers (h, w), from a target and the grid's height and width; for the floors 'constant' and
            'position only', which output the means.
        check_totals: raises DataError where the sums (K,) of `cells` over all images of a part, 'train' or 'test', show
            that nothing can be learnt or scored.
        activated: outputs (B, K, h, w) from a head's channels (B, outputs, h, w), before they are enlarged.
        averaged: quantity averaged over flips and scales, from outputs (B, K, H, W): probabilities of classes.
        drawn: pictures of the truth and of an output (K, h, w), at the size of the target.
        caption: text below the pictures of an image, from the `value` of its row.
        no_value: reason why a pixel does not count, for the message about parts without one that does.
        mirrored: correction of the values of a flipped map, targets and outputs alike: normals change the sign of x.
    """

    name: str
    outputs: int
    read: ReadTarget
    loss: Callable[[Tensor, Tensor, int], Tensor]
    row: Callable[[Tensor, Target], FloatArray]
    value: Callable[[FloatArray], float]
    cells: ReadCells
    drawn: Callable[[Tensor, Target], tuple[Image.Image, Image.Image]]
    caption: Callable[[float], str]
    no_value: str = ALL_IGNORED
    check_totals: Callable[[str, FloatArray], None] = _any_totals
    activated: Callable[[Tensor], Tensor] = unchanged
    averaged: Callable[[Tensor], Tensor] = unchanged
    mirrored: Callable[[Tensor], Tensor] = unchanged
