"""Depth from single images by heads trained on frozen features, as DINOv2, DINOv3 and probe3d report it.

Oquab et al., "DINOv2", 2023, section 7.4: the maps of the last layer (lin. 1) or of four (lin. 4), enlarged four times,
a 1 x 1 convolution to 256 bins of depth, whose expectation is the depth (AdaBins, Bhat et al., CVPR 2021); SigLoss;
AdamW, 38,400 updates of 16 crops; depths averaged with those of the mirrored image. Errors are means over images.

Differences from their code, each a setting or the right way by default: predictions are clipped after they are enlarged
to the size of the true depth; padding to whole patches is cut off exactly; logarithmic bins lie between the limits; the
learning rate is chosen on a held-out part of train; images without depth are left out of all means and listed.
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
from sslbench.protocols._parts.dense.pixel_values import raw_layers
from sslbench.protocols.depth.scores import check_region, limits_of, median_rows, outcome, range_of, task
from sslbench.protocols.depth.settings import Settings
from sslbench.protocols.protocol import OnImages, Protocol
from sslbench.results import Outcome

NAME = "depth"


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings and labels that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible.
        DataError: labels that are no depths.
    """
    check_settings(settings, protocol=NAME)
    low, high = settings.min_depth, settings.max_depth
    for name, wrong, need in (
        ("bins", settings.bins < 2, "at least 2"),
        ("gradient", not 0 <= settings.gradient < float("inf"), "0 or more"),
        ("mean_steps", settings.mean_steps < 0, "0 or more"),
        ("min_depth", low is not None and not 0 < low < float("inf"), "above 0"),
        ("max_depth", high is not None and not (low or 0) < high < float("inf"), "above min_depth"),
    ):
        if wrong:
            raise UsageError(f"{NAME}: {name} should be {need}, not {getattr(settings, name)}")
    if settings.train_region is not None:
        left, top, right, bottom = settings.train_region
        if not (0 <= left < right and 0 <= top < bottom):
            raise UsageError(f"{NAME}: train_region={list(settings.train_region)} is no left, top, right, bottom")
    if train.kind != "depth":
        raise DataError(
            f"{NAME} needs a depth for every pixel, and these samples have {LABELS[train.kind].text}",
            "Give images/ with depth/, a list or a table of pairs, nyu_depth_v2_labeled.mat, or skimage:motorcycle.",
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
    """Train heads on train, choose one per row on a held-out part of it, predict the depth of the test images.

    Args:
        backbone: stays as it is.
        layers: a row of results each, unless `blocks` or `raw_blocks` is set.
        train: images with depth.
        test: the same.
        settings: see `Settings`.
        seed: of the held-out part, the order, the augmentation, the first weights and the intervals.
        engine: device, precision and workers.
        folder: for checkpoints: the same call continues from the newest one there.
        progress: called with what, images done and images in all.

    Returns:
        Row (see `rows`) -> outcome; a row of which every head diverged is left out.

    Raises:
        DataError: images or depths cannot be used; all of them are listed before training.
        NotFiniteError: every head diverged.
        StoppedError: a signal came; everything is saved.
    """
    check(settings, train.labels)
    check_region(train, settings.train_region)
    known = range_of(train, seed)
    limits = limits_of(settings, known)
    of_depth = task(settings, limits)
    found = train_and_score(
        backbone,
        raw_layers(backbone, layers, settings.raw_blocks, settings, NAME),
        train,
        test,
        of_depth,
        settings,
        JointView(crop=settings.crop, region=settings.train_region),
        seed=seed,
        engine=engine,
        folder=folder,
        progress=progress,
    )
    median = None if known is None else median_rows(test, known.median, of_depth)
    return {name: outcome(row, test, settings, limits, median, seed=seed) for name, row in found.items()}


PROTOCOL = Protocol(
    version=1,
    summary="depth from single images: heads trained on frozen features of patches.",
    settings=Settings,
    kind=OnImages(check, rows, run, label_kinds=frozenset({"depth"})),
)
