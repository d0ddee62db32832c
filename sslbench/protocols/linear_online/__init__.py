"""Linear probe on images: heads trained by SGD on augmented views that go through the frozen backbone.

That is how VISSL, MoCo, SimCLR, SwAV, DINO, DINOv2 and MAE report linear accuracy. Many heads are trained in one pass:
one per learning rate, weight decay and layer. The best is chosen on a held-out part of train; what is reported are the
heads after the last update, never the best epoch. `linear` solves the same problem on stored features, without
augmentation and to convergence.

Version 2: groups of samples are kept together where heads are chosen, and intervals are those of half-samples.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.protocols.linear_online.recipe import check_settings
from sslbench.protocols.linear_online.settings import Settings
from sslbench.protocols.protocol import Cost, OnImages, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.targets.target import Target

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer
    from sslbench.features.array import ExtractSettings


def check(settings: Settings, train: Target) -> None:
    """Refuse settings and labels that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible.
        DataError: labels that a classifier cannot be trained on.
    """
    check_settings(settings)
    if not train.of_classes:
        raise DataError(
            f"linear-online needs classes, and the train samples have {train.title}",
            "Give data with classes: a folder per class, a table with a label column, or a manifest with categories.",
        )


def check_images(
    backbone: "Backbone", layers: "Sequence[Layer]", train: Source, settings: Settings, *, seed: int
) -> tuple[str, ...]:
    """Refuse backbone, layers and settings that do not fit, before any image is decoded; return the rows of results.

    Args:
        backbone: to be evaluated.
        layers: that were asked for, or the backbone's default.
        train: the samples to train on.
        settings: see `Settings`.
        seed: of the held-out part.

    Returns:
        What the results will be called: a layer each, or what `blocks` asks for.

    Raises:
        UsageError: blocks or plain_layers do not fit the backbone or the layers; a batch is larger than the data.
        BackboneError: the backbone has no such tokens.
    """
    from sslbench.protocols.linear_online.plan import make_batches, planned, split

    plans = planned(backbone, layers, settings)
    fit, _ = split(train, plans, settings, seed)
    make_batches(fit, backbone.preprocessing, settings, seed=seed, piece=1)
    return tuple(dict.fromkeys(plan.row for plan in plans))


def run_on_images(  # noqa: PLR0913  the signature of every protocol on images
    backbone: "Backbone",
    layers: "Sequence[Layer]",
    train: Source,
    test: Source,
    settings: Settings,
    *,
    seed: int,
    engine: "ExtractSettings",
    folder: Path,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Outcome]:
    """Train on train, score test; with several processes (`process_group`) every one of them calls this.

    Args:
        backbone: stays as it is: eval mode, no gradient, not a bit of it changes.
        layers: a row of results each, unless `blocks` is set.
        train: labelled images; where there is a choice between heads, a part is held out for it.
        test: labelled images that are scored.
        settings: see `Settings`.
        seed: of the held-out part, the order, the augmentation, the first weights and the intervals.
        engine: device, precision, images per forward pass, workers.
        folder: for checkpoints: the same call continues from the newest one there.
        progress: called with what, images done and images in all.

    Returns:
        Row (see `check_images`) -> outcome; a row of which every head diverged is left out. Empty on processes other
        than the first.

    Raises:
        DataError: an image cannot be read, or features are not finite.
        NotFiniteError: every head diverged.
        StoppedError: a signal came; everything is saved.
        BackboneError: the backbone moved.
    """
    from sslbench.protocols.linear_online.run import run

    check(settings, train.target)
    return run(backbone, layers, (train, test), settings, seed=seed, engine=engine, folder=folder, progress=progress)


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return the views of all epochs, which are encoded and not trained on, and the test images."""
    views = settings.epochs * shapes.train if settings.updates is None else settings.updates * settings.batch_size
    return Cost(images=views + shapes.test, rest="the heads")


PROTOCOL = Protocol(
    version=4,
    summary="Linear probe on images: heads trained by SGD on augmented views.",
    settings=Settings,
    kind=OnImages(check, check_images, run_on_images, cost=cost),
    check_settings=check_settings,
)
