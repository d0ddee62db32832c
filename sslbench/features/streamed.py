"""Features that are computed when they are read, in order, and stored nowhere: for grids that no disk has room for."""

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.backbones.speed import CPU_CHUNK, prepare
from sslbench.data.decode.picture import Wanted
from sslbench.data.groups import source_groups
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.errors import BackboneError
from sslbench.features import streams
from sslbench.features.array import ExtractSettings, Features
from sslbench.features.job import changed_error
from sslbench.features.store import unreadable_error
from sslbench.runtime.progress import StageProgress

log = logging.getLogger("sslbench")


def streamed(
    backbone: Backbone, source: Source, layer: Layer, settings: ExtractSettings, progress: StageProgress | None = None
) -> Features:
    """Return the features of all images at one layer, computed when they are read; tell the size of what is not stored.

    Rows are read as slices or one by one, in ascending order: going back encodes the images from the first one again.
    """
    rows = StreamedRows(backbone, source, layer, settings, progress)
    size = math.prod(rows.shape) * rows.dtype.itemsize
    log.info(f"{source.name}: {layer.text} would take {size / 1e9:.2g} GB; it is computed when it is read")
    return Features(
        cast("npt.NDArray[np.floating]", rows),
        source.target,
        source.ids,
        groups=source_groups(source),
        regions=layer.regions,
        grid=layer.grid,
        rank=source.rank,
    )


class StreamedRows:
    """Rows (N, D) of features in place of an array; memory is that of the rows asked for and of a batch."""

    ndim = 2

    def __init__(
        self,
        backbone: Backbone,
        source: Source,
        layer: Layer,
        settings: ExtractSettings,
        progress: StageProgress | None,
    ) -> None:
        self.source, self.settings, self.progress = source, settings, progress
        self._backbone = backbone
        self._encode = prepare(backbone, (layer,), device=settings.device, precision=settings.precision)
        self._frozen = self._encode.state_sha256()
        self.dtype = np.dtype(settings.dtype)
        size = backbone.preprocessing.output_size
        if size is None:
            raise BackboneError(f"{backbone.name}: the images have no common size")
        channels = Wanted.by(backbone.preprocessing).channels
        width = self._encode.rows(torch.zeros((1, channels, *size), dtype=torch.uint8))[0].shape[1]
        self.shape = (len(source), width)
        self._first, self._kept = 0, self._none()
        self._batches = self._encoded()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: int | slice) -> Any:
        """Return one row (D,), or consecutive ones (n, D)."""
        start, stop, _ = (slice(rows, rows + 1) if isinstance(rows, int) else rows).indices(len(self))
        if start < self._first:
            self._first, self._kept, self._batches = 0, self._none(), self._encoded()
        while self._first + len(self._kept) < stop:
            batch = next(self._batches)
            skipped = max(0, min(start - self._first, len(self._kept)))
            self._kept, self._first = np.concatenate([self._kept[skipped:], batch]), self._first + skipped
        found = self._kept[start - self._first : stop - self._first]
        return found[0] if isinstance(rows, int) else found

    def _none(self) -> npt.NDArray[np.floating]:
        return np.zeros((0, self.shape[1]), self.dtype)

    def _encoded(self) -> Iterator[npt.NDArray[np.floating]]:
        """Yield the rows of a batch of images after the other."""
        settings, own, done = self.settings, self._backbone.preprocessing, 0
        for batch in loader.batches(
            self.source,
            np.arange(len(self)),
            own,
            batch_size=settings.batch_size,
            workers=settings.workers,
            start_method=settings.start_method,
        ):
            if batch.unreadable:
                rows = np.arange(len(self))
                found = loader.survey(self.source, rows, settings.workers, preprocessing=own).unreadable
                raise unreadable_error(self.source, [(path, reason) for _, path, reason in found])
            # Batch by batch: torch has one thread inside, and all of them for the search between two batches.
            [(_, [by_layer])] = streams.encoded([batch], [self._encode], self._pieces)
            features = by_layer[0].astype(self.dtype)
            done += len(batch.indices)
            if done == len(self) and self._encode.state_sha256() != self._frozen:
                raise changed_error(self._backbone)
            if self.progress is not None:
                self.progress(done, len(self))
            yield features

    def _pieces(self, images: torch.Tensor) -> Sequence[torch.Tensor]:
        return torch.split(images, CPU_CHUNK) if self.settings.device.type == "cpu" else (images,)
