"""Where the time of some updates goes: torch.profiler's table and a trace for Perfetto or chrome://tracing."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from sslbench.errors import UsageError
from sslbench.train.meter import Line
from sslbench.train.observers import Run

log = logging.getLogger("sslbench")

WARM_UP = 5  # updates: caches are filled, algorithms chosen, workers started


class Profile:
    """Profiles a number of updates after a warm-up; the run goes on unchanged."""

    def __init__(self, updates: int, trace: Path) -> None:
        """Nothing happens before the run starts.

        Args:
            updates: to be profiled, at least 1.
            trace: JSON file to be written, .json or .json.gz.
        """
        if updates < 1:
            raise UsageError(f"--profile {updates}: at least one update")
        self.updates, self.trace = updates, trace
        self.done = 0
        self.hook: Any = None
        self.profiler: Any = None

    def started(self, run: Run) -> None:
        """Counts updates by the optimizer's steps, as lines only come now and then."""
        if run.steps - run.start < WARM_UP + self.updates:
            left = run.steps - run.start
            log.warning(f"--profile {self.updates}: only {left} updates are left, and {WARM_UP} go into warming up")
        self.hook = register_optimizer_step_post_hook(self._count)

    def line(self, line: Line) -> None:
        """Updates are counted elsewhere."""

    def evaluated(self, record: dict[str, float | int]) -> None:
        """Not profiled."""

    def finished(self) -> None:
        """A run that was too short has a profile of what there was."""
        self._stop()

    def _count(self, *_: Any) -> None:
        self.done += 1
        if self.done == WARM_UP:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
            self.profiler = profile(activities=activities)
            self.profiler.start()
        elif self.done == WARM_UP + self.updates:
            self._stop()

    def _stop(self) -> None:
        if self.hook is not None:
            self.hook.remove()
            self.hook = None
        if self.profiler is None:
            return
        profiler, self.profiler = self.profiler, None
        profiler.stop()
        key = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=key, row_limit=20, max_name_column_width=48)
        self.trace.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.trace))
        log.info(
            f"profile of {self.done - WARM_UP} updates:\n{table}\ntrace: {self.trace} (open it in ui.perfetto.dev)"
        )
