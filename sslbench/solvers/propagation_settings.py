"""Settings of label propagation, without torch."""

import dataclasses
from typing import Literal


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
