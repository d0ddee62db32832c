"""Scalars and histograms for TensorBoard, with VISSL's tags where it has one."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sslbench.distributed.collectives import world_size
from sslbench.errors import UsageError
from sslbench.train.meter import LogRecord
from sslbench.train.observers import Histograms, Observer, RunInfo

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_MIB = 2**20


class TensorBoard(Observer):
    """Event files in a folder; the x axis counts updates."""

    def __init__(self, folder: Path, *, histograms: bool = False, every: int | None = None) -> None:
        """Store the arguments; the event file is opened when the run starts.

        `every`: updates between histograms, which come with the next log record; None: an epoch.
        """
        if importlib.util.find_spec("tensorboard") is None:
            raise UsageError("TensorBoard is not installed", "pip install tensorboard")
        self.folder, self.histograms = folder, Histograms(histograms, every)
        self.writer: SummaryWriter
        self.run: RunInfo

    def started(self, run: RunInfo) -> None:
        """Open the event file; records of an earlier run after `run.start` are hidden."""
        from torch.utils.tensorboard import SummaryWriter

        self.run = run
        purge = run.start + 1 if run.start else None
        self.writer = SummaryWriter(str(self.folder), purge_step=purge)

    def line(self, line: LogRecord) -> None:
        """Write the scalars, and histograms with the first record of an epoch, or of `every` updates."""
        for tag, value in self._scalars(line).items():
            self.writer.add_scalar(tag, value, line.step)
        for tag, values in self.histograms.of(line, self.run):
            self.writer.add_histogram(tag, values, line.step)
        self.writer.flush()

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Write every score as Evaluation/NAME."""
        for name, value in record.items():
            if name not in ("step", "epoch"):
                self.writer.add_scalar(f"Evaluation/{name}", value, int(record["step"]))
        self.writer.flush()

    def finished(self) -> None:
        """Close the event file."""
        self.writer.close()

    def _scalars(self, line: LogRecord) -> dict[str, float]:
        processes = world_size()
        seconds = self.run.images_per_update / max(line.images_per_second, 1e-9)
        values: dict[str, float | None] = {
            "Training/Loss": line.loss,
            "Training/Learning_rate": line.lr,
            "Training/Weight_decay": line.weight_decay,
            "Training/Gradient_norm": line.gradient_norm,
            "Training/Embedding_std": None if line.spread is None else line.spread.std,
            "Training/Effective_rank": None if line.spread is None else line.spread.effective_rank,
            "Training/Batch_size_per_gpu": self.run.images_per_update / processes,
            "Speed/Batch_processing_time_ms": seconds * 1000,
            "Speed/img_per_sec_per_gpu": line.images_per_second / processes,
            "Speed/ETA_hours": (self.run.steps - line.step) * seconds / 3600,
            "Speed/Waiting_for_data": line.waiting,
            **{f"Training/{name}": value for name, value in line.parts.items()},
            **{f"Training/Gradient_norm/{name}": norm for name, norm in line.gradient_norms.items()},
        }
        if line.memory is not None:
            values["Memory/Peak_GPU_Memory_allocated_MiB"] = line.memory / _MIB
            values["Memory/Peak_GPU_Memory_reserved_MiB"] = torch.cuda.max_memory_reserved() / _MIB
            values["Memory/Current_GPU_Memory_reserved_MiB"] = torch.cuda.memory_reserved() / _MIB
        if line.gpu is not None:
            values |= {"GPU/Utilisation": line.gpu.utilisation, "GPU/Temperature": line.gpu.temperature}
        return {tag: value for tag, value in values.items() if value is not None}
