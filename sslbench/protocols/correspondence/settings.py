"""Settings of correspondence."""

import dataclasses
from typing import Literal

from sslbench.config import setting
from sslbench.protocols._parts.untrained import FacetSettings, Shape


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
