"""Pictures of predictions beside the ground truth."""

import colorsys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from sslbench.arrays import ByteArray
from sslbench.metrics.detection import Detections, Truth
from sslbench.metrics.detection import masks as rle
from sslbench.paths import new_file

_SHORTEST = 240  # pixels; smaller images are enlarged so that the text is legible
_LONGEST = 480
_GAP, _HEADING, _FONT = 8, 20, 11
_PAPER, _INK = (255, 255, 255), (60, 60, 60)
_MASK = 0.45
_DOT = 3  # radius of a keypoint in pixels
_VISIBLE = 2  # visibility of a keypoint that is not hidden


def draw_predictions(
    images: Sequence[ByteArray],
    truth: Truth,
    predictions: Detections,
    path: Path,
    *,
    which: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    least_score: float = 0.5,
) -> None:
    """Write a PNG with the ground truth (left) and the predictions (right) of each image.

    Crowds and difficult objects are drawn with dashes; a class has the same colour on both sides.

    Args:
        images: uint8 (height, width, 3), upright, of the size of the annotations.
        truth: ground truth; any masks and keypoints are drawn, hidden ones as rings.
        predictions: detections; any masks and keypoints are drawn.
        path: of the PNG, written atomically.
        which: positions of `images` in the test set; by default 0, 1, 2, ...
        names: headings of the images.
        least_score: minimum score of a drawn prediction; the heading counts the others.

    Raises:
        ValueError: there are no images, or not as many as positions or names.
    """
    positions = list(range(len(images)) if which is None else which)
    titles = [f"image {i + 1}" for i in positions] if names is None else list(names)
    if not images or len({len(images), len(positions), len(titles)}) != 1:
        raise ValueError(f"{len(images)} images, {len(positions)} positions, {len(titles)} names")
    pairs = [
        draw_pair(image, position, title, truth, predictions, least_score)
        for image, position, title in zip(images, positions, titles, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        _grid(pairs).save(temporary, "PNG")


def colour(label: int) -> tuple[int, int, int]:
    """Return a colour for each class; neighbouring numbers get very different ones."""
    red, green, blue = colorsys.hsv_to_rgb((0.02 + label * 0.61803399) % 1, 0.85, 1.0)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_pair(
    image: ByteArray, position: int, title: str, truth: Truth, predictions: Detections, least_score: float
) -> Image.Image:
    """Return an image with its ground truth (left) and predictions (right), see `draw_predictions`.

    `image`: uint8 (height, width, 3).
    """
    there = np.flatnonzero(truth.images == position)
    found = np.flatnonzero(predictions.images == position)
    shown = found[predictions.scores[found] >= least_score]
    shown = shown[
        np.argsort(predictions.scores[shown], kind="stable")
    ]  # drawn in ascending order of score, the best on top
    edges = () if truth.skeleton is None else truth.skeleton.edges
    points = predictions.keypoints
    left = _panel(
        image,
        truth.boxes[there],
        truth.labels[there],
        [truth.classes[c] for c in truth.labels[there]],
        None if truth.masks is None else [truth.masks[i] for i in there],
        (truth.crowd | truth.difficult)[there],
        None if truth.keypoints is None else truth.keypoints[there],
        edges,
    )
    right = _panel(
        image,
        predictions.boxes[shown],
        predictions.labels[shown],
        [f"{truth.classes[predictions.labels[i]]} {predictions.scores[i]:.2f}" for i in shown],
        None if predictions.masks is None else [predictions.masks[i] for i in shown],
        np.zeros(len(shown), dtype=np.bool_),
        None if points is None else np.dstack([points[shown, :, :2], np.full(points[shown].shape[:2], _VISIBLE)]),
        edges,
    )
    sheet = Image.new("RGB", (2 * left.width + _GAP // 2, left.height + _HEADING), _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=_FONT)
    hidden = f", {len(found) - len(shown)} below {least_score:g} not shown" if len(found) > len(shown) else ""
    texts = (f"{title}: {len(there)} objects", f"found: {len(shown)}{hidden}")
    for text, panel, x in zip(texts, (left, right), (0, left.width + _GAP // 2), strict=True):
        while len(text) > 4 and draw.textlength(text, font=font) > panel.width:
            text = text[:-4] + "..."
        draw.text((x, 3), text, fill=_INK, font=font)
        sheet.paste(panel, (x, _HEADING))
    return sheet


def _panel(
    image: ByteArray,
    boxes: npt.NDArray[np.floating],
    labels: npt.NDArray[np.int64],
    texts: Sequence[str],
    masks: Sequence[rle.Rle] | None,
    dashed: npt.NDArray[np.bool_],
    keypoints: npt.NDArray[np.floating] | None,
    edges: Sequence[tuple[int, int]],
) -> Image.Image:
    pixels = image.astype(np.float64)
    for mask, label in zip(masks or (), labels, strict=False):
        inside = rle.decode(mask)
        pixels[inside] = (1 - _MASK) * pixels[inside] + _MASK * np.array(colour(int(label)))
    height, width = image.shape[:2]
    scale = min(max(1.0, _SHORTEST / min(height, width)), _LONGEST / max(height, width))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    panel = Image.fromarray(pixels.round().astype(np.uint8)).resize(size, Image.Resampling.BILINEAR)
    draw, font = ImageDraw.Draw(panel), ImageFont.load_default(size=_FONT)
    corners = boxes.astype(np.float64) * scale
    for box, label, is_dashed in zip(corners, labels, dashed, strict=True):
        _rectangle(draw, box, colour(int(label)), dashed=bool(is_dashed))
    for points, label in zip(() if keypoints is None else keypoints, labels, strict=False):
        _pose(draw, points, scale, edges, colour(int(label)))
    for box, label, text in zip(corners, labels, texts, strict=True):  # after the boxes, so that no line crosses them
        fill, wide, high = colour(int(label)), draw.textlength(text, font=font) + 4, _FONT + 3
        x = min(max(0.0, float(box[0])), max(0.0, panel.width - wide))
        above = float(box[1]) - high
        y = above if above >= 0 else min(float(box[1]) + 2, panel.height - high)
        draw.rectangle((x, y, x + wide, y + high), fill=fill)
        luminance = 0.3 * fill[0] + 0.59 * fill[1] + 0.11 * fill[2]
        draw.text((x + 2, y), text, fill=(0, 0, 0) if luminance > 110 else (255, 255, 255), font=font)
    return panel


def _rectangle(
    draw: ImageDraw.ImageDraw, box: npt.NDArray[np.float64], fill: tuple[int, int, int], *, dashed: bool
) -> None:
    x1, y1, x2, y2 = (float(v) for v in box)
    # The last pixel inside is the one before x2, and Pillow draws its second corner too.
    x2, y2 = max(x1, x2 - 1), max(y1, y2 - 1)
    if not dashed:
        draw.rectangle((x1, y1, x2, y2), outline=fill, width=2)
        return
    for ax, ay, bx, by in ((x1, y1, x2, y1), (x2, y1, x2, y2), (x2, y2, x1, y2), (x1, y2, x1, y1)):
        steps = max(1, int(max(abs(bx - ax), abs(by - ay)) // 4))
        for i in range(0, steps, 2):
            start, stop = i / steps, min(1.0, (i + 1) / steps)
            points = (ax + (bx - ax) * start, ay + (by - ay) * start, ax + (bx - ax) * stop, ay + (by - ay) * stop)
            draw.line(points, fill=fill, width=2)


def _pose(
    draw: ImageDraw.ImageDraw,
    points: npt.NDArray[np.floating],
    scale: float,
    edges: Sequence[tuple[int, int]],
    fill: tuple[int, int, int],
) -> None:
    """Draw the labelled keypoints (K, 3) of an object, each in a colour of its own, and the edges between them."""
    places = (points[:, :2].astype(np.float64) + 0.5) * scale  # the centre of the first pixel is 0, 0 in COCO's files
    for a, b in edges:
        if points[a, 2] > 0 and points[b, 2] > 0:
            draw.line((*places[a].tolist(), *places[b].tolist()), fill=fill, width=2)
    for number, ((x, y), seen) in enumerate(zip(places.tolist(), points[:, 2].tolist(), strict=True)):
        at = (x - _DOT, y - _DOT, x + _DOT, y + _DOT)
        if seen >= _VISIBLE:
            draw.ellipse(at, fill=colour(number), outline=_INK)
        elif seen > 0:
            draw.ellipse(at, outline=colour(number), width=2)


def _grid(pairs: Sequence[Image.Image]) -> Image.Image:
    """Return a sheet with two pairs of images side by side."""
    rows = [pairs[i : i + 2] for i in range(0, len(pairs), 2)]
    widths = [max(pair.width for pair in pairs[i::2]) for i in range(min(2, len(pairs)))]
    heights = [max(pair.height for pair in row) for row in rows]
    size = (sum(widths) + _GAP * (len(widths) + 1), sum(heights) + _GAP * (len(heights) + 1))
    sheet = Image.new("RGB", size, _PAPER)
    y = _GAP
    for row, height in zip(rows, heights, strict=True):
        x = _GAP
        for pair, width in zip(row, widths, strict=False):
            sheet.paste(pair, (x, y))
            x += width + _GAP
        y += height + _GAP
    return sheet
