"""Heartbeats of the processes of a run, in files of the feature store, and the numbers of images that they encoded.

torchrun ends all processes when one dies. srun, or a start by hand, does not: without heartbeats the others would wait
forever for its rows. Processes that extract features share files only.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sslbench.distributed import Process, this_process
from sslbench.errors import StoreError
from sslbench.paths import new_file

BEAT_SECONDS = 1.0
# Age of a heartbeat from which on its process counts as dead.
GONE_SECONDS = 30.0

# Pause between checks after which the ages of heartbeats are unknown.
LONG_SECONDS = 15.0

# Maximum wait for the first heartbeat of a process; programs load slowly over networks.
ABSENT_SECONDS = 120.0

FAILED = "failed: "
_DAY = 86_400.0
_PREFIX = ".processes-"
_NAMES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT")

# Tests stand for several processes in one, hence a list.
_running: list["Presence"] = []


@contextlib.contextmanager
def announced(root: Path, *, of_command: bool = True) -> Iterator["Presence"]:
    """Write heartbeats of this process into a feature store while the block runs, unless it is the only one.

    An extraction inside a command that does so already joins its heartbeats.
    """
    process = this_process()
    if _running and _running[-1].process == process:
        yield _running[-1]
        return
    presence = Presence(root, process, of_command=of_command)
    if process.world == 1:
        yield presence
        return
    with presence.announced():
        _running.append(presence)
        try:
            yield presence
        finally:
            _running.remove(presence)


class Presence:
    """Heartbeat of one process, and its view of the others' heartbeats, in a folder of the run in the store."""

    def __init__(self, root: Path, process: Process, *, of_command: bool = True) -> None:
        run = "-".join(os.environ[name] for name in _NAMES if name in os.environ)
        self.folder = root / f"{_PREFIX}{re.sub(r'[^A-Za-z0-9_.]+', '-', run) or 'run'}"
        self.process, self.of_command = process, of_command
        self._seen: dict[int, tuple[str, float]] = {}
        self._moved: set[int] = set()
        self._looked = -LONG_SECONDS

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """Write heartbeats while the block runs, and leave its error for the others to read."""
        with contextlib.suppress(OSError):  # a read-only store has no heartbeats
            self.folder.mkdir(parents=True, exist_ok=True)
        if self.process.rank == 0:  # folders of old runs; files in this run's may be of processes that started earlier
            for folder in self.folder.parent.glob(f"{_PREFIX}*"):
                with contextlib.suppress(OSError):
                    if folder != self.folder and time.time() - folder.stat().st_mtime > _DAY:
                        shutil.rmtree(folder, ignore_errors=True)
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
                self._file(self.process.rank).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # others are still running
                    self.folder.rmdir()

    def check(self) -> bool:
        """Raise if another process failed or died; return False without a look within a second of the last one."""
        now = time.monotonic()
        if now - self._looked < BEAT_SECONDS:
            return False
        if now - self._looked > LONG_SECONDS:
            self._seen.clear()  # this process was suspended, perhaps together with the others
        self._looked = now
        for rank in range(self.process.world):
            if rank != self.process.rank:
                self._check(rank, now)
        return True

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
        failed, age = heartbeat.startswith(FAILED), now - since
        # An unchanged file is of an earlier run, or of a process that failed before the first look; of the latter if
        # it is old, since this run's process would have overwritten it, or if the folder's name identifies the run.
        identified = "SLURM_STEP_ID" in os.environ
        if rank not in self._moved and not (failed and (identified or age > GONE_SECONDS)):
            return
        if failed:
            error = self._error(rank, heartbeat.removeprefix(FAILED))
            error.printed_by_rank_0 = True  # by that process
            raise error
        if heartbeat == before and age > GONE_SECONDS:
            raise self._error(rank, f"it was killed, or has hung for {GONE_SECONDS:.0f} s")

    def refuse_absent(self, ranks: Iterable[int]) -> None:
        """Raise if a process has had no heartbeat since the start; call it after waiting `ABSENT_SECONDS`."""
        if not self.of_command:  # other processes of a program may come to the extraction at any time
            return
        for rank in ranks:
            if rank not in self._moved:
                raise self._error(rank, f"it has not started within {ABSENT_SECONDS:.0f} s")

    def _error(self, rank: int, reason: str) -> StoreError:
        return StoreError(
            f"process {rank} of {self.process.world} is no longer running: {reason}",
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
            # Renamed, so that nobody reads half a heartbeat.
            temporary.replace(self._file(self.process.rank))

    def _file(self, rank: int) -> Path:
        return self.folder / f"process-{rank}.alive"


class Failures:
    """Failures of the processes of one extraction, in files beside the features: a suite goes on after one."""

    def __init__(self, folder: Path, process: Process) -> None:
        self.folder, self.process = folder, process
        if process.rank == 0:
            for file in folder.glob("process-*"):
                file.unlink(missing_ok=True)
        # Another process may look before the first one has removed what an earlier run left.
        self._before = {rank: self._read(rank) for rank in range(process.world)}

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """Leave an error of the block for the others to read."""
        try:
            yield
        except BaseException as error:
            if self.process.world > 1:
                with contextlib.suppress(OSError):
                    self._file(self.process.rank).write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
            raise

    def check(self) -> None:
        """Raise if another process failed."""
        for rank in range(self.process.world):
            reason = self._read(rank)
            if rank != self.process.rank and reason and reason != self._before[rank]:
                error = StoreError(
                    f"process {rank} of {self.process.world} no longer writes features into {self.folder}: {reason}",
                    "See that process's output; run the same command again to continue.",
                )
                error.printed_by_rank_0 = True  # by that process
                raise error

    def _read(self, rank: int) -> str:
        try:
            return self._file(rank).read_text(encoding="utf-8")
        except OSError:
            return ""

    def _file(self, rank: int) -> Path:
        return self.folder / f"process-{rank}.failed"


def write_counts(folder: Path, rank: int, decoded: int, conversions: Mapping[str, int]) -> None:
    """Write the images that a process decoded so far, before its rows are marked as done, beside the features."""
    with new_file(folder / f"process-{rank}.counts") as temporary:
        temporary.write_text(json.dumps({"decoded": decoded, "conversions": conversions}), encoding="utf-8")


def take_counts(folder: Path) -> tuple[int, Counter[str]]:
    """Return the sums of the counts that other processes wrote, and remove the files."""
    decoded, conversions = 0, Counter[str]()
    for file in folder.glob("process-*.counts"):
        found = json.loads(file.read_text(encoding="utf-8"))
        decoded += found["decoded"]
        conversions.update(found["conversions"])
        file.unlink()
    return decoded, conversions
