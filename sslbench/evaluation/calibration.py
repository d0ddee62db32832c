"""Images that decide the ranges of activations in int8."""

import dataclasses
import logging

import numpy as np
import torch

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.int8 import check_int8
from sslbench.data.decode import transforms
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.evaluation.request import RunSettings

log = logging.getLogger("sslbench")

CALIBRATION_IMAGES = 128
"""Number of images that decide the ranges."""


def calibrated(backbone: Backbone, source: Source, run: RunSettings) -> Backbone:
    """Return a backbone with the images that int8 needs; unchanged in another precision, and for pixels.

    Args:
        backbone: with its preprocessing.
        source: train, of which `CALIBRATION_IMAGES` at equal distances are taken, without those that cannot be read.
        run: settings of the run.

    Raises:
        UsageError: int8 cannot be computed here, or the images have several sizes.
        DataError: none of the images can be read.
    """
    if run.precision != "int8":
        return backbone
    if backbone.kind.pixels:
        log.info(f"{backbone.name} has no weights that int8 could round: computed and recorded in fp32")
        return backbone
    check_int8(run.torch_device())
    if transforms.output_size(backbone.preprocessing) is None:
        raise UsageError(
            "precision int8 is for images of one size, and these keep their own",
            "Give --resize and --crop, or --precision bf16.",
        )
    if backbone.preprocessing.scales != (1.0,):
        raise UsageError("precision int8 is for images of one scale", "Leave out --scales, or use --precision bf16.")
    whole = source.every_image()
    rows = np.unique(np.linspace(0, len(whole) - 1, min(CALIBRATION_IMAGES, len(whole))).astype(np.int64))
    batches = loader.batches(whole, rows, backbone.preprocessing, batch_size=32, workers=0)
    images = [
        transforms.normalise(batch.images, backbone.preprocessing, memory_format=torch.contiguous_format)
        for batch in batches
        if len(batch.indices)
    ]
    if not images:
        raise DataError(f"none of {len(rows)} images of {source.name} can be read, which int8 takes its ranges from")
    return dataclasses.replace(backbone, calibration=torch.cat(images))
