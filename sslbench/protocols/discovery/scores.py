"""Objects found in the images of a test part, their scores and pictures."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from PIL import Image

from sslbench.arrays import FloatArray
from sslbench.data.groups import source_groups
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.metrics.dense.discovery import discovery_measures, discovery_row
from sslbench.metrics.summary import summarise
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.objects import (
    SearchedMap,
    centred_box,
    searched_maps,
)
from sslbench.protocols._parts.own_sizes import mapped_images
from sslbench.protocols._parts.pictures import FOUND, TRUE, chosen_by_score, sheet, with_boxes
from sslbench.protocols._parts.untrained import MapRun
from sslbench.protocols.discovery.settings import Settings
from sslbench.results import Outcome
from sslbench.solvers.discovery import DiscoveredObject, Mask

Box = tuple[float, float, float, float]


@dataclasses.dataclass(frozen=True)
class Truth:
    """Objects of one image.

    Attributes:
        boxes: (G, 4).
        masks: (G, H, W); None where an object has none.
    """

    boxes: FloatArray
    masks: Mask | None


def score(run: MapRun[Settings]) -> dict[str, Outcome]:
    """Search one object in every image and score it.

    Raises:
        DataError: an image cannot be read, has another size than its boxes, or a map that is too large.
    """
    test, settings = run.test, run.settings
    if test.objects is None:
        raise DataError("discovery needs images with boxes")
    searched = searched_maps(run.backbone, run.layers, settings)
    scored = {row.name: _Scored(len(test)) for row in searched}
    title = f"searching objects by {settings.method}"
    for image in mapped_images(run, fit="pad", longest_side=settings.longest_side, title=title):
        masks = test.objects.bitmaps_of(image.index, *image.size)
        truth = Truth(test.objects.boxes_of(image.index).astype(np.float64), masks)
        for row in searched:
            found, grid = row.object_of(image, settings)
            of_pixels = row.object_in_pixels(image, settings)
            each = scored[row.name]
            each.add("", image.index, found, image.cell(grid), image.size, truth)
            if not row.heads:
                each.add("pixels", image.index, of_pixels, image.cell(grid), image.size, truth)
            whole = (0.0, 0.0, float(image.size[1]), float(image.size[0]))
            each.add_box("whole image", image.index, whole, image.size, truth)
            each.add_box("centred box", image.index, centred_box(image.size), image.size, truth)
    return {row.name: _outcome(scored[row.name], row, test, settings, run.seed, run.preprocessing) for row in searched}


class _Scored:
    """Values of every image (N, 3) for the method and its floors, and the boxes found."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.values: dict[str, FloatArray] = {}
        self.boxes: list[Box | None] = [None] * n

    def add(
        self,
        name: str,
        index: int,
        found: DiscoveredObject | None,
        cell: tuple[float, float],
        size: tuple[int, int],
        truth: Truth,
    ) -> None:
        """Score a discovered object; '' is the method."""
        box = None if found is None else found.box(cell, *size)
        mask = np.zeros(size, np.bool_) if found is None or truth.masks is None else found.pixels(cell, *size)
        self._rows(name)[index] = discovery_row(box, mask, truth.boxes, truth.masks)
        if not name:
            self.boxes[index] = box

    def add_box(self, name: str, index: int, box: Box, size: tuple[int, int], truth: Truth) -> None:
        """Score a fixed box, which is its own mask."""
        mask = np.zeros(size, np.bool_)
        left, top, right, bottom = (round(side) for side in box)
        mask[top:bottom, left:right] = True
        self._rows(name)[index] = discovery_row(box, mask, truth.boxes, truth.masks)

    def _rows(self, name: str) -> FloatArray:
        return self.values.setdefault(name, np.full((self.n, 3), np.nan))


def _outcome(
    scored: _Scored, row: SearchedMap, test: Source, settings: Settings, seed: int, preprocessing: Preprocessing
) -> Outcome:
    values = scored.values[""]
    metrics, headline, _ = summarise("boxes", (), test.labels.values, values, seed=seed, groups=source_groups(test))
    notes = []
    if missed := sum(box is None for box in scored.boxes):
        notes.append(f"In {missed:,} of {len(test):,} images nothing is found; they count as misses.")
    unmasked = int(np.isnan(values[:, 2]).sum())
    if 0 < unmasked < len(test):
        notes.append(
            f"{unmasked:,} of {len(test):,} images have an object without a mask: none counts in the mask IoU."
        )
    return Outcome(
        metrics=metrics,
        headline=headline,
        scores=values.astype(np.float32),
        per_class={},
        notes=tuple(notes),
        floors={name: _means(rows) for name, rows in scored.values.items() if name},
        picture=_picture(scored, test, preprocessing),
    )


def _means(values: FloatArray) -> dict[str, float]:
    measures = discovery_measures(values)
    return {m.names[0]: float(m.statistic(np.ones((1, len(values))))[0, 0]) for m in measures}


def _picture(scored: _Scored, test: Source, preprocessing: Preprocessing) -> bytes:
    """Return a sheet of the images of best, median and worst IoU: true boxes green, the found one red."""
    overlap = scored.values[""][:, 1]
    chosen = chosen_by_score(overlap)

    def draw(picture: Image.Image, index: int, factor: float) -> Image.Image:
        with_boxes(picture, [] if test.objects is None else test.objects.boxes_of(index), TRUE, factor)
        box = scored.boxes[index]
        with_boxes(picture, [] if box is None else [box], FOUND, factor)
        return picture

    captions: Mapping[int, str] = {i: f"IoU {overlap[i]:.2f}" for rows in chosen.values() for i in rows}
    return sheet(test, chosen, captions, draw, preprocessing)
