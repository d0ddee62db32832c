"""Rank of this process, number of processes and their meeting point, from the environment that torchrun or srun sets.

This module does not import torch; process groups and collective operations are in `collectives`.
"""

import dataclasses
import os
import re

from sslbench.errors import UsageError

_HOST = r"(?:[^\[\],\s]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+"
_HOSTS = re.compile(rf"({_HOST})(?:,{_HOST})*")


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


def set_rendezvous() -> None:
    """Set MASTER_ADDR and MASTER_PORT under srun, from the variables of the step; torchrun sets them itself."""
    env = os.environ
    if "MASTER_ADDR" not in env and "SLURM_STEP_NODELIST" in env:
        env["MASTER_ADDR"] = first_host(env["SLURM_STEP_NODELIST"])
        # Jobs that share the machine need different ports.
        env.setdefault("MASTER_PORT", str(20000 + int(env.get("SLURM_JOB_ID", "0")) % 20000))
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in env]
    if missing:
        raise UsageError(
            f"several processes were started, but {' and '.join(missing)} is not set",
            "Start them with torchrun: torchrun --nproc-per-node 2 -m sslbench pretrain ...",
        )


def first_host(nodes: str) -> str:
    """Return the first host name of SLURM's compact list of hosts.

    >>> first_host("gpu[01-03,7]-ib,login")
    'gpu01-ib'
    """
    whole = _HOSTS.fullmatch(nodes)
    if whole is None:
        raise UsageError(
            f"'{nodes}' is not a SLURM host list such as node[003-006,9],other",
            "Set MASTER_ADDR to the first host of the job.",
        )
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", whole[1])
