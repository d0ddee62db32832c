"""Contact sheets: a few thumbnails of every class, and augmented views."""

import base64
import dataclasses
import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

from sslbench.data.checks.duplicates import Finding
from sslbench.data.decode.handlers import PictureDecoder, Reading, make_decoder
from sslbench.data.decode.picture import Decoded, UnreadableImage, Wanted
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.paths import new_file
from sslbench.targets.classes import Classes
from sslbench.text import html_page

_GAP, _NAME = 4, 180
_PAPER, _INK, _BOX, _RIGHT = (255, 255, 255), (40, 40, 40), (230, 30, 30), (20, 150, 60)
_FRAME, _FIRST = 3, 12  # width of a frame, and of the gap behind the query
_LEGIBLE = 96  # pixels; smaller views are all enlarged by the same integer factor

Boxes = Sequence[npt.NDArray[np.float32]]
"""Boxes of each image: (n, 4), x1, y1, x2, y2 in pixels."""


@dataclasses.dataclass(frozen=True)
class Thumbnail:
    """Thumbnail of an image.

    Attributes:
        picture: RGB.
        path: name of the image.
        text: complete label.
    """

    picture: Image.Image
    path: str
    text: str


def chosen_by_class(source: Source, *, classes: int, each: int) -> dict[str, list[int]]:
    """Choose random images of every class: class -> at most `each` positions, ascending.

    Unlabelled images and regression targets form one group, ''. Of more than `classes` classes evenly spaced ones are
    chosen.
    """
    rng = np.random.default_rng(0)
    labels = source.target
    if not labels.of_classes:
        return {"": _some(np.arange(len(source)), each * min(classes, 4), rng)}
    kept = np.unique(np.linspace(0, len(labels.classes) - 1, min(classes, len(labels.classes))).astype(int))
    members = {
        labels.classes[c]: np.flatnonzero(
            labels.values == c if isinstance(labels, Classes) else labels.values[:, c] == 1
        )
        for c in kept.tolist()
    }
    return {name: _some(rows, each, rng) for name, rows in members.items()}


def _some(rows: npt.NDArray[np.int64], n: int, rng: np.random.Generator) -> list[int]:
    return sorted(rng.permutation(rows)[:n].tolist())


def thumbnails(
    source: Source,
    chosen: Mapping[str, Sequence[int]],
    *,
    reading: Reading,
    side: int = 96,
    boxes: Boxes | None = None,
    texts: Sequence[str] | None = None,
) -> dict[str, list[Thumbnail]]:
    """Return the thumbnails of the chosen images, without unreadable ones.

    `chosen`: group -> positions; `side`: longer side in pixels; `boxes`: of every image of the source, to draw;
    `texts`: of every image, behind its label.
    """
    decoder = make_decoder(reading.decoder, Wanted(max_pixels=reading.max_pixels), source.images)
    made: dict[int, Thumbnail | None] = {}
    found: dict[str, list[Thumbnail]] = {}
    for name, rows in chosen.items():
        found[name] = []
        for row in rows:
            if row not in made:
                made[row] = _thumbnail(source, row, decoder, side, None if boxes is None else boxes[row])
                if texts is not None and texts[row] and (plain := made[row]) is not None:
                    made[row] = dataclasses.replace(plain, text=f"{plain.text}: {texts[row]}")
            if (thumbnail := made[row]) is not None:
                found[name].append(thumbnail)
    return found


def _thumbnail(
    source: Source, row: int, decoder: PictureDecoder, side: int, boxes: npt.NDArray[np.float32] | None
) -> Thumbnail | None:
    try:
        image = _in_one(loader.read(source.images, row, decoder))
    except UnreadableImage:
        return None
    small, factor = shrunk(image, side)
    draw = ImageDraw.Draw(small)
    for box in () if boxes is None else boxes.tolist():
        left, top, right, bottom = (value * factor for value in box)
        # Pillow's rectangles include their right and lower edge.
        draw.rectangle((left, top, max(right - 1, left), max(bottom - 1, top)), outline=_BOX)
    text = source.target.text(row) if source.target.labelled else ""
    return Thumbnail(small, source.images.path(row), text)


def shrunk(image: Tensor, side: int) -> tuple[Image.Image, float]:
    """Return a picture (C, H, W) with a longer side of so many pixels, and the factor of its size."""
    picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
    factor = side / max(picture.size)
    size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
    # reducing_gap: Pillow shrinks by a whole factor first, which is faster.
    resampling = Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BICUBIC
    return picture.resize(size, resampling, reducing_gap=2.0), factor


