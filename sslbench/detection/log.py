"""Log lines of a training, and their file STEM.metrics.jsonl."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from sslbench.detection.recipe import DetectionRecipe
from sslbench.train.observers.json_lines import read
from sslbench.weights.save import new_file

_LINES = 100  # log lines per training, if it has that many iterations
_FEWEST = 20  # largest number of iterations between two lines


@dataclasses.dataclass(frozen=True)
class DetectionLogLine:
    """State of a training after an iteration.

    Attributes:
        iteration: number of completed iterations.
        iterations: total number.
        loss: of this iteration, averaged over the processes.
        parts: terms of the loss, averaged likewise.
        lr: learning rate.
        per_second: iterations per second since the previous line.
        images_per_second: likewise, over all processes.
        left: estimated seconds to the end, from this run's iterations.
        memory: peak GPU memory in bytes; None on a CPU.
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
        """Return 'loss 1.302 (rpn_cls 0.638, rpn_loc 0.060, cls 0.572, box_reg 0.031)  lr 0.01  4.5 it/s'.

        Args:
            whole: include the parts of the loss.
        """
        parts = " (" + ", ".join(f"{name} {value:.3f}" for name, value in self.parts.items()) + ")" if whole else ""
        pace = f"{self.per_second:.2g} it/s" if self.per_second < 10 else f"{self.per_second:.0f} it/s"
        memory = "" if self.memory is None else f"  {self.memory / 2**30:.1f} GiB"
        return f"loss {self.loss:.3f}{parts}  lr {self.lr:.3g}  {pace}{memory}"


Watch = Callable[[DetectionLogLine], None]


class IterationMeter:
    """Schedule of the log lines, and their clock."""

    def __init__(self, recipe: DetectionRecipe, start: int, device: torch.device) -> None:
        self.recipe, self.start, self.device = recipe, start, device
        self.every = max(min(recipe.iterations // _LINES, _FEWEST), 1)
        self.began = self.last = time.perf_counter()
        self.reported = start

    def due(self, done: int) -> bool:
        """Return whether a line is due after `done` iterations."""
        return done % self.every == 0 or done == self.recipe.iterations

    def line(self, done: int, losses: Mapping[str, float], mean: float, lr: float) -> DetectionLogLine:
        """Return the line of the iteration that just ended."""
        now, total = time.perf_counter(), self.recipe.iterations
        per_second = (done - self.reported) / max(now - self.last, 1e-9)
        left = (now - self.began) / (done - self.start) * (total - done)
        self.last, self.reported = now, done
        return DetectionLogLine(
            iteration=done,
            iterations=total,
            loss=mean,
            parts={name.removeprefix("loss_"): value for name, value in losses.items()},
            lr=lr,
            per_second=per_second,
            images_per_second=per_second * self.recipe.batch_size,
            left=left,
            memory=torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None,
        )


class MetricsFile:
    """JSON-lines file of a training: step, loss, its parts, lr, images_per_second.

    Lines of an earlier run after the checkpoint that this one continues from are removed, so no iteration is repeated.
    """

    def __init__(self, path: Path, *, start: int) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [record for record in read(path) if record["step"] <= start]
        with new_file(path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")

    def __call__(self, line: DetectionLogLine) -> None:
        """Append a line."""
        record = {"step": line.iteration, "loss": line.loss, "lr": line.lr, **line.parts}
        record |= {"images_per_second": line.images_per_second}
        record |= {} if line.memory is None else {"memory": line.memory}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
