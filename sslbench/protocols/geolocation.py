"""Geolocation: the place of an image, predicted by a linear classifier of cells of the globe on frozen features.

The globe is divided into S2 cells on the training images (`cells.partition`, as in PlaNet, Weyand et al. 2016, and
Mueller-Budack et al. 2018); images of cells with too few are not trained on. The classifier is the logistic regression
of the protocol linear, its c chosen by the accuracy of cells on a held-out part of train. The answer is the mean place,
on the sphere, of the training images of the predicted cell. Labels are two numbers, latitude and longitude in degrees.

All test images are scored, also those outside all cells. Chance is the expectation for cells drawn with the frequency
of their training images.
"""

import dataclasses
import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.config import setting
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.regression import (
    ACCURACY,
    MEAN_ERROR,
    REGION,
    great_circle_distances,
    located_within,
    unit_vectors,
)
from sslbench.metrics.summary import summarise_places
from sslbench.protocols._parts.selection import check_features
from sslbench.protocols.linear import GRID, LinearProbe, train_probe
from sslbench.protocols.linear import Settings as LinearSettings
from sslbench.protocols.linear import cost as linear_cost
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, ProtocolSettings, Shapes
from sslbench.results import Outcome
from sslbench.targets.classes import Classes
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target

LEAF_LEVEL = 30
# Level of the largest cells, with sides of about 2,000 km, as in the partition of Mueller-Budack et al. (2018).
FIRST_LEVEL = 2

# Position along the Hilbert curve of the quarter 2i + j, for each of the four orientations of the curve.
_POSITION = np.array([[0, 1, 3, 2], [0, 3, 1, 2], [2, 3, 1, 0], [2, 1, 3, 0]])
_TURN = np.array([1, 0, 0, 3])  # change of the orientation inside the quarter at a position

