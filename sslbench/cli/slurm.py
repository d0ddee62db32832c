"""`--launcher slurm`: written requests as SLURM jobs through submitit, requeued until they are done."""

import contextlib
import dataclasses
import hashlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import yaml

from sslbench.cli.echo import echo
from sslbench.config import build, read_yaml, setting
from sslbench.errors import SslbenchError, UsageError
from sslbench.names import find_file
from sslbench.text import HIDDEN

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

    # The key that configs/launcher/slurm.yaml has for its group.
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
        """Refuse settings that do not go together."""
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
        """Run the command; it continues from the checkpoint of an earlier submission."""
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
        # A new one: it is pickled, which the process in this one cannot be.
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
        # submitit hands on the text of the error only, so the exit code travels in it.
        told = re.search(rf"{_ENDED} (\d+)(?: \((.*)\);)?", str(error))
        if told:
            return End(int(told[1]), told[2] or _last_error(self.log))
        state = str(self.job.state)
        # sacct writes 'CANCELLED by 1000', and cuts it to 'CANCELLED+' in a narrow column.
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


def take_launcher(
    values: Mapping[str, Any], name: str | None, *, training: bool = False
) -> tuple[Slurm | None, dict[str, Any]]:
    """Return the settings of the jobs that were asked for, None to run here, and the other key=value."""
    # They are settings of the jobs: what runs in a job must not submit jobs again.
    own = {key: value for key, value in values.items() if key.partition(".")[0] == "launcher"}
    rest = {key: value for key, value in values.items() if key not in own}
    if "launcher" in own and name is not None:
        raise UsageError("--launcher and launcher= are the same setting", "Leave one out.")
    name = str(own.pop("launcher", name or "local"))
    file = find_file("launcher", name)
    if name == "slurm":
        given = {key.removeprefix("launcher."): value for key, value in own.items()}
        single = {} if training else {"nodes": 1, "gpus_per_node": 1}
        settings = build(Slurm, {**read_yaml(file), **single, **given}, "launcher")
        settings.check()
        return settings, rest
    if own:
        raise UsageError(f"{next(iter(own))} has no effect without --launcher slurm")
    return None, rest


def as_yaml(requests: Sequence[Mapping[str, Any]]) -> str:
    """Return requests as `sslbench run` reads them from a file."""
    content = requests[0] if len(requests) == 1 else {"requests": list(requests)}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def submit(
    jobs: Sequence[Sequence[Mapping[str, Any]]], flags: Sequence[str], settings: Slurm, out: Path
) -> list[End] | None:
    """Write the requests of jobs, submit `sslbench run` of them, and wait where that was asked for."""
    # The request is a file, which the user can read, keep and run again by hand.
    texts = [as_yaml(requests) for requests in jobs]
    if any(HIDDEN in text for text in texts):
        raise UsageError(
            "an address has a login or key, which a job would have in its files",
            "Download it first, or use one whose package finds its login itself: s3://, gs://, hf:.",
        )
    submitted = _submitted(texts, flags, settings, out)
    for job in submitted:
        echo(f"job {job.id} will run: {shlex.join(['sslbench', *job.words])}", err=True)
        echo(f"  its log is {job.log}", err=True)
    echo(f"results: {out}", err=True)
    number = submitted[0].id.partition("_")[0]  # of the array
    if settings.cluster == "slurm":
        follow = f"tail -f {shlex.quote(str(submitted[0].log))}"
        echo(f"to see the queue: squeue -j {number}; to read along: {follow}; to stop: scancel {number}", err=True)
    for job in submitted:
        echo(job.id)
    if not settings.wait:
        return None
    try:
        return _wait(submitted)
    except KeyboardInterrupt:
        if settings.cluster == "slurm":
            echo(f"the jobs go on; to stop them: scancel {number}", err=True)
        raise


def _submitted(texts: Sequence[str], flags: Sequence[str], settings: Slurm, out: Path) -> list[Submitted]:
    if importlib.util.find_spec("submitit") is None:
        raise UsageError("launcher=slurm needs submitit, which is not installed", "pip install submitit")
    missing = [program for program in ("sbatch", "srun") if shutil.which(program) is None]
    if missing and settings.cluster == "slurm":
        raise UsageError(
            f"the job cannot be submitted: there is no {' and no '.join(missing)} on this machine",
            "Submit on a login node of the cluster; launcher.cluster=local runs the job on this machine.",
        )
    import submitit
    from submitit.core.utils import FailedJobError

    # Beside the results, which all machines have to see anyway.
    folder = out / "slurm"
    # Other commands may be submitting from the same folder: after a failure only the files of this one are removed.
    before = _unsubmitted(folder)
    try:
        executor = submitit.AutoExecutor(folder, cluster=settings.cluster, slurm_max_num_timeout=settings.requeues)
        executor.update_parameters(**parameters(settings))
        commands = []
        for text in texts:
            # Named by its content: the same command submitted again uses the same file.
            file = folder / f"request-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            # The user has typed the code that these requests name.
            commands.append(("run", str(file), *flags, "--trust-code"))
        with contextlib.redirect_stderr(io.StringIO()):  # sbatch's message, which the error has as well
            if len(commands) == 1:
                jobs = [executor.submit(Job(commands[0]))]
            else:
                with executor.batch():
                    jobs = [executor.submit(Job(words)) for words in commands]
        return [
            Submitted(str(job.job_id), words, Path(job.paths.stdout), job)
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


def exit_code(ends: Sequence[End] | None) -> int | None:
    """Return the largest exit code; None where all went well or nothing was waited for."""
    return max((end.code for end in ends or ()), default=0) or None


def _wait(jobs: Sequence[Submitted]) -> list[End]:
    """Wait for jobs, tell which have failed and why, and return their ends."""
    echo(f"waiting for {len(jobs)} job{'s' if len(jobs) > 1 else ''}; Ctrl-C ends the waiting, not the jobs", err=True)
    ends = []
    for job in jobs:
        end = job.end()
        ends.append(end)
        if end.code:
            why = f": {end.reason}" if end.reason else ""
            echo(f"job {job.id} ended with exit code {end.code}{why}", err=True)
            echo(f"  its log is {job.log}", err=True)
    echo(f"{sum(not end.code for end in ends)} of {len(jobs)} jobs are done", err=True)
    return ends


def show(jobs: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Print the requests of the jobs that would be submitted."""
    for number, requests in enumerate(jobs, 1):
        echo(f"job {number} of {len(jobs)}:\n{as_yaml(requests)}")


def _unsubmitted(folder: Path) -> set[Path]:
    """Return submitit's files of jobs that have no number yet."""
    patterns = ("[0-9a-f]*[0-9a-f].pkl", ".submission_file_*.sh", "request-*.yaml")
    return {file for pattern in patterns for file in folder.glob(pattern)}


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
