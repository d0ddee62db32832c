"""`--launcher slurm`: submission of commands as SLURM jobs through submitit, requeued until they are done."""

import dataclasses
import importlib.util
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from sslbench.config import build, read_yaml, setting
from sslbench.errors import SslbenchError, UsageError
from sslbench.names import find_file

SAVED = 128 + signal.SIGUSR1 if hasattr(signal, "SIGUSR1") else -1
"""Exit code of a run that saved a checkpoint and stopped on SIGUSR1."""

_ENDED = "the run ended with exit code"


@dataclasses.dataclass(frozen=True)
class Slurm:
    """Resources of a SLURM job, from configs/launcher/slurm.yaml."""

    name: Literal["slurm"] = setting("slurm", "this launcher")
    nodes: int = setting(1, "machines")
    gpus_per_node: int = setting(8, "GPUs of each, and processes on each; 0: one process without a GPU")
    cpus_per_gpu: int = setting(8, "CPU cores per process")
    memory_gb: float | None = setting(None, "main memory of each machine; null: the cluster's default")
    hours: float = setting(24.0, "time limit of each submission")
    requeues: int = setting(100, "times that the job is queued again after its time limit")
    save_seconds: int = setting(120, "seconds before the time limit at which the run saves and stops")
    job_name: str = setting("sslbench", "name in the queue")
    partition: str | None = setting(None, "partition of the cluster")
    account: str | None = setting(None, "account that is charged")
    qos: str | None = setting(None, "quality of service")
    constraint: str | None = setting(None, "required features of the machines")
    exclude: str | None = setting(None, "machines to avoid")
    extra: dict[str, str | int | float | bool] | None = setting(None, "further options of sbatch: {reservation: mine}")
    at_once: int = setting(256, "jobs of an array that run at the same time")
    wait: bool = setting(False, "wait for the jobs, and end with the largest exit code")
    cluster: Literal["slurm", "local"] = setting("slurm", "local: a process on this machine, to try it out")


class Job:
    """Callable of a SLURM job: runs `sslbench ...` in a process of its own.

    submitit calls `checkpoint` from a signal handler at any time. A training can save only between two updates, so
    `checkpoint` signals it and waits. Everything else is ended by the signal, and goes on from what it has stored.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.run: subprocess.Popen[bytes] | None = None
        self.told = False

    def __call__(self) -> int:
        """Run the command; it continues from the checkpoint of an earlier submission.

        Raises:
            SslbenchError: the run failed; its messages are in the log of the job.
        """
        command = [sys.executable, "-m", "sslbench", *self.words]
        # SLURM signals every process of the job; this signal is submitit's, and would end the run unsaved.
        self.run = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN))
        code = self.run.wait()
        if code not in (0, SAVED) and not self.told:
            raise SslbenchError(f"{_ENDED} {code}; see the lines above")
        return code

    def checkpoint(self) -> Any:
        """Let the run save and end, and return the submission that continues it."""
        from submitit.helpers import DelayedSubmission

        if self.run is not None and self.run.poll() is None:
            self.told = True
            self.run.send_signal(signal.SIGUSR1)
            self.run.wait()
        return DelayedSubmission(Job(self.words))


@dataclasses.dataclass(frozen=True)
class Submitted:
    """Job in the queue.

    Attributes:
        id: as SLURM names it; that of an element of an array is ARRAY_NUMBER.
        words: arguments of `sslbench` that it runs.
        log: file with its messages.
        job: submitit's object.
    """

    id: str
    words: tuple[str, ...]
    log: Path
    job: Any

    def exit_code(self) -> int:
        """Wait for the end of the job, and return the exit code of the command; 1 if the job itself was ended."""
        error = self.job.exception()
        if error is None:
            return 0
        told = re.search(rf"{_ENDED} (\d+)", str(error))
        return int(told[1]) if told else 1


def settings_of(values: Mapping[str, Any]) -> Slurm:
    """Return the settings of configs/launcher/slurm.yaml, of which a later one of the user's own comes first.

    A job is one process with one GPU unless `gpus_per_node` is given: only a training is worth more.

    Args:
        values: those given as launcher.KEY=VALUE.

    Raises:
        UsageError: no such setting.
    """
    file = read_yaml(find_file("launcher", "slurm"))
    return build(Slurm, {**file, "nodes": 1, "gpus_per_node": 1, **values}, "launcher")


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
    import submitit
    from submitit.core.utils import FailedJobError

    try:
        folder = out / "slurm"
        executor = submitit.AutoExecutor(folder, cluster=settings.cluster, slurm_max_num_timeout=settings.requeues)
        executor.update_parameters(**parameters(settings))
        if len(commands) == 1:
            jobs = [executor.submit(Job(commands[0]))]
        else:
            with executor.batch():
                jobs = [executor.submit(Job(words)) for words in commands]
        return [
            Submitted(str(job.job_id), tuple(words), Path(job.paths.stderr), job)
            for job, words in zip(jobs, commands, strict=True)
        ]
    except (RuntimeError, FailedJobError) as error:
        raise UsageError(
            f"the job cannot be submitted: {error}", "launcher.cluster=local runs it on this machine."
        ) from error


def parameters(settings: Slurm) -> dict[str, Any]:
    """Return the settings under submitit's names."""
    processes = max(1, settings.gpus_per_node)
    values: Mapping[str, Any] = {
        "name": settings.job_name,
        "timeout_min": max(1, round(settings.hours * 60)),
        "nodes": settings.nodes,
        "tasks_per_node": processes,
        "gpus_per_node": settings.gpus_per_node,
        "cpus_per_task": settings.cpus_per_gpu,
        "mem_gb": settings.memory_gb,
        "slurm_signal_delay_s": settings.save_seconds,
        "slurm_array_parallelism": settings.at_once,
        "slurm_partition": settings.partition,
        "slurm_account": settings.account,
        "slurm_qos": settings.qos,
        "slurm_constraint": settings.constraint,
        "slurm_exclude": settings.exclude,
        "slurm_additional_parameters": settings.extra,
    }
    return {key: value for key, value in values.items() if value is not None}
