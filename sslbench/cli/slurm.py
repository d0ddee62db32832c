"""`--launcher slurm`: submission of commands as SLURM jobs through submitit, requeued until they are done."""

import contextlib
import dataclasses
import importlib.util
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from sslbench.cli.echo import echo
from sslbench.config import build, read_yaml, setting
from sslbench.errors import SslbenchError, UsageError
from sslbench.names import find_file
from sslbench.text import HIDDEN, without_secrets

SAVED = 128 + signal.SIGUSR1 if hasattr(signal, "SIGUSR1") else -1
"""Exit code of a run that saved a checkpoint and stopped on SIGUSR1."""

_ENDED = "the run ended with exit code"

_KILLED_SECONDS = 600
"""Longest time from a SIGTERM of SLURM to its end of the job: KillWait, or GraceTime of a preemption."""

_SIGNALS = {
    "SIGKILL": "usually for lack of memory: launcher.memory_gb=N asks for more, fewer --workers need less",
    "SIGTERM": "usually by scancel, a preemption or the time limit: launcher.hours=N asks for more time",
    "SIGBUS": "usually because shared memory (/dev/shm) or the disk is full: use fewer --workers",
    "SIGXCPU": "usually because of a limit of processor time (ulimit -t)",
}
"""Usual reasons for a signal that ended a run."""

_STATES = {
    "CANCELLED": "it was cancelled (scancel)",
    "TIMEOUT": "it ran into its time limit: launcher.hours=N asks for more",
    "DEADLINE": "it could not end before its deadline",
    "OUT_OF_MEMORY": "it ran out of memory: launcher.memory_gb=N asks for more",
    "NODE_FAIL": "its machine failed",
    "BOOT_FAIL": "its machine did not start",
}
"""What SLURM's states of an ended job mean."""

_RESERVED = {
    "nodes": "Use launcher.nodes.",
    "ntasks": "Use launcher.gpus_per_node: each GPU has a process.",
    "ntasks-per-node": "Use launcher.gpus_per_node: each GPU has a process.",
    "array": "Use launcher.at_once for the number of jobs at the same time.",
    "signal": "Use launcher.save_seconds.",
    "output": "The logs lie in the folder slurm beside the results.",
    "error": "The logs lie in the folder slurm beside the results.",
    "open-mode": "A log goes on where its job is queued again.",
}
"""Options of sbatch that `launcher.extra` cannot change, and what to use."""


