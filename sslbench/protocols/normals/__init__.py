"""Surface normals from single images by heads trained on frozen features, as probe3d reports them.

El Banani et al., "Probing the 3D awareness of visual foundation models", CVPR 2024 (probe3d): a head predicts a vector
and a concentration per pixel, trained by the negative log-likelihood of the angle (Bae et al., ICCV 2021). Errors are
angles in degrees, of all pixels together as most papers report them, and as means over images as probe3d does.

Differences from its code: vectors are enlarged bilinearly, images without a known normal are left out of the means, and
the learning rate is chosen on a held-out part of train. Predictions and truth are in one frame: that of the data.
"""

from typing import TYPE_CHECKING

from sslbench.data.source import Labels, Source
from sslbench.errors import DataError, UsageError
from sslbench.labels import LABELS
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense import check_heads, trained_heads
from sslbench.protocols.normals.settings import Settings
from sslbench.protocols.protocol import Protocol

if TYPE_CHECKING:
    from sslbench.protocols._parts.dense.run import Plan

NAME = "normals"


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data and the backbone.

    Raises:
        UsageError: a setting is not possible.
    """
    check_heads(settings, protocol=NAME)
    if settings.rotation:
        raise UsageError(f"{NAME}: rotation={settings.rotation:g} would turn the images and not their normals")


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings and labels that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible.
        DataError: labels that are no normals.
    """
    check_settings(settings)
    if train.kind != "normals":
        raise DataError(
            f"{NAME} needs a surface normal for every pixel, and these samples have {LABELS[train.kind].text}",
            "Give images/ with normals/, a list or a table of pairs, or skimage:motorcycle.",
        )


def plan(train: Source, test: Source, settings: Settings, *, preprocessing: Preprocessing, seed: int) -> "Plan":
    """Return the parts of a run that are those of normals."""
    from sslbench.data.loading.joint import JointView
    from sslbench.protocols._parts.dense.run import Plan
    from sslbench.protocols.normals.scores import outcome, task

    return Plan(task(settings), JointView(crop=settings.crop), lambda row: outcome(row, test, seed=seed))


PROTOCOL = Protocol(
    version=3,
    summary="surface normals from single images: heads trained on frozen features of patches.",
    settings=Settings,
    kind=trained_heads(NAME, check, plan, label_kinds=frozenset({"normals"})),
    check_settings=check_settings,
)
