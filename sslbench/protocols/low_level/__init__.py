"""Regression of low-level signals by heads on frozen features: a number at every pixel.

The signal is computed from the image itself, at its own size, so any images serve: the strength of edges or corners,
from the luminance of colours or the mean of any other channels. Or it is read from maps of numbers beside the images
(`--data 'taskonomy?maps=keypoints2d'`, see `data/signal_maps`). A linear head on the patches
predicts it (mean absolute error, AdamW), enlarged to the image by bilinear interpolation. The score is the correlation
over the pixels of an image, mean over images: a constant scores 0, whatever its error. What a grid of patches can
express at best is in no score: a finer grid scores higher.

Chen, Marks and Cheng, 2024 (arXiv 2411.17474) and VisBench compare networks by such tasks. VisBench computes corners by
the same formula, after resizing the image to 224 pixels; its edges, keypoints and edges of occlusion are maps of
Taskonomy (Zamir et al., CVPR 2018).

Floors: a constant; the mean signal at each position; the same head on raw colours; the untrained network.
"""

import dataclasses
from typing import TYPE_CHECKING

from sslbench.data.source import Labels, Source
from sslbench.errors import DataError, UsageError
from sslbench.labels import LABELS
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense import check_heads, trained_heads
from sslbench.protocols.low_level.settings import Settings
from sslbench.protocols.protocol import SIGNALS, Protocol

if TYPE_CHECKING:
    from sslbench.protocols._parts.dense.run import Plan

NAME = "low-level"


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data and the backbone.

    Raises:
        UsageError: a setting is not possible.
    """
    check_heads(settings, protocol=NAME)
    if not 0 < settings.sigma <= 100:
        raise UsageError(f"{NAME}: sigma should be from above 0 to 100 pixels, not {settings.sigma:g}")


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible, or have no effect on maps from files.
        DataError: labels that are no signals.
    """
    check_settings(settings)
    if train.kind != "signal":
        raise DataError(f"{NAME} predicts signals of pixels, and these samples have {LABELS[train.kind].text}")
    if train.classes == ("signal",):
        return
    for name in ("signal", "sigma"):
        if getattr(settings, name) != next(f.default for f in dataclasses.fields(Settings) if f.name == name):
            raise UsageError(
                f"{NAME}: {name} has no effect on the maps of {train.classes[0]}/", f"Leave out {name}=, or ?maps=."
            )


def plan(train: Source, test: Source, settings: Settings, *, preprocessing: Preprocessing, seed: int) -> "Plan":
    """Return the parts of a run that are those of signals."""
    from sslbench.data.loading.joint import JointView
    from sslbench.protocols._parts.dense.run import Plan
    from sslbench.protocols.low_level.scores import outcome, task

    return Plan(task(settings, preprocessing), JointView(crop=settings.crop), lambda row: outcome(row, test, seed=seed))


PROTOCOL = Protocol(
    version=3,
    summary="low-level signals: heads on frozen features predict edges, corners or maps at every pixel.",
    settings=Settings,
    kind=trained_heads(NAME, check, plan, label_kinds=SIGNALS),
    check_settings=check_settings,
)
