"""Speed of this machine, measured in a fraction of a second, and its free memory and disk space."""

import dataclasses
import functools
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sslbench.runtime.cost import Cost

_SIDE = 1024  # of the square matrices that are multiplied: larger than the caches, a few hundredths of a second
_SEARCHED = (1024, 4096, 512)  # queries, rows and width of the search that is timed
_BYTES = 2**25  # of the array that is passed over
_ROUNDS = 2  # of each measurement, of which the fastest counts
_CALL = 1e-5  # seconds of a call of an array function on a small array, with the Python code around it
_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_NO_LIMIT = 2**60  # version 1 writes a number above it, version 2 the word "max"
_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")


@dataclasses.dataclass(frozen=True)
class Speed:
    """Rates of a machine with the threads in force.

    Attributes:
        single: floating-point operations per second of float32 matrix products; a multiply-add is two.
        double: the same of float64 matrix products.
        search: the same of the float32 products inside a faiss search.
        traffic: bytes per second that a pass over arrays reads and writes.
    """

    single: float
    double: float
    search: float
    traffic: float

    @property
    def multiplies_faster_than_faiss(self) -> bool:
        """Advantage of a search by numpy's products, the choice of the nearest included, over one by faiss."""
        return self.single > 2 * self.search

    def seconds(self, cost: Cost) -> float:
        """Return the time of a computation in seconds.

        >>> Speed(single=1e11, double=5e10, search=5e10, traffic=1e10).seconds(Cost(single=2e11, traffic=1e10))
        3.0
        """
        search = self.single / 1.5 if self.multiplies_faster_than_faiss else self.search
        products = cost.single / self.single + cost.double / self.double + cost.search / search
        return products + cost.traffic / self.traffic + cost.calls * _CALL


SLOW = Speed(single=4e9, double=2e9, search=2e9, traffic=1e9)
"""Rates below those of nearly any machine: work that is short with them needs no measurement."""


def measure_speed(clock: Callable[[], float] = time.perf_counter) -> Speed:
    """Measure the rates of this process, with the threads of its linear algebra, in about half a second.

    Args:
        clock: function that returns seconds.
    """
    import faiss

    generator = np.random.default_rng(0)
    narrow = generator.standard_normal((_SIDE, _SIDE), dtype=np.float32)
    wide = narrow.astype(np.float64)
    out = (np.empty_like(narrow), np.empty_like(wide))
    given = np.ones(_BYTES // 8)
    copied = np.empty_like(given)
    queries, rows, width = _SEARCHED
    searched = generator.standard_normal((rows, width), dtype=np.float32)
    operations = 2 * _SIDE**3
    return Speed(
        operations / _fastest(lambda: np.matmul(narrow, narrow, out=out[0]), clock),
        operations / _fastest(lambda: np.matmul(wide, wide, out=out[1]), clock),
        2 * queries * rows * width / _fastest(lambda: faiss.knn(searched[:queries], searched, 1), clock),
        2 * _BYTES / _fastest(lambda: np.multiply(given, 2.0, out=copied), clock),
    )


@functools.cache
def speed() -> Speed:
    """Return the rates of this process, measured once."""
    return measure_speed()


def _fastest(function: Callable[[], object], clock: Callable[[], float]) -> float:
    function()  # allocates, starts threads
    taken = []
    for _ in range(_ROUNDS):
        started = clock()
        function()
        taken.append(clock() - started)
    return max(min(taken), 1e-9)


def free_memory() -> float | None:
    """Return the bytes that this process can still take: of the machine, its container or its limits (ulimit).

    None if unknown.
    """
    known = [value for value in (_free_of_machine(), free_of_container(), free_of_limits()) if value is not None]
    return min(known) if known else None


def free_of_limits() -> float | None:
    """Return the bytes below the limits of this process, `ulimit -v` and `ulimit -d`; None without a limit."""
    try:
        import resource

        lines = _STATUS.read_text().splitlines()
    except (ImportError, OSError):
        return None
    taken = {line.split(":")[0]: float(line.split()[1]) * 2**10 for line in lines if line.startswith("Vm")}
    limits = {"VmSize": resource.RLIMIT_AS, "VmData": resource.RLIMIT_DATA}
    most = {name: resource.getrlimit(limit)[0] for name, limit in limits.items() if name in taken}
    free = [max(0.0, number - taken[name]) for name, number in most.items() if number != resource.RLIM_INFINITY]
    return min(free) if free else None


def _free_of_machine() -> float | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return _free_by_psutil()
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return float(found[0]) * 2**10 if found else _free_by_psutil()


def _free_by_psutil() -> float | None:
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:
        return None
    return float(psutil.virtual_memory().available)


def free_of_container(root: Path = _CGROUP, own: Path = _OWN_GROUP) -> float | None:
    """Return the bytes below the memory limits of the control groups, version 2 or 1; None without a limit.

    Pages of files that the kernel can drop count as free.

    Args:
        root: folder of the control groups.
        own: file that names the groups of this process, whose parents have limits too.
    """
    try:
        named = [Path(line.split(":", 2)[2].lstrip("/")) for line in own.read_text().splitlines()]
    except (OSError, IndexError):
        named = []
    inside = {parent for path in named for parent in (path, *path.parents)} | {Path()}
    free = [_free_of_group(root / files.folder / group, files) for files in _GROUP_FILES for group in inside]
    known = [value for value in free if value is not None]
    return min(known) if known else None


def _free_of_group(folder: Path, files: "_GroupFiles") -> float | None:
    try:
        most, taken = (folder / files.limit).read_text().strip(), float((folder / files.used).read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return None
    if not most.isdigit() or int(most) >= _NO_LIMIT:
        return None
    droppable = [float(line.split()[1]) for line in lines if line.split()[:1] == [files.droppable]]
    return max(0.0, float(most) - taken + sum(droppable))


@dataclasses.dataclass(frozen=True)
class _GroupFiles:
    """Names of the files of a version of control groups."""

    folder: str
    limit: str
    used: str
    droppable: str


_GROUP_FILES = (
    _GroupFiles("", "memory.max", "memory.current", "inactive_file"),
    _GroupFiles("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_disk(folder: Path) -> float:
    """Return the free bytes of the disk that holds a folder, which need not exist yet."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return float(shutil.disk_usage(existing).free)
