"""A limit of the size of files, which stands for a full disk."""

import contextlib
import resource
import sys


@contextlib.contextmanager
def files_up_to(size):
    """Let no file of this process grow beyond `size` bytes.

    What is imported meanwhile is not kept compiled: Python would leave its first bytes, which nobody can import again.
    """
    before, kept = resource.getrlimit(resource.RLIMIT_FSIZE), sys.dont_write_bytecode
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = kept
