"""Features in memory (or memory-mapped), with the labels that protocols score them against."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sslbench.data.source import Labels


@dataclasses.dataclass(frozen=True)
class Features:
    """One layer's features of N samples.

    Attributes:
        x: (N, D), float32 or float16, possibly memory-mapped and read-only: protocols never write into it.
        labels: of the N samples.
        ids: of the N samples, ascending.
        attributes: further columns, name -> one text per sample; only of features that come with a table of labels.
    """

    x: npt.NDArray[np.floating]
    labels: Labels
    ids: tuple[str, ...]
    attributes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or not len(self.x) == len(self.labels) == len(self.ids):
            raise ValueError(f"features {self.x.shape}, {len(self.labels)} labels, {len(self.ids)} ids")

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, indices: npt.NDArray[np.int64]) -> "Features":
        """Some of the rows, copied."""
        attributes = {name: tuple(column[i] for i in indices) for name, column in self.attributes.items()}
        return Features(self.x[indices], self.labels.select(indices), tuple(self.ids[i] for i in indices), attributes)
