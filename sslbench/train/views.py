"""Runs on views of images: division of a batch into the forward passes of an update."""

import dataclasses
from collections.abc import Iterator

import torch

from sslbench.data.decode.transforms import normalise
from sslbench.data.loading.pretraining import RawBatch
from sslbench.data.views.on_device import change_colours
from sslbench.train.loop import Run, TrainingPlan
from sslbench.train.method import Batch
from sslbench.train.state import State


class RunOnViews(Run[RawBatch]):
    """Run on batches of views."""

    def __init__(self, state: State, plan: TrainingPlan) -> None:
        self.state, self.plan = state, plan

    def passes(self, raw: RawBatch) -> Iterator[Batch]:
        """Yield the parts of a batch, each moved to the device when its turn comes."""
        for part in _parts(raw, self.plan.accumulate):
            yield _on_device(part, self.state, self.plan)


def _parts(raw: RawBatch, parts: int) -> list[RawBatch]:
    """Return the batch in equal parts."""
    if parts == 1:
        return [raw]
    # Chunks share the pinned memory of the batch; RawBatch.rows would copy it.
    views = zip(*(view.chunk(parts) for view in raw.views), strict=True)
    labels = [None] * parts if raw.labels is None else raw.labels.chunk(parts)
    boxes = [None] * parts if raw.boxes is None else raw.boxes.chunk(parts)
    colours = [None] * parts if raw.colours is None else raw.colours.chunk(parts)
    rows = torch.arange(len(raw.indices)).chunk(parts)
    origins = [tuple(raw.origins[row] for row in part) if raw.origins else () for part in rows]
    return [
        dataclasses.replace(
            raw, views=own, labels=label, indices=raw.indices[part], origins=names, boxes=box, colours=colour
        )
        for own, label, part, names, box, colour in zip(views, labels, rows, origins, boxes, colours, strict=True)
    ]


def _on_device(raw: RawBatch, state: State, plan: TrainingPlan) -> Batch:
    """Return normalised views on the device of the state."""
    device = state.device
    moved = [view.to(device, non_blocking=True) for view in raw.views]
    if raw.colours is not None:
        values = raw.colours.unbind(1)
        moved = [change_colours(*each) for each in zip(moved, values, plan.colours, strict=True)]
    views = tuple(normalise(view, plan.normalisation) for view in moved)
    views = tuple(view.contiguous() for view in views) if state.rows_of_channels else views
    labels = None if raw.labels is None else raw.labels.to(device, non_blocking=True)
    boxes = None if raw.boxes is None else raw.boxes.to(device, non_blocking=True)
    return Batch(views, labels, raw.indices, raw.origins, boxes)
