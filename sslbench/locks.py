"""Locks of files, which the operating system releases however a process ends.

Windows has none of this kind: there `lock` takes none. It refuses to remove or rename open files, so a file in use is
safe; two runs that write the same file at the same time are not kept apart. Nor are they on file systems without locks
(Lustre without `-o flock`, some of FUSE), where files that others may use are never removed.
"""

import errno
import functools
import logging
import multiprocessing
from pathlib import Path
from typing import IO

from sslbench.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows
    AVAILABLE = False
else:
    AVAILABLE = True


UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK)
"""Errors of a file system without locks."""

GUARD = "Put the calls of the script into `if __name__ == '__main__':`."
"""Remedy where processes do not fork: each imports the script, and would run it again."""


def lock(file: int | IO[str] | IO[bytes], *, shared: bool = False, wait: bool = True) -> bool | None:
    """Lock an open file until it is closed, and return whether this process has the lock.

    On a file system without locks it returns None, and warns once for each folder.

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
    except OSError as error:
        name = str(getattr(file, "name", file))
        if error.errno not in UNSUPPORTED:
            raise OSError(error.errno, error.strerror, name) from error
        warn_unsupported(Path(name).parent if not isinstance(file, int) else None)
        return None
    return True


@functools.cache
def warn_unsupported(folder: Path | None) -> None:
    """Warn once that the file system of a folder has no locks; None, a file without a name, warns of nothing."""
    if folder is not None:
        logging.getLogger("sslbench").warning(
            "%s: its file system has no locks; start no second run that writes there at the same time", folder
        )
