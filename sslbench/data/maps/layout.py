"""Pairing of images with label maps by name, shared by the layouts."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from sslbench.data.containers.members import in_clutter, is_image
from sslbench.data.images import Files
from sslbench.data.maps.types import CodedMaps, Coding, Maps, source_of_maps
from sslbench.data.source import Source
from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.text import printable

T = TypeVar("T")
FOLDER = "folder"
"""Grouping of images by their folder, `?group=folder`, and the name of its attribute."""


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Images and their label maps.

    Attributes:
        images: one file per image, in order of the ids.
        maps: one file per image.
        ids: the paths of the images relative to their folder.
        without_map: images left over.
        without_image: maps left over.
        notes: remarks for the user.
    """

    images: Files
    maps: Files
    ids: tuple[str, ...]
    without_map: tuple[str, ...] = ()
    without_image: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def walk(folder: Path) -> list[str]:
    """List the image files below a folder, relative to it and sorted; hidden ones are skipped.

    Raises:
        DataError: a folder cannot be read.
    """
    found: list[str] = []
    waiting = [""]  # an explicit stack, so that folders may be nested to any depth
    try:
        while waiting:
            prefix = waiting.pop()
            with os.scandir(folder / prefix) as entries:
                for entry in entries:
                    if in_clutter(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{prefix}{entry.name}/")
                    elif is_image(entry.name) and (entry.is_symlink() or entry.is_file()):
                        found.append(f"{prefix}{entry.name}")
    except OSError as error:
        raise DataError(f"cannot read {error.filename!s:.300}: {error.strerror}") from error
    return sorted(found)


def by_key(folder: Path, paths: Iterable[str], ending: str = "", *, skip: int = 0) -> dict[str, str]:
    """Return key -> path; the key is the path without suffix and ending, files with other endings are skipped.

    Args:
        folder: for messages.
        paths: relative to it.
        ending: of the stems, '_mask'.
        skip: so many folders at the front of a path are no part of the key.

    Raises:
        DataError: two files have the same key, such as a.jpg and a.png.
    """
    found: dict[str, str] = {}
    for path in paths:
        stem = os.path.splitext(path)[0]  # noqa: PTH122 - a Path per image is slow
        if not stem.endswith(ending):
            continue
        key = stem.removesuffix(ending).split("/", skip)[-1]
        if key in found:
            raise DataError(f"{folder}: two files for one image: {printable(found[key])} and {printable(path)}")
        found[key] = path
    return found


def pair(images: Mapping[str, str], maps: Mapping[str, str], image_root: Path, map_root: Path) -> Pairs:
    """Pair images and maps of the same key.

    Args:
        images: key -> path relative to the folder of images.
        maps: key -> path relative to the folder of maps.
        image_root: the folder of images.
        map_root: the folder of maps.

    Raises:
        DataError: no image has a map.
    """
    both = sorted((key for key in images if key in maps), key=lambda key: printable(images[key]))
    if not both:
        raise DataError(
            f"no image in {image_root} has a map of the same name in {map_root}",
            f"Images: {some(list(images.values())) or 'none'}; maps: {some(list(maps.values())) or 'none'}.",
        )
    return Pairs(
        Files(tuple(images[key] for key in both), str(image_root)),
        Files(tuple(maps[key] for key in both), str(map_root)),
        tuple(printable(images[key]) for key in both),
        tuple(printable(str(image_root / path)) for key, path in images.items() if key not in maps),
        tuple(printable(str(map_root / path)) for key, path in maps.items() if key not in images),
    )


def source_of(spec: str, split: str, pairs: Pairs, maps: Maps, coding: Coding, notes: Sequence[str] = ()) -> Source:
    """Return the source of one split."""
    name = spec if split == "all" else f"{spec} ({split})"
    left = pairs.without_map, pairs.without_image
    return source_of_maps(CodedMaps(name, pairs.ids, pairs.images, maps, coding, *left), (*pairs.notes, *notes))


def in_order(found: Mapping[str, T]) -> dict[str, T]:
    """Sort by split: train, val, test, then others."""
    known = ("all", "train", "val", "test")
    return {s: found[s] for s in sorted(found, key=lambda s: (known.index(s) if s in known else 9, s))}


def by_folder(source: Source) -> Source:
    """Return a source whose images of one folder are a group: frames of a video, views of a scene."""
    folders = tuple(name.rpartition("/")[0] for name in source.ids)
    return dataclasses.replace(source, attributes={**source.attributes, FOLDER: folders}, grouped_by=FOLDER)
