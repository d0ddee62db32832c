"""Folders of images and of annotation files with the same names: beside each other, mixed, or split."""

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path

from sslbench.data.containers.members import IMAGE_FOLDERS, is_image, split_name
from sslbench.data.containers.sniff import is_clutter
from sslbench.data.regular import open_regular, reading
from sslbench.errors import DataError

_MOST_FOLDERS = 12
"""A folder with more folders in it is one of classes, which are not searched for annotations."""
_HEAD = 4096  # bytes in which an XML file says what it is
_ANNOTATIONS = ("annotations", "annotation", "labels", "xml", "xmls", "boxes", "bbox")


@dataclasses.dataclass(frozen=True)
class Place:
    """Folders of the images and of the annotations of one split, which may be the same folder."""

    split: str
    images: Path
    annotations: Path


def split_of(name: str) -> str | None:
    """Return the split that a folder or file is named for, with or without a year: 'train2017', 'valid'."""
    return split_name(re.sub(r"[-_]?\d+$", "", name))


def find_places(root: Path, annotates: Callable[[Path], bool]) -> list[Place]:
    """Find the folders of images and of their annotations; empty if there are none.

    Known are one folder with both; two folders beside each other; either of them in train/, val/ (valid/), test/; and
    such folders inside of the two.

    `annotates`: cheap test of a folder: annotation files lie directly in it.

    Raises:
        DataError: there are several folders of images or of annotations, or two for one split.
    """
    with reading():
        if not root.is_dir():
            return []
        alone = _place("all", root, annotates)
        if alone is not None:
            return [alone]
        folders = _folders(root)
        places = [
            place
            for folder in folders
            if (split := split_of(folder.name)) and (place := _place(split, folder, annotates)) is not None
        ]
        return _once(root, places or _split_inside(folders, annotates))


def _place(split: str, folder: Path, annotates: Callable[[Path], bool]) -> Place | None:
    """Return the place in one folder, or in two folders of it."""
    inside = annotates(folder)
    if inside and has_images(folder):
        return Place(split, folder, folder)
    folders = _folders(folder)
    annotated = [folder] if inside else [below for below in folders if annotates(below)]
    if len(annotated) != 1:
        return None
    if annotated[0] != folder and has_images(annotated[0]):
        return Place(split, annotated[0], annotated[0])
    with_images = [below for below in folders if below != annotated[0] and has_images(below)]
    chosen = [below for below in with_images if below.name.lower() in IMAGE_FOLDERS] or with_images
    if len(chosen) > 1:
        names = ", ".join(f"{below.name}/" for below in chosen)
        raise DataError(
            f"{folder}: {annotated[0].name}/ holds annotations, and {names} hold images: which of them are annotated?",
            "Call that folder images/, or leave out the others.",
        )
    return Place(split, chosen[0], annotated[0]) if chosen else None


def find_nested(root: Path, annotates: Callable[[Path], bool]) -> Place | None:
    """Find a folder of images and one of annotations of usual names, whose files lie in folders inside of them."""
    with reading():
        folders = _folders(root) if root.is_dir() else []
        images = [folder for folder in folders if folder.name.lower() in IMAGE_FOLDERS]
        texts = [f for f in folders if f.name.lower() in _ANNOTATIONS and any(map(annotates, some_folders(f)))]
    return Place("all", images[0], texts[0]) if len(images) == len(texts) == 1 else None


def some_folders(folder: Path) -> list[Path]:
    """Return the first folders directly in a folder, as many as a layout has."""
    with os.scandir(folder) as entries:
        found = sorted(entry.path for entry in entries if not is_clutter(entry.name) and _is_folder(entry))
    return [Path(path) for path in found[:_MOST_FOLDERS]]


def _split_inside(folders: list[Path], annotates: Callable[[Path], bool]) -> list[Place]:
    """Return the places of images/train, labels/train and the like."""
    found: dict[str, dict[str, Path]] = {}
    for folder in folders:
        for below in _folders(folder):
            if split_of(below.name) is None:
                continue
            if annotates(below):
                found.setdefault(below.name, {})["annotations"] = below
            elif has_images(below):
                found.setdefault(below.name, {})["images"] = below
    return [
        Place(str(split_of(name)), both["images"], both["annotations"])
        for name, both in found.items()
        if len(both) == 2
    ]


def _once(root: Path, places: list[Place]) -> list[Place]:
    by_split: dict[str, Place] = {}
    for place in places:
        if place.split in by_split:
            other = by_split[place.split]
            raise DataError(
                f"{root} has two folders for the {place.split} split: {other.images} and {place.images}",
                "Give one of them as --data, the other as --test-data.",
            )
        by_split[place.split] = place
    return [by_split[split] for split in ("train", "val", "test") if split in by_split]


def _folders(folder: Path) -> list[Path]:
    """Return the folders directly in a folder; none if there are more than a layout has."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not is_clutter(entry.name) and _is_folder(entry):
                found.append(Path(entry.path))
                if len(found) > _MOST_FOLDERS:
                    return []
    return sorted(found)


def has_images(folder: Path) -> bool:
    """Return whether an image file lies directly in a folder."""
    return any(is_image(name) for name in file_names(folder))


def holds(folder: Path, suffix: str) -> Path | None:
    """Return a file of a suffix directly in a folder, None without one."""
    return next((folder / name for name in file_names(folder) if name.lower().endswith(suffix)), None)


def has_voc_xml(folder: Path) -> bool:
    """Return whether an XML file with an annotation of Pascal VOC lies directly in a folder."""
    file = holds(folder, ".xml")
    if file is None:
        return False
    try:
        with open_regular(str(file)) as content:
            text = content.read(_HEAD)
            return re.search(rb"<annotation[\s>]", text) is not None and b"<imagesize>" not in text  # MIT's LabelMe
    except OSError:
        return False


def find_class_places(root: Path, annotates: Callable[[Path], bool]) -> list[Place]:
    """Find folders of classes with annotation files beside the images, of each split or of all; empty without any."""

    def has_classes(folder: Path) -> bool:
        return any(annotates(below) and has_images(below) for below in some_folders(folder))

    try:
        if not root.is_dir():
            return []
        if has_classes(root):
            return [Place("all", root, root)]
        named = [(split_of(folder.name), folder) for folder in some_folders(root)]
        return _once(root, [Place(split, folder, folder) for split, folder in named if split and has_classes(folder)])
    except OSError:
        return []


def file_names(folder: Path) -> list[str]:
    """Return the names of the files directly in a folder, without hidden ones."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if not is_clutter(entry.name) and not _is_folder(entry)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one; a link in a circle is none."""
    # Of a link in a circle DirEntry.is_dir raises, and Path.is_dir says no.
    return Path(entry.path).is_dir() if entry.is_symlink() else entry.is_dir()
