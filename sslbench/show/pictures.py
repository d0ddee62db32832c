"""Pictures of arrays, and sheets of them with headings and captions."""

import base64
import dataclasses
import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont

from sslbench.arrays import ByteArray, Matrix

_PAPER, _INK, _FAINT = (255, 255, 255), (35, 40, 48), (190, 196, 204)
_GAP, _FONT, _LINE = 8, 12, 15
_FRAME = 3
RIGHT, WRONG, MARK = (20, 150, 60), (215, 40, 40), (255, 230, 0)
_UNLABELLED = (128, 128, 128)
Colour = tuple[int, int, int]


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


@dataclasses.dataclass(frozen=True)
class PanelRow:
    """Row of a sheet: a heading above it, and its panels."""

    heading: str
    panels: Sequence[Panel]


def picture_of(image: torch.Tensor) -> Image.Image:
    """Return an image (C, H, W), uint8 or float from 0 to 255, as RGB.

    One or two channels are shown as grey, of more than three the first three.
    """
    pixels = image.to(torch.float32).round().clamp(0, 255).to(torch.uint8)
    shown = pixels[:3] if len(pixels) >= 3 else pixels[:1].expand(3, -1, -1)
    return Image.fromarray(np.ascontiguousarray(shown.permute(1, 2, 0).numpy()))


def heat(values: Matrix, low: float, high: float) -> Image.Image:
    """Return values (h, w) by matplotlib's colour map 'inferno', from black (`low`) to yellow (`high`)."""
    from matplotlib import colormaps

    scaled = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    return Image.fromarray(np.round(255 * colormaps["inferno"](scaled)[..., :3]).astype(np.uint8))


def class_colours(n: int) -> ByteArray:
    """Return n colours, uint8 (n, 3), neighbouring numbers far apart, with grey left for pixels without a label.

    Those of Pascal VOC's colour map (Everingham et al. 2010, VOCdevkit `VOClabelcolormap`): the bits of the number
    are spread over the three channels, so that up to 256 differ; later ones repeat. Grey (128, 128, 128), VOC's
    number 7, becomes (255, 170, 100).

    Examples:
        >>> class_colours(3).tolist()
        [[0, 0, 0], [128, 0, 0], [0, 128, 0]]
    """
    colours = np.zeros((n, 3), dtype=np.uint8)
    for number in range(n):
        rest = number % 256
        for bit in range(7, -1, -1):
            for channel in range(3):
                colours[number, channel] |= ((rest >> channel) & 1) << bit
            rest >>= 3
    colours[(colours == _UNLABELLED).all(axis=1)] = (255, 170, 100)
    return colours


def labelled(classes: npt.NDArray[np.integer], colours: ByteArray) -> Image.Image:
    """Return a map of class numbers (H, W) in their colours; numbers that are no class are grey."""
    table = np.concatenate([colours, np.array([_UNLABELLED], dtype=np.uint8)])
    known = (classes >= 0) & (classes < len(colours))
    return Image.fromarray(table[np.where(known, classes, len(colours)).astype(np.int64)])


def blend(picture: Image.Image, over: Image.Image, opacity: float) -> Image.Image:
    """Return a picture with another, enlarged to its size without interpolation, laid over it."""
    return Image.blend(picture, over.resize(picture.size, Image.Resampling.NEAREST), opacity)


def marked(picture: Image.Image, cell: tuple[int, int], size: tuple[int, int]) -> Image.Image:
    """Return a copy of a picture with a frame around a cell, at least 7 pixels wide.

    Args:
        picture: any.
        cell: row and column.
        size: rows and columns that the picture is divided into.
    """
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
    """Return a sheet of rows of panels.

    Args:
        rows: from top to bottom.
        side: longer side of every picture in pixels.
        legend: names with their colours, at the bottom.
    """
    font = ImageFont.load_default(size=_FONT)
    cell = side + 2 * _FRAME
    columns = max([1, *(len(row.panels) for row in rows)])
    width = max(columns * (cell + _GAP) + _GAP, 420)
    blocks = [_row(row, side, font) for row in rows]
    if legend:
        blocks.append(_legend(legend, width - 2 * _GAP, font))
    height = sum(block.height + _GAP for block in blocks) + _GAP
    whole = Image.new("RGB", (max([width, *(block.width + 2 * _GAP for block in blocks)]), height), _PAPER)
    top = _GAP
    for block in blocks:
        whole.paste(block, (_GAP, top))
        top += block.height + _GAP
    return whole


def _row(row: PanelRow, side: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> Image.Image:
    cell = side + 2 * _FRAME
    pictures = [fitted(panel, side) for panel in row.panels]
    captions = [_lines(panel.caption, cell, font) for panel in row.panels]
    tallest = max([0, *(picture.height for picture in pictures)]) + 2 * _FRAME
    below = _LINE * max([0, *(len(lines) for lines in captions)])
    above = _LINE + 4 if row.heading else 0
    heading = ImageDraw.Draw(Image.new("RGB", (1, 1))).textlength(row.heading, font=font)
    width = max(len(pictures) * (cell + _GAP) - _GAP, int(heading) + 2, 1)
    block = Image.new("RGB", (width, above + tallest + below), _PAPER)
    draw = ImageDraw.Draw(block)
    if row.heading:
        draw.text((0, 0), row.heading, fill=_INK, font=font)
    for number, (panel, picture, lines) in enumerate(zip(row.panels, pictures, captions, strict=True)):
        left = number * (cell + _GAP)
        if panel.frame is not None:
            corner = left + picture.width + 2 * _FRAME - 1, above + picture.height + 2 * _FRAME - 1
            draw.rectangle((left, above, *corner), fill=panel.frame)
        block.paste(picture, (left + _FRAME, above + _FRAME))
        for i, line in enumerate(lines):
            draw.text((left + _FRAME, above + tallest + i * _LINE), line, fill=_INK, font=font)
    return block


def _lines(text: str, width: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> list[str]:
    """Return the lines of a caption, each shortened in its middle to a width in pixels."""
    return [_shortened(line, width, font) for line in text.splitlines()]


def _shortened(line: str, width: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
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


def _legend(
    legend: Sequence[tuple[str, Colour]], width: int, font: ImageFont.ImageFont | ImageFont.FreeTypeFont
) -> Image.Image:
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


def jpeg_url(picture: Image.Image) -> str:
    """Return a picture as a data URL of a JPEG."""
    return _url(picture, "jpeg", quality=88)


def png_url(picture: Image.Image) -> str:
    """Return a picture as a data URL of a PNG."""
    return _url(picture, "png", optimize=True)


def _url(picture: Image.Image, kind: str, **options: int | bool) -> str:
    content = io.BytesIO()
    picture.save(content, kind.upper(), **options)
    return f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"
