"""Discovery of one object per image without labels: LOST, TokenCut or DINO-seg on frozen features.

Nothing is trained. Every image is encoded at its own size, padded with zeros at its right and lower side to a multiple
of the patch, and one region is searched in the keys of the last attention layer (networks without attention: in their
last map, standardised). It is scored against the boxes of all objects, whatever their class: CorLoc is the share of
images whose box has an IoU of at least 0.5 with any of them.

Simeoni et al., BMVC 2021 (LOST), section 4.1; Wang et al., CVPR 2022 (TokenCut), section 4.1. Differences from their
code: products are computed in float64; boxes of COCO are not rounded to integers; dino_seg takes the largest region,
where their code never considers the last one.

Floors: the same network untrained; the same method on the mean colours of the cells; the whole image as a box; a
centred box of half the image's area.

Time: a map of 30 x 40 patches takes 20 ms by LOST and 0.2 s by TokenCut, beside the forward pass.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data.objects import ObjectSource
from sslbench.metrics.dense.discovery import discovery_row
from sslbench.protocols._parts.search import FOUND, TRUE, ObjectSearch, cost, with_boxes
from sslbench.protocols._parts.untrained import SearchSettings
from sslbench.protocols.protocol import Protocol
from sslbench.results import Outcome
from sslbench.targets.objects import Boxes

if TYPE_CHECKING:
    from PIL import Image

    from sslbench.protocols._parts.objects import Box
    from sslbench.protocols._parts.pictures import Drawing


@dataclasses.dataclass(frozen=True)
class Settings(SearchSettings):
    """Settings of object discovery."""


class Discovery(ObjectSearch[Settings]):
    """Search of one object in every image, scored by boxes."""

    name = "discovery"
    takes = (Boxes,)
    needs = "needs boxes of objects"
    advice = "Give a COCO or kwcoco manifest, or a Pascal VOC tree with Annotations/."

    def score(self) -> dict[str, Outcome]:
        """Search one object in every image and score it."""
        from sslbench.protocols._parts.objects import outcome_of_regions, regions_of_images

        test = ObjectSource.of(self.test)
        values: dict[str, dict[str, FloatArray]] = {}
        boxes: dict[str, list[Box | None]] = {}
        title = f"searching objects by {self.settings.method}"
        for image, rows in regions_of_images(self, fit="pad", title=title):
            true = test.target.boxes_of(image.index).astype(np.float64)
            masks = test.bitmaps_of(image.index, *image.size)
            for row, regions in rows.items():
                for name, region in regions.items():
                    scores = values.setdefault(row, {}).setdefault(name, np.full((len(test), 3), np.nan))
                    scores[image.index] = discovery_row(region.box, region.mask, true, masks)
                boxes.setdefault(row, [None] * len(test))[image.index] = regions[""].box
        outcomes = {}
        for row, scores_of in values.items():
            scores, notes = scores_of[""], []
            if missed := sum(box is None for box in boxes[row]):
                notes.append(f"In {missed:,} of {len(test):,} images nothing is found; they count as misses.")
            if 0 < (unmasked := int(np.isnan(scores[:, 2]).sum())) < len(test):
                notes.append(
                    f"{unmasked:,} of {len(test):,} images have an object without a mask: none counts in the mask IoU."
                )
            draw = _drawing(boxes[row], test.target)
            outcomes[row] = outcome_of_regions(scores_of, self, notes, scores[:, 1], draw)
        return outcomes


def _drawing(boxes: "Sequence[Box | None]", true: Boxes) -> "Drawing":
    """Return the function that draws the true boxes of an image green, the found one red."""

    def draw(picture: "Image.Image", index: int, factor: float) -> "Image.Image":
        with_boxes(picture, true.boxes_of(index), TRUE, factor)
        box = boxes[index]
        with_boxes(picture, [] if box is None else [box], FOUND, factor)
        return picture

    return draw


PROTOCOL = Protocol(
    version=1,
    summary="discovery of one object per image, without training: LOST, TokenCut or DINO-seg.",
    settings=Settings,
    kind=Discovery.kind(cost),
)
