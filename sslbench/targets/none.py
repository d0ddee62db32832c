"""No targets: unlabelled samples."""

import dataclasses

from sslbench.arrays import IntArray
from sslbench.targets.target import Rows, WithoutValues


@dataclasses.dataclass(frozen=True, eq=False)
class Unlabelled(WithoutValues):
    """Unlabelled samples.

    Attributes:
        count: number of samples.
    """

    name = "none"
    title = "no labels"
    labelled = False
    classes = ()
    count: int

    def __len__(self) -> int:
        return self.count

    @classmethod
    def from_values(cls, classes: tuple[str, ...], values: Rows) -> "Unlabelled":
        """Return as many unlabelled samples as there are rows."""
        return cls(len(values))

    def select(self, indices: IntArray) -> "Unlabelled":
        """Return as many unlabelled samples as there are indices."""
        return Unlabelled(len(indices))
