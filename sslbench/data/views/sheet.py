"""Contact sheet of augmented views, to inspect a method's input."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from sslbench.weights.save import new_file

_LEGIBLE = 96  # pixels; smaller views are all enlarged by the same integer factor
_GAP = 6
_HEADING = 30
_MARGIN = 36
_PAPER, _INK = (255, 255, 255), (60, 60, 60)
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
    size = (_MARGIN + sum(width + _GAP for width in widths), _HEADING + count * (height + _GAP))
    sheet = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=11)
    left = _MARGIN
    for number, (view, width) in enumerate(zip(views, widths, strict=True), start=1):
        label = f"view {number}\n{view.shape[3]} x {view.shape[2]} px"
        draw.multiline_text((left, 2), label, fill=_INK, font=font, spacing=1)
        for row in range(count):
            image = Image.fromarray(np.ascontiguousarray(view[row].permute(1, 2, 0).numpy()))
            sheet.paste(
                image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST),
                (left, _HEADING + row * (height + _GAP)),
            )
        left += width + _GAP
    for row in range(count):
        draw.text((8, _HEADING + row * (height + _GAP)), str(row + 1), fill=_INK, font=font)
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        sheet.save(temporary, "PNG")
