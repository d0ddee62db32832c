"""Regression of low-level signals by heads on frozen features: the strength of edges or corners at every pixel.

The signal is computed from the image itself, at its own size, so any images serve. A linear head on the patches
predicts it (mean absolute error, AdamW), enlarged to the image by bilinear interpolation. The score is the correlation
over the pixels of an image, mean over images: a constant scores 0, whatever its error. What a grid of patches can
express at best is in no score: a finer grid scores higher.

Chen, Marks and Cheng, 2024 (arXiv 2411.17474) and VisBench compare networks by such tasks. VisBench computes corners by
the same formula, after resizing the image to 224 pixels; its edges are maps of Taskonomy.

Floors: a constant; the mean signal at each position; the same head on raw colours; the untrained network.
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
from sslbench.protocols.low_level.scores import outcome, task
from sslbench.protocols.low_level.settings import Settings
from sslbench.protocols.protocol import SIGNALS, OnImages, Protocol
from sslbench.results import Outcome

NAME = "low-level"


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible.
        DataError: labels that are no signals.
    """
    check_settings(settings, protocol=NAME)
    if not 0 < settings.sigma <= 100:
        raise UsageError(f"{NAME}: sigma should be from above 0 to 100 pixels, not {settings.sigma:g}")
    if train.kind != "signal":
        raise DataError(f"{NAME} computes its targets, and these samples have {LABELS[train.kind].text}")


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
    """Train heads on train, choose one per row on a held-out part of it, predict the signals of the test images.

    Args:
        backbone: stays as it is.
        layers: a row of results each, unless `blocks` is set.
        train: images.
        test: images.
        settings: see `Settings`.
        seed: of the held-out part, the order, the augmentation, the first weights and the intervals.
        engine: device, precision and workers.
        folder: for checkpoints: the same call continues from the newest one there.
        progress: called with what, images done and images in all.

    Returns:
        Row (see `rows`) -> outcome; a row of which every head diverged is left out.

    Raises:
        DataError: images cannot be read; all of them are listed before training.
        NotFiniteError: every head diverged.
        StoppedError: a signal of the system came; everything is saved.
    """
    check(settings, train.labels)
    found = train_and_score(
        backbone,
        layers,
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
    summary="low-level signals: heads on frozen features predict edges or corners at every pixel.",
    settings=Settings,
    kind=OnImages(check, rows, run, label_kinds=SIGNALS),
)
