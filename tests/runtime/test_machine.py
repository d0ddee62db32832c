"""Free memory, by control groups and limits as well, and free disk space."""

import subprocess
import sys

import pytest

from sslbench.runtime import machine


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
