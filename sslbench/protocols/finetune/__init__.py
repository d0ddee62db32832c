"""Finetuning: the whole network is trained on the labels of train, with a linear classifier on one layer.

The recipe is that of the settings, with SGD or AdamW; presets have those of publications. The last epoch counts, never
the best on test. Several learning rates or weight decays are compared on a held-out part of train, and the best is
trained again on all of it. Train may be reduced to shares, to images per class, or to a published list. The network
with its classifier is written beside the record.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.protocols.finetune.settings import Settings, check_labels
from sslbench.protocols.protocol import Cost, ImageInputs, OnImages, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer


def check(settings: Settings, train: Target) -> None:
    """Raise an error for impossible settings and for labels without a loss; images are not opened."""
    check_labels(settings, train)
    if not train.labelled:
        raise DataError(
            "finetune: the train samples have no labels",
            "Give labelled data: a folder per class, a table with a label column, or a manifest with categories.",
        )


def check_images(
    backbone: "Backbone", layers: "Sequence[Layer]", train: Source, settings: Settings, *, seed: int
) -> tuple[str, ...]:
    """Return the names of the results; raise an error if backbone, layer, settings and data do not fit."""
    from sslbench.protocols.finetune.run import checked_rows

    if len(layers) != 1:
        raise UsageError(
            f"finetune trains one head, and there are {len(layers)} layers", "Name one with --layers, or none."
        )
    return checked_rows(backbone, layers[0], train, settings, seed=seed)


def run_on_images(inputs: ImageInputs[Settings]) -> dict[str, Outcome]:
    """Train on train, score test; every process of a distributed run (`process_group`) calls this.

    The same call continues from the newest checkpoint in the folder. The logs for TensorBoard and W&B are beside it, in
    a folder with the suffix '.logs'.

    Name of the result (see `check_images`) -> outcome; {} on processes other than the first.
    """
    from sslbench.protocols.finetune.run import FinetuneRun

    check(inputs.settings, inputs.train.target)
    return FinetuneRun(inputs).outcomes()


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return the images of all trainings: one for each draw of each part of train, and those that choose lr."""
    parts = [share * shapes.train for share in settings.fractions]
    parts += [*settings.images, *(number * shapes.classes for number in settings.per_class)]
    draws = settings.draws if parts else 1
    candidates = len(settings.lr) * len(settings.weight_decay)
    trainings = draws * (1 + (candidates * (1 - settings.holdout) if candidates > 1 else 0))
    trained = 0.0
    for images in parts or [shapes.train]:
        each = settings.epochs * images if settings.updates is None else settings.updates * settings.batch_size
        trained += trainings * each
    return Cost(images=shapes.test * draws * len(parts or [0]), trained=trained)


PROTOCOL = Protocol(
    version=7,
    summary="The whole network trained on the labels of train, with a linear classifier.",
    settings=Settings,
    kind=OnImages(check, check_images, run_on_images, cost=cost, takes=(Classes, MultiLabel, Numbers)),
)
