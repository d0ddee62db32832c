"""Names of devices and precisions, and numbers of worker processes, without torch."""

import os
import re
from typing import TYPE_CHECKING, Literal

from sslbench.errors import UsageError

if TYPE_CHECKING:
    import torch


Precision = Literal["fp32", "bf16", "fp16"]
"""Precision of a forward pass."""
EncodingPrecision = Literal["fp32", "bf16", "fp16", "int8"]
"""Precision of a forward pass that nothing is trained through."""
AskedPrecision = Literal["auto", "fp32", "bf16", "fp16"]
"""Precision that may be left to the device."""

_DEVICE = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d{1,2})?")


def refuse_unknown_device(name: str) -> None:
    """Refuse a word that names no device; this machine may still lack the device."""
    if not _DEVICE.fullmatch(name):
        raise UsageError(f"there is no device called '{name}'", "Use auto, cpu, cuda, cuda:1, mps or xpu.")


def float_precision(precision: EncodingPrecision) -> Precision:
    """Return the precision of a network that is trained or gives maps."""
    if precision == "int8":
        raise UsageError(
            "precision int8 is for protocols on features, such as linear and knn, and for extract",
            "Use --precision bf16 or fp32.",
        )
    return precision


StartMethod = Literal["auto", "fork", "spawn", "forkserver"]
"""Start method of worker processes, as `multiprocessing` names them; 'auto' takes fork where that is safe."""

MAX_WORKERS = 16


def usable_cores() -> int:
    """Return the number of cores that this process may use; affinity and the limits of a container count."""
    # The processes that torchrun starts on a machine share its cores; under srun, a task has those of --cpus-per-task.
    import joblib  # type: ignore[import-untyped]

    cores = int(joblib.cpu_count())
    if local := os.environ.get("LOCAL_WORLD_SIZE", ""):
        return max(1, cores // int(local)) if local.isdigit() and int(local) else cores
    of_task = os.environ.get("SLURM_CPUS_PER_TASK", "") if "SLURM_STEP_NUM_TASKS" in os.environ else ""
    return min(cores, int(of_task)) if of_task.isdigit() and int(of_task) else cores


def default_workers() -> int:
    """Return the number of usable cores, at most 16; 0 for a single core."""
    cores = usable_cores()
    return 0 if cores == 1 else min(cores, MAX_WORKERS)


def resolve_workers(workers: int | Literal["auto"], device: "torch.device") -> int:
    """Return the number of worker processes for a setting."""
    # 'auto' is one per core beside a GPU, and one per two cores where the network computes on the same cores. On two
    # cores it is none: ResNet-18 on JPEGs took 1.49 times as long as the bare model without workers, 1.43 with one,
    # 1.40 with two (float32; bfloat16: 2.58, 2.17, 2.27).
    if workers != "auto":
        return workers
    cores = default_workers()
    if device.type != "cpu":
        return cores
    return cores // 2 if cores > 2 else 0
