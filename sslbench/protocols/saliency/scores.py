"""Salient regions found in the images of a test part, their scores and pictures."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from sslbench.arrays import FloatArray
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.groups import source_groups
from sslbench.data.label_map import IGNORED
from sslbench.data.source import PixelLabels, Source
from sslbench.errors import DataError
from sslbench.metrics.dense.discovery import columns, saliency_measures, saliency_values
from sslbench.metrics.summary import summarise
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.objects import (
    centred_box,
    searched_maps,
)
from sslbench.protocols._parts.own_sizes import mapped_images
from sslbench.protocols._parts.pictures import FOUND, TRUE, chosen_by_score, sheet, with_mask
from sslbench.protocols._parts.untrained import MapRun
from sslbench.protocols.saliency.settings import Settings
from sslbench.results import Outcome
from sslbench.solvers.discovery import DiscoveredObject, Mask


def score(run: MapRun[Settings]) -> dict[str, Outcome]:
    """Find the salient region of every image and score it.

    Raises:
        DataError: an image or a mask cannot be read, their sizes differ, or a map is too large.
    """
    test, settings = run.test, run.settings
    if test.maps is None:
        raise DataError("saliency needs images with masks of the foreground")
    searched = searched_maps(run.backbone, run.layers, settings)
    width = len(columns("mask"))
    values: dict[str, dict[str, FloatArray]] = {row.name: {} for row in searched}
    regions: dict[str, dict[int, npt.NDArray[np.uint8]]] = {row.name: {} for row in searched}
    empty = 0
    title = f"searching salient regions by {settings.method}"
    for image in mapped_images(run, fit=settings.fit, longest_side=settings.longest_side, title=title):
        truth = _mask(test.maps, image.index, image.size)
        empty += not (truth == 1).any()
        for row in searched:
            found, grid = row.object_of(image, settings)
            cell = image.cell(grid)
            masks = {"": _pixels(found, cell, image.size), "whole image": np.ones(image.size, np.bool_)}
            masks["centred box"] = _filled(centred_box(image.size), image.size)
            if not row.heads:
                masks["pixels"] = _pixels(row.object_in_pixels(image, settings), cell, image.size)
            for name, mask in masks.items():
                own = values[row.name].setdefault(name, np.full((len(test), width), np.nan))
                known = truth != IGNORED
                own[image.index] = saliency_values(mask[known].astype(np.float64), truth[known] == 1).row
            regions[row.name][image.index] = np.packbits(masks[""])
    notes = (f"{empty:,} of {len(test):,} masks have no foreground; any region is wrong there.",) if empty else ()
    return {
        row.name: _outcome(values[row.name], regions[row.name], test, test.maps, run.seed, run.preprocessing, notes)
        for row in searched
    }


def _mask(masks: PixelLabels, index: int, size: tuple[int, int]) -> npt.NDArray[np.int32]:
    try:
        return np.asarray(masks.read_map(index, size=size).semantic, dtype=np.int32)
    except UnreadableImage as error:
        raise DataError(f"saliency: {error.path}: {error.reason}") from error


def _pixels(found: DiscoveredObject | None, cell: tuple[float, float], size: tuple[int, int]) -> Mask:
    return np.zeros(size, np.bool_) if found is None else found.pixels(cell, *size)


def _filled(box: Sequence[float], size: tuple[int, int]) -> Mask:
    left, top, right, bottom = (round(side) for side in box)
    mask = np.zeros(size, np.bool_)
    mask[top:bottom, left:right] = True
    return mask


def _outcome(
    values: dict[str, FloatArray],
    regions: dict[int, npt.NDArray[np.uint8]],
    test: Source,
    masks: PixelLabels,
    seed: int,
    preprocessing: Preprocessing,
    notes: tuple[str, ...],
) -> Outcome:
    own = values[""]
    metrics, headline, _ = summarise("mask", (), test.labels.values, own, seed=seed, groups=source_groups(test))
    floors = {}
    for name, each in values.items():
        found = [(m.names, m.statistic(np.ones((1, len(each))))[0].tolist()) for m in saliency_measures(each)]
        floors[name] = {metric: value for names, row in found for metric, value in zip(names, row, strict=True)}
    return Outcome(
        metrics=metrics,
        headline=headline,
        scores=own.astype(np.float32),
        per_class={},
        notes=notes,
        floors={name: each for name, each in floors.items() if name},
        picture=_picture(own[:, 0], regions, test, masks, preprocessing),
    )


def _picture(
    overlap: FloatArray,
    regions: dict[int, npt.NDArray[np.uint8]],
    test: Source,
    masks: PixelLabels,
    preprocessing: Preprocessing,
) -> bytes:
    """Return a sheet of the images of best, median and worst IoU: the found region red, the mask beside it green."""
    chosen = chosen_by_score(overlap)

    def draw(picture: Image.Image, index: int, factor: float) -> Image.Image:
        truth = masks.read_map(index).semantic
        found = np.unpackbits(regions[index], count=truth.size).reshape(truth.shape).astype(np.bool_)
        both = Image.new("RGB", (2 * picture.width, picture.height))
        both.paste(with_mask(picture, found, FOUND), (0, 0))
        both.paste(with_mask(picture, truth == 1, TRUE), (picture.width, 0))
        return both

    captions = {i: f"IoU {overlap[i]:.2f}" for rows in chosen.values() for i in rows}
    return sheet(test, chosen, captions, draw, preprocessing)
