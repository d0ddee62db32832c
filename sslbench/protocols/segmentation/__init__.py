"""Semantic segmentation by heads trained on frozen features, as DINOv2 and DINOv3 report it.

Oquab et al., "DINOv2", 2023, section 7.4: BatchNorm and a 1 x 1 convolution on the patches of the last layer, or of
the last four with averages over scales and flips ("+ms"); AdamW, 40,000 updates of 16 crops of 512 pixels; the
logits of sliding windows, enlarged to the label map, are scored by the IoU of each class over the whole data set.

Differences from their code, each a setting: the loss is averaged over the pixels that count (`loss_average=all` for
theirs), the learning rate is chosen on a held-out part of train, and small data get fewer updates and smaller crops.
Ignored pixels are in neither loss nor score, a label that is no class is refused, and a class that is neither labelled
nor predicted is left out of the means.
"""

from typing import TYPE_CHECKING

from sslbench.data.source import Labels, Source
from sslbench.errors import DataError, UsageError
from sslbench.labels import LABELS
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense import check_heads, trained_heads
from sslbench.protocols.protocol import MAPS, Protocol
from sslbench.protocols.segmentation.settings import Settings

if TYPE_CHECKING:
    from sslbench.protocols._parts.dense.run import Plan

NAME = "segmentation"


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data and the backbone.

    Raises:
        UsageError: a setting is not possible.
    """
    check_heads(settings, protocol=NAME)
    if not 0 < settings.most_of_one_class <= 1:
        raise UsageError(f"{NAME}: most_of_one_class should be from above 0 to 1, not {settings.most_of_one_class}")
    if not 0 <= settings.boundary < 1:
        raise UsageError(f"{NAME}: boundary should be from 0 to below 1, not {settings.boundary}")


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings and labels that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible.
        DataError: labels that are not label maps of two classes or more.
    """
    check_settings(settings)
    if train.kind != "map":
        raise DataError(
            f"{NAME} needs a class for every pixel, and these samples have {LABELS[train.kind].text}",
            "Give data with label maps: images/ and masks/, ADE20K, Cityscapes, Pascal VOC, a manifest with masks.",
        )
    if len(train.classes) < 2:
        raise DataError(
            f"{NAME} needs two classes, and all pixels of the maps belong to '{', '.join(train.classes)}'",
            "If it means ignored (255), nothing is labelled: `sslbench check-data` shows the values.",
        )


def plan(train: Source, test: Source, settings: Settings, *, preprocessing: Preprocessing, seed: int) -> "Plan":
    """Return the parts of a run that are segmentation's own.

    Raises:
        UsageError: panoptic quality of maps that do not know instances.
    """
    from sslbench.data.loading.joint import JointView
    from sslbench.protocols._parts.dense.run import Plan
    from sslbench.protocols.segmentation.scores import outcome, task

    return Plan(
        task(train, settings),
        JointView(crop=settings.crop, most_of_one=settings.most_of_one_class),
        lambda row: outcome(row, test, settings, seed=seed),
    )


PROTOCOL = Protocol(
    version=1,
    summary="semantic segmentation: heads trained on frozen features of patches.",
    settings=Settings,
    kind=trained_heads(NAME, check, plan, label_kinds=MAPS),
    check_settings=check_settings,
)
