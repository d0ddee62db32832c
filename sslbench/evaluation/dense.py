"""Protocols on places in images, or on pairs and triplets of images: the data that they open.

Of those on places also their layers, and preprocessing that keeps every pixel.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.grids import last_map, resolve_grids
from sslbench.backbones.layers import Layer, resolve_layers
from sslbench.data.boundaries import open_boundaries
from sslbench.data.camera_pairs import open_camera_pairs
from sslbench.data.decode.transforms import output_size
from sslbench.data.depth.location import open_depth, open_normals
from sslbench.data.depth.motorcycle import MOTORCYCLE
from sslbench.data.open import (
    open_boxes_as_data,
    open_maps_as_data,
    open_masks_as_data,
    open_pairs,
    open_videos,
)
from sslbench.data.open_signals import open_orientations, open_signals
from sslbench.data.source import Source
from sslbench.data.textures import IMAGES, VIDEOS
from sslbench.data.triplets import open_triplets
from sslbench.errors import UsageError
from sslbench.evaluation.request import Task, refuse_different_labels, sample_kind
from sslbench.labels import LabelKind
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import OnImages


@dataclasses.dataclass(frozen=True)
class DenseData:
    """Data of protocols on places in images, or on pairs and triplets of images.

    Attributes:
        open: function from a location to its splits.
        default: location that is used without --data.
        title: of that location, for the user.
        whole: True where protocols take features of whole images; layers and preprocessing are then the usual ones.
    """

    open: Callable[[str], Mapping[str, Source]]
    default: str
    title: str
    whole: bool = False


DATA: Mapping[LabelKind, DenseData] = {
    "map": DenseData(open_maps_as_data, IMAGES, "drawn textures"),
    "mask": DenseData(open_masks_as_data, IMAGES, "drawn textures"),
    "signal": DenseData(open_signals, IMAGES, "drawn textures"),
    "orientation": DenseData(open_orientations, IMAGES, "drawn textures"),
    "boundaries": DenseData(open_boundaries, IMAGES, "outlines of drawn textures"),
    "boxes": DenseData(open_boxes_as_data, IMAGES, "drawn textures"),
    "depth": DenseData(open_depth, MOTORCYCLE, "a stereo picture of a motorcycle, cut into tiles"),
    "normals": DenseData(open_normals, MOTORCYCLE, "a stereo picture of a motorcycle, cut into tiles"),
    "triplets": DenseData(open_triplets, f"triplets:{IMAGES}", "triplets made of drawn textures", whole=True),
    "camera_pairs": DenseData(
        open_camera_pairs, f"rotations:{IMAGES}", "drawn textures under rotations of a camera", whole=True
    ),
    "points": DenseData(open_pairs, "homography:pictures", "scikit-image's pictures under homographies"),
    "tracks": DenseData(open_videos, VIDEOS, "videos of drawn textures"),
}
"""Data by kind of labels; protocols on other kinds take `open_data`."""


def dense_kind(tasks: Sequence[Task]) -> LabelKind | None:
    """Return the kind of labels of protocols whose data `DATA` opens; None for protocols on labelled images.

    Raises:
        UsageError: the protocols take labels of different kinds.
    """
    refuse_different_labels(task.protocol for task in tasks)
    return next(map(_kind_of, tasks), None)


def on_places(tasks: Sequence[Task]) -> bool:
    """Return whether protocols predict or compare places in images, not whole images."""
    kind = dense_kind(tasks)
    return kind is not None and not DATA[kind].whole


def _kind_of(task: Task) -> LabelKind | None:
    return next((kind for kind in DATA if kind in sample_kind(task.protocol).label_kinds), None)


def dense_layers(backbone: Backbone, tasks: Sequence[Task], specs: Sequence[str]) -> tuple[Layer, ...]:
    """Return the layers of protocols on places in images, by default the last one with a map.

    Protocols on features get grids of one size, protocols on images the layers themselves.
    """
    if takes_own_sizes(tasks):
        return resolve_layers(backbone, specs or [last_map(backbone)])
    return resolve_grids(backbone, specs, output_size(backbone.preprocessing))


SIZES = {"resize": None, "squash": None, "crop": None, "resized_side": "shorter", "scales": (1.0,)}
"""Values of a preprocessing that have no effect where the settings of a protocol say the sizes of images, unset."""


def takes_own_sizes(tasks: Sequence[Task]) -> bool:
    """Return whether protocols on places in images resize and crop by themselves.

    Raises:
        UsageError: some do, others take stored features.
    """
    if not on_places(tasks):
        return False
    own = {isinstance(sample_kind(task.protocol), OnImages) for task in tasks}
    if len(own) > 1:
        raise UsageError(
            f"{tasks[0].protocol} cannot run together with {tasks[1].protocol}", "Run one after the other."
        )
    return own.pop()


def as_read(own: Preprocessing, tasks: Sequence[Task]) -> Preprocessing:
    """Return a preprocessing as protocols read it, which is what their keys hold.

    Where their settings say the sizes of images, it has none. The side of the images that the backbone was trained on
    stands in their place if one of them reads it.
    """
    if not takes_own_sizes(tasks):
        return own
    kinds = ((sample_kind(task.protocol), task.settings) for task in tasks)
    read = any(isinstance(kind, OnImages) and kind.reads_trained_side(settings) for kind, settings in kinds)
    side = own.crop or own.squash or own.resize
    side = min(side) if isinstance(side, tuple) else side
    unset: dict[str, Any] = dict(SIZES)
    return dataclasses.replace(own, **unset, trained_side=side if read else None)


def whole_image(own: Preprocessing, tasks: Sequence[Task], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a preprocessing that keep the whole image, whose every pixel has a label.

    Without a size, the image is squashed to the size that the backbone takes.

    Raises:
        UsageError: a crop was asked for, or a size of a protocol that has settings for it.
    """
    if takes_own_sizes(tasks):
        if named := [name for name in SIZES if values.get(name) is not None]:
            raise UsageError(
                f"--{named[0]} has no effect on {tasks[0].protocol}, whose settings say the sizes of images",
                f"`sslbench list protocol {tasks[0].protocol}` shows them.",
            )
        return dict(values)
    if values.get("crop") is not None:
        raise UsageError("a crop would cut pixels off that have a label", "Give --resize HEIGHTxWIDTH --crop none.")
    if "resize" in values:
        return {"crop": None, **values}
    return {"resize": own.crop or own.resize, **values, "crop": None}
