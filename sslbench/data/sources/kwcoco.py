"""Toy images by kwcoco: kwcoco:shapes8 (eight of 600 x 600 pixels), kwcoco:shapes64-128 (64 of 128 x 128)."""

import dataclasses

from sslbench.data import _toy_objects
from sslbench.data.source import Source
from sslbench.data.sources import coco
from sslbench.data.sources._crops import WHOLE_IMAGES, Options
from sslbench.data.sources._names import refuse_columns


def recognises(spec: str) -> bool:
    """Whether the string starts with 'kwcoco:'."""
    return _toy_objects.recognises(spec)


def open(
    spec: str, *, image_column: str | None = None, label_column: str | None = None, options: Options = WHOLE_IMAGES
) -> dict[str, Source]:
    """The images, labelled with the shapes that are on them (multi-label); drawn once and kept in the cache folder.

    Args:
        spec: the name.
        image_column: for tables only.
        label_column: for tables only.
        options: as for manifests: `kwcoco:shapes8?unit=annotation`.

    Raises:
        UsageError: another name, a column was named, or the cache folder cannot be written.
    """
    refuse_columns(spec, image_column, label_column)
    sources = coco.open(str(_toy_objects.manifest(spec)), options=options)
    return {split: dataclasses.replace(source, name=spec, notes=()) for split, source in sources.items()}
