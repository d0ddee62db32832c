"""Locations of further sets: as given, else below the folder of the benchmarks' data."""

from pathlib import Path

from sslbench import paths


def located(location: str) -> str:
    """Return a location; a name that exists only in the data folder ($SSLBENCH_DATA, else ./data) as the path there.

    Args:
        location: as for --data: a path, a name of the catalog, or a string such as 'torchvision:svhn'.
    """
    if not location or Path(location).is_absolute() or Path(location).exists():
        return location
    inside = paths.data_dir() / location
    return str(inside) if inside.exists() else location