_ROWS = 4096  # rows classified together, so that the scores of all cells need little memory


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of geolocation."""

    max_images: int = setting(5000, "training images above which a cell is split into four")
    min_images: int = setting(
        50, "training images below which a cell, with its images, is left out of training", within="[1, inf)"
    )
    c: tuple[float, ...] = setting(
        GRID,
        "classifier of cells: candidates of the inverse regularisation, as for the protocol linear",
        within="(0, inf)",
        filled=True,
    )
    holdout: float = setting(0.2, "classifier of cells: share of train held out to select c", within="(0, 1)")

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        if self.max_images < self.min_images:
            raise UsageError(
                f"geolocation: max_images={self.max_images} should not be below min_images={self.min_images}"
            )


@dataclasses.dataclass(frozen=True)
class Cells:
    """Cells of the S2 library that do not overlap: quadtrees on the six faces of a cube around the globe.

    A place has the index of its leaf cell, of level 30 (about 1 cm): three bits of the face, then two bits per level
    along a Hilbert curve. A cell of level L is a range of 4^(30 - L) indices, so its images are neighbours in the order
    of the indices. Areas of cells of one level differ by a factor of at most 2.1; the poles and the date line are
    places like all others. Indices and tokens are those of the S2 geometry library (s2geometry.io, `S2CellId`).

    Attributes:
        starts: (K,), first leaf index of each.
        levels: (K,), level of each, `FIRST_LEVEL` to `LEAF_LEVEL`.
    """

    starts: IntArray
    levels: IntArray

    def __len__(self) -> int:
        return len(self.starts)

    def numbers(self, indices: IntArray) -> IntArray:
        """Return the number of the cell (N,) of each leaf index (N,); -1 for places outside all cells."""
        if not len(self):
            return np.full(len(indices), -1, np.int64)
        number = np.searchsorted(self.starts, indices, side="right") - 1
        last = self.starts + (np.int64(1) << 2 * (LEAF_LEVEL - self.levels))
        return np.where((number >= 0) & (indices < last[number]), number, -1)

    def tokens(self) -> tuple[str, ...]:
        """Return the names of the cells as S2 writes them: '47e66f' is in Paris.

        >>> paris = partition(np.tile(leaf_indices([[48.8584, 2.2945]]), 9), max_images=9, min_images=1)
        >>> paris.tokens()
        ('47',)
        """
        found = []
        for start, level in zip(self.starts.tolist(), self.levels.tolist(), strict=True):
            # An `S2CellId` is the position on the curve, a 1 and zeros, one pair of bits less for each level upwards.
            middle = 2 * start + (1 << 2 * (LEAF_LEVEL - level))
            found.append(f"{middle:016x}".rstrip("0"))
        return tuple(found)


def check(settings: Settings, train: Target) -> None:
    """Refuse settings and training labels that do not go together, before any image is decoded."""
    _check_places(train, "train")
    _cells(train, settings)


def check_test(settings: Settings, test: Source) -> None:
    """Refuse test labels that are not latitude and longitude, before any image is decoded."""
    _check_places(test.target, "test")


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Learn cells and their classifier from train, locate the test images.

    Metrics of places. `scores` are the predicted latitudes and longitudes (N_test, 2).
    """
    check_features(train, test)
    check(settings, train.target)
    _check_places(test.target, "test")
    cells, numbers = _cells(train.target, settings)
    inside = np.flatnonzero(numbers >= 0)
    labels = Classes(cells.tokens(), numbers[inside])
    known = train if len(inside) == len(train) else train.select(inside)
    trained_on = Features(known.x, labels, known.ids, groups=known.groups)
    probe = train_probe(trained_on, _linear(settings), seed=seed)
    places = mean_places(train.target.values, numbers, len(cells))
    # As the scores are stored, so that comparisons find the same metrics.
    predicted = _locate(probe, test.x, labels, places).astype(np.float32)
    true = test.target.values
    # The expected metrics of cells drawn as frequently as they are in train, without the median.
    within, error = np.zeros(len(ACCURACY)), 0.0
    for place, number in zip(places, np.bincount(labels.values, minlength=len(cells)).tolist(), strict=True):
        distances = great_circle_distances(true, place)
        within += number / len(inside) * located_within(distances).mean(axis=0)
        error += number / len(inside) * float(distances.mean())
    names = [*(metric.name for metric in ACCURACY), MEAN_ERROR.name]
    text = f"{len(cells):,} cells of {settings.min_images:,} to {settings.max_images:,} training images"
    if left_out := len(train) - len(inside):
        text += f"; {left_out:,} images of smaller cells were left out of training"
    own = cells.numbers(leaf_indices(true))
    found = own >= 0
    best = _region_share(true[found], places[own[found]]) * float(found.mean()) if found.any() else 0.0
    note = f"{text}; with every test image in its own cell, {100 * best:.1f} % would lie within 200 km."
    return Outcome(
        metrics=summarise_places(true, predicted, seed=seed, groups=test.groups),
        headline=REGION.name,
        scores=predicted,
        per_class={},
        train=_region_share(train.target.values, _locate(probe, train.x, labels, places)),
        selected=probe.selected | {"cells": len(cells)},
        converged=probe.model.converged,
        notes=(note, *probe.notes),
        chance=dict(zip(names, [*within.tolist(), error], strict=True)),
    )


# Coordinates u and v on a face are these components of the unit vector, divided by that of the face's axis.
_U_AXIS, _U_SIGN = np.array([1, 0, 0, 2, 2, 1]), np.array([1, -1, -1, 1, 1, -1])
_V_AXIS, _V_SIGN = np.array([2, 2, 1, 1, 0, 0]), np.array([1, 1, -1, 1, -1, -1])


