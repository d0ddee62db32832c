"""Locations of further sets: as given, else below the folder of the benchmarks' data."""

from pathlib import Path

from sslbench import paths
from sslbench.errors import UsageError

_NO_PATH = "*{?:"  # characters of strings such as 'torchvision:svhn', and of shards


def located(location: str, setting: str) -> str:
    """Return a location; a name that exists only in the data folder ($SSLBENCH_DATA, else ./data) as the path there.

    Args:
        location: as for --data: a path, a name of the catalog, or a string such as 'torchvision:svhn'.
        setting: setting that has it, for messages.

    Raises:
        UsageError: it is a path with a slash, and there is nothing.
    """
    if not location or Path(location).exists():
        return location
    inside = paths.data_dir() / location
    if inside.exists():
        return str(inside)
    if "/" in location and not any(character in location for character in _NO_PATH):
        raise UsageError(
            f"{setting}={location} does not exist"
            + ("" if Path(location).is_absolute() else f", neither here nor in {paths.data_dir()}/ ($SSLBENCH_DATA)"),
            "Name an existing folder or file.",
        )
    return location
