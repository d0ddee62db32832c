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

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.config import setting
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.metrics.regression import ACCURACY, MEAN_ERROR, REGION, great_circle_distances, located_within
from sslbench.metrics.summary import summarise_places
from sslbench.protocols._parts.selection import check_features
from sslbench.protocols.geolocation.cells import Cells, leaf_indices, mean_places, partition
from sslbench.protocols.linear import LinearProbe, train_probe
from sslbench.protocols.linear import check_settings as check_linear
from sslbench.protocols.linear import cost as linear_cost
from sslbench.protocols.linear.settings import GRID
from sslbench.protocols.linear.settings import Settings as LinearSettings
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, Shapes
from sslbench.results import Outcome
from sslbench.targets.classes import Classes
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target

_ROWS = 4096  # rows classified together, so that the scores of all cells need little memory


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of geolocation."""

    max_images: int = setting(5000, "training images above which a cell is split into four")
    min_images: int = setting(50, "training images below which a cell, with its images, is left out of training")
    c: tuple[float, ...] = setting(
        GRID, "classifier of cells: candidates of the inverse regularisation, as for the protocol linear"
    )
    holdout: float = setting(0.2, "classifier of cells: share of train held out to select c")


def check_settings(settings: Settings) -> None:
    """Refuse settings that are not possible, whatever the data.

    Raises:
        UsageError: the message names the setting.
    """
    if settings.min_images < 1 or settings.max_images < settings.min_images:
        raise UsageError(
            "geolocation: min_images should be at least 1 and max_images not less, not "
            f"{settings.min_images} and {settings.max_images}"
        )
    check_linear(_linear(settings))


def check(settings: Settings, train: Target) -> None:
    """Refuse settings and training labels that do not go together, before any image is decoded.

    Raises:
        UsageError: settings that are not possible.
        DataError: labels that are not latitude and longitude, or fewer than two cells.
    """
    check_settings(settings)
    _check_places(train, "train")
    _cells(train, settings)


def check_test(settings: Settings, test: Source) -> None:
    """Refuse test labels that are not latitude and longitude, before any image is decoded.

    Raises:
        DataError: see above.
    """
    _check_places(test.target, "test")


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Learn cells and their classifier from train, locate the test images.

    Args:
        train: features and places to learn from.
        test: features and places that are scored.
        settings: see `Settings`.
        seed: of the held-out part and of the intervals.
        device: ignored; the computation runs on the processor.

    Returns:
        Metrics of places. `scores` are the predicted latitudes and longitudes (N_test, 2).

    Raises:
        DataError: features that are not finite, labels that are not latitude and longitude, or fewer than two cells.
        UsageError: settings that are not possible.
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
    return Outcome(
        metrics=summarise_places(true, predicted, seed=seed, groups=test.groups),
        headline=REGION.name,
        scores=predicted,
        per_class={},
        train=_region_share(train.target.values, _locate(probe, train.x, labels, places)),
        selected=probe.selected | {"cells": len(cells)},
        converged=probe.model.converged,
        notes=(_describe(cells, numbers, true, places, settings), *probe.notes),
        chance=_chance(true, places, np.bincount(labels.values, minlength=len(cells)) / len(inside)),
    )


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


def _chance(true: FloatArray, places: FloatArray, frequencies: FloatArray) -> dict[str, float]:
    """Return the expected metrics of cells drawn with these frequencies (K,), without the median."""
    within, error = np.zeros(len(ACCURACY)), 0.0
    for place, frequency in zip(places, frequencies.tolist(), strict=True):
        distances = great_circle_distances(true, place)
        within += frequency * located_within(distances).mean(axis=0)
        error += frequency * float(distances.mean())
    return {metric.name: float(v) for metric, v in zip(ACCURACY, within, strict=True)} | {MEAN_ERROR.name: error}


def _describe(cells: Cells, numbers: IntArray, true: FloatArray, places: FloatArray, settings: Settings) -> str:
    """Return a note on the cells and on the highest score that they allow."""
    left_out = int((numbers < 0).sum())
    text = f"{len(cells):,} cells of {settings.min_images:,} to {settings.max_images:,} training images"
    text += f"; {left_out:,} images of smaller cells were left out of training" if left_out else ""
    own = cells.numbers(leaf_indices(true))
    found = own >= 0
    best = _region_share(true[found], places[own[found]]) * float(found.mean()) if found.any() else 0.0
    return f"{text}; with every test image in its own cell, {100 * best:.1f} % would lie within 200 km."


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the classifier of the cells; their number follows from the places, here the mean of fewest and most."""
    cells = max(2, round(math.sqrt(2 * shapes.train / settings.max_images * shapes.train / settings.min_images)))
    probe = linear_cost(_linear(settings), dataclasses.replace(shapes, classes=cells, target=Classes))
    return dataclasses.replace(probe, scores=8.0 * shapes.test)


PROTOCOL = Protocol(
    version=1,
    summary="Place of an image: a linear classifier of cells of the globe, scored in kilometres.",
    settings=Settings,
    check_settings=check_settings,
    kind=OnFeatures(check, run, cost=cost, takes=(Numbers,), check_test=check_test),
)
