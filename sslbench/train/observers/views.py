"""Contact sheet views.png: the augmented views of the first images of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslbench.data.views.sheet import contact_sheet
from sslbench.train.method import Batch
from sslbench.train.observers import Observer, RunInfo

ROWS = 8


class Views(Observer):
    """Contact sheet of the first batch that the method receives."""

    def __init__(self, path: Path, *, mean: Sequence[float], std: Sequence[float]) -> None:
        """Store the arguments; the file is written with the first batch.

        Args:
            path: PNG file to write.
            mean: mean of the normalisation of RGB views, per channel.
            std: standard deviation of the normalisation of RGB views, per channel.
        """
        self.path = path
        self.mean, self.std = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))

    def started(self, run: RunInfo) -> None:
        """Register a hook on the first forward pass; a run that continues has its picture already."""
        self.hook = None if run.start else run.method.register_forward_pre_hook(self._look)

    def _look(self, method: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.hook is not None:
            self.hook.remove()
        batch: Batch = inputs[0]
        contact_sheet([self._pixels(view[:ROWS]) for view in batch.views], self.path, rows=ROWS)

    def _pixels(self, view: Tensor) -> Tensor:
        """Convert normalised views to uint8 pixels (n, 3, h, w).

        For other numbers of channels than three, the first channel is shown as grey, or the first three as red, green
        and blue, with two standard deviations below and above the mean as black and white.
        """
        view = view.detach().float().cpu()
        if view.shape[1] == 3:
            pixels = (view * self.std + self.mean) * 255
        else:
            shown = view[:, :3] if view.shape[1] > 3 else view[:, :1].expand(-1, 3, -1, -1)
            pixels = (shown / 4 + 0.5) * 255
        return pixels.round().clamp(0, 255).to(torch.uint8)
