"""What is said about a training while it runs, and the file of it: STEM.metrics.jsonl."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from sslbench.detection.recipe import DetectionRecipe
from sslbench.train.observers.json_lines import read
from sslbench.weights.save import new_file

_LINES = 100  # in a whole training, at least where it has so many iterations
_FEWEST = 20  # iterations between two of a long one, at most


@dataclasses.dataclass(frozen=True)
class Line:
    """What is known after an iteration.

    Attributes:
        iteration: done, this one included.
        iterations: in all.
        loss: of this iteration, averaged over the processes.
        parts: what it is the sum of, on the first process.
        lr: learning rate.
        per_second: iterations per second since the line before.
        images_per_second: likewise, of all processes.
        left: seconds to the end, judged by this run's own iterations.
        memory: bytes on the GPU at most (None on a CPU).
    """

    iteration: int
    iterations: int
    loss: float
    parts: Mapping[str, float]
    lr: float
    per_second: float
    images_per_second: float
    left: float
    memory: int | None

    def summary(self, *, whole: bool = True) -> str:
        """'loss 1.302 (rpn_cls 0.638, rpn_loc 0.060, cls 0.572, box_reg 0.031)  lr 0.01  4.5 it/s'.

        Args:
            whole: with the parts of the loss.
        """
        parts = " (" + ", ".join(f"{name} {value:.3f}" for name, value in self.parts.items()) + ")" if whole else ""
        pace = f"{self.per_second:.2g} it/s" if self.per_second < 10 else f"{self.per_second:.0f} it/s"
        memory = "" if self.memory is None else f"  {self.memory / 2**30:.1f} GiB"
        return f"loss {self.loss:.3f}{parts}  lr {self.lr:.3g}  {pace}{memory}"


Watch = Callable[[Line], None]


class Meter:
    """When a line is due, and the clock behind it."""

    def __init__(self, recipe: DetectionRecipe, start: int, device: torch.device) -> None:
        self.recipe, self.start, self.device = recipe, start, device
        self.every = max(min(recipe.iterations // _LINES, _FEWEST), 1)
        self.began = self.last = time.perf_counter()
        self.reported = start

    def due(self, done: int) -> bool:
        """Whether there is a line after `done` iterations."""
        return done % self.every == 0 or done == self.recipe.iterations

    def line(self, done: int, losses: Mapping[str, Tensor], mean: Tensor, lr: float) -> Line:
        """The line about the iteration that just ended."""
        now, total = time.perf_counter(), self.recipe.iterations
        per_second = (done - self.reported) / max(now - self.last, 1e-9)
        left = (now - self.began) / (done - self.start) * (total - done)
        self.last, self.reported = now, done
        return Line(
            iteration=done,
            iterations=total,
            loss=float(mean),
            parts={name.removeprefix("loss_"): float(value.detach()) for name, value in losses.items()},
            lr=lr,
            per_second=per_second,
            images_per_second=per_second * self.recipe.batch_size,
            left=left,
            memory=torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None,
        )


class MetricsFile:
    """One JSON object per line: step, loss, its parts, lr, images_per_second; appended as they come.

    What an earlier run wrote after the checkpoint that this one continues from goes: no iteration stands there twice.
    """

    def __init__(self, path: Path, *, start: int) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [record for record in read(path) if record["step"] <= start]
        with new_file(path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")

    def __call__(self, line: Line) -> None:
        """Appends it."""
        record = {"step": line.iteration, "loss": line.loss, "lr": line.lr, **line.parts}
        record |= {"images_per_second": line.images_per_second}
        record |= {} if line.memory is None else {"memory": line.memory}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
