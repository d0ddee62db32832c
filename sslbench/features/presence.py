"""Heartbeats of the processes of an extraction, in files beside the features.

torchrun ends all processes when one dies. srun, or a start by hand, does not: without heartbeats the others would wait
forever for its rows.
"""

import contextlib
import itertools
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from sslbench.distributed import Process, this_process
from sslbench.errors import StoreError

BEAT_SECONDS = 1.0
GONE_SECONDS = 30.0
"""Age of a heartbeat from which on its process counts as dead."""

LONG_SECONDS = 15.0
"""Pause between checks after which the ages of heartbeats are unknown."""

FAILED = "failed: "


class Presence:
    """Heartbeat of one process, and its view of the others' heartbeats."""

    def __init__(self, folder: Path, process: Process) -> None:
        self.folder, self.process = folder, process
        self._seen: dict[int, tuple[str, float]] = {}
        self._moved: set[int] = set()
        self._looked = -LONG_SECONDS

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """Write heartbeats while the block runs, and leave its error for the others to read.

        The first process removes the files of an earlier run.
        """
        self._tidy()
        if self.process.world == 1:
            yield
            return
        stop = threading.Event()
        thread = threading.Thread(target=self._beat, args=(stop,), daemon=True)
        thread.start()
        reason = ""
        try:
            yield
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            raise
        finally:
            stop.set()
            thread.join()
            if reason:
                self._write(f"{FAILED}{reason}")
            else:
                self._leave()

    def check(self) -> None:
        """Check the other processes, at most once a second.

        Raises:
            StoreError: one of them failed or died.
        """
        now = time.monotonic()
        if now - self._looked < BEAT_SECONDS:
            return
        if now - self._looked > LONG_SECONDS:
            self._seen.clear()  # this process was suspended, perhaps together with the others
        self._looked = now
        for rank in range(self.process.world):
            if rank != self.process.rank:
                self._check(rank, now)

    def _check(self, rank: int, now: float) -> None:
        try:
            heartbeat = self._file(rank).read_text(encoding="utf-8")
        except OSError:  # not started yet, or done
            self._seen.pop(rank, None)
            return
        before, since = self._seen.setdefault(rank, (heartbeat, now))
        if heartbeat != before:
            self._seen[rank] = (heartbeat, now)
            self._moved.add(rank)
        if not self._is_current(rank, heartbeat, now - since):
            return
        if heartbeat.startswith(FAILED):
            error = self._error(rank, heartbeat.removeprefix(FAILED))
            error.printed_by_rank_0 = True  # by that process
            raise error
        if heartbeat == before and now - since > GONE_SECONDS:
            raise self._error(rank, f"it was killed, or has hung for {GONE_SECONDS:.0f} s")

    def _is_current(self, rank: int, heartbeat: str, age: float) -> bool:
        """Return whether a heartbeat is of this run: an unchanged one may be of an earlier run not yet cleaned up."""
        return rank in self._moved or self.process.rank == 0

    def _tidy(self) -> None:
        if self.process.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            for file in self.folder.glob("process-*"):
                file.unlink(missing_ok=True)

    def _leave(self) -> None:
        self._file(self.process.rank).unlink(missing_ok=True)

    def _error(self, rank: int, reason: str) -> StoreError:
        return StoreError(
            f"process {rank} of {self.process.world} no longer writes features into {self.folder}: {reason}",
            "See that process's output; run the same command again to continue.",
        )

    def _beat(self, stop: threading.Event) -> None:
        for count in itertools.count():
            self._write(f"{os.getpid()} {count}")
            if stop.wait(BEAT_SECONDS):
                return

    def _write(self, text: str) -> None:
        # The folder may be missing or the disk full: then the others wait for the full time.
        with contextlib.suppress(OSError):
            temporary = self._file(self.process.rank).with_suffix(".tmp")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self._file(self.process.rank))

    def _file(self, rank: int) -> Path:
        return self.folder / f"process-{rank}.alive"


ABSENT_SECONDS = 120.0
"""Maximum wait for the first heartbeat of a process; programs load slowly over networks."""

_DAY = 86_400.0
_PREFIX = ".processes-"
_NAMES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT")


@contextlib.contextmanager
def announced(root: Path) -> Iterator[None]:
    """Write heartbeats of this process while the block runs, unless it is the only one.

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
    """Heartbeat of one process during a whole command, in the store's folder."""

    def __init__(self, root: Path, process: Process) -> None:
        run = "-".join(os.environ[name] for name in _NAMES if name in os.environ)
        super().__init__(root / f"{_PREFIX}{re.sub(r'[^A-Za-z0-9_.]+', '-', run) or 'run'}", process)

    def refuse_absent(self, ranks: Iterable[int]) -> None:
        """Raise if a process has had no heartbeat since the start; call it after waiting `ABSENT_SECONDS`.

        Raises:
            StoreError: names the process.
        """
        if not self._file(self.process.rank).is_file():  # no process writes heartbeats: the library is used directly
            return
        for rank in ranks:
            if rank not in self._moved:
                raise self._error(rank, f"it has not started within {ABSENT_SECONDS:.0f} s")

    def _tidy(self) -> None:
        """Remove folders of old runs; files in this run's folder may be of processes that started earlier."""
        with contextlib.suppress(OSError):  # a read-only store has no heartbeats
            self.folder.mkdir(parents=True, exist_ok=True)
        if self.process.rank == 0:
            for folder in self.folder.parent.glob(f"{_PREFIX}*"):
                with contextlib.suppress(OSError):
                    if folder != self.folder and time.time() - folder.stat().st_mtime > _DAY:
                        shutil.rmtree(folder, ignore_errors=True)

    def _leave(self) -> None:
        super()._leave()
        with contextlib.suppress(OSError):  # others are still running
            self.folder.rmdir()

    def _is_current(self, rank: int, heartbeat: str, age: float) -> bool:
        """Return whether a heartbeat is of this run.

        An unchanged one is of an earlier run, or of a process that failed before the first check; of the latter if it
        is old, since this run's process would have overwritten it.
        """
        failed = heartbeat.startswith(FAILED)
        identified = "SLURM_STEP_ID" in os.environ  # the folder's name identifies the run
        return rank in self._moved or (failed and (identified or age > GONE_SECONDS))

    def _error(self, rank: int, reason: str) -> StoreError:
        return StoreError(
            f"process {rank} of {self.process.world} is no longer running: {reason}",
            "See that process's output; run the same command again to continue.",
        )
