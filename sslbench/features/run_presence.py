"""Whether the other processes of a command are there at all, from its start on: before, between and during extractions.

One that fails while it opens its weights or its data never comes to the features, and `presence` knows nothing of it.
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from sslbench.distributed import Process, this_process
from sslbench.errors import StoreError
from sslbench.features import presence
from sslbench.features.presence import Presence

ABSENT_SECONDS = 120.0
"""After waiting so long for a process that never showed itself, it is given up. Programs load slowly over networks."""

_DAY = 86_400.0
_PREFIX = ".processes-"
_NAMES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT")


@contextlib.contextmanager
def announced(root: Path) -> Iterator[None]:
    """Says from here on that this process is there, and if it fails, why; one process alone says nothing.

    Args:
        root: folder of the feature store, which all processes see.
    """
    process = this_process()
    if process.world == 1:
        yield
        return
    with RunPresence(root, process).announced():
        yield


class RunPresence(Presence):
    """What one process says in the store's folder about itself while a command runs, and what it sees of the others."""

    def __init__(self, root: Path, process: Process) -> None:
        run = "-".join(os.environ[name] for name in _NAMES if name in os.environ)
        super().__init__(root / f"{_PREFIX}{re.sub(r'[^A-Za-z0-9_.]+', '-', run) or 'run'}", process)

    def refuse_absent(self, ranks: Iterable[int]) -> None:
        """To be called after a wait of `ABSENT_SECONDS`.

        Raises:
            StoreError: one of these has never shown itself.
        """
        if not self._file(self.process.rank).is_file():  # nobody announces anything: the library is used directly
            return
        for rank in ranks:
            if rank not in self._moved:
                raise self._error(rank, f"it has not shown itself for {ABSENT_SECONDS:.0f} s")

    def _tidy(self) -> None:
        """Own files are written over, others may be those of processes that were here first."""
        with contextlib.suppress(OSError):  # a store that can only be read: then nobody announces anything
            self.folder.mkdir(parents=True, exist_ok=True)
        if self.process.rank == 0:
            for folder in self.folder.parent.glob(f"{_PREFIX}*"):
                with contextlib.suppress(OSError):
                    if folder != self.folder and time.time() - folder.stat().st_mtime > _DAY:
                        shutil.rmtree(folder, ignore_errors=True)

    def _leave(self) -> None:
        super()._leave()
        with contextlib.suppress(OSError):  # the others are still there
            self.folder.rmdir()

    def _believed(self, rank: int, said: str, standing: float) -> bool:
        """A file that never changed is of a former run, or of a process that failed before this one looked.

        The latter if nobody has written over it for long: this run's process would have been there by now.
        """
        failed = said.startswith(presence.FAILED)
        ours = "SLURM_STEP_ID" in os.environ  # the folder's name says which run it is
        return rank in self._moved or (failed and (ours or standing > presence.GONE_SECONDS))

    def _error(self, rank: int, reason: str) -> StoreError:
        return StoreError(
            f"process {rank} of {self.process.world} is not there any more: {reason}",
            "Look at that process's output; run the same command again to continue.",
        )
