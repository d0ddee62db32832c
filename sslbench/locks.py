"""Locks of files, which the operating system releases however a process ends.

Windows has none of this kind: there `lock` takes none. It refuses to remove or rename open files, so a file in use is
safe; two runs that write the same file at the same time are not kept apart.
"""

import multiprocessing
from typing import IO

from sslbench.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows
    AVAILABLE = False
else:
    AVAILABLE = True


GUARD = "Put the calls of the script into `if __name__ == '__main__':`."
"""Remedy where processes do not fork: each imports the script, and would run it again."""


def lock(file: int | IO[str] | IO[bytes], *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file until it is closed, and return whether this process has the lock.

    Args:
        file: open file or its descriptor.
        shared: other processes may have a shared lock too.
        wait: until others have released it; else the answer comes at once.

    Raises:
        OSError: the file system has no locks.
        UsageError: this is a new process that runs the user's script again; it would wait for its parent for ever.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryFile() as first:
        ...     lock(first)
        True
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError("the script runs again in a process that decodes images", GUARD)
    if not AVAILABLE:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
