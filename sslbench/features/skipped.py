"""Unreadable images: the error that lists them, and the list of those left out of a result."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sslbench.data.source import Source
from sslbench.errors import DataError, StoreError
from sslbench.features.store import SKIPPED, read_csv, write_skipped
from sslbench.paths import not_written


def note_skipped(folder: Path, parts: Sequence[Source], skipped: Sequence[Mapping[str, str]]) -> None:
    """Update skipped.csv in a folder of results; there is none if no image was left out.

    Args:
        folder: of the results; images left out by earlier evaluations on other data stay listed.
        parts: the evaluated data, whose lines are replaced.
        skipped: id, path and reason of the images left out.

    Raises:
        StoreError: the file cannot be written.
    """
    file = folder / SKIPPED
    try:
        earlier = read_csv(file)
        if earlier:
            paths = {part.images.path(index) for part in parts for index in range(len(part))}
            earlier = [row for row in earlier if row["path"] not in paths]
        rows = [*earlier, *skipped]
        if rows:
            folder.mkdir(parents=True, exist_ok=True)
            write_skipped(folder, rows)
        else:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(not_written(file, error)) from error


def unread_error(source: Source, unread: Sequence[tuple[str, str]]) -> DataError:
    """Return the error that lists images (path, reason) that changed or became unreadable after they were hashed.

    Such an image may be decodable, so it is never left out of stored features.
    """
    return DataError(
        f"{len(unread)} of {len(source)} images of {source.name} have changed since they were hashed, or cannot be "
        "read now:\n" + _listed(unread),
        "Run the same command again once they are readable and nothing writes to them.",
    )


def unreadable_error(source: Source, unreadable: Sequence[tuple[str, str]]) -> DataError:
    """Return the error that lists unreadable images (path, reason), up to 50 of them."""
    return DataError(
        f"{len(unreadable)} of {len(source)} images of {source.name} cannot be read:\n" + _listed(unreadable),
        "Repair or remove them, or leave them out with --on-error skip (the result then has their number).",
    )


def _listed(images: Sequence[tuple[str, str]]) -> str:
    lines = [f"  {path}: {reason}" for path, reason in images[:50]]
    if len(images) > 50:
        lines.append(f"  ... and {len(images) - 50} more")
    return "\n".join(lines)
