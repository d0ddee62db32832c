"""Kinds of labels and the facts that hold for each: leading metric, classes, array type."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

LabelKind = Literal[
    "single",
    "multi",
    "value",
    "map",
    "depth",
    "normals",
    "mask",
    "signal",
    "orientation",
    "boundaries",
    "boxes",
    "triplets",
    "camera_pairs",
    "points",
    "homography",
    "tracks",
    "parts",
    "poses",
    "none",
]
"""One class per sample, any number of classes per sample, numbers to predict (regression); for every pixel a class, a
depth, a surface normal, foreground or not, a signal computed from the image or read from a file, the orientation of its
structures, or boundaries drawn by annotators; boxes of objects; choices between two candidates; relative poses of the
cameras of two images; corresponding points in pairs of images, pairs of images under homographies; in videos masks of
objects, masks of classes of parts, joints of persons; unlabelled."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelFacts:
    """Facts of one kind of labels.

    Attributes:
        text: the labels in a few words, as after "the samples have".
        metric: name of the leading metric; empty for unlabelled samples.
        classes: True if labels are classes, whose samples can be counted, and not numbers.
        dtype: NumPy type of the label array.
        pixels: True for labels of places in images (pixels, boxes), not of whole images.
    """

    text: str
    metric: str
    classes: bool
    dtype: Literal["int64", "int8", "float64"]
    pixels: bool = False


LABELS: Mapping[LabelKind, LabelFacts] = {
    "single": LabelFacts(text="one class each", metric="top1", classes=True, dtype="int64"),
    "multi": LabelFacts(text="several labels each", metric="mAP", classes=True, dtype="int8"),
    "value": LabelFacts(text="numbers as labels", metric="r2", classes=False, dtype="float64"),
    "map": LabelFacts(text="a class for every pixel", metric="mIoU", classes=False, dtype="int8", pixels=True),
    "depth": LabelFacts(text="a depth for every pixel", metric="depth_rmse", classes=False, dtype="int8", pixels=True),
    "normals": LabelFacts(
        text="a surface normal for every pixel", metric="angle_mean", classes=False, dtype="int8", pixels=True
    ),
    "boxes": LabelFacts(text="boxes of objects", metric="corloc", classes=False, dtype="int8", pixels=True),
    "mask": LabelFacts(
        text="a mask of the foreground", metric="saliency_max_f", classes=False, dtype="int8", pixels=True
    ),
    "signal": LabelFacts(
        text="signals of pixels", metric="signal_correlation", classes=False, dtype="int8", pixels=True
    ),
    "orientation": LabelFacts(
        text="orientations computed from the images",
        metric="orientation_error",
        classes=False,
        dtype="int8",
        pixels=True,
    ),
    "boundaries": LabelFacts(
        text="boundaries by annotators", metric="boundary_ods", classes=False, dtype="int8", pixels=True
    ),
    "triplets": LabelFacts(
        text="triplets of images with a choice", metric="choice_accuracy", classes=False, dtype="int64"
    ),
    "camera_pairs": LabelFacts(
        text="pairs of images with a relative pose", metric="rotation_error", classes=False, dtype="float64"
    ),
    "points": LabelFacts(
        text="pairs of images with corresponding points", metric="pck_per_image@0.1", classes=False, dtype="int64"
    ),
    "homography": LabelFacts(
        text="pairs of images under a homography", metric="match_recall@5px", classes=False, dtype="int8"
    ),
    "tracks": LabelFacts(text="videos with masks of objects", metric="jf_mean", classes=False, dtype="int8"),
    "parts": LabelFacts(text="videos with masks of classes", metric="mIoU", classes=False, dtype="int8"),
    "poses": LabelFacts(text="videos with joints of persons", metric="pose_pck@0.1", classes=False, dtype="int8"),
    "none": LabelFacts(text="no labels", metric="", classes=False, dtype="int8"),
}
