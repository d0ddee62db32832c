"""Images that cannot be read: the error that lists them, and the list of those that evaluations left out."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sslbench.data.source import Source
from sslbench.errors import DataError, StoreError
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


def unread_error(source: Source, unread: Sequence[tuple[str, str]]) -> DataError:
    """Return the error that lists images whose file is not as it was when it was hashed: path and reason.

    Whether such an image can be decoded is not known, so that it is never left out of stored features.
    """
    return DataError(
        f"{len(unread)} of {len(source)} images of {source.name} are not as they were when they were hashed:\n"
        + _listed(unread),
        "Run the same command again when they can be read and nothing writes to them.",
    )


def unreadable_error(source: Source, unreadable: Sequence[tuple[str, str]]) -> DataError:
    """Return the error that lists unreadable images, path and reason (all of them, up to 50)."""
    return DataError(
        f"{len(unreadable)} of {len(source)} images of {source.name} cannot be read:\n" + _listed(unreadable),
        "Mend or remove them, or leave them out with --on-error skip (the result then says how many).",
    )


def _listed(images: Sequence[tuple[str, str]]) -> str:
    lines = [f"  {path}: {reason}" for path, reason in images[:50]]
    if len(images) > 50:
        lines.append(f"  ... and {len(images) - 50} more")
    return "\n".join(lines)
