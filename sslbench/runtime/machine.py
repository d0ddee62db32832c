"""Free memory and disk space of this process."""

import shutil
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_NO_LIMIT = 2**60  # version 1 of control groups writes a number above it, version 2 the word "max"
_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
# Folder, limit, use, and key of the pages that can be dropped, in version 2 and 1 of control groups.
_GROUP_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory() -> float | None:
    """Return the bytes that this process can still take: of the machine, its container or its limits (ulimit).

    None if unknown.
    """
    known = [value for value in (_free_of_machine(), free_of_container(), free_of_limits()) if value is not None]
    return min(known, default=None)


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
    return min(free, default=None)


def _free_of_machine() -> float | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
        return next(float(line.split()[1]) * 2**10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # macOS and Windows
        try:
            import psutil  # type: ignore[import-untyped]
        except ImportError:
            return None
        return float(psutil.virtual_memory().available)


def free_of_container(root: Path = _CGROUP, own: Path = _OWN_GROUP) -> float | None:
    """Return the bytes below the memory limits of the control groups, version 2 or 1; None without a limit."""
    try:
        named = [Path(line.split(":", 2)[2].lstrip("/")) for line in own.read_text().splitlines()]
    except (OSError, IndexError):
        named = []
    groups = {parent for path in named for parent in (path, *path.parents)} | {Path()}
    free = []
    for folder, limit, used, droppable in _GROUP_FILES:
        for group in groups:
            files = root / folder / group
            try:
                most, taken = (files / limit).read_text().strip(), float((files / used).read_text())
                lines = (files / "memory.stat").read_text().splitlines()
            except (OSError, ValueError):
                continue
            if most.isdigit() and int(most) < _NO_LIMIT:
                # Pages of files that the kernel can drop count as free.
                dropped = sum(float(line.split()[1]) for line in lines if line.split()[:1] == [droppable])
                free.append(max(0.0, float(most) - taken + dropped))
    return min(free, default=None)


def free_disk(folder: Path) -> float:
    """Return the free bytes of the disk that holds a folder, which need not exist yet."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return float(shutil.disk_usage(existing).free)
