"""Times to an event, some of them censored (survival)."""

import dataclasses

import numpy as np
import numpy.typing as npt

from sslbench.metrics import survival
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import Measure, Probabilities
from sslbench.targets.target import Rows, Target


@dataclasses.dataclass(frozen=True, eq=False)
class Times(Target):
    """Times to an event, or to the end of the observation.

    Attributes:
        classes: names of the columns of times and of events.
        values: float64 (N, 2): the time, above 0; and 1 for an event, 0 for a censored time.
    """

    name = "time"
    title = "times to an event"
    metric = survival.C_INDEX.name
    of_numbers = True
    given_columns = ("risk",)
    classes: tuple[str, ...]
    values: npt.NDArray[np.float64]

    def text(self, index: int) -> str:
        """Return the time, followed by '+' if it is censored."""
        time, event = self.values[index]
        return f"{float(time):g}{'' if event else '+'}"

    def size_text(self) -> str:
        """Return the numbers of events and of censored times."""
        events = int(self.values[:, 1].sum())
        return f"{events:,} events, {len(self.values) - events:,} censored times"

    @classmethod
    def measures(cls, values: Rows, scores: Rows, units: Units, how: Probabilities | None = None) -> list[Measure]:
        """Return the concordance index of predicted risks."""
        return survival.time_measures(values, scores)
