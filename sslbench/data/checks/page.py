"""Report of a data check as a self-contained HTML page: findings, counts, pictures of every class."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sslbench.data.checks.findings import Finding
from sslbench.data.checks.sheets import Thumbnail
from sslbench.text import html_page
from sslbench.weights.save import new_file


def write_page(
    path: Path,
    *,
    title: str,
    about: Sequence[str],
    findings: Sequence[Finding],
    counts: Mapping[str, Mapping[str, int]],
    pictures: Mapping[str, Mapping[str, Sequence[Thumbnail]]],
    unit: str = "images",
) -> None:
    """Write the report as one self-contained file, atomically.

    Args:
        path: of the page.
        title: title of the page.
        about: lines below the title.
        findings: errors first.
        counts: column ('train', 'test') -> class -> number.
        pictures: part -> class -> pictures.
        unit: name of the counted things.
    """
    names = list(dict.fromkeys(name for column in counts.values() for name in column))
    rows = [(name, [column.get(name, 0) for column in counts.values()]) for name in names]
    page = html_page(
        Path(__file__).with_name("page.html.jinja"),
        title=title,
        unit=unit.capitalize(),
        about=about,
        findings=findings,
        columns=list(counts),
        rows=rows,
        most=max([numbers[0] for _, numbers in rows] + [1]),
        pictures=[(part, _groups(groups)) for part, groups in pictures.items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _groups(groups: Mapping[str, Sequence[Thumbnail]]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(name, [_embedded(thumbnail) for thumbnail in row]) for name, row in groups.items() if row]


def _embedded(thumbnail: Thumbnail) -> dict[str, Any]:
    buffer = io.BytesIO()
    thumbnail.picture.save(buffer, "JPEG", quality=85)
    source = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    width, height = thumbnail.picture.size
    return {"src": source, "width": width, "height": height, "path": thumbnail.path, "text": thumbnail.text}
