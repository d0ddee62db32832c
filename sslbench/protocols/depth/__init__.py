"""Depth from single images by heads trained on frozen features, as DINOv2, DINOv3 and probe3d report it.

Oquab et al., "DINOv2", 2023, section 7.4: the maps of the last layer (lin. 1) or of four (lin. 4), enlarged four times,
a 1 x 1 convolution to 256 bins of depth, whose expectation is the depth (AdaBins, Bhat et al., CVPR 2021); SigLoss;
AdamW, 38,400 updates of 16 crops; depths averaged with those of the mirrored image. Errors are means over images.

Differences from their code, each a setting or the right way by default: predictions are clipped after they are enlarged
to the size of the true depth; padding to whole patches is cut off exactly; logarithmic bins lie between the limits; the
learning rate is chosen on a held-out part of train; images without depth are left out of all means and listed.
"""

import functools
from typing import TYPE_CHECKING

from sslbench.data.source import Labels, Source
from sslbench.errors import DataError, UsageError
from sslbench.labels import LABELS
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense import check_heads, trained_heads
from sslbench.protocols.depth.settings import Settings
from sslbench.protocols.protocol import Protocol

if TYPE_CHECKING:
    from sslbench.protocols._parts.dense.run import Plan

NAME = "depth"


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data and the backbone.

    Raises:
        UsageError: a setting is not possible.
    """
    check_heads(settings, protocol=NAME)
    low, high = settings.min_depth, settings.max_depth
    for name, wrong, need in (
        ("bins", settings.bins < 2, "at least 2"),
        ("gradient", not 0 <= settings.gradient < float("inf"), "0 or more"),
        ("mean_steps", not 0 <= settings.mean_steps < settings.steps, f"0 or more and below steps={settings.steps}"),
        ("min_depth", low is not None and not 0 < low < float("inf"), "above 0"),
        ("max_depth", high is not None and not (low or 0) < high < float("inf"), "above min_depth"),
    ):
        if wrong:
            raise UsageError(f"{NAME}: {name} should be {need}, not {getattr(settings, name)}")
    if settings.train_region is not None:
        left, top, right, bottom = settings.train_region
        if not (0 <= left < right and 0 <= top < bottom):
            raise UsageError(f"{NAME}: train_region={list(settings.train_region)} is no left, top, right, bottom")


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings and labels that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible.
        DataError: labels that are no depths.
    """
    check_settings(settings)
    if train.kind != "depth":
        raise DataError(
            f"{NAME} needs a depth for every pixel, and these samples have {LABELS[train.kind].text}",
            "Give images/ with depth/, a list or a table of pairs, nyu_depth_v2_labeled.mat, or skimage:motorcycle.",
        )


def plan(train: Source, test: Source, settings: Settings, *, preprocessing: Preprocessing, seed: int) -> "Plan":
    """Return the parts of a run that are depth's own.

    Raises:
        DataError: depths of train that cannot be metres, none between the limits, or a region beyond the images.
    """
    from sslbench.data.loading.joint import JointView
    from sslbench.protocols._parts.dense.run import Plan
    from sslbench.protocols.depth.scores import check_region, limits_of, median_rows, outcome, range_of, task

    check_region(train, settings.train_region)
    known = range_of(train, seed)
    limits = limits_of(settings, known)
    of_depth = task(settings, limits)
    median = functools.cache(lambda: None if known is None else median_rows(test, known.median, of_depth))
    return Plan(
        of_depth,
        JointView(crop=settings.crop, region=settings.train_region),
        lambda row: outcome(row, test, settings, limits, median(), seed=seed),
    )


PROTOCOL = Protocol(
    version=3,
    summary="depth from single images: heads trained on frozen features of patches.",
    settings=Settings,
    kind=trained_heads(NAME, check, plan, label_kinds=frozenset({"depth"})),
    check_settings=check_settings,
)
