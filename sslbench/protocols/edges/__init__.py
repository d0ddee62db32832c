"""Boundaries that persons see, by heads trained on frozen features, scored as the Berkeley benchmark does.

Xie and Tu, ICCV 2015 (HED): cross-entropy in which boundaries and other pixels have equal weight; pixels that some
annotators mark, but fewer than half, do not count in training (Liu et al., CVPR 2017). Scores are F at the best
threshold of the data set (ODS) and of each image (OIS), and average precision, by one-to-one matching of thinned
boundaries within 0.0075 of the diagonal (Arbelaez et al., 2011).

A linear head on a grid of patches finds where a boundary is, up to a patch: published networks for boundaries read
finer maps, and score higher. There is no non-maximum suppression: probabilities are thresholded, then thinned.

Floors: a constant; the share of boundaries at each position; the same head on raw colours; the untrained network.
"""

from typing import TYPE_CHECKING

from sslbench.data.source import Labels, Source
from sslbench.errors import DataError, UsageError
from sslbench.labels import LABELS
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense import check_heads, trained_heads
from sslbench.protocols.edges.settings import Settings
from sslbench.protocols.protocol import BOUNDARIES, Protocol

if TYPE_CHECKING:
    from sslbench.protocols._parts.dense.run import Plan

NAME = "edges"


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data and the backbone.

    Raises:
        UsageError: a setting is not possible.
    """
    check_heads(settings, protocol=NAME)
    if not 0 < settings.consensus <= 1:
        raise UsageError(f"{NAME}: consensus should be from above 0 to 1, not {settings.consensus:g}")
    if not 0 < settings.tolerance <= 0.1:
        raise UsageError(f"{NAME}: tolerance should be from above 0 to 0.1, not {settings.tolerance:g}")


def check(settings: Settings, train: Labels) -> None:
    """Refuse settings that cannot work, before anything else is opened.

    Raises:
        UsageError: settings that are not possible.
        DataError: labels that are no boundaries.
    """
    check_settings(settings)
    if train.kind != "boundaries":
        raise DataError(f"{NAME} needs boundaries, and these samples have {LABELS[train.kind].text}")


def plan(train: Source, test: Source, settings: Settings, *, preprocessing: Preprocessing, seed: int) -> "Plan":
    """Return the parts of a run that are those of boundaries."""
    from sslbench.data.loading.joint import JointView
    from sslbench.protocols._parts.dense.run import Plan
    from sslbench.protocols.edges.scores import outcome, task

    return Plan(task(settings), JointView(crop=settings.crop), lambda row: outcome(row, test, seed=seed))


PROTOCOL = Protocol(
    version=2,
    summary="boundaries drawn by persons: heads on frozen features, ODS, OIS and AP.",
    settings=Settings,
    kind=trained_heads(NAME, check, plan, label_kinds=BOUNDARIES),
    check_settings=check_settings,
)
