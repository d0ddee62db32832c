"""Locations of further sets: as given, else below the folder of the benchmarks' data."""

import os
from pathlib import Path


def located(location: str) -> str:
    """Return a location; a name that exists only in the data folder ($SSLBENCH_DATA, else ./data) as the path there.

    Args:
        location: as for --data: a path, a name of the catalog, or a string such as 'torchvision:svhn'.
    """
    if not location or Path(location).is_absolute() or Path(location).exists():
        return location
    inside = Path(os.environ.get("SSLBENCH_DATA") or "data").expanduser() / location
    return str(inside) if inside.exists() else location
