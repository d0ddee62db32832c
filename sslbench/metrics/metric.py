"""Type of a metric: unit, direction, bounds and chance level, on which tables, comparisons and intervals rely.

The record of each metric stands beside its function (`classification.TOP1`); `catalog` finds it by name.
"""

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

Bounds = tuple[float, float]
RATE: Bounds = (0.0, 1.0)
ANY: Bounds = (-math.inf, math.inf)
LOSS: Bounds = (0.0, math.inf)
CORRELATION: Bounds = (-1.0, 1.0)

Direction = Literal[1, -1, 0]
"""1: more is better; -1: less is better; 0: not known."""
Input = Literal[
    "scores",
    "probabilities",
    "places",
    "times_of_train",
    "clusters",
    "features",
    "rankings",
    "boxes",
    "masks",
    "skeletons",
    "versions",
    "videos",
    "novelty",
    "confidence",
    "sets",
    "label_maps",
    "boundaries",
    "segments",
    "depth_maps",
    "normals",
    "contours",
    "matched_maps",
    "keypoints",
    "matches",
    "tracks",
    "poses",
    "discoveries",
    "saliency",
    "choices",
]


@dataclasses.dataclass(frozen=True, eq=False)
class ClassFrequencies:
    """Number of test samples per class, from which the score of random guessing follows.

    Attributes:
        positives: (C,) samples that have the class.
        known: (C,) samples for which it is known whether they have the class.
    """

    positives: npt.NDArray[np.int64]
    known: npt.NDArray[np.int64]


Chance = Callable[[ClassFrequencies], Fraction | float | None]
"""Function from class frequencies to the expected value of random guessing; None where the metric is undefined."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric: all facts about it but its formula.

    Functions compute rates as fractions, records and tables hold them in percent: the unit decides.

    Attributes:
        name: key in records, tables and options.
        unit: unit in records; '%' for rates. Metrics of one unit and direction may be averaged.
        direction: 1 if more is better, -1 if less is, 0 if not known.
        bounds: smallest and largest value as computed (rates: fractions); infinite where there is none.
        labels: names of the kinds of targets for which it is defined; empty for metrics that use no labels of samples.
        chance: expected value of random guessing, as computed: a number, or a function of the class frequencies; None
            if not known.
        floor: True if records state the chance level.
        label_units: the unit is that of the labels, which differs between data sets.
        bias_decay: power of the number of samples with which the bias of the estimate falls; 1 for smooth statistics.
    """

    name: str
    title: str
    unit: str
    direction: Direction
    bounds: Bounds
    needs: Input | str
    labels: tuple[str, ...] = ()
    chance: Chance | float | None = None
    floor: bool = False
    label_units: bool = False
    bias_decay: float = 1.0

    @property
    def text(self) -> str:
        """Unit and direction in words, such as '%, more is better'."""
        words = {1: "more is better", -1: "less is better", 0: "direction not known"}
        return f"{self.unit}, {words[self.direction]}"

    @property
    def scale(self) -> int:
        """Factor from the computed value to the recorded one: 100 for rates."""
        return 100 if self.unit == "%" else 1

    @property
    def sign(self) -> Literal[1, -1]:
        """Factor by which values are sorted; a metric of unknown direction counts as more is better."""
        return -1 if self.direction == -1 else 1

    def chance_level(self, frequencies: ClassFrequencies) -> Fraction | float | None:
        """Return the expected value of random guessing, as computed; None if unknown, NaN if it cannot be computed."""
        # A `Fraction` is exact, so that percent are rounded once.
        return self.chance(frequencies) if callable(self.chance) else self.chance

    def averages_with(self, other: "Metric") -> bool:
        """Return whether the mean of the two has a meaning: equal unit and direction."""
        return (self.unit, self.direction) == (other.unit, other.direction)

    def recorded(self, value: Fraction | float) -> float | None:
        """Return a computed value in the unit of records; None for NaN."""
        return None if math.isnan(value) else float(self.scale * value)
