"""Names of classes in a text file."""

from pathlib import Path

from sslbench.errors import UsageError


def read_class_names(path: Path) -> list[str]:
    """Return the names of classes in a text file, one per line; empty lines at the end do not count.

    A name may occur twice: ImageNet has two classes called crane.

    Raises:
        UsageError: the file cannot be read, or has no names or empty ones.
    """
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").rstrip().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the class names in {path}: {error}") from error
    if not names or not all(names):
        raise UsageError(f"{path}: line {names.index('') + 1 if names else 1} is empty", "Write one name per line.")
    return names
