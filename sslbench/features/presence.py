"""Whether the other processes of an extraction are still there: each says so in a file beside the features.

torchrun ends all processes when one of them dies. Under srun, or started by hand, nobody does: without this the others
would wait for rows that never come.
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
from sslbench.features import presence

BEAT_SECONDS = 1.0
GONE_SECONDS = 30.0
"""A process that was there and has not beaten for so long is taken for dead."""

LONG_SECONDS = 15.0
"""After so long without a look nothing can be said about what stood still meanwhile."""

FAILED = "failed: "


class Presence:
    """What one process says about itself, and what it sees of the others."""

    def __init__(self, folder: Path, process: Process) -> None:
        self.folder, self.process = folder, process
        self._seen: dict[int, tuple[str, float]] = {}
        self._moved: set[int] = set()
        self._looked = -LONG_SECONDS

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """Beats while the block runs; an error in it is left for the others to read.

        The first process takes away what a former run has left.
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
        """Looks at the others, once a second however often it is called.

        Raises:
            StoreError: one of them failed or died.
        """
        now = time.monotonic()
        if now - self._looked < BEAT_SECONDS:
            return
        if now - self._looked > LONG_SECONDS:
            self._seen.clear()  # this process was stopped for a while, and the others perhaps with it
        self._looked = now
        for rank in range(self.process.world):
            if rank != self.process.rank:
                self._check(rank, now)

    def _check(self, rank: int, now: float) -> None:
        try:
            said = self._file(rank).read_text(encoding="utf-8")
        except OSError:  # not there yet, or done
            self._seen.pop(rank, None)
            return
        before, since = self._seen.setdefault(rank, (said, now))
        if said != before:
            self._seen[rank] = (said, now)
            self._moved.add(rank)
        if not self._believed(rank, said, now - since):
            return
        if said.startswith(FAILED):
            raise self._error(rank, said.removeprefix(FAILED))
        if said == before and now - since > GONE_SECONDS:
            raise self._error(rank, f"it was killed, or has hung for {GONE_SECONDS:.0f} s")

    def _believed(self, rank: int, said: str, standing: float) -> bool:
        """What was there from the start may be left by a former run, unless the first process has tidied up."""
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
            f"process {rank} of {self.process.world} stopped writing features into {self.folder}: {reason}",
            "Look at that process's output; run the same command again to continue.",
        )

    def _beat(self, stop: threading.Event) -> None:
        for count in itertools.count():
            self._write(f"{os.getpid()} {count}")
            if stop.wait(BEAT_SECONDS):
                return

    def _write(self, text: str) -> None:
        # The folder may not be there yet, or a disk full: then there is nothing to see, and the others wait as long as
        # they always do.
        with contextlib.suppress(OSError):
            temporary = self._file(self.process.rank).with_suffix(".tmp")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self._file(self.process.rank))

    def _file(self, rank: int) -> Path:
        return self.folder / f"process-{rank}.alive"


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
