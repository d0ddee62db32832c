"""Kinds of labels and the facts that hold for each: leading metric, classes, array type."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

LabelKind = Literal["single", "multi", "value", "map", "points", "homography", "tracks", "none"]
"""One class per sample, any number of classes per sample, numbers to predict (regression), a class for every pixel,
corresponding points in pairs of images, pairs of images under homographies, masks of objects in videos, or none."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelFacts:
    """Facts of one kind of labels.

    Attributes:
        text: the labels in a few words, as after "the samples have".
        metric: name of the leading metric; empty for unlabelled samples.
        classes: True if labels are classes, whose samples can be counted, and not numbers.
        dtype: NumPy type of the label array.
    """

    text: str
    metric: str
    classes: bool
    dtype: Literal["int64", "int8", "float64"]


LABELS: Mapping[LabelKind, LabelFacts] = {
    "single": LabelFacts(text="one class each", metric="top1", classes=True, dtype="int64"),
    "multi": LabelFacts(text="several labels each", metric="mAP", classes=True, dtype="int8"),
    "value": LabelFacts(text="numbers as labels", metric="r2", classes=False, dtype="float64"),
    "map": LabelFacts(text="a class for every pixel", metric="mIoU", classes=False, dtype="int8"),
    "points": LabelFacts(
        text="pairs of images with corresponding points", metric="pck_per_image@0.1", classes=False, dtype="int64"
    ),
    "homography": LabelFacts(
        text="pairs of images under a homography", metric="match_recall@5px", classes=False, dtype="int8"
    ),
    "tracks": LabelFacts(text="videos with masks of objects", metric="jf_mean", classes=False, dtype="int8"),
    "none": LabelFacts(text="no labels", metric="", classes=False, dtype="int8"),
}
