"""Concatenation of images with objects: ids are prefixed by the source's name, classes matched by name."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from sslbench.data.joined import join_attributes, joined_images
from sslbench.data.objects.types import ObjectSource
from sslbench.data.wording import counted, some


def join_objects(
    sources: Mapping[str, ObjectSource], name: str, weights: Mapping[str, float] | None = None
) -> ObjectSource:
    """Concatenate several sources in the order of their names, however they are listed.

    A class that a source does not have is background in its images: a detection of it there is an error. The notes say
    so.

    Args:
        sources: name -> source. A name stands before the ids, with a '/' between, and is each image's attribute
            'origin'.
        name: of the joined source.
        weights: of pretraining; a detector sees every image equally often.
    """
    del weights
    ordered = {key: sources[key] for key in sorted(sources, key=lambda key: f"{key}/")}  # in ascending order of ids
    classes = tuple(dict.fromkeys(c for part in ordered.values() for c in part.classes))
    numbers = tuple(range(1, len(classes) + 1))
    parts = {key: part.with_classes(classes, numbers) for key, part in ordered.items()}
    notes = [f"{key}: {note}" for key, part in ordered.items() for note in part.notes]
    for key, part in ordered.items():
        if lacking := [c for c in classes if c not in part.classes]:
            notes.append(
                f"{key} has no boxes of {counted(len(lacking), 'class')} ({some(lacking)}): such objects in its images "
                "count as background"
            )
    skeletons = {part.skeleton for part in parts.values()}
    if len(skeletons) > 1:
        notes.append("keypoints are left out: the sources have different ones")
        parts = {key: part.without_keypoints() for key, part in parts.items()}
    attributes, grouped_by = join_attributes(ordered)
    if any(part.federated is not None for part in ordered.values()):
        notes.append(
            "the lists of absent classes of LVIS are left out: in several sources every class counts everywhere"
        )
    first = next(iter(parts.values()))
    return dataclasses.replace(
        first,
        name=name,
        ids=tuple(f"{key}/{sample}" for key, part in parts.items() for sample in part.ids),
        images=joined_images([part.images for part in parts.values()]),
        objects=tuple(objects for part in parts.values() for objects in part.objects),
        sizes=np.concatenate([part.sizes for part in parts.values()]),
        numbers=tuple(range(1, sum(map(len, parts.values())) + 1)),
        notes=tuple(notes),
        attributes=attributes,
        grouped_by=grouped_by,
        federated=None,
        sized=all(part.sized for part in parts.values()),
        image_texts={},
        class_texts={},
    )
