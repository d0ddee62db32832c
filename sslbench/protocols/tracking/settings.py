"""Settings of `eval tracking`; the defaults of the propagation are DINO's."""

import dataclasses
from typing import Literal

from sslbench.config import setting
from sslbench.protocols._parts.map_settings import FacetSettings
from sslbench.solvers.propagation_settings import DINO, Propagation


@dataclasses.dataclass(frozen=True)
class Settings(FacetSettings):
    """Settings of the propagation of masks and joints."""

    short: int = setting(
        0,
        "shorter side of the frames, the sides rounded to multiples of the patch; 0: the frames' own size",
        unit="pixels",
    )
    multiple: int = setting(0, "with short: the longer side is rounded down to a multiple of this; 0: of the patch")
    side: int = setting(
        0, "side of the square to which frames are resized, whatever their shape; 0: shape kept", unit="pixels"
    )
    first: Literal["shares", "centres"] = setting(
        "shares",
        "masks: labels of the cells of the first frame: share of each object, or the object at the cell's centre",
    )
    scaled: bool = setting(
        False, "masks: scale the map of every object to 0 to 1 before the largest one is taken, as DINO does"
    )
    peak: int = setting(5, "joints: number of cells whose mean place, weighted by their labels, is the joint's")
    lost: Literal["missed", "left out"] = setting(
        "missed", "joints: what counts for a joint whose labels have vanished: a miss, or nothing, as the authors do"
    )
    previous: int = setting(
        DINO.previous, "number of frames before the current one that are searched, beside the first"
    )
    topk: int = setting(DINO.topk, "number of most similar cells that count")
    all_ties: bool = setting(DINO.all_ties, "count all cells that are as similar as the last of these")
    temperature: float = setting(DINO.temperature, "divisor of the cosine in the softmax over these cells")
    radius: float = setting(12.0, "reach of the window in which cells are searched; 0: everywhere", unit="cells")
    window: Literal["square", "disk", "open disk"] = setting(
        DINO.shape, "shape of the window; the open disk leaves out cells at exactly the radius"
    )
    window_on_first: bool = setting(DINO.window_on_first, "the window holds for the first frame as well")
    repeat_first: bool = setting(
        DINO.repeat_first,
        "until there are that many previous frames, the first one stands in for those that are missing",
    )
    max_memory: float = setting(0.5, "memory for similarities", unit="GB", changes_result=False)

    def propagation(self) -> Propagation:
        """Return the settings of the solver."""
        return Propagation(
            previous=self.previous,
            topk=self.topk,
            all_ties=self.all_ties,
            temperature=self.temperature,
            radius=self.radius or None,
            shape=self.window,
            window_on_first=self.window_on_first,
            repeat_first=self.repeat_first,
        )
