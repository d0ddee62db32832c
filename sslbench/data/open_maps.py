"""Images with label maps: a class, and perhaps an instance, for every pixel.

Read are ADE20K (SceneParse and full), COCO panoptic, Cityscapes, Pascal VOC, folders of images and maps with equal
names, and the masks of COCO and kwcoco manifests. Maps are read as they are stored: never through a palette or as a
picture, never turned. They belong to the upright image, as decoding shows it.
"""

from pathlib import Path
from typing import Any

from sslbench import config
from sslbench.data.formats.coco import masks, panoptic
from sslbench.data.formats.voc import maps
from sslbench.data.formats import ade20k, cityscapes
from sslbench.data.maps import classes, pairs
from sslbench.data.maps.types import IGNORED, Coding, LabelMap, LabelMapSource
from sslbench.data.objects import toy
from sslbench.data.open import locate, open_data
from sslbench.data.open_objects import open_objects
from sslbench.errors import DataError, UsageError
from sslbench.names import find_module

__all__ = ["IGNORED", "Coding", "LabelMap", "LabelMapSource", "are_label_maps", "open_label_maps", "refuse_label_maps"]

_Options = classes.Options

_UNDERSTOOD = (
    "Understood are images/ and masks/ with equal names (also in train/, val/), ADE20K, Cityscapes, Pascal VOC with "
    "SegmentationClass/, COCO panoptic (.json with segments_info), and manifests with masks; "
    "PLACE?images=photos&maps=gt names other folders."
)


def open_label_maps(spec: str) -> dict[str, LabelMapSource]:
    """Open images with label maps; which layout they have is recognised from what lies there.

    Args:
        spec: a folder or a manifest. Behind a '?' may stand `ignore=0,void` (values or classes that do not count),
            `classes=names.txt` (a file that names the classes), `images=photos&maps=gt` (folders of other names).

    Returns:
        Split name -> source; {"all": source} if there are no splits. Images without a map and maps without an image are
        left out and listed in the source.

    Raises:
        UsageError: nothing lies there, it is no kind of data with label maps, or an option is not known.
        DataError: it is damaged; the message names the file.
    """
    place = locate(spec)
    options = config.build(_Options, {**place.options}, f"the options of {place.text}")
    try:
        return _open(place.text, options)
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}") from error


def _open(spec: str, options: _Options) -> dict[str, LabelMapSource]:
    path = Path(spec)
    if path.is_dir() and (options.images or options.maps) and not panoptic.recognises(path):
        return pairs.open_maps(spec, options)
    if (module := _layout(path)) is not None:
        found: dict[str, LabelMapSource] = module.open_maps(spec, options)
        return found
    if maps.recognises(path):
        return maps.open_maps(spec, options)
    if path.is_dir() and pairs.find_places(path):
        return pairs.open_maps(spec, options)  # says what does not match
    if (toy.recognises(spec) and not path.exists()) or _is_manifest(spec):
        return masks.open_maps(spec, options, open_objects)
    open_data(spec)  # says what is wrong, if nothing lies there or it is damaged
    raise UsageError(f"{spec} has no label maps", _UNDERSTOOD)


def are_label_maps(spec: str) -> bool:
    """Whether a location is laid out in a way that can be nothing but label maps, so that nobody has to say so.

    Pascal VOC trees and manifests are not: they are looked at for their boxes and classes as well.

    Raises:
        UsageError: the location is empty, or a catalog cannot be read.
    """
    place = locate(spec)
    return "maps" in place.options or _layout(Path(place.text)) is not None


def refuse_label_maps(spec: str) -> None:
    """For whoever wants images, with a class each or with none: maps would be taken for images of their own.

    Raises:
        UsageError: the location is laid out in a way that can be nothing but label maps.
    """
    if are_label_maps(spec):
        raise UsageError(
            f"{spec} holds images and their label maps, and no classes of whole images",
            f"`sslbench check-data {spec}` checks them. To use the images alone, name the folder that they lie in.",
        )


def _layout(path: Path) -> Any:
    """The module for what lies there; None for layouts that are other data as well."""
    if trees := maps.years(path):
        return None if any((tree / "ImageSets" / "Main").is_dir() for tree in trees) else maps
    if path.is_dir():
        for module in (ade20k, cityscapes, panoptic):
            if module.recognises(path):
                return module
        other = (path / "ImageSets").is_dir()  # a Pascal VOC tree without lists for segmentation
        return pairs if not other and pairs.recognises(path) else None
    return panoptic if path.is_file() and panoptic.recognises(path) else None


def _is_manifest(spec: str) -> bool:
    return Path(spec).is_file() and bool(find_module("source", "coco").recognises(spec))
