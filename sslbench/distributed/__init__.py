"""Which of how many processes this one is, read from the environment that torchrun or srun sets.

Joining them and collective operations are in `collectives`, which imports torch; this does not.
"""

import dataclasses
import os

from sslbench.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Process:
    """This process among the `world` that were started together; `local` counts on its own machine."""

    rank: int = 0
    world: int = 1
    local: int = 0


def this_process() -> Process:
    """From torchrun's RANK and WORLD_SIZE, else from the step variables of srun, else one process alone.

    A batch script under SLURM that does not use srun is one process, whatever number of tasks was reserved: only
    variables of the *step* count.

    Raises:
        UsageError: the variables contradict each other.
    """
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
