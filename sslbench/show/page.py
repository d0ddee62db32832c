"""Output folder of `sslbench show`: PNG sheets, a page (index.html) that needs no network, and show.json."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from sslbench.errors import UsageError
from sslbench.paths import new_file
from sslbench.results import plain, records
from sslbench.runtime.folders import check_writable
from sslbench.show.pictures import Panel, data_url, fitted
from sslbench.text import html_page

DESCRIPTION = "show.json"
PAGE = "index.html"


@dataclasses.dataclass(frozen=True)
class Section:
    """Part of a page.

    Attributes:
        rows: (heading, pictures) from top to bottom.
        side: longer side of a picture on the page, in pixels.
        legend: names with their colours.
    """

    title: str
    text: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    side: int = 192
    legend: Sequence[tuple[str, tuple[int, int, int]]] = ()


def page(
    title: str,
    facts: Mapping[str, str],
    sections: Sequence[Section],
    *,
    nearest: Mapping[str, Any] | None = None,
    scatter: Mapping[str, Any] | None = None,
) -> str:
    """Return an HTML page that needs nothing else: pictures are inline, scripts plain."""
    return html_page(
        Path(__file__).with_name("page.html.jinja"),
        title=title,
        facts=facts,
        sections=[
            {
                "title": section.title,
                "text": section.text,
                "side": section.side,
                "legend": [(name, "rgb({},{},{})".format(*colour)) for name, colour in section.legend],
                "rows": [
                    (heading, [_figure(panel, section.side) for panel in panels]) for heading, panels in section.rows
                ],
            }
            for section in sections
        ],
        nearest=nearest,
        scatter=scatter,
    )


def _figure(panel: Panel, side: int) -> dict[str, Any]:
    factor = side / max(panel.picture.size)
    picture = panel.picture if panel.blocky or factor > 0.5 else fitted(panel, 2 * side)
    return {
        "src": data_url(picture, "png" if panel.blocky else "jpeg"),
        "width": max(1, round(panel.picture.width * factor)),
        "height": max(1, round(panel.picture.height * factor)),
        "blocky": panel.blocky or factor > 2,
        "caption": panel.caption,
        "frame": "" if panel.frame is None else "rgb({},{},{})".format(*panel.frame),
    }


@dataclasses.dataclass
class ShowFolder:
    """Folder that is being written."""

    path: Path
    files: list[str] = dataclasses.field(default_factory=list)

    def write_sheet(self, name: str, picture: Image.Image) -> None:
        """Write a picture as `NAME.png`; characters that are unusual in file names become dashes."""
        file = f"{records.slug(name)}.png"
        with new_file(self.path / file) as temporary:
            picture.save(temporary, "PNG")
        self.files.append(file)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file, such as a table."""
        with new_file(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        self.files.append(name)

    def finish(self, page: str, description: Mapping[str, Any]) -> None:
        """Write the page, and last the description with the list of all files."""
        with new_file(self.path / PAGE) as temporary:
            temporary.write_text(page, encoding="utf-8")
        self.files.append(PAGE)
        content = plain({**description, "files": self.files})
        with new_file(self.path / DESCRIPTION) as temporary:
            temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def open_folder(path: Path) -> ShowFolder:
    """Return a folder to write to, new, empty, or of an earlier `sslbench show`, whose files are removed."""
    check_writable(path)
    earlier = _earlier_files(path)
    if earlier is None and any(path.iterdir()):
        raise UsageError(f"{path} holds other files than those of sslbench show", "Name another folder with --out.")
    for name in earlier or ():
        (path / name).unlink(missing_ok=True)
    return ShowFolder(path)


def _earlier_files(path: Path) -> Sequence[str] | None:
    """Return the names of the files of an earlier run, its description last; None if there was none."""
    try:
        content = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, list):
        return None
    names = [
        name
        for name in files
        if isinstance(name, str) and Path(name).name == name and name.endswith((".png", ".html", ".csv"))
    ]
    return [*names, DESCRIPTION]