@dataclasses.dataclass(frozen=True)
class Slurm:
    """Resources of a SLURM job, from configs/launcher/slurm.yaml."""

    name: Literal["slurm"] = setting("slurm", "this launcher")
    nodes: int = setting(1, "machines", within="[1, inf)")
    gpus_per_node: int = setting(
        8, "GPUs of each, and processes on each; 0: one process without a GPU", within="[0, inf)"
    )
    cpus_per_gpu: int = setting(8, "CPU cores per process", within="[1, inf)")
    memory_gb: float | None = setting(
        None, "main memory of each machine; null: the cluster's default", within="(0, inf)"
    )
    hours: float = setting(24.0, "time limit of each submission", within="(0, inf)")
    requeues: int = setting(100, "times that the job is queued again after its time limit", within="[0, inf)")
    save_seconds: int = setting(
        120, "seconds before the time limit at which the run saves and stops", within="[1, inf)"
    )
    job_name: str = setting("sslbench", "name in the queue")
    partition: str | None = setting(None, "partition of the cluster, or several: gpu,debug")
    account: str | None = setting(None, "account that is charged")
    qos: str | None = setting(None, "quality of service")
    constraint: str | None = setting(None, "required features of the machines")
    exclude: str | None = setting(None, "machines to avoid")
    extra: dict[str, str | int | float | bool] | None = setting(None, "further options of sbatch: {reservation: mine}")
    at_once: int = setting(256, "jobs of an array that run at the same time", within="[1, inf)")
    wait: bool = setting(False, "wait for the jobs, and end with the largest exit code")
    cluster: Literal["slurm", "local"] = setting("slurm", "local: a process on this machine, to try it out")

    @property
    def minutes(self) -> int:
        """Time limit as SLURM counts it."""
        return max(1, round(self.hours * 60))

    @property
    def processes(self) -> int:
        """Processes of a job on all machines."""
        return self.nodes * max(1, self.gpus_per_node)

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            UsageError: the message names the setting.
        """
        if self.nodes > 1 and self.cluster == "local":
            raise UsageError(
                f"launcher.nodes={self.nodes}: launcher.cluster=local is this machine alone", "Leave it out."
            )
        if self.save_seconds * 2 > self.minutes * 60:  # it would be queued again before it has done anything
            raise UsageError(
                f"launcher.save_seconds={self.save_seconds} is more than half of the time limit, {self.minutes} min",
                "Give more launcher.hours, or fewer launcher.save_seconds.",
            )
        for option in self.extra or {}:
            name = option.replace("_", "-").lstrip("-")
            if name in _RESERVED:
                raise UsageError(f"launcher.extra: '{option}' is set by sslbench", _RESERVED[name])


class Job:
    """Callable of a SLURM job: runs `sslbench ...` in a process of its own.

    submitit calls `checkpoint` from a signal handler at any time, mostly while `__call__` waits. A training can save
    only between two updates, so `checkpoint` signals it and waits. Everything else is ended by the signal, and goes on
    from what it has stored.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.run: subprocess.Popen[bytes] | None = None
        self.told = False
        self.terminated = False

    def __call__(self) -> int:
        """Run the command; it continues from the checkpoint of an earlier submission.

        Raises:
            SslbenchError: the run failed; its messages are in the log of the job.
        """
        command = [sys.executable, "-m", "sslbench", *self.words]
        # SLURM may signal every process of the job; this signal is submitit's, and would end the run unsaved.
        with self._handing_on_sigterm():
            self.run = subprocess.Popen(
                command,
                preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
                env={**os.environ, "PYTHONUNBUFFERED": "1"},  # what is printed is in the log at once
            )
            if self.terminated:  # before there was a run to tell
                self.run.send_signal(signal.SIGUSR1)
            code = self.run.wait()
            if self.terminated and "SLURM_JOB_ID" in os.environ:
                # SLURM queues a preempted job again only if it has to end it itself.
                echo("asked to end by SIGTERM; waiting for SLURM to end this job, or to queue it again", err=True)
                time.sleep(_KILLED_SECONDS)
        if self.terminated or (code not in (0, SAVED) and not self.told):
            # submitit lets the error end the process, and a log should not end in a traceback.
            sys.excepthook = lambda kind, error, trace: echo(error, err=True)
            raise SslbenchError(f"{_ENDED} {_described(code)}; see the lines above")
        return code

    def checkpoint(self) -> Any:
        """Let the run save and end, and return the submission that continues it."""
        from submitit.helpers import DelayedSubmission

        if self.run is not None and self.run.returncode is None:
            self.told = True
            self.run.send_signal(signal.SIGUSR1)
            with contextlib.suppress(ChildProcessError):  # it has ended
                os.waitpid(self.run.pid, 0)  # Popen.wait has a lock, which the interrupted `__call__` holds
        return DelayedSubmission(Job(self.words))

    @contextlib.contextmanager
    def _handing_on_sigterm(self) -> Iterator[None]:
        """Let the run save when SLURM cancels or preempts the job: SLURM may signal this process alone."""

        def hand_on(number: int, frame: FrameType | None) -> None:
            self.terminated = True
            if self.run is not None:
                self.run.send_signal(signal.SIGUSR1)

        before = signal.signal(signal.SIGTERM, hand_on)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)


def _described(code: int) -> str:
    """Return the exit code that shells give, with the name of a signal and the usual reason for it."""
    code = -signal.SIGTERM if code == 128 + signal.SIGTERM else code  # sslbench ends itself
    if code >= 0:
        return str(code)
    try:
        name = signal.Signals(-code).name
    except ValueError:  # one of the real-time signals
        name = f"signal {-code}"
    usual = f", {_SIGNALS[name]}" if name in _SIGNALS else ""
    return f"{128 - code} (killed by {name}{usual})"


@dataclasses.dataclass(frozen=True)
class End:
    """End of a job.

    Attributes:
        code: exit code of its command; 1 if SLURM ended the job.
        reason: of a failure, as far as it is known.
    """

    code: int
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Submitted:
    """Job in the queue.

    Attributes:
        id: as SLURM names it; that of an element of an array is ARRAY_NUMBER.
        words: arguments of `sslbench` that it runs.
        log: file with everything that it prints.
        job: submitit's object.
    """

    id: str
    words: tuple[str, ...]
    log: Path
    job: Any

    def end(self) -> End:
        """Wait for the end of the job."""
        error = self.job.exception()
        if error is None:
            return End(0)
        told = re.search(rf"{_ENDED} (\d+)(?: \((.*)\);)?", str(error))
        if told:
            return End(int(told[1]), told[2] or _last_error(self.log))
        state = str(self.job.state)
        reason = _STATES.get(state.split(" ")[0].rstrip("+")) or _last_error(self.log) or f"SLURM says {state}"
        if not self.log.exists():
            reason += (
                f"; it wrote no log: the folder {self.log.parent} must lie on a file system that all machines share"
            )
        return End(1, reason)


