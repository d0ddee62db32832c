"""Features in memory (or memory-mapped), with the labels that protocols score them against."""

import dataclasses
import tokenize
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sslbench.data.source import Labels

UNREADABLE_HEADER = (ValueError, OverflowError, EOFError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError)
"""Errors of numpy about a damaged .npy header, which it parses as Python."""


@dataclasses.dataclass(frozen=True)
class Features:
    """One layer's features of N samples.

    Attributes:
        x: (N, D), float32 or float16, possibly memory-mapped and read-only: protocols never write into it.
        labels: of the N samples.
        ids: of the N samples, ascending.
        attributes: further columns, name -> one text per sample; only of features that come with a table of labels.
        groups: int64 (N,), the number of each sample's group (a video, a patient, the image a crop is from): samples of
            one group are never separated by a choice, and intervals resample whole groups. None: every sample stands
            for itself.
    """

    x: npt.NDArray[np.floating]
    labels: Labels
    ids: tuple[str, ...]
    attributes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    groups: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or not len(self.x) == len(self.labels) == len(self.ids):
            raise ValueError(f"features {self.x.shape}, {len(self.labels)} labels, {len(self.ids)} ids")
        if self.groups is not None and self.groups.shape != (len(self.ids),):
            raise ValueError(f"groups {self.groups.shape} of {len(self.ids)} samples")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_groups(self) -> int | None:
        """How many groups there are; None without any."""
        return None if self.groups is None else len(np.unique(self.groups))

    def select(self, indices: npt.NDArray[np.int64]) -> "Features":
        """Some of the rows, copied."""
        attributes = {name: tuple(column[i] for i in indices) for name, column in self.attributes.items()}
        groups = None if self.groups is None else self.groups[indices]
        ids = tuple(self.ids[i] for i in indices)
        return Features(self.x[indices], self.labels.select(indices), ids, attributes, groups)
