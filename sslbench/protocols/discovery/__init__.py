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

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sslbench.data.source import Labels
from sslbench.errors import DataError
from sslbench.labels import LABELS
from sslbench.protocols._parts.map_settings import check_search
from sslbench.protocols._parts.untrained import MapRun, without_training
from sslbench.protocols.discovery.settings import Settings
from sslbench.protocols.protocol import BOXES, ImageWork, Protocol, Shapes
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
    check_search(settings, "discovery")


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings and labels that cannot work, before any image is decoded.

    Raises:
        UsageError: a number is out of its range, or has no effect.
        DataError: the images have no boxes.
    """
    if train.kind != "boxes":
        raise DataError(
            f"discovery: needs boxes of objects, and these samples have {LABELS[train.kind].text}",
            "Give a COCO or kwcoco manifest, or a Pascal VOC tree with Annotations/.",
        )
    check_settings(settings)


def maps(backbone: "Backbone", layers: "Sequence[Layer]", settings: Settings) -> "Mapping[str, tuple[DenseInput, ...]]":
    """Return the rows of results with their maps; see `objects.maps_of_rows`."""
    from sslbench.protocols._parts.objects import maps_of_rows

    return maps_of_rows(backbone, layers, settings)


def score(run: MapRun[Settings]) -> dict[str, Outcome]:
    """Search in every image and score what is found; see `scores.score`."""
    from sslbench.protocols.discovery import scores

    return scores.score(run)


def work(settings: Settings, shapes: Shapes) -> ImageWork:
    """Return one pass per image."""
    return ImageWork(shapes.test, rest="the search for regions in the maps")


PROTOCOL = Protocol(
    version=1,
    summary="discovery of one object per image, without training: LOST, TokenCut or DINO-seg.",
    settings=Settings,
    kind=without_training(check, maps, score, work=work, label_kinds=BOXES, part=lambda settings: settings.part),
    check_settings=check_settings,
)