def _in_one(decoded: Decoded) -> Tensor:
    """Return the picture (C, H, W); of a video four of its frames in two rows, or all of two or three."""
    if decoded.frames == 1:
        return decoded.image
    frames = decoded.image.reshape(decoded.frames, -1, *decoded.image.shape[1:])
    chosen = frames[torch.linspace(0, decoded.frames - 1, min(4, decoded.frames)).round().long()]
    line = max(1, decoded.image.shape[2] // 32)
    lined = [*functional.pad(chosen, (0, line, 0, line), value=255)]
    rows = [lined[:2], lined[2:]] if len(lined) == 4 else [lined]
    return torch.cat([torch.cat(row, dim=2) for row in rows], dim=1)


def class_sheet(shown: Mapping[str, Sequence[Thumbnail]], counts: Mapping[str, str], path: Path) -> None:
    """Write a PNG with one row per class: its name, count and pictures.

    `shown`: class -> pictures; `counts`: class -> text below its name, may lack classes.
    """
    heights = [max([t.picture.height for t in row] + [32]) for row in shown.values()]
    widths = [sum(t.picture.width + _GAP for t in row) for row in shown.values()]
    size = (_NAME + max([*widths, 200]) + _GAP, sum(height + _GAP for height in heights) + _GAP)
    sheet = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=12)
    top = _GAP
    for (name, row), height in zip(shown.items(), heights, strict=True):
        short = name if len(name) <= 26 else f"{name[:25]}…"
        draw.multiline_text((_GAP, top), f"{short}\n{counts.get(name, '')}", fill=_INK, font=font)
        left = _NAME
        for thumbnail in row:
            sheet.paste(thumbnail.picture, (left, top))
            left += thumbnail.picture.width + _GAP
        top += height + _GAP
    _save(sheet, path, "PNG")


def text_thumbnail(text: str) -> Thumbnail:
    """Return a text as a picture, its beginning where it is long."""
    picture = Image.new("RGB", (_LEGIBLE, _LEGIBLE), _PAPER)
    lines = "\n".join(textwrap.wrap(text, 16)[:7])
    ImageDraw.Draw(picture).multiline_text((3, 2), lines, fill=_HEAD_INK, font=ImageFont.load_default(size=11))
    return Thumbnail(picture, "", text)


def neighbour_sheet(rows: Sequence[tuple[Thumbnail, Sequence[tuple[Thumbnail, bool]]]], path: Path) -> None:
    """Write a JPEG with one row per query: the query, then the images that it found, framed green (right) or red.

    `rows`: query, and its images with whether they are right, nearest first.
    """
    side = max([1, *(max(t.picture.size) for query, found in rows for t in (query, *(each for each, _ in found)))])
    cell, columns = side + 2 * _FRAME + _GAP, 1 + max([0, *(len(found) for _, found in rows)])
    sheet = Image.new("RGB", (columns * cell + _FIRST + _GAP, max(1, len(rows)) * cell + _GAP), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (query, found) in enumerate(rows):
        top = _GAP + number * cell
        sheet.paste(query.picture, (_GAP + _FRAME, top + _FRAME))
        for column, (thumbnail, right) in enumerate(found, start=1):
            left = _GAP + _FIRST + column * cell
            width, height = thumbnail.picture.size
            box = (left, top, left + width + 2 * _FRAME - 1, top + height + 2 * _FRAME - 1)
            draw.rectangle(box, fill=_RIGHT if right else _BOX)
            sheet.paste(thumbnail.picture, (left + _FRAME, top + _FRAME))
    _save(sheet, path, "JPEG", quality=90)


_SPACE, _HEAD, _MARGIN, _HEAD_INK = 6, 30, 36, (60, 60, 60)
_LONGEST = 20_000


def contact_sheet(views: Sequence[Tensor], path: Path, *, rows: int = 8) -> None:
    """Write a PNG with one image per row and one view per column, sizes to scale.

    `views`: per view uint8 (B, 3, h, w), not normalised.
    """
    if not views or len({len(view) for view in views}) != 1:
        raise ValueError(f"a contact sheet of {[len(view) for view in views]} images per view")
    count = min(rows, len(views[0]), _LONGEST // max(view.shape[2] for view in views))
    factor = max(1, -(-_LEGIBLE // max(max(view.shape[2:]) for view in views)))
    widths = [max(view.shape[3] * factor, _LEGIBLE) for view in views]
    height = max(view.shape[2] for view in views) * factor
    size = (_MARGIN + sum(width + _SPACE for width in widths), _HEAD + count * (height + _SPACE))
    sheet = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=11)
    left = _MARGIN
    for number, (view, width) in enumerate(zip(views, widths, strict=True), start=1):
        label = f"view {number}\n{view.shape[3]} x {view.shape[2]} px"
        draw.multiline_text((left, 2), label, fill=_HEAD_INK, font=font, spacing=1)
        for row in range(count):
            image = Image.fromarray(np.ascontiguousarray(view[row].permute(1, 2, 0).numpy()))
            sheet.paste(
                image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST),
                (left, _HEAD + row * (height + _SPACE)),
            )
        left += width + _SPACE
    for row in range(count):
        draw.text((8, _HEAD + row * (height + _SPACE)), str(row + 1), fill=_HEAD_INK, font=font)
    _save(sheet, path, "PNG")


def _save(sheet: Image.Image, path: Path, kind: str, **options: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        sheet.save(temporary, kind, **options)


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

    `counts`: column ('train', 'test') -> class -> number, `pictures`: part -> class -> pictures; `unit`: name of the
    counted things.
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
        pictures=[
            (part, [(name, list(map(_embedded, row))) for name, row in groups.items() if row])
            for part, groups in pictures.items()
        ],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _embedded(thumbnail: Thumbnail) -> dict[str, Any]:
    buffer = io.BytesIO()
    thumbnail.picture.save(buffer, "JPEG", quality=85)
    source = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    width, height = thumbnail.picture.size
    return {"src": source, "width": width, "height": height, "path": thumbnail.path, "text": thumbnail.text}
