"""Sheets of test images with predictions and truth, as PNG, for the picture beside a record."""

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sslbench.arrays import FloatArray
from sslbench.data.decode.handlers import make_decoder
from sslbench.data.decode.picture import Wanted
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.preprocessing import Preprocessing

# Longer side of a picture in pixels.
SIDE = 160
_GAP, _TEXT = 4, 16

# Function from a small picture, the number of the image and the factor of its size to the picture with the drawing.
Drawing = Callable[[Image.Image, int, float], Image.Image]


def chosen_by_score(scores: FloatArray, each: int = 5) -> dict[str, list[int]]:
    """Return images of the best, of median and of the worst scores (N,), no image twice.

    >>> chosen_by_score(np.array([0.1, 0.9, 0.5]), 1)
    {'best': [1], 'median': [2], 'worst': [0]}
    """
    order = np.argsort(-scores, kind="stable").tolist()
    each = max(1, min(each, len(order) // 3))
    middle = (len(order) - each) // 2
    parts = {"best": order[:each], "median": order[middle : middle + each], "worst": order[-each:]}
    # Of fewer than three images the groups share some.
    seen: set[int] = set()
    chosen = {}
    for name, rows in parts.items():
        chosen[name] = [row for row in rows if row not in seen]
        seen |= set(rows)
    return {name: rows for name, rows in chosen.items() if rows}


def sheet(
    source: Source,
    chosen: Mapping[str, Sequence[int]],
    captions: Mapping[int, str],
    draw: Drawing,
    preprocessing: Preprocessing,
) -> bytes:
    """Return a PNG with a row of pictures for each group."""
    wanted = dataclasses.replace(Wanted.by(preprocessing), deep=False, resize=None)
    decoder = make_decoder(preprocessing.decoder, wanted, source.images)
    rows: dict[str, list[Image.Image]] = {}
    for name, group in chosen.items():
        rows[name] = []
        for number in group:
            image = loader.read(source.images, number, decoder).image
            image = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
            picture = Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
            factor = SIDE / max(picture.size)
            size = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
            small = picture.resize(size, Image.Resampling.NEAREST if factor > 1 else Image.Resampling.BICUBIC)
            rows[name].append(draw(small, number, factor))
    width = max(sum(picture.width + _GAP for picture in row) for row in rows.values()) + _GAP + 60
    heights = [max(picture.height for picture in row) + _TEXT + _GAP for row in rows.values()]
    paper = Image.new("RGB", (width, sum(heights) + _GAP), (255, 255, 255))
    pen, font = ImageDraw.Draw(paper), ImageFont.load_default(size=12)
    top = _GAP
    for (name, pictures), height in zip(rows.items(), heights, strict=True):
        pen.text((_GAP, top), name, fill=(40, 40, 40), font=font)
        left = 60
        for picture, number in zip(pictures, chosen[name], strict=True):
            paper.paste(picture, (left, top))
            pen.text((left, top + picture.height + 1), captions[number], fill=(40, 40, 40), font=font)
            left += picture.width + _GAP
        top += height
    file = io.BytesIO()
    paper.save(file, "PNG")
    return file.getvalue()
