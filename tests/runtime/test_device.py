"""The GPU of each process, and what is refused, without one."""

import contextlib

import pytest
import torch

from sslbench.errors import UsageError
from sslbench.runtime.device import check_precision, choose_device, local_gpu


@pytest.fixture
def gpus(monkeypatch):
    def see(count, **environment):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return see


def slurm(rank, local):
    return {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local)}


@pytest.mark.parametrize(("visible", "expected"), [(1, [0, 0, 0, 0]), (2, [0, 1, 0, 1]), (4, [0, 1, 2, 3])])
def test_each_task_takes_a_gpu_that_it_sees(visible, expected, gpus):
    """`srun --gpus-per-task=1` shows each task one GPU, another one."""
    taken = []
    for local in range(4):
        gpus(visible, **slurm(4 + local, local))
        taken.append(choose_device("cuda"))
    assert taken == [torch.device("cuda", number) for number in expected]


def test_one_process_alone_takes_the_current_one(gpus):
    gpus(2)
    assert choose_device("auto") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")


def test_a_gpu_that_is_not_there_is_refused(gpus):
    gpus(2)
    with pytest.raises(UsageError, match=r"cuda:3: there are 2 GPUs on this machine\nUse cuda:0 or cuda:1"):
        choose_device("cuda:3")


def test_several_processes_do_not_share_a_gpu(gpus):
    torchrun = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
    gpus(2, **torchrun, LOCAL_WORLD_SIZE="4")
    with pytest.raises(UsageError, match=r"4 processes were started on this machine, which has 2 visible GPUs"):
        local_gpu(2)
    gpus(4, **torchrun, LOCAL_WORLD_SIZE="4")
    with pytest.raises(UsageError, match=r"cuda:1 names one GPU, but 4 processes were started"):
        choose_device("cuda:1")


@pytest.mark.parametrize(
    ("precision", "size", "kernel", "layers", "refused"),
    [
        ("bf16", 16, 3, 5, True),  # maps of 16, 8, 4, 2 and 1 cells
        ("bf16", 17, 3, 5, False),
        ("fp32", 16, 3, 5, False),
        ("bf16", 16, 1, 5, False),
        ("bf16", 8, 3, 3, False),  # a network of less stride
        ("bf16", 32, 3, 6, True),  # one of more
    ],
)
def test_bf16_on_the_cpu_is_refused_where_gradients_are_wrong(precision, size, kernel, layers, refused):
    convolutions = [torch.nn.Conv2d(2, 2, kernel, stride=2, padding=kernel // 2) for _ in range(layers)]
    network = torch.nn.Sequential(*convolutions, torch.nn.BatchNorm2d(2))
    before = network[-1].running_mean.clone()
    with pytest.raises(UsageError, match="maps of one cell") if refused else contextlib.nullcontext():
        check_precision(precision, torch.device("cpu"), network, size, channels=2)
    assert network.training and torch.equal(network[-1].running_mean, before)
