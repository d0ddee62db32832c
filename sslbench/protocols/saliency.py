"""Salient regions without labels: the object that TokenCut, LOST or DINO-seg finds, against masks of the foreground.

Wang et al., CVPR 2022 (TokenCut), section 4, without its bilateral solver: images are resized to the nearest multiple
of the patch by Lanczos, the region is brought to the size of the mask by nearest neighbours. Scores of ECSSD, DUTS and
DUT-OMRON: the maximal F (beta squared 0.3; the mean over images at the best of 255 thresholds), IoU and pixel accuracy,
means over images. A region is 0 or 1, so its F is the same at every threshold below 1.

Floors: the same network untrained; the same method on the mean colours of the cells; the whole image as foreground; a
centred box of half the image's area.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sslbench.arrays import ByteArray, FloatArray
from sslbench.config import setting
from sslbench.data.decode.picture import UnreadableImage
from sslbench.errors import DataError
from sslbench.metrics.dense.discovery import saliency_values
from sslbench.protocols._parts.search import FOUND, TRUE, ObjectSearch, cost, with_mask
from sslbench.protocols._parts.untrained import Fit, SearchSettings
from sslbench.protocols.protocol import Protocol
from sslbench.results import Outcome
from sslbench.targets.label_maps import IGNORED, Foreground, PixelLabels

if TYPE_CHECKING:
    from sslbench.protocols._parts.pictures import Drawing


@dataclasses.dataclass(frozen=True)
class Settings(SearchSettings):
    """Settings of unsupervised saliency."""

    fit: Fit = setting("resize", "resize images to the nearest multiple of the patch, or pad them to the next one")


class Saliency(ObjectSearch[Settings]):
    """Search of the salient region of every image, scored by masks."""

    name = "saliency"
    takes = (Foreground,)
    needs = "needs masks of the foreground"
    advice = "Give a folder of images and one of masks with the values 0 and 255."

    def score(self) -> dict[str, Outcome]:
        """Find the salient region of every image and score it."""
        from sslbench.protocols._parts.objects import outcome_of_regions, regions_of_images

        test, width, empty = self.test, len(Foreground.given_columns), 0
        masks = Foreground.of(test.target).maps
        values: dict[str, dict[str, FloatArray]] = {}
        found: dict[str, dict[int, ByteArray]] = {}
        title = f"searching salient regions by {self.settings.method}"
        for image, rows in regions_of_images(self, fit=self.settings.fit, title=title):
            try:
                truth = np.asarray(masks.read_map(image.index, size=image.size).semantic, dtype=np.int64)
            except UnreadableImage as error:
                raise DataError(f"saliency: {error.path}: {error.reason}") from error
            empty += not (truth == 1).any()
            known = truth != IGNORED
            for row, regions in rows.items():
                for name, region in regions.items():
                    scores = values.setdefault(row, {}).setdefault(name, np.full((len(test), width), np.nan))
                    scores[image.index] = saliency_values(region.mask[known].astype(np.float64), truth[known] == 1).row
                # A bit per pixel: the regions of all images wait for the picture.
                found.setdefault(row, {})[image.index] = np.packbits(regions[""].mask)
        notes = [f"{empty:,} of {len(test):,} masks have no foreground; any region is wrong there."] if empty else []
        return {
            row: outcome_of_regions(scores, self, notes, scores[""][:, 0], _drawing(found[row], masks))
            for row, scores in values.items()
        }


def _drawing(regions: Mapping[int, ByteArray], masks: PixelLabels) -> "Drawing":
    """Return the function that draws the found region of an image red, the mask beside it green."""
    from PIL import Image

    def draw(picture: Image.Image, index: int, factor: float) -> Image.Image:
        truth = masks.read_map(index).semantic
        found = np.unpackbits(regions[index], count=truth.size).reshape(truth.shape).astype(np.bool_)
        both = Image.new("RGB", (2 * picture.width, picture.height))
        both.paste(with_mask(picture, found, FOUND), (0, 0))
        both.paste(with_mask(picture, truth == 1, TRUE), (picture.width, 0))
        return both

    return draw


PROTOCOL = Protocol(
    version=1,
    summary="salient regions without training: the object of TokenCut, LOST or DINO-seg against masks.",
    settings=Settings,
    kind=Saliency.kind(cost),
)
