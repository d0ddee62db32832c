"""Profile of some updates: torch.profiler's table, and a trace for Perfetto or chrome://tracing."""

import logging
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from sslbench.errors import UsageError
from sslbench.train.observers import Observer, RunInfo

log = logging.getLogger("sslbench")

WARM_UP = 5  # updates: caches are filled, algorithms chosen, workers started


class Profile(Observer):
    """Profile of a number of updates after a warm-up; the run itself is unchanged."""

    def __init__(self, updates: int, trace: Path) -> None:
        """Store the arguments; profiling starts with the run."""
        if updates < 1:
            raise UsageError(f"--profile {updates}: at least one update")
        self.updates, self.trace = updates, trace
        self.done = 0
        self.hook: Any = None
        self.profiler: Any = None

    def started(self, run: RunInfo) -> None:
        """Count updates by the optimizer's steps, since not every update has a log record."""
        if run.steps - run.start < WARM_UP + self.updates:
            left = run.steps - run.start
            log.warning(f"--profile {self.updates}: only {left} updates are left, and {WARM_UP} are needed to warm up")
        self.hook = register_optimizer_step_post_hook(self._count)

    def finished(self) -> None:
        """Write the profile of a run that was shorter than requested."""
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
        # Also called at the end of a run and after an error; the second call finds nothing.
        profiler, self.profiler = self.profiler, None
        profiler.stop()
        key = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=key, row_limit=20, max_name_column_width=48)
        self.trace.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.trace))
        log.info(
            f"profile of {self.done - WARM_UP} updates:\n{table}\ntrace: {self.trace} (open it in ui.perfetto.dev)"
        )
