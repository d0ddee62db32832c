"""Objects of Pascal VOC trees: ImageSets/Main names the images, Annotations/*.xml holds their boxes.

VOC numbers pixels from 1, and xmax, ymax belong to the box: xmin=1, xmax=width is the whole image. So x1 = xmin - 1 and
x2 = xmax, as Detectron2 reads them: subtracting 1 from xmax too would make every box a pixel too small.
"""

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from sslbench.data.formats.voc.tree import (
    ANNOTATIONS,
    IMAGES,
    MAIN_LISTS,
    SPLITS,
    find_years,
    image_files,
    one_year,
    read_stems,
)
from sslbench.data.labels import boolean
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.boxes import AnnotatedImage, object_sources, size_in_file
from sslbench.data.regular import open_regular, reading
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError

_DIGITS = 9  # largest side of an image


def recognises(spec: str) -> bool:
    """Return whether the string is a Pascal VOC tree with annotations, or several folders joined with '+'."""
    folders = _folders(spec)
    return len(folders) > 1 or bool(_years(folders[0]))


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """Return the images of one tree, or of several together (VOC07+12).

    Args:
        spec: the folder of a year, or several joined with '+'.

    Returns:
        {"train": trainval, "test": test} if any of them has an annotated test split: then train is the trainval of all,
        as VOC is scored. Else those of train and val that there are. Ids are `000001.jpg`, of several trees
        `VOC2007/000001.jpg`.
    """
    folders = _folders(spec)
    if len(folders) > 1 and (other := [folder for folder in folders if not _years(folder)]):
        raise UsageError(f"{other[0]} is not a Pascal VOC tree; only such trees can be joined with '+'")
    trees = [one_year(folder, _years(folder), joinable=True) for folder in folders]
    if len({tree.name for tree in trees}) < len(trees):
        raise DataError(f"{' + '.join(folders)}: two of the folders have the same name, so that ids would clash")
    with reading():
        return _open(spec, trees)


def _folders(spec: str) -> list[str]:
    """Return the folders of a location, several if it joins existing ones with '+'."""
    # A folder may have a plus in its name.
    folders = spec.split("+") if not Path(spec).exists() else [spec]
    return folders if all(Path(folder).is_dir() for folder in folders) else [spec]


def _years(folder: str) -> list[Path]:
    return find_years(Path(folder), MAIN_LISTS, ANNOTATIONS)


def _open(spec: str, trees: list[Path]) -> dict[str, ObjectSource]:
    lists = [{split: stems for split in SPLITS if (stems := _annotated(tree, split))} for tree in trees]
    scored = any("test" in found for found in lists)
    chosen: dict[str, list[str | None]] = {"train": [_train(found, whole=scored) for found in lists]}
    chosen["val"] = ["val" if "val" in found and not scored and "train" in found else None for found in lists]
    chosen["test"] = ["test" if "test" in found else None for found in lists]
    chosen = {name: parts for name, parts in chosen.items() if any(parts)}
    if not chosen:
        looked = ", ".join(str(tree / MAIN_LISTS / "{train,val,trainval,test}.txt") for tree in trees)
        raise DataError(f"{spec}: no list of annotated images; looked for {looked}")
    notes = [f"{spec}: train is trainval, as usual for VOC"] if "trainval" in chosen["train"] and scored else []
    several = len(trees) > 1
    images = {
        name: [image for i, part in enumerate(parts) if part for image in _images(trees[i], lists[i][part], several)]
        for name, parts in chosen.items()
    }
    return object_sources(spec, images, notes)


def _train(found: dict[str, list[str]], *, whole: bool) -> str | None:
    order = ("trainval", "train", "val") if whole or "train" not in found else ("train",)
    return next((name for name in order if name in found), None)


def _annotated(tree: Path, split: str) -> list[str]:
    """Return the stems of a split's images; none if there is no list, or if no image has an annotation (test, 2012)."""
    path = tree / MAIN_LISTS / f"{split}.txt"
    if not path.is_file():
        return []
    stems = read_stems(path)
    odd = [stem for stem in stems if len(stem.split()) > 1]
    if odd:
        raise DataError(f"{path} should name one image per line: {odd[0]!r}")
    missing = [stem for stem in stems if not (tree / ANNOTATIONS / f"{stem}.xml").exists()]
    if missing and len(missing) == len(stems):
        return []
    if missing:
        raise DataError(
            f"{path}: {len(missing):,} of {counted(len(stems), 'image')} have no annotation: {some(missing)}",
            f"Looked for {tree / 'Annotations' / missing[0]}.xml",
        )
    return stems


def _images(tree: Path, stems: list[str], several: bool) -> list[AnnotatedImage]:
    folder, files = tree / IMAGES, image_files(tree)
    missing = [stem for stem in stems if stem not in files]
    if missing:
        raise DataError(f"{folder}: {len(missing):,} of {counted(len(stems), 'image file')} missing: {some(missing)}")
    prefix = f"{tree.name}/" if several else ""
    return [
        read_xml(tree / ANNOTATIONS / f"{stem}.xml", folder / files[stem], f"{prefix}{Path(files[stem]).name}")
        for stem in stems
    ]


def read_xml(path: Path, file: Path, sample: str) -> AnnotatedImage:
    """Return an image with the objects in its XML file."""
    try:
        with open_regular(str(path)) as content:
            root = ElementTree.parse(content).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DataError(f"{path} is broken XML: {error}") from error
    sides = [root.findtext(f"size/{side}", "0").strip() for side in ("height", "width")]
    if too_long := next((side for side in sides if side.isdecimal() and len(side) > _DIGITS), None):
        raise DataError(f"{path}: the image has a side of {too_long[:20]}... pixels")
    size = tuple(int(side) if side.isdecimal() else 0 for side in sides)
    rows = [_row(path, i, element) for i, element in enumerate(root.findall("object"), start=1)]
    known = (size[0], size[1]) if all(size) else size_in_file(file)
    return AnnotatedImage(sample, file, known, rows, sized=all(size))


def _row(path: Path, number: int, element: ElementTree.Element) -> dict[str, Any]:
    where = f"{path}, object {number}"
    name = (element.findtext("name") or "").strip()
    if not name:
        raise DataError(f"{where} has no name")
    corners = []
    for key in ("xmin", "ymin", "xmax", "ymax"):
        text = element.findtext(f"bndbox/{key}")
        if text is None:
            raise DataError(f"{where} ({name}) has no bndbox/{key}")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(f"{where} ({name}): {key} is {text.strip()!r}, not a number")
        corners.append(value)
    return {
        "name": f"{path.name}, object {number}",
        "class": name,
        "box": (corners[0] - 1, corners[1] - 1, corners[2], corners[3]),
        "given": tuple(corners),
        "crowd": False,
        "difficult": boolean((element.findtext("difficult") or "").strip() or None, where, "difficult"),
        "area": None,
        "mask": None,
    }
