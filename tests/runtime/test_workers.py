"""Number of worker processes by device and cores."""

import pytest
import torch

from sslbench.runtime import workers


@pytest.mark.parametrize(
    ("cores", "cpu", "gpu"), [(1, 0, 0), (2, 0, 2), (8, 4, 8), (64, 8, 16)], ids=lambda value: str(value)
)
def test_auto_leaves_cores_to_a_network_on_them(cores, cpu, gpu, monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: cores)
    assert workers.resolve_workers("auto", torch.device("cpu")) == cpu
    assert workers.resolve_workers("auto", torch.device("cuda")) == gpu


def test_a_number_is_kept():
    assert workers.resolve_workers(3, torch.device("cpu")) == 3
