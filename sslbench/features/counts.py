"""Numbers of images that the processes of an extraction encoded, in files beside the features.

The processes of an extraction share files only, so the first one reads there what the others did.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from sslbench.weights.save import new_file


def write_counts(folder: Path, rank: int, decoded: int, conversions: Mapping[str, int]) -> None:
    """Write the counts of a process, before its rows are marked as done.

    Args:
        folder: of the features.
        rank: of the process.
        decoded: number of images so far.
        conversions: number of decoded images by conversion so far.

    Raises:
        SslbenchError: the file cannot be written.
    """
    file = _file(folder, str(rank))
    with new_file(file) as temporary:
        temporary.write_text(json.dumps({"decoded": decoded, "conversions": conversions}), encoding="utf-8")


def take_counts(folder: Path) -> tuple[int, Counter[str]]:
    """Return the sums of the counts that other processes wrote, and remove the files."""
    decoded, conversions = 0, Counter[str]()
    for file in folder.glob(_file(folder, "*").name):
        found = json.loads(file.read_text(encoding="utf-8"))
        decoded += found["decoded"]
        conversions.update(found["conversions"])
        file.unlink()
    return decoded, conversions


def _file(folder: Path, rank: str) -> Path:
    return folder / f"process-{rank}.counts"  # `Presence` removes those of an earlier run
