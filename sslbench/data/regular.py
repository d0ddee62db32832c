"""Reading of regular files only: a named pipe blocks its reader forever, a device may never end."""

import errno
import io
import os
import stat

MAX_BYTES = 1 << 32
"""Size limit of an image file, 4 GiB: more than a picture of --max-pixels with 13 bands of 16 bits."""

_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY"))
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}


def kind_of(mode: int) -> str:
    """Return the kind of a file by its mode: 'a file', 'a folder', 'a named pipe', 'a device' or 'a socket'."""
    return _KINDS.get(stat.S_IFMT(mode), "of an unknown kind")


def open_regular(path: str) -> io.FileIO:
    """Open a regular file for reading, unbuffered.

    Raises:
        OSError: the file cannot be opened, or is a named pipe, a device, a socket or a folder.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, f"{kind_of(mode)}, not a regular file", path)
        return io.FileIO(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_image(path: str) -> io.FileIO:
    """Open an image file for reading.

    Raises:
        OSError: as for `open_regular`, or the file exceeds `MAX_BYTES`.
    """
    file = open_regular(path)
    size = os.fstat(file.fileno()).st_size
    if size > MAX_BYTES:
        file.close()
        raise OSError(errno.EFBIG, f"{size:,} bytes, more than the limit of {MAX_BYTES:,} for an image file", path)
    return file


def read_image(path: str) -> bytes:
    """Return the bytes of an image file.

    Raises:
        OSError: as for `open_image`, or the content does not fit into memory.
    """
    with open_image(path) as file:
        return read_all(file)


def read_all(file: io.FileIO) -> bytes:
    """Return the bytes of an open file.

    Raises:
        OSError: the file cannot be read, or does not fit into memory.
    """
    try:
        return file.read()
    except MemoryError as error:
        size = os.fstat(file.fileno()).st_size
        raise OSError(errno.ENOMEM, f"{size:,} bytes do not fit into memory", file.name) from error
