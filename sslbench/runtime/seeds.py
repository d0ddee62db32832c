"""Global random number generators: separate streams for processes, saved and restored states."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def seed_process(seed: int, rank: int) -> None:
    """Seed torch's default generators, with a separate stream for each process."""
    torch.manual_seed(seed * 1_000_003 + rank)


@contextlib.contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's generator of the CPU during a block, and restore its state afterwards.

    `device`: a GPU whose generator is seeded and restored, too; None, or the CPU: no other.

    >>> with seeded(0):
    ...     first = torch.rand(3)
    >>> with seeded(0):
    ...     torch.equal(first, torch.rand(3))
    True
    """
    gpu = device is not None and device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if gpu else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would initialise CUDA
        if gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def random_states(device: torch.device | None = None) -> dict[str, Any]:
    """Return the states of the global generators of torch, numpy and Python, as tensors and numbers.

    `device`: a GPU whose generator is included; None, or the CPU: no other.
    """
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    states = {
        "torch": torch.get_rng_state(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }
    if device is not None and device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_states(states: dict[str, Any], device: torch.device | None = None) -> None:
    """Set the global generators, and that of a GPU, to states from `random_states`."""
    torch.set_rng_state(states["torch"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    if "cuda" in states and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


@contextlib.contextmanager
def preserved_random_states(device: torch.device | None = None) -> Iterator[None]:
    """Restore the global random states at the end of a block, however it ends.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...Generator object at ...>
    >>> with preserved_random_states():
    ...     first = torch.rand(3)
    >>> torch.equal(first, torch.rand(3))
    True
    """
    states = random_states(device)
    try:
        yield
    finally:
        restore_random_states(states, device)
