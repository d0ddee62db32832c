"""Choices of pictures, checked without torch."""

import dataclasses
import importlib.util
from collections.abc import Sequence
from typing import Literal

from sslbench.errors import UsageError
from sslbench.names import did_you_mean

View = Literal["pca", "attention", "nearest"]
VIEWS: Sequence[View] = ("pca", "attention", "nearest")
Projection = Literal["pca", "tsne", "umap"]
DEFAULT_OBJECTS = "kwcoco:shapes64-128"
"""Data when the user names none: 64 drawn images of 128 x 128 pixels."""


@dataclasses.dataclass(frozen=True)
class Point:
    """Point of an image: id of the image, x and y in pixels of its file."""

    image: str
    x: float
    y: float


def parse_point(text: str) -> Point:
    """Return the point of a text IMAGE:X,Y.

    >>> parse_point("cats/1.jpg:20,31.5")
    Point(image='cats/1.jpg', x=20.0, y=31.5)
    """
    image, colon, place = text.rpartition(":")
    x, comma, y = place.partition(",")
    try:
        if not (image and colon and comma):
            raise ValueError
        return Point(image, float(x), float(y))
    except ValueError:
        raise UsageError(
            f"--point {text}: should be IMAGE:X,Y", "X and Y in pixels from the top left: --point cats/1.jpg:120,80"
        ) from None


def parse_views(text: str | None) -> tuple[View, ...] | None:
    """Return the views in a list with commas; None for all that a network has."""
    if text is None:
        return None
    named = text.split(",")
    for name in named:
        if name not in VIEWS:
            raise UsageError(f"--views {text}: there is no view '{name}'", did_you_mean(name, VIEWS))
    return tuple(view for view in VIEWS if view in named)


def check_projection(projection: Projection) -> None:
    """Refuse UMAP without its package, before anything is computed."""
    if projection == "umap" and importlib.util.find_spec("umap") is None:
        raise UsageError(
            "--projection umap needs the package umap-learn", "pip install 'sslbench[umap]', or --projection tsne."
        )


@dataclasses.dataclass(frozen=True)
class AsTyped:
    """Words of the user in place of those of a record; code that a record names is not run unless they name it too.

    Attributes:
        data: location of the data, where it is not the one in the record.
    """

    data: str | None = None
    test_data: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    backbone: str | None = None
    protocol: str | None = None
    decoder: tuple[str, ...] | None = None
