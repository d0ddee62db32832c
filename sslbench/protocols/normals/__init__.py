"""Surface normals from single images by heads trained on frozen features, as probe3d reports them.

El Banani et al., "Probing the 3D awareness of visual foundation models", CVPR 2024 (probe3d): a head predicts a vector
and a concentration per pixel, trained by the negative log-likelihood of the angle (Bae et al., ICCV 2021). Errors are
angles in degrees, of all pixels together as most papers report them, and as means over images as probe3d does.

Differences from its code: vectors are enlarged bilinearly, images without a known normal are left out of the means, and
the learning rate is chosen on a held-out part of train. Predictions and truth are in one frame: that of the data.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer
from sslbench.data.loading.joint import JointView
from sslbench.data.source import Labels, Source
from sslbench.errors import DataError
from sslbench.features.extract import ExtractSettings
from sslbench.labels import LABELS
from sslbench.protocols._parts.dense import check_settings, checked_rows, train_and_score
from sslbench.protocols._parts.dense.pixel_values import raw_layers
from sslbench.protocols.normals.scores import outcome, task
from sslbench.protocols.normals.settings import Settings
from sslbench.protocols.protocol import OnImages, Protocol
from sslbench.results import Outcome

NAME = "normals"


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings and labels that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible.
        DataError: labels that are no normals.
    """
    check_settings(settings, protocol=NAME)
    if train.kind != "normals":
        raise DataError(
            f"{NAME} needs a surface normal for every pixel, and these samples have {LABELS[train.kind].text}",
            "Give images/ with normals/, a list or a table of pairs, or skimage:motorcycle.",
        )


def rows(
    backbone: Backbone, layers: Sequence[Layer], train: Source, settings: Settings, *, seed: int
) -> tuple[str, ...]:
    """Refuse backbone, layers and settings that do not fit, before any image is decoded; return the rows of results.

    Raises:
        UsageError: blocks do not fit the backbone or the layers, or train is too small for a choice.
    """
    layers = raw_layers(backbone, layers, settings.raw_blocks, settings, NAME)
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
    """Train heads on train, choose one per row on a held-out part of it, predict the normals of the test images.

    Args:
        backbone: stays as it is.
        layers: a row of results each, unless `blocks` or `raw_blocks` is set.
        train: images with normals.
        test: the same.
        settings: see `Settings`.
        seed: of the held-out part, the order, the augmentation, the first weights and the intervals.
        engine: device, precision and workers.
        folder: for checkpoints: the same call continues from the newest one there.
        progress: called with what, images done and images in all.

    Returns:
        Row (see `rows`) -> outcome; a row of which every head diverged is left out.

    Raises:
        DataError: images or normals cannot be used; all of them are listed before training.
        NotFiniteError: every head diverged.
        StoppedError: a signal came; everything is saved.
    """
    check(settings, train.labels)
    found = train_and_score(
        backbone,
        raw_layers(backbone, layers, settings.raw_blocks, settings, NAME),
        train,
        test,
        task(settings),
        settings,
        JointView(crop=settings.crop),
        seed=seed,
        engine=engine,
        folder=folder,
        progress=progress,
    )
    return {name: outcome(row, test, seed=seed) for name, row in found.items()}


PROTOCOL = Protocol(
    version=1,
    summary="surface normals from single images: heads trained on frozen features of patches.",
    settings=Settings,
    kind=OnImages(check, rows, run, label_kinds=frozenset({"normals"})),
)
