"""Images of protocols that train on them: side of the pictures, unreadable files."""

import logging

import numpy as np

from sslbench.data.decode.handlers import Reading, picture_decoder
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.decode.transforms import output_size
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.features.array import ExtractSettings
from sslbench.features.store import unreadable_error
from sslbench.preprocessing import Preprocessing

log = logging.getLogger("sslbench")


def evaluation_side(source: Source, preprocessing: Preprocessing, protocol: str) -> int:
    """Return the side of the evaluation pictures; where they keep their own size, of the first one."""
    size = output_size(preprocessing)
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
    found = loader.scan(source, rows, engine.workers, preprocessing=preprocessing, reading=reading)
    return unreadable_error(source, [(path, reason) for _, path, reason in found])
