"""Number of worker processes for decoding and augmentation, and the way in which they are started."""

import os
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

StartMethod = Literal["auto", "fork", "spawn", "forkserver"]
"""Start method of worker processes, as `multiprocessing` names them; 'auto' takes fork where that is safe."""

MAX_WORKERS = 16


def usable_cores() -> int:
    """Return the number of cores that this process may use; affinity and the limits of a container count.

    The processes that torchrun starts on a machine share its cores; under srun, a task has those of --cpus-per-task.
    """
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
    """Return the number of worker processes for a setting.

    'auto' is one per core beside a GPU, and one per two cores where the network computes on the same cores. On two
    cores it is none: ResNet-18 on JPEGs took 1.49 times as long as the bare model without workers, 1.43 with one,
    1.40 with two (float32; bfloat16: 2.58, 2.17, 2.27).

    Args:
        workers: a number, which is returned unchanged, or 'auto'.
        device: device of the network.
    """
    if workers != "auto":
        return workers
    cores = default_workers()
    if device.type != "cpu":
        return cores
    return cores // 2 if cores > 2 else 0
