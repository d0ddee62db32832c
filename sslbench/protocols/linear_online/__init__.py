"""Linear probe on images: heads trained by SGD on augmented views that go through the frozen backbone.

That is how VISSL, MoCo, SimCLR, SwAV, DINO, DINOv2 and MAE report linear accuracy. Many heads are trained in one pass:
one per learning rate, weight decay and layer. The best is chosen on a held-out part of train; what is reported are the
heads after the last update, never the best epoch. `linear` solves the same problem on stored features, without
augmentation and to convergence.

Version 2: groups of samples are kept together where heads are chosen, and intervals are those of half-samples.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sslbench.data.clips import sampling_of
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.protocols.linear_online.settings import Settings
from sslbench.protocols.protocol import Cost, ImageInputs, OnImages, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.targets.target import Target

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer


def check(settings: Settings, train: Target) -> None:
    """Refuse settings and labels that cannot work, before anything else is opened."""
    if not train.of_classes:
        raise DataError(
            f"linear-online needs classes, and the train samples have {train.title}",
            "Give data with classes: a folder per class, a table with a label column, or a manifest with categories.",
        )


def check_images(
    backbone: "Backbone", layers: "Sequence[Layer]", train: Source, settings: Settings, *, seed: int
) -> tuple[str, ...]:
    """Refuse backbone, layers and settings that do not fit, before any image is decoded; return the rows of results."""
    from sslbench.protocols.linear_online.run import make_batches, planned, split

    if settings.blocks and sampling_of(train.images):
        raise UsageError(
            "blocks= norms the class token of each image, and videos have the mean over their frames",
            "Name layers with --layers.",
        )
    plans = planned(backbone, layers, settings)
    fit, _ = split(train, plans, settings, seed)
    # Called for its errors alone.
    make_batches(fit, backbone.preprocessing, settings, seed=seed, piece=1)
    return tuple(dict.fromkeys(plan.row for plan in plans))


def run_on_images(inputs: ImageInputs[Settings]) -> dict[str, Outcome]:
    """Train on train, score test; with several processes (`process_group`) every one of them calls this.

    The backbone stays as it is: eval mode, no gradient, not a bit of it changes. Where there is a choice between heads,
    a part of train is held out for it. The same call continues from the newest checkpoint in the folder.

    Row (see `check_images`) -> outcome; a row of which every head diverged is left out. Empty on processes other than
    the first.
    """
    from sslbench.protocols.linear_online.run import run

    check(inputs.settings, inputs.train.target)
    return run(inputs)


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return the views of all epochs, which are encoded and not trained on, and the test images."""
    views = settings.epochs * shapes.train if settings.updates is None else settings.updates * settings.batch_size
    return Cost(images=views + shapes.test, rest="the heads")


PROTOCOL = Protocol(
    version=4,
    summary="Linear probe on images: heads trained by SGD on augmented views.",
    settings=Settings,
    kind=OnImages(check, check_images, run_on_images, cost=cost, videos=True, averages_views=True),
)
