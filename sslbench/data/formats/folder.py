"""Image folder: a sub-folder per class (or none: unlabelled), or train/, val/, test/ with such sub-folders."""

import dataclasses
import errno
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TypedDict

from sslbench.data.containers.exports import NOT_READ, Export, annotates, export_in, export_of
from sslbench.data.containers.members import names_no_class, split_name
from sslbench.data.containers.sniff import ARRAYS, SUFFIXES, VIDEOS, is_clutter
from sslbench.data.decode.reading import suffixes_of
from sslbench.data.format import NoOptions, Reader, SampleReader, SourceFormat
from sslbench.data.formats._parts.layout import find_class_places, has_voc_xml
from sslbench.data.images import Files
from sslbench.data.labels import NO_CLASS_FOLDERS, NUMBERED_FOLDERS, single_labels
from sslbench.data.maps import layout
from sslbench.data.maps.classes import LabelMapOptions, coding_beside, names_folders
from sslbench.data.maps.foreground import binary_masks, foreground_of
from sslbench.data.regular import reading
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.distributed.collectives import from_first
from sslbench.errors import DataError
from sslbench.targets.label_maps import Foreground, LabelMaps
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Target
from sslbench.text import all_printable, printable
from sslbench.text_rows import packed

_LISTS = (".csv", ".tsv", ".parquet", ".json")


def recognises(spec: str) -> bool:
    """Return whether the string is an existing folder."""
    return Path(spec).is_dir()


def open(spec: str, *, together: bool = False, suffixes: frozenset[str] = frozenset()) -> dict[str, Source]:
    """Return the images below a folder.

    Sub-folders train/, val/, test/ (or training, valid, validation, testing, in any case) are splits. Images anywhere
    below a class folder belong to that class. Ids are paths relative to the folder (to the split's, if split). With
    `together`, all processes of a run call this now, and the first one lists the files. `suffixes` are those of further
    files that count as images.
    """

    def listed() -> dict[str, _Listing]:
        root, name = Path(spec), spec.rstrip("/") + "/"
        with reading():
            folders = split_folders(root)
            if not folders:
                return {"all": _list_split(root, name, (), suffixes)}
            around = tuple(_around_splits(root, set(folders.values())))
            return {
                split: _list_split(root / folder, f"{name} ({split})", around, suffixes)
                for split, folder in folders.items()
            }

    listings: dict[str, _Listing] = from_first(listed) if together else listed()
    sources = {}
    for split, listing in listings.items():
        images = packed(listing["images"])
        listing["images"] = []  # no second copy of many
        ids, level = all_printable(images), listing["level"]
        labels: Target = Unlabelled(len(images))
        if level is not None:
            known = dict[str, str]()
            labels = single_labels([known.setdefault(c := _class_of(image, level), c) for image in images])
        sources[split] = Source(listing["name"], ids, labels, Files(images, listing["root"]), tuple(listing["notes"]))
    return sources


class _Listing(TypedDict):
    """Images of one split, as plain values that processes share.

    The classes are the folders at `level` of the paths, from 0; None: there are none.
    """

    name: str
    root: str
    images: list[str]
    level: int | None
    notes: list[str]


@dataclasses.dataclass
class _FolderContent:
    """Files and folders below one folder; names are relative to it.

    Attributes:
        images: by their suffix.
        hidden: hidden or system files and folders.
        others: suffix -> files of other kinds.
        loops: links to a folder around them, or to themselves.
        special: named pipes, devices and sockets with the name of an image.
    """

    images: list[str] = dataclasses.field(default_factory=list)
    hidden: list[str] = dataclasses.field(default_factory=list)
    others: Counter[str] = dataclasses.field(default_factory=Counter)
    loops: list[str] = dataclasses.field(default_factory=list)
    special: list[str] = dataclasses.field(default_factory=list)


def _walk(root: str, found: _FolderContent, suffixes: frozenset[str] = SUFFIXES) -> None:
    """Fill `found`, without a stat per file; links to folders are followed, except to a folder around them."""
    # A list in place of recursion, so that any number of folders may lie in each other.
    waiting = [("", frozenset[tuple[int, int]]())]  # a folder, and the ones around it by device and inode
    while waiting:
        prefix, around = waiting.pop()
        top = os.path.join(root, prefix[:-1]) if prefix else root  # noqa: PTH118 - a Path per folder is slow
        around |= {_identity(top)}
        with os.scandir(top) as entries:
            for entry in entries:
                name = prefix + entry.name
                if is_clutter(entry.name):
                    found.hidden.append(name)
                    continue
                try:
                    is_folder = entry.is_dir()
                except OSError as error:
                    if error.errno != errno.ELOOP:
                        raise
                    found.loops.append(name)
                    continue
                suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122
                if is_folder:
                    if entry.is_symlink() and (_is_inside(top, entry.path) or _identity(entry.path) in around):
                        found.loops.append(name)
                    else:
                        waiting.append((f"{name}/", around))
                elif suffix not in suffixes:
                    found.others[suffix] += 1
                # A dangling link counts as an unreadable image.
                elif entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path)):  # noqa: PTH110
                    found.images.append(name)
                else:
                    found.special.append(name)