def _last_error(log: Path) -> str:
    """Return the last message of an error, or of a hole, in a log; '' if there is none."""
    with contextlib.suppress(OSError):
        text = log.read_text(encoding="utf-8", errors="replace")
        told = re.findall(r"^(?:error: |\d+ of \d+ cells are holes .*\n  )(.*)$", text, re.MULTILINE)
        return str(told[-1]) if told else ""
    return ""


def settings_of(values: Mapping[str, Any]) -> Slurm:
    """Return the settings of configs/launcher/slurm.yaml, of which a later one of the user's own comes first.

    A job is one process with one GPU unless `gpus_per_node` is given: only a training is worth more.

    Args:
        values: those given as launcher.KEY=VALUE.

    Raises:
        UsageError: no such setting, or one that is not possible.
    """
    file = read_yaml(find_file("launcher", "slurm"))
    settings = build(Slurm, {**file, "nodes": 1, "gpus_per_node": 1, **values}, "launcher")
    settings.check()
    return settings


def submit(commands: Sequence[Sequence[str]], settings: Slurm, out: Path) -> list[Submitted]:
    """Submit commands to the queue, several as an array; logs are written below `out`/slurm.

    Args:
        commands: arguments of `sslbench` of each job, with the local launcher.
        settings: resources of each job.
        out: folder of the results, which the machines of the cluster share with this one.

    Raises:
        UsageError: submitit or SLURM is missing, or SLURM refuses the jobs.
    """
    if importlib.util.find_spec("submitit") is None:
        raise UsageError("launcher=slurm needs submitit, which is not installed", "pip install submitit")
    if word := next((word for words in commands for word in words if HIDDEN in without_secrets(word)), None):
        raise UsageError(
            f"the address {word} has a login or key, which a job would have in its files",
            "Download it first, or use one whose package finds its login itself: s3://, gs://, hf:.",
        )
    missing = [program for program in ("sbatch", "srun") if shutil.which(program) is None]
    if missing and settings.cluster == "slurm":
        raise UsageError(
            f"the job cannot be submitted: there is no {' and no '.join(missing)} on this machine",
            "Submit on a login node of the cluster; launcher.cluster=local runs the job on this machine.",
        )
    import submitit
    from submitit.core.utils import FailedJobError

    folder = out / "slurm"
    before = _unsubmitted(folder)
    try:
        executor = submitit.AutoExecutor(folder, cluster=settings.cluster, slurm_max_num_timeout=settings.requeues)
        executor.update_parameters(**parameters(settings))
        with contextlib.redirect_stderr(io.StringIO()):  # sbatch's message, which the error has as well
            if len(commands) == 1:
                jobs = [executor.submit(Job(commands[0]))]
            else:
                with executor.batch():
                    jobs = [executor.submit(Job(words)) for words in commands]
        return [
            Submitted(str(job.job_id), tuple(words), Path(job.paths.stdout), job)
            for job, words in zip(jobs, commands, strict=True)
        ]
    except (RuntimeError, FailedJobError) as error:
        for file in _unsubmitted(folder) - before:
            file.unlink(missing_ok=True)
        for empty in (folder, out):
            with contextlib.suppress(OSError):
                empty.rmdir()
        raise UsageError(
            f"the job cannot be submitted: {error}", "launcher.cluster=local runs it on this machine."
        ) from error


def _unsubmitted(folder: Path) -> set[Path]:
    """Return submitit's files of jobs that have no number yet."""
    return {*folder.glob("[0-9a-f]*[0-9a-f].pkl"), *folder.glob(".submission_file_*.sh")}


def parameters(settings: Slurm) -> dict[str, Any]:
    """Return the settings under submitit's names."""
    extra = {name: value for name, value in (settings.extra or {}).items() if value is not False}
    again = {} if "no-requeue" in extra or "no_requeue" in extra else {"requeue": True}
    values: Mapping[str, Any] = {
        "name": settings.job_name,
        "stderr_to_stdout": True,
        "timeout_min": settings.minutes,
        "nodes": settings.nodes,
        "tasks_per_node": max(1, settings.gpus_per_node),
        "gpus_per_node": settings.gpus_per_node or None,  # a cluster without GPUs refuses even 0
        "cpus_per_task": settings.cpus_per_gpu,
        "mem_gb": settings.memory_gb,
        "slurm_signal_delay_s": settings.save_seconds,
        "slurm_array_parallelism": settings.at_once,
        "slurm_partition": settings.partition,
        "slurm_account": settings.account,
        "slurm_qos": settings.qos,
        "slurm_constraint": settings.constraint,
        "slurm_exclude": settings.exclude,
        "slurm_additional_parameters": {**again, **extra},
        "slurm_srun_args": [f"--cpus-per-task={settings.cpus_per_gpu}"],  # srun does not take it from sbatch
    }
    return {key: value for key, value in values.items() if value is not None}
