"""Toy data by kwcoco: kwcoco:shapes8 (8 images of 600 x 600), kwcoco:vidshapes2-msi (2 videos with more channels)."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from sslbench.data.format import SampleReader, SourceFormat, plain_reader
from sslbench.data.formats import coco
from sslbench.data.formats.coco import WHOLE_IMAGES, CocoOptions
from sslbench.data.maps.classes import LabelMapOptions
from sslbench.data.maps.foreground import map_readers
from sslbench.data.objects import ObjectSource, toy
from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.targets.objects import Boxes
from sslbench.targets.videos import Tracks


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'kwcoco:' or, as kwcoco itself writes it, with 'special:'."""
    return toy.recognises(spec)


def open(spec: str, *, attribute_columns: Sequence[str] = (), options: CocoOptions = WHOLE_IMAGES) -> dict[str, Source]:
    """Return the images, labelled with the shapes on them (multi-label); they are drawn once, into the cache folder.

    Raises:
        UsageError: the name is unknown, or the cache folder cannot be written.
    """
    sources = coco.open(str(toy.manifest(spec)), attribute_columns=attribute_columns, options=options)
    return {split: dataclasses.replace(source, name=spec, notes=()) for split, source in sources.items()}


def open_objects(spec: str) -> Mapping[str, ObjectSource]:
    """Return the images with the boxes and masks of their shapes."""
    (source,) = coco.open_objects(str(toy.manifest(spec))).values()
    return {"all": dataclasses.replace(source, name=spec, notes=())}


def open_videos(spec: str) -> dict[str, Source]:
    """Return the videos with the masks of their shapes."""
    (source,) = coco.open_videos(str(toy.manifest(spec))).values()
    return {"all": dataclasses.replace(source, name=spec, notes=())}


def _is_no_file(spec: str) -> bool:
    return recognises(spec) and not Path(spec).exists()


def _open_maps(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    if options.images:
        raise UsageError(f"{spec}: its images are drawn, so it takes no option '?images='")
    return coco.masks.open_maps(spec, options, open_objects)


FORMAT = SourceFormat(
    __doc__,
    SampleReader(
        recognises,
        lambda request: open(request.spec, attribute_columns=request.attribute_columns, options=request.options),
        CocoOptions,
        frozenset(("attribute",)),
    ),
    {
        Boxes: plain_reader(_is_no_file, open_objects),
        **map_readers(lambda spec, _: _is_no_file(spec), _open_maps, LabelMapOptions),
        Tracks: plain_reader(_is_no_file, open_videos),
    },
)
