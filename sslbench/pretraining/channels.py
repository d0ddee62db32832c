"""Adaptation of a recipe to images of other channels than red, green and blue: views and normalisation."""

import dataclasses
import logging

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.stems import with_channels
from sslbench.data.decode.handlers import Reading
from sslbench.data.loading.statistics import first_look, measure
from sslbench.data.source import Source
from sslbench.data.views import Augment, without_colours
from sslbench.errors import DataError, UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.pretraining.settings import PretrainRequest

log = logging.getLogger("sslbench")


def views_for(
    request: PretrainRequest, backbone: Backbone, source: Source, reading: Reading, channels: int
) -> tuple[Augment, dict[str, str]]:
    """Return a recipe's views for a number of channels, after a check of the first images.

    Operations for red, green and blue are removed from a recipe, with a log message; if the user set them, they are
    refused.

    Args:
        request: the run.
        backbone: the network, for messages.
        source: training images.
        reading: decoder settings.
        channels: number of channels of the views: the backbone's, or 3 for methods that compute its input.

    Returns:
        The views, and a description of each change by the dotted key of its setting; empty for RGB.

    Raises:
        UsageError: the images have another number of channels; a setting of the user's is for RGB
            only; mean or std have another number of values.
    """
    augment = request.settings.augment
    _check_images(source, reading, backbone, channels)
    for name in _wrong_lengths(augment, channels):
        if channels == 3 or f"augment.{name}" in request.chosen:
            raise UsageError(
                f"augment.{name} has {len(getattr(augment, name))} values, but {backbone.name} "
                f"takes images of {_channels(channels)}",
                "Give one per channel" + (", or none: then they are measured." if channels != 3 else "."),
            )
    if channels == 3:
        return augment, {}
    adapted, dropped = without_colours(augment)
    if not dropped:
        return augment, {}
    if "augment.views" in request.chosen:
        raise UsageError(
            f"augment.views: {', '.join(dropped)}: for RGB images only; {backbone.name} takes images of "
            f"{_channels(channels)}",
            "Leave them out: brightness, contrast, blur and solarize work for any channels.",
        )
    text = f"without {', '.join(dropped)}, which need red, green and blue; the images have {_channels(channels)}"
    log.info(f"augment.views: {text}")
    return adapted, {"augment.views": text}


def normalised(
    augment: Augment, preprocessing: Preprocessing, source: Source, reading: Reading, *, seed: int
) -> tuple[Augment, dict[str, str]]:
    """Return views with mean and std for all channels of the backbone: the backbone's own, or measured ones.

    Args:
        augment: views; mean and std with the right number of values are kept.
        preprocessing: preprocessing of the backbone.
        source: training images.
        reading: decoder settings.
        seed: seed of the choice of images to measure.

    Returns:
        The views, and the origin of each changed value by the dotted key of its setting.

    Raises:
        DataError: no image can be read.
    """
    channels = preprocessing.channels
    unfit = _wrong_lengths(augment, channels)
    if not unfit:
        return augment, {}
    if not preprocessing.averaged:
        values, origin = {name: getattr(preprocessing, name) for name in unfit}, preprocessing.origin
    else:
        found = measure(source, channels, reading=reading, seed=seed)
        if not found.images:
            raise DataError(
                f"{source.name}: mean and std of its channels cannot be measured, no image that was tried can be read",
                "sslbench check-data lists them.",
            )
        values, origin = {name: getattr(found, name) for name in unfit}, f"measured on {found.images} images"
        for channel in found.constant:
            log.warning(
                f"channel {channel} (the first is 0) is the same in all of {found.images} images; std 1 is used"
            )
    for name in unfit:
        log.info(f"augment.{name}: {' '.join(f'{value:g}' for value in values[name])} ({origin})")
    return dataclasses.replace(augment, **values), {f"augment.{name}": origin for name in unfit}


def _wrong_lengths(augment: Augment, channels: int) -> list[str]:
    """Return those of mean and std that have another number of values."""
    return [name for name in ("mean", "std") if len(getattr(augment, name)) != channels]


def _check_images(source: Source, reading: Reading, backbone: Backbone, channels: int) -> None:
    """Refuse images with another number of channels."""
    other = first_look(source, channels, reading=reading)
    if other is None:
        return
    path, channels_found = other
    if channels != backbone.preprocessing.channels:
        raise UsageError(
            f"{path} has {_channels(channels_found)}, and the method takes red, green and blue",
            "Convert the channels by your own decoder=my_module.my_function.",
        )
    remedy = "Or convert the channels by your own decoder=my_module.my_function."
    if "in_chans" in backbone.kind.options:
        name = with_channels(backbone.name, channels_found)
        remedy = f"--backbone {name} takes them (--stem maps the stem of --init). {remedy}"
    raise UsageError(f"{path} has {_channels(channels_found)}, and {backbone.name} takes {channels}", remedy)


def _channels(count: int) -> str:
    return f"{count} channel{'' if count == 1 else 's'}"
