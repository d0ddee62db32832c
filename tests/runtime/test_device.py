"""Devices, workers, random states, rates of the machine."""

import contextlib
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from sslbench.distributed.collectives import process_group
from sslbench.errors import UsageError
from sslbench.evaluation.preparation import extract_settings
from sslbench.evaluation.settings import RunSettings
from sslbench.runtime import machine, resources
from sslbench.runtime.device import check_precision, choose_device, choose_precision, local_gpu, widest_float
from sslbench.runtime.seeds import preserved_random_states, seed_process, seeded


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
        extract_settings(RunSettings(device="cpu", precision="fp16"))
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


def group(folder, limit, used, droppable, names=("memory.max", "memory.current", "inactive_file")):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {droppable}\n")


OLD = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@pytest.mark.parametrize(
    ("inside", "names"), [("", ("memory.max", "memory.current", "inactive_file")), ("memory", OLD)]
)
def test_the_smallest_limit_of_the_groups_above_counts(tmp_path, inside, names):
    own = tmp_path / "own"
    own.write_text("4:memory:/job/step\n0::/job/step\n")
    root = tmp_path / "groups"
    group(root / inside / "job" / "step", "max" if names != OLD else 2**63 - 4096, 10, 5, names)
    assert machine.free_of_container(root, own) is None
    group(root / inside / "job", 1000, 400, 100, names)
    assert machine.free_of_container(root, own) == 700
    group(root / inside / "job" / "step", 500, 450, 0, names)
    assert machine.free_of_container(root, own) == 50
    group(root / inside / "job" / "step", 500, 900, 0, names)
    assert machine.free_of_container(root, own) == 0


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert machine.free_of_container(tmp_path, tmp_path / "missing") is None


def test_free_memory_is_at_most_that_of_the_container(monkeypatch):
    monkeypatch.setattr(machine, "free_of_container", lambda: 1234.0)
    assert machine.free_memory() == 1234.0


def test_the_disk_of_a_folder_that_does_not_exist_yet(tmp_path):
    assert machine.free_disk(tmp_path / "a" / "b") == pytest.approx(machine.free_disk(tmp_path), rel=0.1)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process_bound_its_free_memory(limit):
    code = f"""
import resource
from sslbench.runtime import machine
assert machine.free_of_limits() is None
taken = {{line.split(":")[0]: 1024 * int(line.split()[1]) for line in open("/proc/self/status") if line[:2] == "Vm"}}
used = taken["VmSize" if "{limit}" == "RLIMIT_AS" else "VmData"]
resource.setrlimit(resource.{limit}, (used + 500_000_000, resource.RLIM_INFINITY))
assert 400e6 < machine.free_memory() <= 500e6, machine.free_memory()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def draw():
    return torch.rand(1).item(), np.random.rand(), random.random()


def test_states_are_restored_even_after_an_error():
    with preserved_random_states():
        expected = draw()
    with pytest.raises(KeyError), preserved_random_states():
        draw()
        raise KeyError
    assert draw() == expected


def test_every_seed_and_process_has_its_own_stream():
    with preserved_random_states():
        drawn = set()
        for seed in range(3):
            for rank in range(3):
                seed_process(seed, rank)
                drawn.add(torch.rand(1).item())
    assert len(drawn) == 9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_generator_of_a_gpu_is_seeded_and_restored():
    device = torch.device("cuda", 0)
    before = torch.cuda.get_rng_state(device)
    drawn = []
    for _ in range(2):
        with seeded(3, device):
            drawn.append(torch.rand(4, device=device))
    assert torch.equal(*drawn) and torch.equal(before, torch.cuda.get_rng_state(device))


def test_a_block_is_seeded_and_the_state_restored_on_the_cpu():
    expected = torch.default_generator.get_state()
    drawn = []
    for device in (None, torch.device("cpu")):
        with seeded(3, device):
            drawn.append(torch.rand(4))
    assert torch.equal(*drawn) and torch.equal(expected, torch.default_generator.get_state())


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
