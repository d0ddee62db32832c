"""Folders with Pascal VOC's XML: annotations/ beside images/, XML beside the images, train/ and test/ of these.

LabelImg, CVAT and Roboflow write such folders: they have no lists in ImageSets. An XML file belongs to the image of the
same name; in folders inside of annotations/, to that in the folder of the same name inside of images/ or, if there is
none, directly in images/. Images without an XML file are not annotated and are left out; an XML file without objects
says that there are none. Folders of images with XML beside them that are no splits (cat/1.xml, train/cat/1.xml) have
boxes too, but as samples they are the classes.
"""

from pathlib import Path, PurePath

from sslbench.data.formats._parts.layout import (
    Place,
    find_class_places,
    find_nested,
    find_places,
    has_voc_xml,
)
from sslbench.data.formats.voc.objects import read_xml
from sslbench.data.formats.voc.tree import MAIN_LISTS, find_years
from sslbench.data.maps.layout import by_key, walk
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.boxes import AnnotatedImage, box_format, object_sources
from sslbench.data.regular import reading
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.text import printable


def recognises(spec: str) -> bool:
    """Return whether the string is a folder with XML of Pascal VOC beside its images, without ImageSets/Main."""
    root = Path(spec)
    if not root.is_dir() or find_years(root, MAIN_LISTS):
        return False
    try:
        return bool(_places(root))
    except DataError:  # recognised, and opening says what is wrong
        return True


def _places(root: Path) -> list[Place]:
    nested = None if (found := find_places(root, has_voc_xml)) else find_nested(root, has_voc_xml)
    return found if nested is None else [nested]


def _recognises_objects(spec: str) -> bool:
    if recognises(spec):
        return True
    try:
        return bool(find_class_places(Path(spec), has_voc_xml))
    except DataError:
        return True


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """Return the images that have an XML file, with their objects.

    Returns:
        Split name -> source, or {"all": source}. Ids are the paths of the images below their folder.
    """
    splits: dict[str, list[AnnotatedImage]] = {}
    notes: list[str] = []
    places = _places(Path(spec))
    if not places:
        places = find_class_places(Path(spec), has_voc_xml)
        notes.append(f"{spec}: XML beside the images of several folders; the classes are those in the XML")
    for place in places:
        splits[place.split], about = _images(place)
        notes += about
    return object_sources(spec, splits, notes)


def _images(place: Place) -> tuple[list[AnnotatedImage], list[str]]:
    images = by_key(place.images, walk(place.images))
    texts = by_key(place.annotations, walk(place.annotations, lambda name: name.lower().endswith(".xml")))
    by_name = {PurePath(key).name: path for key, path in texts.items()}
    if not images.keys() & texts.keys() and len(by_name) == len(texts):
        texts = by_name
    without_image = [path for key, path in texts.items() if key not in images]
    if without_image:
        raise DataError(
            f"{place.annotations}: {len(without_image):,} of {counted(len(texts), 'XML file')} without an image: "
            f"{some(sorted(map(printable, without_image)))}",
            f"Looked for images of the same names in {place.images}",
        )
    left_out = sorted(path for key, path in images.items() if key not in texts)
    notes = []
    if left_out:
        many = counted(len(left_out), "image")
        notes.append(f"{place.images}: {many} without an XML file left out: {some(list(map(printable, left_out)))}")
    with reading():
        return [
            read_xml(place.annotations / texts[key], place.images / images[key], printable(images[key]))
            for key in sorted(texts)
        ], notes


FORMAT = box_format(__doc__, recognises, open_objects, _recognises_objects)