def _is_inside(folder: str, other: str) -> bool:
    inner, outer = os.path.realpath(folder), os.path.realpath(other)
    return inner == outer or inner.startswith(outer.rstrip(os.sep) + os.sep)


def _identity(folder: str) -> tuple[int, int]:
    stat = os.stat(folder)  # noqa: PTH116
    return stat.st_dev, stat.st_ino


def split_folders(root: Path) -> dict[str, str]:
    """Split name -> folder name; empty if the sub-folders are classes.

    A class may be called 'train': sub-folders are splits if all of them, or train/ and one more, have such names.
    """
    names = sorted(entry.name for entry in root.iterdir() if not is_clutter(entry.name) and entry.is_dir())
    folders: dict[str, str] = {}
    for name in names:
        split = split_name(name)
        if split is not None and split in folders:
            raise DataError(f"{root} has two folders for the {split} split: {folders[split]}/ and {name}/")
        if split is not None:
            folders[split] = name
    is_split = len(folders) == len(names) or ("train" in folders and len(folders) > 1)
    return {split: folders[split] for split in ("train", "val", "test") if split in folders} if is_split else {}


def _around_splits(root: Path, folders: set[str]) -> list[str]:
    names = sorted(e.name + ("/" if e.is_dir() else "") for e in root.iterdir() if e.name not in folders)
    hidden = [name for name in names if is_clutter(name.rstrip("/"))]
    others = [name for name in names if name.endswith("/") and name not in hidden]
    images = [name for name in names if PurePosixPath(name).suffix.lower() in SUFFIXES and name not in hidden + others]
    notes = []
    if hidden:
        notes.append(_left_out(hidden, f"{root}/"))
    if others:
        notes.append(f"{root}/: left out, beside the splits: {some(others)}")
    if images:
        notes.append(f"{root}/: {counted(len(images), 'image')} beside the splits left out: {some(images)}")
    if lists := [name for name in names if name.lower().endswith(_LISTS) and not export_of(root / name)]:
        notes.append(f"{root}/: if {some(lists)} lists labels, give that file as --data instead")
    for name in names:
        if (export := export_of(root / name)) is not None:
            notes.append(f"{root}/: {name} is {export.title}, {NOT_READ}. {export.remedy}")
    return notes


def _left_out(names: list[str], where: str) -> str:
    return f"{where}: hidden or system files and folders left out: {some([printable(n) for n in sorted(names)])}"


def _list_split(root: Path, name: str, notes: tuple[str, ...], suffixes: frozenset[str]) -> _Listing:
    found = _FolderContent()
    _walk(str(root), found, SUFFIXES | suffixes)
    # Labels and features are stored as arrays, too, and pictures of videos beside these; so they count only alone.
    for kind in (VIDEOS, ARRAYS):
        if not found.images and kind & set(found.others):
            found = _FolderContent()
            _walk(str(root), found, kind)
    if not found.images:
        others = f" ({_others(found.others)})" if found.others else ""
        if (export := export_in(root, without_images=True)) is not None:
            raise DataError(f"{root} has no image{others}: {export[0].name} is {export[1].title}", export[1].remedy)
        raise DataError(
            f"{root} has no image{others}",
            f"Image files end in {', '.join(sorted(SUFFIXES)[:8])} or similar. Others are found by a --decoder of "
            "yours with `suffixes`, or listed in a table (.csv).",
        )
    in_classes = [image for image in found.images if "/" in image]
    level: int | None = 0 if in_classes else None
    tops = {_class_of(image, 0) for image in in_classes}
    if len(tops) == 1 and len(in_classes) == len(found.images):
        depth = min(image.count("/") for image in in_classes)
        if _export_beside(root, found) is not None or (names_no_class(*tops) and depth == 1):
            level = None
        elif names_no_class(*tops):
            level = 1
    images = sorted(found.images if level is None else in_classes, key=printable)
    classes = () if level is None else tuple(sorted({_class_of(image, level) for image in images}))
    about = [*notes, *_notes(root, found, classes, level or 0)]
    return {"name": name, "root": str(root), "images": images, "level": level, "notes": about}


