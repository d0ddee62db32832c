"""The GPU of each process, and what is refused, without one."""

import contextlib

import pytest
import torch

from sslbench.distributed.collectives import process_group
from sslbench.errors import UsageError
from sslbench.evaluation.request import RunSettings
from sslbench.runtime.device import check_precision, choose_device, choose_precision, local_gpu, widest_float
from sslbench.runtime.seeds import preserved_random_states


@pytest.fixture
def gpus(monkeypatch):
    def see(count, **environment):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_GPUS_PER_TASK"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return see


def slurm(rank, local):
    return {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local)}


@pytest.mark.parametrize(("visible", "expected"), [(1, [0, 0, 0, 0]), (2, [0, 1]), (4, [0, 1, 2, 3])])
def test_each_task_takes_a_gpu_that_it_sees(visible, expected, gpus):
    """`srun --gpus-per-task=1` shows each task one GPU, another one."""
    taken = []
    for local in range(len(expected)):
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
    gpus(2, **slurm(6, 2))
    with pytest.raises(UsageError, match=r"3 processes .* 2 visible GPUs\n.*srun --ntasks-per-node=2"):
        choose_device("cuda")
    gpus(2, **slurm(6, 2), SLURM_GPUS_PER_TASK="2")
    assert choose_device("cuda") == torch.device("cuda:0"), "GPUs of its own"


@pytest.mark.parametrize(("name", "kind"), [("cuda", "CUDA GPU"), ("mps", "GPU of Apple"), ("xpu:1", "GPU of Intel")])
def test_a_kind_of_gpu_that_is_not_there_is_refused(name, kind, monkeypatch):
    for place in (torch.cuda, torch.backends.mps, torch.xpu):
        monkeypatch.setattr(place, "is_available", lambda: False)
    with pytest.raises(UsageError, match=f"--device {name}: torch finds no {kind} on this machine\nUse --device cpu"):
        choose_device(name)


def test_a_processor_has_no_number():
    for name in ("cpu:7", "cpu:0", "mps:1", "gpu"):
        with pytest.raises(UsageError, match=f"no device called '{name}'\nUse auto, cpu, cuda, cuda:1, mps or xpu"):
            choose_device(name)


def test_fp16_is_not_imitated_on_a_processor():
    with pytest.raises(UsageError, match=r"fp16 is for GPUs.*\nUse precision bf16 or fp32"):
        choose_precision("fp16", torch.device("cpu"))
    with pytest.raises(UsageError, match="fp16 is for GPUs"):
        RunSettings(device="cpu", precision="fp16").extract_settings()
    assert choose_precision("fp16", torch.device("cuda")) == "fp16"


def test_the_named_gpu_is_the_current_one_and_its_random_states_are_kept(gpus, monkeypatch):
    gpus(2)
    current, seen = [0], []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.insert(0, getattr(device, "index", device)))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device="cuda": seen.append(device) or torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device="cuda": seen.append(device))
    device = choose_device("cuda:1")
    with pytest.raises(KeyError), process_group(device):
        assert current[0] == 1
        with preserved_random_states(device):
            raise KeyError
    assert current[0] == 0 and seen == [device, device]


def test_gpus_of_apple_have_no_float64():
    assert widest_float(torch.device("mps")) == torch.float32
    assert widest_float(torch.device("cuda")) == torch.float64


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
