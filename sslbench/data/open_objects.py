"""Images with labelled objects: boxes, classes, masks, from COCO and kwcoco manifests and from Pascal VOC trees.

Boxes are x1, y1, x2, y2 in pixels of the upright image (EXIF orientation applied, as decoding does); the first pixel
reaches from 0 to 1, so the box of a whole image is 0, 0, width, height.
"""

from pathlib import Path

from sslbench.data.formats.voc import objects
from sslbench.data.objects import toy
from sslbench.data.objects.types import Objects, ObjectSource
from sslbench.data.open import locate, open_data
from sslbench.data.splits.objects import TrainTestObjects, split_objects_of
from sslbench.errors import UsageError
from sslbench.names import find_module, list_names

__all__ = ["DEFAULT", "ObjectSource", "Objects", "TrainTestObjects", "open_objects", "split_objects"]

DEFAULT = "kwcoco:shapes64-128"
"""The toy data that stand in when a user names none: 64 drawn images of 128 x 128 pixels."""


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """Open data with objects; which kind is recognised from the string and what lies there.

    Args:
        spec: a COCO or kwcoco manifest (`instances_train.json`, `photos.kwcoco.json`), a Pascal VOC tree
            (`VOCdevkit/VOC2007`), several of them (`VOC2007+VOC2012`), or toy images by kwcoco (`kwcoco:shapes8`).

    Returns:
        Split name -> source; {"all": source} if there are no splits.

    Raises:
        UsageError: nothing lies there, or it is a kind of data without objects.
        DataError: it is damaged, or an object cannot be used; the message names file and annotation.
    """
    place = locate(spec)
    if place.options:
        raise UsageError(f"{spec}: detection takes the images as they are, without '?{next(iter(place.options))}='")
    spec = place.text
    if find_module("source", "several").recognises(spec):
        raise UsageError(
            f"{spec}: a detector is trained on one data location, not on several at once",
            "Join the manifests into one with kwcoco union; Pascal VOC trees are joined with '+': VOC2007+VOC2012.",
        )
    if toy.recognises(spec) and not Path(spec).exists():
        return {"all": _toy(spec)}
    parts = spec.split("+") if not Path(spec).exists() else [spec]
    if len(parts) > 1 and all(Path(part).is_dir() for part in parts):
        other = [part for part in parts if not objects.recognises(part)]
        if other:
            raise UsageError(f"{other[0]} is no Pascal VOC tree, and only such trees can be joined with '+'")
        return objects.open_trees(parts)
    if objects.recognises(spec):
        return objects.open_trees([spec])
    for name in list_names("source"):
        module = find_module("source", name)
        if hasattr(module, "open_objects") and module.recognises(spec) and Path(spec).exists():
            found: dict[str, ObjectSource] = module.open_objects(spec)
            return found
    open_data(spec)  # says what is wrong, if nothing lies there or it is damaged
    raise UsageError(
        f"{spec} holds images without boxes, and detection needs them",
        "Give a COCO or kwcoco manifest (.json), a Pascal VOC tree with Annotations/, or kwcoco:shapes8.",
    )


def split_objects(
    data: str, test_data: str | None = None, *, seed: int = 0, test_fraction: float = 0.2
) -> TrainTestObjects:
    """The train and test part of one data location, or of two.

    Args:
        data: as `open_objects` takes it. Its train split if it has one, else all of it.
        test_data: of this the test split, else val, else all. Without it, `data`'s own test split (else val); if `data`
            has no splits, a seeded split by image that keeps the share of every class.
        seed: of the split.
        test_fraction: share of the images that becomes the test part in a seeded split.

    Returns:
        The two parts with the same classes in the same order; `how` says how they came about.

    Raises:
        UsageError: a location does not exist or has no part that could serve, or the fraction is not in (0, 1).
        DataError: a part has fewer than two images or no objects, or test has a class that train does not know.
    """
    others = None if test_data is None else open_objects(test_data)
    return split_objects_of(data, open_objects(data), test_data, others, seed=seed, test_fraction=test_fraction)


def _toy(spec: str) -> ObjectSource:
    manifest = toy.manifest(spec)
    module = find_module("source", "coco")
    sources: dict[str, ObjectSource] = module.open_objects(str(manifest))
    return toy.named(spec, next(iter(sources.values())))
