"""Salient regions without labels: the object that TokenCut, LOST or DINO-seg finds, against masks of the foreground.

Wang et al., CVPR 2022 (TokenCut), section 4, without its bilateral solver: images are resized to the nearest multiple
of the patch by Lanczos, the region is brought to the size of the mask by nearest neighbours. Scores of ECSSD, DUTS and
DUT-OMRON: the maximal F (beta squared 0.3; the mean over images at the best of 255 thresholds), IoU and pixel accuracy,
means over images. A region is 0 or 1, so its F is the same at every threshold below 1.

Floors: the same network untrained; the same method on the mean colours of the cells; the whole image as foreground; a
centred box of half the image's area.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sslbench.data.source import Labels
from sslbench.errors import DataError
from sslbench.labels import LABELS
from sslbench.protocols._parts.map_settings import check_search
from sslbench.protocols._parts.untrained import MapRun, without_training
from sslbench.protocols.protocol import FOREGROUND, ImageWork, Protocol, Shapes
from sslbench.protocols.saliency.settings import Settings
from sslbench.results import Outcome

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.dense import DenseInput
    from sslbench.backbones.layers import Layer


def check_settings(settings: Settings) -> None:
    """Refuse settings that are out of their range or have no effect, whatever the data.

    Raises:
        UsageError: one is.
    """
    check_search(settings, "saliency")


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings and labels that cannot work, before any image is decoded.

    Raises:
        UsageError: a number is out of its range, or has no effect.
        DataError: the images have no masks of a foreground.
    """
    if train.kind != "mask":
        raise DataError(
            f"saliency: needs masks of the foreground, and these samples have {LABELS[train.kind].text}",
            "Give a folder of images and one of masks with the values 0 and 255.",
        )
    check_settings(settings)


def maps(backbone: "Backbone", layers: "Sequence[Layer]", settings: Settings) -> "Mapping[str, tuple[DenseInput, ...]]":
    """Return the rows of results with their maps; see `objects.maps_of_rows`."""
    from sslbench.protocols._parts.objects import maps_of_rows

    return maps_of_rows(backbone, layers, settings)


def score(run: MapRun[Settings]) -> dict[str, Outcome]:
    """Search in every image and score what is found; see `scores.score`."""
    from sslbench.protocols.saliency import scores

    return scores.score(run)


def work(settings: Settings, shapes: Shapes) -> ImageWork:
    """Return one pass per image."""
    return ImageWork(shapes.test, rest="the search for regions in the maps")


PROTOCOL = Protocol(
    version=1,
    summary="salient regions without training: the object of TokenCut, LOST or DINO-seg against masks.",
    settings=Settings,
    kind=without_training(check, maps, score, work=work, label_kinds=FOREGROUND, part=lambda settings: settings.part),
    check_settings=check_settings,
)