def leaf_indices(places: npt.ArrayLike) -> IntArray:
    """Return the indices (N,) of the leaf cells of latitudes and longitudes (N, 2) in degrees.

    >>> leaf_indices([[0.0, 0.0]]).tolist() == [2**59]
    True
    """
    points = unit_vectors(places)
    rows = np.arange(len(points))
    axis = 2 - np.argmax(np.abs(points[:, ::-1]), axis=1)  # of equal components the last
    depth = points[rows, axis]
    face = axis + 3 * (depth < 0)
    i = _leaf_coordinate(_U_SIGN[face] * points[rows, _U_AXIS[face]] / depth)
    j = _leaf_coordinate(_V_SIGN[face] * points[rows, _V_AXIS[face]] / depth)
    index, orientation = np.asarray(face, np.int64), face & 1
    for bit in range(LEAF_LEVEL - 1, -1, -1):
        position = _POSITION[orientation, 2 * (i >> bit & 1) + (j >> bit & 1)]
        index = index << 2 | position
        orientation = orientation ^ _TURN[position]
    return index


def _leaf_coordinate(u: FloatArray) -> IntArray:
    """Return the row of a leaf cell from a coordinate -1 to 1, by the quadratic map that makes areas nearly equal."""
    root = 0.5 * np.sqrt(1 + 3 * np.abs(u))
    share = np.where(u >= 0, root, 1 - root)
    # The far edge of a face, u = 1, belongs to its last leaf.
    return np.asarray(np.clip(np.floor(share * 2**LEAF_LEVEL), 0, 2**LEAF_LEVEL - 1), np.int64)


