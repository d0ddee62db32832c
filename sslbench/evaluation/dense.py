"""Protocols on places in images, or on pairs and triplets of images: the data that they open."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from sslbench.data.boundaries import open_boundaries
from sslbench.data.depth.location import open_depth, open_normals
from sslbench.data.depth.motorcycle import MOTORCYCLE
from sslbench.data.open import (
    open_as,
    open_boxes_as_data,
    open_label_maps,
    open_masks_as_data,
)
from sslbench.data.source import Source
from sslbench.data.textures import IMAGES, VIDEOS
from sslbench.evaluation.request import Task, refuse_different_labels
from sslbench.targets.foreground import Foreground
from sslbench.targets.label_maps import LabelMaps
from sslbench.targets.objects import Boxes
from sslbench.targets.pairs import Homographies, Points
from sslbench.targets.pixel_values import Boundaries, Depth, Normals
from sslbench.targets.target import Target
from sslbench.targets.triplets import Triplets
from sslbench.targets.videos import Parts, Poses, Tracks


@dataclasses.dataclass(frozen=True)
class DenseData:
    """Data of protocols on places in images, or on pairs and triplets of images.

    Attributes:
        open: function from a location to its splits.
        default: location that is used without --data.
        title: of that location, for the user.
    """

    open: Callable[[str], Mapping[str, Source]]
    default: str
    title: str


DATA: Mapping[type[Target], DenseData] = {
    LabelMaps: DenseData(open_label_maps, IMAGES, "drawn textures"),
    Foreground: DenseData(open_masks_as_data, IMAGES, "drawn textures"),
    Boundaries: DenseData(open_boundaries, IMAGES, "outlines of drawn textures"),
    Boxes: DenseData(open_boxes_as_data, IMAGES, "drawn textures"),
    Depth: DenseData(open_depth, MOTORCYCLE, "a stereo picture of a motorcycle, cut into tiles"),
    Normals: DenseData(open_normals, MOTORCYCLE, "a stereo picture of a motorcycle, cut into tiles"),
    Triplets: DenseData(
        lambda place: open_as(place, Triplets), f"triplets:{IMAGES}", "triplets made of drawn textures"
    ),
    Points: DenseData(
        lambda place: open_as(place, Points, Homographies),
        "homography:pictures",
        "scikit-image's pictures under homographies",
    ),
    Tracks: DenseData(lambda place: open_as(place, Tracks, Parts, Poses), VIDEOS, "videos of drawn textures"),
}
"""Data by kind of labels; protocols on other kinds take `open_data`."""


def dense_data(kind: type[Target]) -> DenseData:
    """Return the data of a kind of labels; a plug-in's kind brings its own."""
    return DATA.get(kind) or DenseData(kind.open, *kind.default)


def dense_kind(tasks: Sequence[Task]) -> type[Target] | None:
    """Return the kind of labels of protocols that have data of their own; None for protocols on labelled images.

    Raises:
        UsageError: the protocols take labels of different kinds.
    """
    refuse_different_labels(task.protocol for task in tasks)
    return next(map(_kind_of, tasks), None)


def _kind_of(task: Task) -> type[Target] | None:
    return next((kind for kind in task.kind.takes if kind in DATA or kind.default[0]), None)
