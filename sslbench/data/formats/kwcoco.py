"""Toy data by kwcoco: kwcoco:shapes8 (8 images of 600 x 600), kwcoco:vidshapes2-msi (2 videos with more channels)."""

import dataclasses
from collections.abc import Sequence

from sslbench.data.containers.names import refuse_columns
from sslbench.data.formats import coco
from sslbench.data.formats.coco import WHOLE_IMAGES, Options
from sslbench.data.objects import toy
from sslbench.data.source import Source


def recognises(spec: str) -> bool:
    """Whether the string starts with 'kwcoco:' or, as kwcoco itself writes it, with 'special:'."""
    return toy.recognises(spec)


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
    manifest = str(toy.manifest(spec))
    sources = coco.open(manifest, attribute_columns=attribute_columns, options=options)
    return {split: dataclasses.replace(source, name=spec, notes=()) for split, source in sources.items()}
