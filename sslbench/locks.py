"""Locks of files, which the operating system releases however a process ends.

Windows has none of this kind: there `lock` takes none. It refuses to remove or rename open files, so a file in use is
safe; two runs that write the same file at the same time are not kept apart.
"""

from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    AVAILABLE = False
else:
    AVAILABLE = True


def lock(file: int | IO[str] | IO[bytes], *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file until it is closed, and return whether this process has the lock.

    Args:
        file: open file or its descriptor.
        shared: other processes may have a shared lock too.
        wait: until others have released it; else the answer comes at once.

    Raises:
        OSError: the file system has no locks.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryFile() as first:
        ...     lock(first)
        True
    """
    if not AVAILABLE:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
