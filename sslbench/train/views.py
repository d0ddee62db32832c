"""Runs on views of images: division of a batch into the forward passes of an update, and mixtures of images."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from sslbench.data.decode.transforms import normalise
from sslbench.data.loading.pretraining import RawBatch
from sslbench.data.views.colours import change_colours
from sslbench.distributed.collectives import gather_objects, on_all, rank
from sslbench.paths import new_file
from sslbench.train.loop import NotFiniteError, Run, TrainingPlan
from sslbench.train.method import Batch, Loss, Step
from sslbench.train.state import State
from sslbench.weights.save import write_torch


class RunOnViews(Run[RawBatch]):
    """Run on batches of views.

    Attributes:
        ids: of the images in the data.
        out: folder for a batch whose loss is not finite.
    """

    state: State

    def __init__(self, plan: TrainingPlan, ids: Sequence[str], out: Path) -> None:
        self.plan, self.ids, self.out = plan, ids, out

    def passes(self, raw: RawBatch) -> Iterator[Batch]:
        """Yield the parts of a batch, each moved to the device and normalised when its turn comes."""
        device = self.state.device
        for part in _parts(raw, self.plan.accumulate):
            moved = [view.to(device, non_blocking=True) for view in part.views]
            if part.colours is not None:
                changes = zip(moved, part.colours.unbind(1), self.plan.colours, strict=True)
                moved = [change_colours(*change) for change in changes]
            views = tuple(normalise(view, self.plan.normalisation) for view in moved)
            views = tuple(view.contiguous() for view in views) if self.state.rows_of_channels else views
            labels = None if part.labels is None else part.labels.to(device, non_blocking=True)
            boxes = None if part.boxes is None else part.boxes.to(device, non_blocking=True)
            yield Batch(views, labels, part.indices, part.origins, boxes)

    def diverged(self, raw: RawBatch, step: Step, loss: Loss, own: float, mean: float) -> None:
        """Stop; processes with a loss of their own that is not finite save their batch first."""
        file = on_all(lambda: None if math.isfinite(own) else str(self._keep(raw, step)))
        files = [each for each in gather_objects(file) if each is not None]
        saved = f" The batch is in {', '.join(files)}." if files else ""
        raise NotFiniteError(
            f"the loss is {mean} in update {step.index + 1} (epoch {step.epoch + 1}).{saved}",
            "Try a lower optimizer.lr, more schedule.warmup_epochs, clip_norm=3 or precision=fp32; the weights before "
            "this update are in the last checkpoint.",
        )

    def _keep(self, raw: RawBatch, step: Step) -> Path:
        """Save views, labels and ids of a batch, and the changes of colours that were left to the device."""
        path = self.out / f"failed_batch_step{step.index + 1}_process{rank()}.pt"
        ids = [self.ids[i] for i in raw.indices.tolist()]
        content = {"views": list(raw.views), "labels": raw.labels, "indices": raw.indices, "ids": ids}
        if raw.colours is not None:
            content["colours"] = raw.colours
        with new_file(path) as temporary:
            write_torch(temporary, content)
        return path


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


def make_mix(mixup: float, cutmix: float, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None:
    """Return mixup (Zhang et al. 2018), CutMix (Yun et al. 2019), or a random choice between both for each batch.

    Returns a function of images (B, C, h, w) and int64 labels (B,) that returns mixed images and the shares of the
    classes (B, classes); None without either.

    >>> import torch
    >>> images, labels = make_mix(0.8, 0.0, 3)(torch.rand(2, 3, 4, 4), torch.tensor([0, 2]))
    >>> tuple(labels.shape), round(float(labels.sum()), 4)
    ((2, 3), 2.0)
    """
    transforms: list[nn.Module] = []
    if mixup:
        transforms.append(v2.MixUp(alpha=mixup, num_classes=classes))
    if cutmix:
        transforms.append(v2.CutMix(alpha=cutmix, num_classes=classes))
    if not transforms:
        return None
    # A partial is no submodule of the method that keeps it, so it is not compiled.
    return functools.partial(v2.RandomChoice(transforms) if len(transforms) > 1 else transforms[0])