def partition(indices: IntArray, *, max_images: int, min_images: int) -> Cells:
    """Return the cells of an adaptive partition: each is split into four while it holds more than `max_images`.

    Cells with fewer than `min_images` are left out (Weyand et al. 2016; Mueller-Budack et al. 2018).

    `indices`: (N,) leaf indices of the images; `max_images`: largest number of images in a cell; only a leaf cell, with
    images at one place, may hold more.
    """
    ordered = np.sort(indices)
    found: list[tuple[int, int]] = []
    size = 1 << 2 * (LEAF_LEVEL - FIRST_LEVEL)
    open_cells = [(int(first) * size, FIRST_LEVEL) for first in np.unique(ordered // size)]
    while open_cells:
        start, level = open_cells.pop()
        size = 1 << 2 * (LEAF_LEVEL - level)
        number = int(np.diff(np.searchsorted(ordered, [start, start + size]))[0])
        if number > max_images and level < LEAF_LEVEL:
            open_cells += [(start + quarter * (size // 4), level + 1) for quarter in range(4)]
        elif number >= max(1, min_images):
            found.append((start, level))
    # `Cells.numbers` bisects the starts.
    found.sort()
    return Cells(*np.array(found, np.int64).reshape(-1, 2).T)


def mean_places(places: FloatArray, numbers: IntArray, n_cells: int) -> FloatArray:
    """Return the mean places (K, 2) in degrees of the images of each cell: their mean unit vectors.

    `places`: (N, 2), latitude and longitude in degrees; `numbers`: (N,) the cell of each place; -1: none; `n_cells`: K;
    each has a place.

    >>> mean_places(np.array([[0.0, 170.0], [0.0, -160.0]]), np.array([0, 0]), 1).round(6).tolist()
    [[0.0, -175.0]]
    """
    total, inside = np.zeros((n_cells, 3)), numbers >= 0
    # `total[numbers] += ...` would add only one of the images of a cell.
    np.add.at(total, numbers[inside], unit_vectors(places[inside]))
    x, y, z = total.T
    return np.asarray(np.degrees(np.stack([np.arctan2(z, np.hypot(x, y)), np.arctan2(y, x)], axis=1)))


def _linear(settings: Settings) -> LinearSettings:
    return LinearSettings(c=settings.c, holdout=settings.holdout)


def _check_places(labels: Target, part: str) -> None:
    """Refuse labels that are not latitude and longitude in degrees."""
    if not isinstance(labels, Numbers):
        raise DataError(
            f"geolocation needs the place of every image, and the {part} samples have {labels.title}",
            "Give a table with columns of latitude and longitude in degrees: --data images.csv --value-col lat,lon",
        )
    if len(labels.classes) != 2:
        raise DataError(
            f"geolocation needs two numbers per image, latitude and longitude, and the {part} samples have "
            f"{len(labels.classes)}: {', '.join(labels.classes)}",
            "Name the two columns, latitude first: --value-col lat,lon",
        )
    latitude, longitude = labels.classes
    fits = [
        (np.abs(column) <= most) & np.isfinite(column) for column, most in zip(labels.values.T, (90, 180), strict=True)
    ]
    swapped = f"Latitude comes first; if the columns are swapped: --value-col {longitude},{latitude}"
    if not fits[0].all():
        _refuse_number(labels, 0, fits[0], part, "a latitude in degrees, -90 to 90", swapped)
    if not fits[1].all():
        remedy = "Subtract 360 from longitudes above 180, and convert projected coordinates to degrees."
        _refuse_number(labels, 1, fits[1], part, "a longitude in degrees, -180 to 180", remedy)
    named_swapped = latitude.casefold().startswith(("lon", "lng")) or longitude.casefold().startswith("lat")
    # Published tables exist whose headings are swapped: there the second column cannot be a latitude.
    if named_swapped and np.abs(labels.values[:, 1]).max(initial=0) <= 90:
        raise DataError(f"geolocation takes '{latitude}' for the latitude and '{longitude}' for the longitude", swapped)


def _refuse_number(
    labels: Target, column: int, fits: npt.NDArray[np.bool_], part: str, wanted: str, remedy: str
) -> None:
    first, more = int(np.argmin(fits)), int((~fits).sum()) - 1
    others = f" (and {more:,} more)" if more else ""
    raise DataError(
        f"geolocation: the column '{labels.classes[column]}' of the {part} samples has "
        f"{labels.values[first, column]:g} in sample {first + 1:,} of {len(labels):,}{others}, which is not {wanted}",
        remedy,
    )


def _cells(train: Target, settings: Settings) -> tuple[Cells, IntArray]:
    """Return the cells and the cell of each training image, -1 for those in cells with too few."""
    indices = leaf_indices(train.values)
    cells = partition(indices, max_images=settings.max_images, min_images=settings.min_images)
    if len(cells) < 2:
        raise DataError(
            f"geolocation: the {len(train):,} training images make {len(cells)} cell{'s' * (len(cells) != 1)} of "
            f"{settings.min_images} to {settings.max_images} images, and a classifier needs two",
            f"Give more training images, or smaller cells, such as max_images={max(2, len(train) // 20)} "
            f"min_images={max(1, len(train) // 200)}.",
        )
    return cells, cells.numbers(indices)


def _locate(probe: LinearProbe, x: Matrix, labels: Target, places: FloatArray) -> FloatArray:
    """Return the places (N, 2) of the predicted cells of features (N, D)."""
    blocks = [probe.scores(x[start : start + _ROWS], labels) for start in range(0, len(x), _ROWS)]
    return np.asarray(places[np.concatenate([block.argmax(axis=1) for block in blocks])])


def _region_share(true: FloatArray, predicted: FloatArray) -> float:
    """Return the leading metric alone."""
    within = located_within(great_circle_distances(true, predicted))
    return float(within[:, ACCURACY.index(REGION)].mean())


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the classifier of the cells; their number follows from the places, here the mean of fewest and most."""
    cells = max(2, round(math.sqrt(2 * shapes.train / settings.max_images * shapes.train / settings.min_images)))
    probe = linear_cost(_linear(settings), dataclasses.replace(shapes, classes=cells, target=Classes))
    return dataclasses.replace(probe, scores=8.0 * shapes.test)


@dataclasses.dataclass(frozen=True)
class _OnPlaces(OnFeatures[Settings]):
    """Protocol on features of images with places."""

    default: ClassVar[tuple[str, str]] = ("sklearn:digit-places", "the handwritten digits at made places")


PROTOCOL = Protocol(
    version=1,
    summary="Place of an image: a linear classifier of cells of the globe, scored in kilometres.",
    settings=Settings,
    kind=_OnPlaces(check, run, cost=cost, takes=(Numbers,), check_test=check_test),
)
