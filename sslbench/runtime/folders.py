"""Output folders."""

from pathlib import Path

from sslbench.errors import UsageError


def check_writable(folder: Path) -> None:
    """Create an output folder, and check that it is writable before hours of work.

    Raises:
        UsageError: the path is a file, or writing is not allowed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".write-test"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror or error}") from error
