"""Toy data by kwcoco: kwcoco:shapes8 (8 images of 600 x 600), kwcoco:vidshapes2-msi (2 videos with more channels)."""

import dataclasses
from collections.abc import Sequence

from sslbench.data import _toy_objects
from sslbench.data.source import Source
from sslbench.data.sources import coco
from sslbench.data.sources._names import refuse_columns
from sslbench.data.sources.coco import WHOLE_IMAGES, Options


def recognises(spec: str) -> bool:
    """Whether the string starts with 'kwcoco:' or, as kwcoco itself writes it, with 'special:'."""
    return _toy_objects.recognises(spec)


def open(
    spec: str,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    attribute_columns: Sequence[str] = (),
    options: Options = WHOLE_IMAGES,
) -> dict[str, Source]:
    """The images, labelled with the shapes that are on them (multi-label); drawn once and kept in the cache folder.

    Args:
        spec: the name.
        image_column: for tables only.
        label_column: for tables only.
        attribute_columns: as for manifests.
        options: as for manifests: `kwcoco:shapes8?unit=annotation`.

    Raises:
        UsageError: another name, a column was named, or the cache folder cannot be written.
    """
    refuse_columns(spec, image_column, label_column)
    manifest = str(_toy_objects.manifest(spec))
    sources = coco.open(manifest, attribute_columns=attribute_columns, options=options)
    return {split: dataclasses.replace(source, name=spec, notes=()) for split, source in sources.items()}
