"""views.png: the augmented views of the first images that a run is trained on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sslbench.data.views.sheet import contact_sheet
from sslbench.train.meter import Line
from sslbench.train.method import Batch
from sslbench.train.observers import Run

ROWS = 8


class Views:
    """Looks at the first batch that goes into the method, and never again."""

    def __init__(self, path: Path, *, mean: Sequence[float], std: Sequence[float]) -> None:
        """Nothing is written before the run starts.

        Args:
            path: of the PNG.
            mean: what RGB views were normalised with, per channel.
            std: likewise.
        """
        self.path = path
        self.mean, self.std = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))

    def started(self, run: Run) -> None:
        """Waits for the first forward pass; a run that continues has its picture already."""
        self.hook = None if run.start else run.method.register_forward_pre_hook(self._look)

    def line(self, line: Line) -> None:
        """Not interested."""

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Not interested."""

    def finished(self) -> None:
        """Nothing is open."""

    def _look(self, method: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.hook is not None:
            self.hook.remove()
        batch: Batch = inputs[0]
        contact_sheet([self._pixels(view[:ROWS]) for view in batch.views], self.path, rows=ROWS)

    def _pixels(self, view: Tensor) -> Tensor:
        """Back from normalised numbers to uint8.

        Of other channels than three the first is shown as grey, or the first three as red, green and blue; two
        deviations below and above the mean are black and white, whatever the range is that they use.
        """
        view = view.detach().float().cpu()
        if view.shape[1] == 3:
            pixels = (view * self.std + self.mean) * 255
        else:
            shown = view[:, :3] if view.shape[1] > 3 else view[:, :1].expand(-1, 3, -1, -1)
            pixels = (shown / 4 + 0.5) * 255
        return pixels.round().clamp(0, 255).to(torch.uint8)