def _class_of(image: str, level: int) -> str:
    return printable(image.split("/")[level])


def _notes(root: Path, found: _FolderContent, classes: tuple[str, ...], level: int) -> list[str]:
    where = f"{root}/"
    notes = []
    if found.hidden:
        notes.append(_left_out(found.hidden, where))
    if found.others:
        notes.append(f"{where}: {_others(found.others)} left out")
    notes += _annotations(root, found, classes)
    if found.loops:
        notes.append(f"{where}: links to a folder around them or to themselves left out: {some(sorted(found.loops))}")
    if found.special:
        notes.append(f"{where}: left out, not regular files: {some(sorted(found.special))}")
    lists = sorted(e.name for e in root.iterdir() if e.name.lower().endswith(_LISTS) and not export_of(e))
    if lists:
        notes.append(f"{where}: if {some(lists)} lists labels, give that file as --data instead")
    if not classes:
        notes.append(f"{where}: {NO_CLASS_FOLDERS}")
        return notes
    loose = sorted(image for image in found.images if "/" not in image)
    if loose:
        notes.append(f"{where}: {counted(len(loose), 'image')} outside the class folders left out: {some(loose)}")
    around = root
    if level:
        around = root / found.images[0].partition("/")[0]
        notes.append(f"{where}: all images lie in {around.name}/, whose folders are taken as the classes")
    folders = [e.name for e in around.iterdir() if e.is_dir() and not is_clutter(e.name)]
    empty = sorted(set(map(printable, folders)) - set(classes) - set(found.loops))
    if empty:
        notes.append(f"{where}: class folders without images, not counted as classes: {some(empty)}")
    numbers = [int(name) for name in sorted(classes) if name.isdecimal()]
    if len(numbers) == len(classes) > 1 and numbers != list(range(len(classes))):
        notes.append(
            f"{where}: {NUMBERED_FOLDERS}; they are matched by name, and class number i is the i-th of the names "
            f"sorted as text ({some(classes, 4)})"
        )
    below = sorted({image.split("/")[1] for image in found.images if image.count("/") > 1})
    if len(classes) == 1 and len(below) > 1:
        notes.append(f"{where}: one class folder, {classes[0]}/, with folders inside ({some(below)}): give that folder")
    return notes


def _annotations(root: Path, found: _FolderContent, classes: tuple[str, ...]) -> list[str]:
    """Return remarks on annotations beside the images."""
    if found.others[".xml"] and classes and find_class_places(root, has_voc_xml):
        return [
            f"{root}/: the folders are the classes; the XML beside the images has boxes, which eval detection and "
            f"check-data --boxes use"
        ]
    export = _export_beside(root, found)
    return [f"{root}/: {export[0].name} is {export[1].title}, {NOT_READ}. {export[1].remedy}"] if export else []


def _export_beside(root: Path, found: _FolderContent) -> tuple[Path, Export] | None:
    """Return an export that annotates the images, and its kind; None without any."""
    return export_in(root) if any(map(annotates, found.others)) else None


def _others(others: Counter[str]) -> str:
    kinds = [suffix or "no suffix" for suffix, _ in others.most_common()]
    return f"{counted(others.total(), 'file')} of other kinds ({some(kinds)})"


def _recognises_maps(spec: str, options: Mapping[str, str]) -> bool:
    folder = Path(spec)
    return folder.is_dir() and (names_folders(options) or bool(layout.find_places(folder)))


def _holds_only_maps(spec: str) -> bool:
    folder = Path(spec)  # one with ImageSets/ is a Pascal VOC tree without lists for segmentation
    return folder.is_dir() and not (folder / "ImageSets").is_dir() and layout.recognises(folder)


def _open_foreground(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    """Return the masks; values without names in a file are no classes but black and white."""
    # Without names, 0 and 255 of a mask are black and white, and no classes of label maps.
    if coding_beside(Path(spec), options) is None:
        return binary_masks(spec, options)
    return foreground_of(layout.open_maps(spec, options))


FORMAT = SourceFormat(
    __doc__,
    SampleReader(
        recognises,
        lambda request: open(request.spec, together=request.together, suffixes=suffixes_of(request.decoder)),
        NoOptions,
        in_order_of_names=True,
    ),
    readers={
        LabelMaps: Reader(_recognises_maps, layout.open_maps, LabelMapOptions, _holds_only_maps),
        Foreground: Reader(_recognises_maps, _open_foreground, LabelMapOptions),
    },
    last_resort=True,
)
