"""Orientation of the structures of images by heads on frozen features: the direction of change at every pixel.

The target is computed from each image at its own size, so any images serve: the main direction of the structure tensor,
modulo 180 degrees, as a vector of doubled angle whose length is the coherence of the place (`data/signals`). A linear
head on the patches predicts the vector. The loss is the mean angle between vectors, weighted by coherence, and so is
the error, in degrees of the orientation from 0 to 90: a mean over images, lower is better, 45 at random.

VisBench 0.27 has this task by the same formulae, after resizing the image to 224 pixels.

Floors: a constant (the mean orientation of train); the mean orientation at each position; the same head on raw colours;
the untrained network.
"""

from typing import TYPE_CHECKING

from sslbench.data.source import Labels, Source
from sslbench.errors import DataError, UsageError
from sslbench.labels import LABELS
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense import check_heads, trained_heads
from sslbench.protocols.orientation.settings import Settings
from sslbench.protocols.protocol import ORIENTATIONS, Protocol

if TYPE_CHECKING:
    from sslbench.protocols._parts.dense.run import Plan

NAME = "orientation"


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data and the backbone.

    Raises:
        UsageError: a setting is not possible.
    """
    check_heads(settings, protocol=NAME)
    if not 0 < settings.sigma <= 100:
        raise UsageError(f"{NAME}: sigma should be from above 0 to 100 pixels, not {settings.sigma:g}")
    if settings.rotation:
        raise UsageError(f"{NAME}: rotation={settings.rotation:g} would turn the images and not their orientations")


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible.
        DataError: labels that are no orientations.
    """
    check_settings(settings)
    if train.kind != "orientation":
        raise DataError(f"{NAME} computes its targets, and these samples have {LABELS[train.kind].text}")


def plan(train: Source, test: Source, settings: Settings, *, preprocessing: Preprocessing, seed: int) -> "Plan":
    """Return the parts of a run that are those of orientations."""
    from sslbench.data.loading.joint import JointView
    from sslbench.protocols._parts.dense.run import Plan
    from sslbench.protocols.orientation.scores import outcome, task

    return Plan(task(settings, preprocessing), JointView(crop=settings.crop), lambda row: outcome(row, test, seed=seed))


PROTOCOL = Protocol(
    version=1,
    summary="orientation of structures: heads on frozen features predict the direction of change.",
    settings=Settings,
    kind=trained_heads(NAME, check, plan, label_kinds=ORIENTATIONS),
    check_settings=check_settings,
)
