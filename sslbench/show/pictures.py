"""Pictures of arrays, and sheets of them with headings and captions."""

import base64
import dataclasses
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from sslbench.arrays import Matrix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAPER, _INK, _FAINT = (255, 255, 255), (35, 40, 48), (190, 196, 204)
_GAP, _FONT, _LINE = 8, 12, 15
_FRAME = 3
RIGHT, WRONG, MARK = (20, 150, 60), (215, 40, 40), (255, 230, 0)
Colour = tuple[int, int, int]
Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


@dataclasses.dataclass(frozen=True)
class Panel:
    """Picture of a sheet or page.

    Attributes:
        picture: RGB.
        caption: text below it; one line per line.
        frame: colour of its frame; None: none.
        blocky: enlarged without interpolation: a cell per pixel.
    """

    picture: Image.Image
    caption: str = ""
    frame: Colour | None = None
    blocky: bool = False


PanelRow = tuple[str, Sequence[Panel]]
"""Row of a sheet: a heading above it, and its panels."""


def picture_of(image: torch.Tensor) -> Image.Image:
    """Return an image (C, H, W), uint8 or float from 0 to 255, as RGB."""
    # One or two channels are shown as grey, of more than three the first three.
    pixels = image.to(torch.float32).round().clamp(0, 255).to(torch.uint8)
    shown = pixels[:3] if len(pixels) >= 3 else pixels[:1].expand(3, -1, -1)
    return Image.fromarray(np.ascontiguousarray(shown.permute(1, 2, 0).numpy()))


def heat(values: Matrix, low: float, high: float) -> Image.Image:
    """Return values (h, w) by matplotlib's colour map 'inferno', from black (`low`) to yellow (`high`)."""
    from matplotlib import colormaps

    scaled = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    return Image.fromarray(np.round(255 * colormaps["inferno"](scaled)[..., :3]).astype(np.uint8))


def blend(picture: Image.Image, over: Image.Image, opacity: float) -> Image.Image:
    """Return a picture with another, enlarged to its size without interpolation, laid over it."""
    return Image.blend(picture, over.resize(picture.size, Image.Resampling.NEAREST), opacity)


def marked(picture: Image.Image, cell: tuple[int, int], size: tuple[int, int]) -> Image.Image:
    """Return a copy of a picture with a frame around a cell, at least 7 pixels wide."""
    copy = picture.copy()
    draw = ImageDraw.Draw(copy)
    height, width = picture.height / size[0], picture.width / size[1]
    middle = ((cell[1] + 0.5) * width, (cell[0] + 0.5) * height)
    half = max(width / 2, 3.5), max(height / 2, 3.5)
    box = (middle[0] - half[0], middle[1] - half[1], middle[0] + half[0] - 1, middle[1] + half[1] - 1)
    draw.rectangle((box[0] - 1, box[1] - 1, box[2] + 1, box[3] + 1), outline=(0, 0, 0))
    draw.rectangle(box, outline=MARK, width=1 if max(picture.size) < 160 else 2)
    return copy


def fitted(panel: Panel, side: int) -> Image.Image:
    """Return a panel's picture with a longer side of `side` pixels."""
    factor = side / max(panel.picture.size)
    size = max(1, round(panel.picture.width * factor)), max(1, round(panel.picture.height * factor))
    filter_ = Image.Resampling.NEAREST if panel.blocky or factor > 2 else Image.Resampling.BICUBIC
    return panel.picture.resize(size, filter_, reducing_gap=2.0)


def sheet(rows: Sequence[PanelRow], *, side: int = 192, legend: Sequence[tuple[str, Colour]] = ()) -> Image.Image:
    """Return a sheet of rows of panels."""
    font = ImageFont.load_default(size=_FONT)
    cell = side + 2 * _FRAME
    columns = max([1, *(len(panels) for _, panels in rows)])
    width = max(columns * (cell + _GAP) + _GAP, 420)
    blocks = [_row(heading, panels, side, font) for heading, panels in rows]
    if legend:
        blocks.append(_legend(legend, width - 2 * _GAP, font))
    height = sum(block.height + _GAP for block in blocks) + _GAP
    whole = Image.new("RGB", (max([width, *(block.width + 2 * _GAP for block in blocks)]), height), _PAPER)
    top = _GAP
    for block in blocks:
        whole.paste(block, (_GAP, top))
        top += block.height + _GAP
    return whole


def _row(heading: str, panels: Sequence[Panel], side: int, font: Font) -> Image.Image:
    cell = side + 2 * _FRAME
    pictures = [fitted(panel, side) for panel in panels]
    captions = [[_shortened(line, cell, font) for line in panel.caption.splitlines()] for panel in panels]
    tallest = max([0, *(picture.height for picture in pictures)]) + 2 * _FRAME
    below = _LINE * max([0, *(len(lines) for lines in captions)])
    above = _LINE + 4 if heading else 0
    length = ImageDraw.Draw(Image.new("RGB", (1, 1))).textlength(heading, font=font)
    width = max(len(pictures) * (cell + _GAP) - _GAP, int(length) + 2, 1)
    block = Image.new("RGB", (width, above + tallest + below), _PAPER)
    draw = ImageDraw.Draw(block)
    if heading:
        draw.text((0, 0), heading, fill=_INK, font=font)
    for number, (panel, picture, lines) in enumerate(zip(panels, pictures, captions, strict=True)):
        left = number * (cell + _GAP)
        if panel.frame is not None:
            corner = left + picture.width + 2 * _FRAME - 1, above + picture.height + 2 * _FRAME - 1
            draw.rectangle((left, above, *corner), fill=panel.frame)
        block.paste(picture, (left + _FRAME, above + _FRAME))
        for i, line in enumerate(lines):
            draw.text((left + _FRAME, above + tallest + i * _LINE), line, fill=_INK, font=font)
    return block


def _shortened(line: str, width: int, font: Font) -> str:
    """Return a line that lacks its middle where it is wider than `width` pixels."""
    draw = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    if draw.textlength(line, font=font) <= width:
        return line
    kept = len(line)
    while kept > 2:
        kept -= 1
        short = f"{line[: (kept + 1) // 2]}…{line[len(line) - kept // 2 :]}"
        if draw.textlength(short, font=font) <= width:
            return short
    return line[:1]


def _legend(legend: Sequence[tuple[str, Colour]], width: int, font: Font) -> Image.Image:
    draw = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    names = [_shortened(name, 220, font) for name, _ in legend]
    column = int(max(draw.textlength(name, font=font) for name in names)) + 32
    columns = max(1, width // column)
    block = Image.new("RGB", (width, (_LINE + 3) * -(-len(legend) // columns)), _PAPER)
    draw = ImageDraw.Draw(block)
    for number, (name, (_, colour)) in enumerate(zip(names, legend, strict=True)):
        left, top = (number % columns) * column, (number // columns) * (_LINE + 3)
        draw.rectangle((left, top, left + 16, top + _LINE - 2), fill=colour, outline=_FAINT)
        draw.text((left + 22, top), name, fill=_INK, font=font)
    return block


def drawn(figure: "Figure", dpi: float | Literal["figure"] = "figure") -> Image.Image:
    """Return a figure of matplotlib as a picture."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    return Image.open(content).convert("RGB")


def data_url(picture: Image.Image, kind: Literal["jpeg", "png"] = "jpeg") -> str:
    """Return a picture as a data URL."""
    content = io.BytesIO()
    picture.save(content, kind.upper(), **({"quality": 88} if kind == "jpeg" else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"
