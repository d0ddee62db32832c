"""Number of worker processes by device and cores."""

import pytest
import torch

from sslbench.runtime import resources


@pytest.mark.parametrize(
    ("cores", "cpu", "gpu"), [(1, 0, 0), (2, 0, 2), (8, 4, 8), (64, 8, 16)], ids=lambda value: str(value)
)
def test_auto_leaves_cores_to_a_network_on_them(cores, cpu, gpu, monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: cores)
    assert resources.resolve_workers("auto", torch.device("cpu")) == cpu
    assert resources.resolve_workers("auto", torch.device("cuda")) == gpu


def test_a_number_is_kept():
    assert resources.resolve_workers(3, torch.device("cpu")) == 3


@pytest.mark.parametrize(
    ("environment", "cores"),
    [
        ({}, 64),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"LOCAL_WORLD_SIZE": "100"}, 1),
        ({"LOCAL_WORLD_SIZE": "8", "SLURM_STEP_NUM_TASKS": "1", "SLURM_CPUS_PER_TASK": "64"}, 8),
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_CPUS_PER_TASK": "6"}, 6),
        ({"SLURM_CPUS_PER_TASK": "6"}, 64),  # a batch script outside any step
    ],
)
def test_the_processes_of_a_machine_share_its_cores(environment, cores, monkeypatch):
    for name in ("LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("joblib.cpu_count", lambda: 64)
    assert resources.usable_cores() == cores
