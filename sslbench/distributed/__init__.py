"""Rank of this process and number of processes, from the environment that torchrun or srun sets.

This module does not import torch; process groups and collective operations are in `collectives`.
"""

import dataclasses
import os

from sslbench.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Process:
    """Rank of this process, number of processes, and rank on its own machine."""

    rank: int = 0
    world: int = 1
    local: int = 0


def this_process() -> Process:
    """Return this process by torchrun's RANK and WORLD_SIZE, else by srun's step variables; else a single process."""
    # A batch script under SLURM without srun is a single process, whatever number of tasks was reserved: only variables
    # of the *step* count.
    env = os.environ
    if "WORLD_SIZE" in env and "RANK" in env:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    elif "SLURM_STEP_NUM_TASKS" in env and "SLURM_PROCID" in env:
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    else:
        return Process()
    try:
        rank, world, local = (int(env.get(name, "0")) for name in names)
    except ValueError as error:
        raise UsageError(f"the environment variables {', '.join(names)} should be whole numbers: {error}") from error
    if not 0 <= rank < world:
        raise UsageError(f"{names[0]}={rank} does not fit {names[1]}={world}")
    return Process(rank, world, local)
