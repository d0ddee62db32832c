"""The list of images that evaluations in one folder left out, beside their results."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sslbench.data.source import Source
from sslbench.errors import StoreError
from sslbench.features.store import SKIPPED, read_csv, write_skipped


def note_skipped(folder: Path, parts: Sequence[Source], skipped: Sequence[Mapping[str, str]]) -> None:
    """Brings skipped.csv in a folder of results up to date; there is none where nothing was left out.

    Args:
        folder: of the results; what earlier evaluations on other images left out stays listed.
        parts: whose images were looked at now: lines about them are replaced.
        skipped: id, path and reason of those that were left out.

    Raises:
        StoreError: the file cannot be written.
    """
    file = folder / SKIPPED
    try:
        earlier = read_csv(file)
        if earlier:
            looked_at = {part.images.path(index) for part in parts for index in range(len(part))}
            earlier = [row for row in earlier if row["path"] not in looked_at]
        rows = [*earlier, *skipped]
        if rows:
            folder.mkdir(parents=True, exist_ok=True)
            write_skipped(folder, rows)
        else:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from error
