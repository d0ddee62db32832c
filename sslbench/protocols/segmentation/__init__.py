"""Semantic segmentation by heads trained on frozen features, as DINOv2 and DINOv3 report it.

Oquab et al., "DINOv2", 2023, section 7.4: BatchNorm and a 1 x 1 convolution on the patches of the last layer, or of
the last four with averages over scales and flips ("+ms"); AdamW, 40,000 updates of 16 crops of 512 pixels; the
logits of sliding windows, enlarged to the label map, are scored by the IoU of each class over the whole data set.

Differences from their code, each a setting: the loss is averaged over the pixels that count (`loss_average=all` for
theirs), the learning rate is chosen on a held-out part of train, and small data get fewer updates and smaller crops.
Ignored pixels are in neither loss nor score, a label that is no class is refused, and a class that is neither labelled
nor predicted is left out of the means.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.data.loading.joint import JointView
from sslbench.data.source import Labels, Source
from sslbench.errors import DataError, UsageError
from sslbench.features.extract import ExtractSettings
from sslbench.labels import LABELS
from sslbench.protocols._parts.dense import check_settings, checked_rows, train_and_score
from sslbench.protocols.protocol import MAPS, OnImages, Protocol
from sslbench.protocols.segmentation.scores import outcome, task
from sslbench.protocols.segmentation.settings import Settings
from sslbench.results import Outcome

NAME = "segmentation"


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings and labels that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible.
        DataError: labels that are not label maps of two classes or more.
    """
    check_settings(settings, protocol=NAME)
    if not 0 < settings.most_of_one_class <= 1:
        raise UsageError(f"{NAME}: most_of_one_class should be from above 0 to 1, not {settings.most_of_one_class}")
    if not 0 <= settings.boundary < 1:
        raise UsageError(f"{NAME}: boundary should be from 0 to below 1, not {settings.boundary}")
    if train.kind != "map":
        raise DataError(
            f"{NAME} needs a class for every pixel, and these samples have {LABELS[train.kind].text}",
            "Give data with label maps: images/ and masks/, ADE20K, Cityscapes, Pascal VOC, a manifest with masks.",
        )
    if len(train.classes) < 2:
        raise DataError(f"{NAME} needs two classes, the maps have {len(train.classes)}")


def rows(
    backbone: Backbone, layers: Sequence[Layer], train: Source, settings: Settings, *, seed: int
) -> tuple[str, ...]:
    """Refuse backbone, layers and settings that do not fit, before any image is decoded; return the rows of results.

    Raises:
        UsageError: blocks do not fit the backbone or the layers, or train is too small for a choice.
    """
    return checked_rows(backbone, layers, train, settings, protocol=NAME, seed=seed)


def run(  # noqa: PLR0913  the signature of every protocol on images
    backbone: Backbone,
    layers: Sequence[Layer],
    train: Source,
    test: Source,
    settings: Settings,
    *,
    seed: int,
    engine: ExtractSettings,
    folder: Path,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Outcome]:
    """Train heads on train, choose one per row on a held-out part of it, segment the test images.

    Args:
        backbone: stays as it is.
        layers: a row of results each, unless `blocks` is set.
        train: images with label maps.
        test: the same, with the same classes.
        settings: see `Settings`.
        seed: of the held-out part, the order, the augmentation, the first weights and the intervals.
        engine: device, precision and workers.
        folder: for checkpoints: the same call continues from the newest one there.
        progress: called with what, images done and images in all.

    Returns:
        Row (see `rows`) -> outcome; a row of which every head diverged is left out.

    Raises:
        DataError: images or maps cannot be used; all of them are listed before training.
        NotFiniteError: every head diverged.
        StoppedError: a signal came; everything is saved.
    """
    check(settings, train.labels)
    found = train_and_score(
        backbone,
        layers,
        train,
        test,
        task(train, settings),
        settings,
        JointView(crop=settings.crop, most_of_one=settings.most_of_one_class),
        seed=seed,
        engine=engine,
        folder=folder,
        progress=progress,
    )
    return {name: outcome(row, test, settings, seed=seed) for name, row in found.items()}


PROTOCOL = Protocol(
    version=1,
    summary="semantic segmentation: heads trained on frozen features of patches.",
    settings=Settings,
    kind=OnImages(check, rows, run, label_kinds=MAPS),
)
