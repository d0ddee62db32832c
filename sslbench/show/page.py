"""HTML page of pictures: one file that needs no network."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from sslbench.show.pictures import Panel, fitted, jpeg_url, png_url
from sslbench.text import without_secrets


@dataclasses.dataclass(frozen=True)
class Section:
    """Part of a page.

    Attributes:
        title: heading.
        text: paragraph below it.
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
    """Return an HTML page that needs nothing else: pictures are inline, scripts plain.

    Args:
        title: of the page.
        facts: name -> text, below the title.
        sections: of pictures.
        nearest: images and nearest patches, see `show.images`.
        scatter: points with thumbnails, see `show.scatter`.
    """
    source = Path(__file__).with_name("page.html.jinja").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, finalize=without_secrets
    )
    return environment.from_string(source).render(
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
        "src": png_url(picture) if panel.blocky else jpeg_url(picture),
        "width": max(1, round(panel.picture.width * factor)),
        "height": max(1, round(panel.picture.height * factor)),
        "blocky": panel.blocky or factor > 2,
        "caption": panel.caption,
        "frame": "" if panel.frame is None else "rgb({},{},{})".format(*panel.frame),
    }
