"""Metrics for Weights & Biases, online or, with WANDB_MODE=offline, in the folder of the run."""

import importlib.util
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from sslbench.errors import UsageError
from sslbench.train.meter import LogRecord
from sslbench.train.observers import Histograms, Observer, RunInfo, scalars


class Wandb(Observer):
    """Run of a W&B project; a pretraining run that continues uses the same W&B run."""

    def __init__(
        self,
        project: str,
        *,
        settings: Mapping[str, Any] | None = None,
        histograms: bool = False,
        every: int | None = None,
    ) -> None:
        """Store the arguments; W&B is contacted when the run starts.

        `every`: updates between histograms, which come with the next log record; None: an epoch.
        """
        if importlib.util.find_spec("wandb") is None:
            raise UsageError("wandb is not installed", "pip install wandb")
        self.project, self.settings = project, dict(settings or {})
        self.histograms = Histograms(histograms, every)
        self.run: RunInfo
        self.session: Any = None

    def started(self, run: RunInfo) -> None:
        """Open the run."""
        import wandb

        self.run = run
        run_id_file = run.out / "wandb-run-id"
        identity = (
            run_id_file.read_text(encoding="utf-8").strip()
            if run.start and run_id_file.is_file()
            else uuid.uuid4().hex[:12]
        )
        run_id_file.write_text(identity + "\n", encoding="utf-8")
        try:
            self.session = wandb.init(
                project=self.project,
                name=run.out.name,
                id=identity,
                resume="allow",
                dir=str(run.out),
                config=self.settings,
            )
        except wandb.Error as error:
            raise UsageError(f"wandb cannot start: {error}", "Run 'wandb login', or set WANDB_MODE=offline.") from error
        self.session.define_metric("step")
        # wandb's own counter only increases; a run that continues repeats the updates after its checkpoint.
        self.session.define_metric("*", step_metric="step")

    def line(self, line: LogRecord) -> None:
        """Log the scalars of a record, and histograms with the first one of an epoch, or of `every` updates."""
        import wandb

        found = self.histograms.of(line, self.run)
        drawn = {tag: wandb.Histogram(np_histogram=np.histogram(v.cpu().numpy(), bins=64)) for tag, v in found}
        self.session.log(scalars(line) | drawn)

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Log the scores of an evaluation."""
        self.session.log(dict(record))

    def finished(self) -> None:
        """Close the run."""
        self.session.finish()
