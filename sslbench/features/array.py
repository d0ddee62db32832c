"""Features in memory or memory-mapped, with their labels, and the settings of their extraction."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from sslbench.runtime.resources import EncodingPrecision, Precision, StartMethod, float_precision
from sslbench.targets.target import Target
from sslbench.text_rows import select_texts

if TYPE_CHECKING:
    import torch


@dataclasses.dataclass(frozen=True)
class Features:
    """Features of N samples from one layer.

    Attributes:
        x: (N, D), float32 or float16, possibly memory-mapped and read-only.
        target: of the N samples.
        ids: of the N samples, ascending.
        attributes: further columns of a table of labels, name -> one text per sample.
        groups: int64 (N,), group of each sample (a video, a patient, the image of a crop). Hold-outs and folds never
            separate a group, and intervals resample whole groups. None: no groups.
        regions: number of regions of an image whose descriptors of equal length make up a row (pools `regions` and
            `grid`).
        grid: rows and columns of the regions of the pool `grid`; None: others have no fixed place in the image.
        views: number of views of a video whose features make up a row, one after the other; probabilities are averaged
            over them.
        rank: int64 (N,), order of the samples in draws (`Source.rank`); None: as they lie.

    Examples:
        >>> from sslbench.data.labels import single_labels
        >>> labels = single_labels(["cat", "dog", "cat"])
        >>> features = Features(np.eye(3, dtype=np.float32), labels, ("a", "b", "c"))
        >>> features.select(np.array([0, 2])).ids
        ('a', 'c')
    """

    x: npt.NDArray[np.floating]
    target: Target
    ids: Sequence[str]
    attributes: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    groups: npt.NDArray[np.int64] | None = None
    regions: int = 1
    grid: tuple[int, int] | None = None
    views: int = 1
    rank: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or not len(self.x) == len(self.target) == len(self.ids):
            raise ValueError(f"features {self.x.shape}, {len(self.target)} targets, {len(self.ids)} ids")
        if self.groups is not None and self.groups.shape != (len(self.ids),):
            raise ValueError(f"groups {self.groups.shape} of {len(self.ids)} samples")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def order(self) -> npt.NDArray[np.int64]:
        """(N,) rows in the order of their rank."""
        return np.arange(len(self)) if self.rank is None else np.argsort(self.rank)

    @property
    def n_groups(self) -> int | None:
        """Number of groups; None without groups."""
        return None if self.groups is None else len(np.unique(self.groups))

    @property
    def by_view(self) -> npt.NDArray[np.floating]:
        """Features of the views, (N * views, D / views)."""
        return self.x.reshape(len(self) * self.views, -1)

    @property
    def averaged(self) -> "Features":
        """Features with one row of each sample, the mean over its views."""
        if self.views == 1:
            return self
        x = self.x.reshape(len(self), self.views, -1).mean(1, dtype=np.float32)
        return dataclasses.replace(self, x=x, views=1)

    def select(self, indices: npt.NDArray[np.int64]) -> "Features":
        """Return a copy of the rows at `indices`."""
        attributes = {name: tuple(column[i] for i in indices) for name, column in self.attributes.items()}
        groups = None if self.groups is None else self.groups[indices]
        ids = select_texts(self.ids, indices)
        rank = None if self.rank is None else self.rank[indices]
        x, target = self.x[indices], self.target.select(indices)
        return dataclasses.replace(self, x=x, target=target, ids=ids, attributes=attributes, groups=groups, rank=rank)


@dataclasses.dataclass(frozen=True)
class ExtractSettings:
    """Settings of an extraction; only `precision` and `dtype` change the features.

    Attributes:
        device: device of the backbone.
        precision: precision of the computation.
        dtype: dtype of the stored features.
        batch_size: images per forward pass.
        workers: number of decoding processes; 0: decode in this one.
        on_error: 'stop' raises with a list of all unreadable images, 'skip' leaves their rows out.
        start_method: start method of the workers.
    """

    device: "torch.device"
    precision: EncodingPrecision = "fp32"
    dtype: Literal["float32", "float16"] = "float32"
    batch_size: int = 64
    workers: int = 2
    on_error: Literal["stop", "skip"] = "stop"
    start_method: StartMethod = "auto"

    def float_precision(self) -> Precision:
        """Return the precision of networks that are trained or give maps."""
        return float_precision(self.precision)
