"""Finetuning: the whole network is trained on the labels of train, with a linear classifier on one layer.

The recipe is that of the settings, with SGD or AdamW; presets have those of publications. The last epoch counts, never
the best on test. Several learning rates or weight decays are compared on a held-out part of train, and the best is
trained again on all of it. Train may be reduced to shares, to images per class, or to a published list. The network
with its classifier is written beside the record.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sslbench.data.source import Labels, Source
from sslbench.errors import DataError, UsageError
from sslbench.protocols.finetune.settings import Settings
from sslbench.protocols.protocol import CLASSES, OnImages, Protocol
from sslbench.results import Outcome

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer
    from sslbench.features.extract import ExtractSettings


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings and labels that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible, or have no effect.
        DataError: labels that a network cannot be trained on.
    """
    from sslbench.protocols.finetune.observers import make_observers
    from sslbench.protocols.finetune.plan import candidates, check_settings

    check_settings(settings, train)
    make_observers(settings, candidates(settings)[0], Path())
    if not train.labelled:
        raise DataError(
            "finetune: the train samples have no labels",
            "Give labelled data: a folder per class, a table with a label column, or a manifest with categories.",
        )


def check_images(
    backbone: "Backbone", layers: "Sequence[Layer]", train: Source, settings: Settings, *, seed: int
) -> tuple[str, ...]:
    """Refuse backbone, layer and settings that do not fit, before training; return the names of the results.

    Args:
        backbone: to be finetuned.
        layers: the one that the head takes.
        train: the samples to train on.
        settings: see `Settings`.
        seed: of draws and hold-outs.

    Returns:
        The layer, with the part of train where that is not all of it.

    Raises:
        UsageError: several layers, or settings that do not fit the backbone or the data.
        DataError: too few images, or a list that names others.
    """
    from sslbench.protocols.finetune.run import checked_rows

    if len(layers) != 1:
        raise UsageError(
            f"finetune trains one head, and there are {len(layers)} layers", "Name one with --layers, or none."
        )
    return checked_rows(backbone, layers[0], train, settings, seed=seed)


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
        backbone: stays as it is; a copy is trained.
        layers: the one that the head takes.
        train: labelled images.
        test: labelled images that are scored.
        settings: see `Settings`.
        seed: of draws, hold-outs, the head's first weights, the order, the augmentation and the intervals.
        engine: device, precision, images per forward pass when scoring, workers.
        folder: for checkpoints: the same call continues from the newest one there. Logs for TensorBoard and W&B lie
            beside it, with the suffix '.logs'.
        progress: called with what, images done and images in all.

    Returns:
        Row (see `check_images`) -> outcome. Empty on processes other than the first.

    Raises:
        DataError: an image cannot be read.
        NotFiniteError: the training diverged.
        StoppedError: a signal was received; everything is saved.
    """
    from sslbench.protocols.finetune.run import FinetuneRun

    check(settings, train.labels)
    run = FinetuneRun(
        backbone, layers[0], (train, test), settings, seed=seed, engine=engine, folder=folder, progress=progress
    )
    return run.outcomes()


PROTOCOL = Protocol(
    version=1,
    summary="The whole network trained on the labels of train, with a linear classifier.",
    settings=Settings,
    kind=OnImages(check, check_images, run_on_images, label_kinds=CLASSES | {"value"}),
)
