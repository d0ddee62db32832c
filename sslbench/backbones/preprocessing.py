"""Evaluation transform of loaded weights: the format's, else a default."""

import dataclasses

from sslbench.backbones.backbone import Backbone
from sslbench.preprocessing import IMAGENET_MEAN, IMAGENET_STD, LIGHTNESS_MEAN, LIGHTNESS_STD, Preprocessing
from sslbench.weights.formats.recognise import Recognised
from sslbench.weights.formats.schema import InputImages

_CROP = 224
"""Side of the crop that `Input.resize` belongs to."""
_SMALLEST = 64
"""Side of the crop below which a network is one for small images, which formats say nothing about."""


def trained_on(backbone: Backbone, found: Recognised, *, named: bool) -> tuple[Preprocessing, str]:
    """Return the evaluation transform of a loaded backbone, and a note for the user.

    The format's transform comes first, unless the backbone's name has a tag of timm (`vit_base_patch16_224.augreg`);
    mean and std in a configuration beside the file come before the format's.
    Second, for a backbone that was recognised and not named by the user, its family's usual input, with ImageNet's mean
    and std. Otherwise the backbone's own transform is used.

    Args:
        backbone: as built.
        found: content of the file.
        named: the user gave the backbone's name.
    """
    own, said = backbone.preprocessing, found.input or InputImages("any")
    if found.config.mean:
        usual = InputImages("any") if named else backbone.usual_input or InputImages("any")
        said = dataclasses.replace(
            said,
            mean=found.config.mean,
            std=found.config.std,
            resize=said.resize or usual.resize,
            interpolation=said.interpolation or usual.interpolation,
            note="",
        )
    name, _, _ = backbone.name.partition(",")
    tagged = backbone.kind.tags and "." in name and (named or found.format == "sslbench")
    if tagged or backbone.kind.users or backbone.kind.pixels:
        return own, ""
    if own.crop is not None and min(own.crop) < _SMALLEST:
        own = dataclasses.replace(own, mean=found.config.mean or own.mean, std=found.config.std or own.std)
        return own, _assumed(own, said, found) if said.note else ""
    origin = f"{found.format}{':' + found.variant if found.variant else ''}: its evaluation transform"
    origin += ", mean and std of the configuration beside the file" if found.config.mean else ""
    if said.space == "lightness":
        used = dataclasses.replace(_with_size(own, said), mean=LIGHTNESS_MEAN, std=LIGHTNESS_STD, space="lightness")
        return dataclasses.replace(used, origin=origin), said.note
    if said.mean:
        return dataclasses.replace(_with_size(own, said), mean=said.mean, std=said.std, origin=origin), said.note
    if named or backbone.usual_input is None:
        return own, _assumed(own, said, found) if said.note else ""
    default = Preprocessing(origin=f"ImageNet default (format {found.format} does not say)")
    used = dataclasses.replace(_with_size(default, backbone.usual_input, own.crop), origin=default.origin)
    return used, _assumed(used, said, found)


def _assumed(used: Preprocessing, said: InputImages, found: Recognised) -> str:
    """Return the note about mean and std that do not come from the file or its format; the format's own if they do."""
    if (used.mean, used.std) == (said.mean, said.std):
        return said.note
    mean, std = (",".join(f"{value:g}" for value in values) for values in (used.mean, used.std))
    values = f"{mean} and {std}"
    if (used.mean, used.std) == (IMAGENET_MEAN, IMAGENET_STD):
        values = "ImageNet's"
    note = f"format {found.format} does not say mean and std: {values} are assumed (--mean, --std)"
    return "; ".join(filter(None, (note, "" if said.mean else said.note)))


def _with_size(own: Preprocessing, said: InputImages, crop: tuple[int, int] | None = None) -> Preprocessing:
    """Return a transform with the resize that the format says, in proportion to the crop of the backbone."""
    crop = crop or own.crop
    if not said.resize or crop is None or crop[0] != crop[1]:
        return dataclasses.replace(own, interpolation=said.interpolation or own.interpolation)
    resize = round(crop[0] * said.resize / _CROP)
    return dataclasses.replace(
        own, resize=resize, squash=None, crop=crop, interpolation=said.interpolation or own.interpolation
    )
