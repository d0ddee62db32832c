"""Images of protocols that read them: side of the pictures, unreadable files, and maps of features and of pixels."""

import dataclasses
import itertools
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sslbench.arrays import IntArray
from sslbench.backbones.dense import DenseEncoder
from sslbench.data.decode.handlers import Reading, picture_decoder
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.decode.transforms import normalise, resize_and_crop
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.distributed.collectives import world_size
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.features.store import unreadable_error
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.untrained import PIXELS, Fitted, MapRun, Shape, fit
from sslbench.runtime.progress import StageProgress

# Pixels of a cell of such maps, in each direction.
_SIDE = 8

log = logging.getLogger("sslbench")


def evaluation_side(source: Source, preprocessing: Preprocessing, protocol: str) -> int:
    """Return the side of the evaluation pictures; where they keep their own size, of the first one."""
    size = preprocessing.output_size
    if size is None:
        try:
            image = loader.read(source.images, 0, picture_decoder(preprocessing, source.images)).image
        except UnreadableImage as error:
            raise DataError(
                f"the first image of {source.name}, whose size fixes that of all, cannot be read: {error.path}"
            ) from error
        size = image.shape[1], image.shape[2]
    height, width = size
    if height != width:
        raise UsageError(
            f"{protocol} needs square images, but the evaluation transform gives {height} x {width} pixels",
            "Give --crop, or --resize to a square.",
        )
    return int(height)


def random_sample(source: Source, most: int, seed: int) -> Source:
    """Return at most so many random samples of a source: enough to see whether a training fits its data."""
    if len(source) <= most:
        return source
    return source.select(np.sort(np.random.default_rng(seed).choice(len(source), most, replace=False)))


def unreadable_images(source: Source, preprocessing: Preprocessing, engine: ExtractSettings) -> DataError:
    """Return the error that lists all images of a source that cannot be read.

    `source`: source with at least one of them.
    """
    log.warning(f"{source.name}: an image cannot be read; looking for all unreadable ones")
    reading = Reading(start_method=engine.start_method)
    rows = np.arange(len(source))
    found = loader.survey(source, rows, engine.workers, preprocessing=preprocessing, reading=reading).unreadable
    return unreadable_error(source, [(path, reason) for _, path, reason in found])


def readable_batches(
    source: Source,
    rows: IntArray,
    preprocessing: Preprocessing,
    engine: ExtractSettings,
    report: StageProgress | None = None,
) -> Iterator[loader.PictureBatch]:
    """Yield batches of the images at the rows of this process, and refuse unreadable ones.

    `report`: called with images done and images in all, of all processes.
    """
    done = 0
    for batch in loader.batches(
        source,
        rows,
        preprocessing,
        batch_size=engine.batch_size,
        workers=engine.workers,
        start_method=engine.start_method,
    ):
        if batch.unreadable:
            raise unreadable_images(source, preprocessing, engine)
        yield batch
        done += len(batch.indices)
        if report is not None:
            report(min(done * world_size(), len(source)), len(source))


def pictures(
    source: Source, rows: Sequence[int], preprocessing: Preprocessing, engine: ExtractSettings
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield rows of `source.every_image()` and their pictures (C, H, W), uint8 or float32 from 0 to 255.

    A few threads decode ahead of the caller.
    """
    every = source.every_image()
    whole = dataclasses.replace(preprocessing, resize=None, squash=None, crop=None)
    decoder = picture_decoder(whole, every.images)

    def read(row: int) -> torch.Tensor:
        return loader.read(every.images, row, decoder).image

    with ThreadPoolExecutor(max(1, engine.workers)) as pool:
        waiting = iter(rows)
        # Two for each thread: a pool with all rows at once would hold every decoded picture.
        running = deque((row, pool.submit(read, row)) for row in itertools.islice(waiting, 2 * max(1, engine.workers)))
        try:
            while running:
                row, future = running.popleft()
                picture = future.result()
                if (following := next(waiting, None)) is not None:
                    running.append((following, pool.submit(read, following)))
                yield row, picture
        except UnreadableImage as error:
            raise unreadable_images(every, preprocessing, engine) from error


def network_input(picture: torch.Tensor, fitted: Fitted, preprocessing: Preprocessing) -> torch.Tensor:
    """Return a picture (C, H, W) as the network's input, (1, C, canvas height, canvas width)."""
    resized = resize_and_crop(picture, dataclasses.replace(preprocessing, resize=fitted.size, squash=None, crop=None))
    if fitted.size != fitted.canvas:
        top, left = fitted.offset
        bottom = fitted.canvas[0] - fitted.size[0] - top
        right = fitted.canvas[1] - fitted.size[1] - left
        # Before the normalisation: the borders are black pixels.
        resized = functional.pad(resized, (left, right, top, bottom))
    return normalise(resized[None], preprocessing)


def stacked_input(pictures: Sequence[torch.Tensor], preprocessing: Preprocessing) -> torch.Tensor:
    """Return pictures (C, H, W) of one size as the network's input, (B, C, H, W)."""
    return normalise(torch.stack(list(pictures)), preprocessing)


def fitted_maps(
    run: MapRun[Any], rows: Sequence[int], size: int, shape: Shape
) -> Iterator[tuple[int, Fitted, dict[str, torch.Tensor]]]:
    """Yield rows of images, their places in the input and their maps (D, h, w), those of pixels among them."""
    for row, picture in pictures(run.test, rows, run.preprocessing, run.engine):
        fitted = fit((int(picture.shape[1]), int(picture.shape[2])), size, shape, run.encoder.multiple)
        image = network_input(picture, fitted, run.preprocessing).to(run.encoder.device)
        yield row, fitted, {name: value[0] for name, value in maps_and_pixels(run.encoder, image).items()}


def maps_and_pixels(encoder: DenseEncoder, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the maps (B, D, h, w) of the encoder's inputs, and of the pixels on each of their grids.

    A map of pixels is called 'pixels NAME' after the first input with that grid, see `pixel_floors`.

    `images`: (B, C, H, W), normalised.
    """
    maps = dict(encoder(images))
    grids: dict[tuple[int, ...], str] = {}
    for name, value in maps.items():
        grids.setdefault(tuple(value.shape[2:]), name)
    # The features of a cell of pixels are 8 x 8 means of areas, (B, 64 * C, h, w).
    for grid, name in grids.items():
        small = functional.interpolate(images.float(), [side * _SIDE for side in grid], mode="area")
        maps[f"{PIXELS} {name}"] = functional.pixel_unshuffle(small, _SIDE)
    return maps
