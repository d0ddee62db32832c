"""YOLO: images/ and labels/*.txt, or Roboflow's and Ultralytics' data.yaml: class, centre, width and height as shares.

A line of a text file is `class cx cy w h`, or `class x1 y1 x2 y2 x3 y3 ...`, the corners of a polygon (YOLO-seg); all
numbers but the class are shares of the upright image's width and height. An image without a text file has no objects,
as Ultralytics reads it. data.yaml may also name lists of images (train.txt, a path per line). The classes are named in
data.yaml (`names`, a list or a mapping) or, a name per line, in classes.txt, obj.names or labels.txt. With `kpt_shape`
in data.yaml a line is a box and its keypoints (YOLO-pose).
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sslbench.config import read_yaml
from sslbench.data.containers.listed import find_listed, tails
from sslbench.data.containers.members import split_name
from sslbench.data.containers.sniff import read_text
from sslbench.data.formats._parts.layout import Place, file_names, find_places
from sslbench.data.maps.layout import by_key, walk
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.boxes import AnnotatedImage, box_format, object_sources, size_in_file
from sslbench.data.regular import open_regular, reading
from sslbench.data.wording import counted, repeated, some
from sslbench.errors import DataError, UsageError
from sslbench.metrics.detection.keypoints import COCO_SIGMAS, Skeleton
from sslbench.text import printable

_MOST = 10_000
# `flip_idx` of COCO's persons: the nose, then pairs of left and right.
_COCO_FLIP = [0, *itertools.chain.from_iterable((i + 1, i) for i in range(1, 17, 2))]

Point = tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class Keypoints:
    """Keypoints of the classes of a data.yaml.

    Attributes:
        skeleton: the keypoints of all classes, joined by their names.
        places: per class, the positions in the skeleton of its keypoints in their order in a line.
        numbers: count of numbers for each keypoint: 2 (x, y) or 3 (x, y, visibility).
        note: remark on the names; '' for none.
    """

    skeleton: Skeleton
    places: tuple[tuple[int, ...], ...]
    numbers: int
    note: str = ""

    @property
    def columns(self) -> int:
        """Number of values behind the box of a line."""
        return self.numbers * len(self.places[0])

    def points(self, where: str, values: Sequence[float], label: int, size: tuple[int, int]) -> list[Point]:
        """Return x, y in pixels and visibility for the whole skeleton; zeros for a keypoint that is not labelled.

        Args:
            where: file and line, for messages.
            values: behind the box; none for an object without keypoints.
            label: number of the class.
            size: height and width of the image.
        """
        found: list[Point] = [(0.0, 0.0, 0.0)] * len(self.skeleton)
        height, width = size
        places = self.places[label] if values else ()
        for i, place in enumerate(places):
            x, y, *rest = values[self.numbers * i : self.numbers * (i + 1)]
            # Without a visibility it is labelled unless a coordinate is negative, as in Ultralytics.
            seen = rest[0] if rest else 0.0 if x < 0 or y < 0 else 2.0
            name = self.skeleton.names[place]
            if seen not in (0, 1, 2):
                raise DataError(
                    f"{where}: the visibility of '{name}' is {seen:g}",
                    "It is 0 (not labelled), 1 (labelled and hidden) or 2 (visible).",
                )
            if not seen:
                continue
            if not all(math.isfinite(v) and -_SLACK <= v <= 1 + _SLACK for v in (x, y)):
                raise DataError(f"{where}: the place of '{name}', {x:g} {y:g}, is no share of the image, from 0 to 1")
            found[place] = (x * width, y * height, seen)
        return found


def read_keypoints(file: Path, content: Mapping[str, Any], classes: Sequence[str]) -> Keypoints | None:
    """Return the keypoints that a data.yaml describes; None if it describes none.

    Keypoints without `kpt_names` are called 'keypoint 0', 'keypoint 1', ...; 17 of them with COCO's `flip_idx` are
    taken for COCO's persons, with a note.
    """
    shape = content.get("kpt_shape")
    if not shape:
        return None
    if not (isinstance(shape, list) and len(shape) == 2 and all(type(v) is int for v in shape)):
        raise DataError(f"{file}: kpt_shape is {shape!r:.60}, not [number of keypoints, 2 or 3]")
    number, numbers = shape
    if not 1 <= number <= _MOST or numbers not in (2, 3):
        raise DataError(f"{file}: kpt_shape is {shape}, not [number of keypoints, 2 or 3]")
    flip = _flip(file, content.get("flip_idx"), number)
    note = ""
    if content.get("kpt_names"):
        names = _names(file, content["kpt_names"], number, classes)
    elif flip == _COCO_FLIP:
        names = [list(COCO_SIGMAS)] * len(classes)
        note = f"{file}: 17 keypoints with the flip_idx of COCO, without kpt_names: taken for COCO's persons"
    else:
        names = [[f"keypoint {i}" for i in range(number)]] * len(classes)
    skeleton = tuple(dict.fromkeys(name for own in names for name in own))
    place = {name: i for i, name in enumerate(skeleton)}
    return Keypoints(
        Skeleton(skeleton, mirrors=_mirrors(file, names, flip)),
        tuple(tuple(place[name] for name in own) for own in names),
        numbers,
        note,
    )


def _flip(file: Path, flip: object, number: int) -> list[int]:
    """Return the keypoint that each becomes in a mirrored image; [] if the file does not say."""
    if not flip:
        return []
    if not isinstance(flip, list) or any(type(v) is not int for v in flip) or sorted(flip) != list(range(number)):
        raise DataError(f"{file}: flip_idx is {flip!r:.80}, not the numbers 0 to {number - 1} in another order")
    odd = next((i for i, other in enumerate(flip) if flip[other] != i), None)
    if odd is not None:
        raise DataError(
            f"{file}: flip_idx sends keypoint {odd} to {flip[odd]}, and that one to {flip[flip[odd]]}",
            "Mirroring twice gives the image again, so two keypoints change places, or one stays.",
        )
    return flip


def _names(file: Path, given: object, number: int, classes: Sequence[str]) -> list[list[str]]:
    """Return the names of the keypoints of each class."""
    by_class = {int(key): own for key, own in given.items() if str(key).isdecimal()} if isinstance(given, dict) else {}
    if without := [name for i, name in enumerate(classes) if i not in by_class]:
        raise DataError(
            f"{file}: kpt_names has no names for {counted(len(without), 'class')} ({some(without)})",
            "It is a mapping from the number of each class to the list of the names of its keypoints.",
        )
    found = []
    for i, name in enumerate(classes):
        own = by_class[i]
        right = isinstance(own, list) and all(isinstance(word, str) and word for word in own)
        if not right or len(own) != number or len(set(own)) < number:
            raise DataError(f"{file}: kpt_names of '{name}' is {own!r:.80}, not {number} different names")
        found.append(own)
    return found


def _mirrors(file: Path, names: Sequence[Sequence[str]], flip: Sequence[int]) -> tuple[tuple[str, str], ...]:
    partner: dict[str, str] = {}
    for own in names:
        for i, other in enumerate(flip):
            if partner.setdefault(own[i], own[other]) != own[other]:
                raise DataError(
                    f"{file}: with flip_idx the keypoint '{own[i]}' becomes '{partner[own[i]]}' in one class and "
                    f"'{own[other]}' in another"
                )
    return tuple(sorted({(min(pair), max(pair)) for pair in partner.items()}))


_LISTS = ("classes.txt", "obj.names", "labels.txt", "_darknet.labels")
# Text files beside those of the boxes.
_NO_BOXES = frozenset((*_LISTS, "train.txt", "val.txt", "test.txt", "README.txt", "README.roboflow.txt"))
# First line with a box, or an empty file.
_LINE = re.compile(rb"\s*(\d+([ \t]+[-+.\deE]+){4,}\s*(\n|$)|$)")
_HEAD = 1 << 16
# Key of data.yaml -> split.
_SPLITS = {"train": "train", "val": "val", "valid": "val", "test": "test"}
_SLACK = 0.01  # as Ultralytics allows
_BOX, _POLYGON = 5, 7
_MOST_CLASSES = 100_000


def recognises(spec: str) -> bool:
    """Return whether the string is a data.yaml of YOLO, or a folder with one, or with text files of boxes."""
    path = Path(spec)
    if is_description(spec):
        return True
    if not path.is_dir():
        return False
    if _description_in(path) is not None:
        return True
    try:
        return bool(find_places(path, _annotates))
    except DataError:  # recognised, and opening says what is wrong
        return True


def is_description(spec: str) -> bool:
    """Return whether a file is a YAML mapping with the names of classes and places of images."""
    if not spec.lower().endswith((".yaml", ".yml")) or not Path(spec).is_file():
        return False
    try:
        content = read_yaml(Path(spec))
    except UsageError:
        return False
    return "names" in content and any(key in content for key in _SPLITS)


def _description_in(folder: Path) -> Path | None:
    files = [folder / name for name in ("data.yaml", "data.yml", "dataset.yaml")]
    return next((file for file in files if is_description(str(file))), None)


def _annotates(folder: Path) -> bool:
    """Return whether text files of boxes lie directly in a folder that is labels/, is in it, or has a list of names."""
    inside = "labels" in (folder.name.lower(), folder.parent.name.lower())
    # CVAT's obj.names lies beside its folder obj_train_data/.
    lists = [*(folder / name for name in _LISTS), folder.parent / "obj.names"]
    if not inside and not any(file.is_file() for file in lists):
        return False
    names = (name for name in file_names(folder) if name.lower().endswith(".txt") and name not in _NO_BOXES)
    first = next(names, None)
    if first is None:
        return False
    try:
        with open_regular(str(folder / first)) as content:
            return _LINE.match(content.read(_HEAD)) is not None
    except OSError:
        return False


@dataclasses.dataclass(frozen=True)
class _Folder:
    """Folder of images; with `names`, those of its images that a list names."""

    path: Path
    names: frozenset[str] | None = None


@dataclasses.dataclass(frozen=True)
class _Description:
    """Content of a data.yaml.

    Attributes:
        names: of the classes.
        folders: split -> folders of images; empty: to be found. Those of a list have the names of its images.
        keypoints: behind the box of a line; None: a line has none.
    """

    names: tuple[str, ...]
    folders: dict[str, tuple["_Folder", ...]]
    keypoints: Keypoints | None = None


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """Return the images with their boxes and keypoints; polygons become masks.

    Returns:
        Split name -> source, or {"all": source}. Ids are the paths of the images below their folder.
    """
    with reading(f"{spec}: "):
        return _open(spec, Path(spec))


def _open(spec: str, path: Path) -> dict[str, ObjectSource]:
    file = path if path.is_file() else _description_in(path)
    listed: Sequence[frozenset[str] | None]
    places: Sequence[Place]
    if file is not None:
        described = _described(file)
        named = [(split, folder) for split, folders in described.folders.items() for folder in folders]
        places = [Place(split, folder.path, _labels_of(folder.path)) for split, folder in named]
        listed = [folder.names for _, folder in named]
    else:
        places = find_places(path, _annotates)
        described = _Description(_listed(path, places), {})
        listed = [None] * len(places)
    splits: dict[str, list[AnnotatedImage]] = {}
    notes: list[str] = []
    for place, names in zip(places, listed, strict=True):
        several = sum(other.split == place.split for other in places) > 1
        found, about = _images(place, described, f"{place.images.name}/" if several else "", names)
        splits.setdefault(place.split, []).extend(found)
        notes += about
    if not any(image.rows for part in splits.values() for image in part):
        looked = ", ".join(str(place.annotations) for place in places)
        raise DataError(f"{spec}: no image has a box", f"Looked for text files of the images' names in {looked}")
    keypoints = described.keypoints
    if keypoints is not None:
        rows = [row for images in splits.values() for image in images for row in image.rows]
        # Without visibility, 0 0 is where many tools write keypoints that are not labelled.
        odd = [row["name"] for row in rows if any(point == (0, 0, 2) for point in row["keypoints"])]
        notes += [keypoints.note] * bool(keypoints.note)
        if odd and keypoints.numbers != 3:
            notes.append(
                f"{spec}: {counted(len(odd), 'object')} with a keypoint at 0 0, which counts as labelled, as in "
                f"Ultralytics (with kpt_shape [K, 2] one that is not labelled has a negative number): {some(odd)}"
            )
    return object_sources(
        spec, splits, notes, described.names, skeleton=None if keypoints is None else keypoints.skeleton
    )


def _described(file: Path) -> _Description:
    """Return the content of a data.yaml; images/ stands for labels/ beside it, as in Ultralytics."""
    content = read_yaml(file)
    given = content["names"]
    pairs = enumerate(given) if isinstance(given, list) else given.items() if isinstance(given, dict) else ()
    numbered = {int(key): str(name) for key, name in pairs if str(key).isdecimal() and isinstance(name, str | int)}
    # YAML 1.1 reads yes, no, on and off as true and false.
    if odd := [name for name in numbered.values() if name in ("True", "False")]:
        raise DataError(f"{file}: the class '{odd[0]}' is written as true or false in YAML", "Put it in quotes.")
    if not numbered or sorted(numbered) != list(range(len(numbered))) or len(numbered) > _MOST_CLASSES:
        raise DataError(f"{file}: 'names' should list the names of the classes 0, 1, ..., not {str(given)[:80]}")
    _refuse_twice(str(file), list(numbered.values()))
    folders: dict[str, tuple[_Folder, ...]] = {}
    for key, split in _SPLITS.items():
        if content.get(key):
            listed = content[key] if isinstance(content[key], list) else [content[key]]
            found = [_image_folders(file, content.get("path"), key, entry) for entry in listed]
            folders[split] = tuple(folder for each in found for folder in each)
    folders = {split: found for split, found in folders.items() if found}
    if "train" not in folders and not folders:
        raise DataError(f"{file}: none of the folders of images that it names exists")
    names = tuple(numbered[i] for i in range(len(numbered)))
    return _Description(names, folders, read_keypoints(file, content, names))


def _image_folders(file: Path, root: Any, key: str, entry: Any) -> tuple[_Folder, ...]:
    """Return the folder of images, or those of a list, that data.yaml names; () for a test split that is not there.

    Roboflow writes `../train/images` for `train/images`, and `path` is often the place on another machine.
    """
    if not isinstance(entry, str):
        raise DataError(f"{file}: '{key}' should be the path of a folder, not {str(entry)[:80]}")
    bases = [file.parent / str(root), Path(str(root))] if root else []
    ends = tails(entry)
    tried = [base / entry for base in (*bases, file.parent)]
    # The last folder of a path alone only if it is named for a split: `images` would be that of every split.
    kept = ends if len(ends) == 1 or split_name(ends[-1]) else ends[:-1]
    tried += [file.parent / end for end in kept if not end.startswith("/")]
    for folder in dict.fromkeys(tried):
        if folder.is_dir():
            return (_Folder(folder),)
        if folder.is_file():
            return _of_list(folder, [folder.parent, file.parent, *bases])
    if key == "test":
        return ()
    raise DataError(
        f"{file}: the folder of '{key}', {entry}, does not exist",
        f"Looked for {', '.join(str(folder) for folder in dict.fromkeys(tried))}",
    )


def _of_list(file: Path, bases: Sequence[Path]) -> tuple[_Folder, ...]:
    """Return the folders of the images in a list, a path per line, relative to one of `bases`."""
    lines = [line.strip() for line in read_text(file)[0].splitlines() if line.strip()]
    if not lines:
        raise DataError(f"{file}: the list of images is empty")
    listed = find_listed(str(file), lines, bases)
    names: dict[Path, set[str]] = {}
    for path in listed.paths:
        image = listed.folder / path
        names.setdefault(image.parent, set()).add(image.name)
    return tuple(_Folder(folder, frozenset(found)) for folder, found in sorted(names.items()))


def _labels_of(images: Path) -> Path:
    """Return the folder of the text files: the last images/ in the path becomes labels/, as in Ultralytics."""
    parts = list(images.parts)
    for i in reversed(range(len(parts))):
        if parts[i] == "images":
            return Path(*parts[:i], "labels", *parts[i + 1 :])
    return images / "labels" if (images / "labels").is_dir() else images


def _listed(root: Path, places: Sequence[Place]) -> tuple[str, ...]:
    """Return the names in the list of the classes: of the root, else of a folder of text files."""
    folders = dict.fromkeys([root, *(p.annotations for p in places), *(p.annotations.parent for p in places)])
    files = [folder / name for folder in folders for name in _LISTS]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise DataError(
            f"{root}: the text files number the classes, and there is no list of their names",
            f"Write {root / 'classes.txt'}, a name per line from class 0, or data.yaml with 'names'. "
            f"Looked for {', '.join(_LISTS)} in {', '.join(map(str, folders))}",
        )
    names = [line.strip() for line in read_text(file)[0].splitlines()]
    while names and not names[-1]:
        names.pop()
    if not all(names):
        raise DataError(f"{file}, line {names.index('') + 1}: a class without a name" if names else f"{file} is empty")
    _refuse_twice(str(file), names)
    return tuple(names)


def _refuse_twice(where: str, names: list[str]) -> None:
    if twice := repeated(names):
        raise DataError(f"{where}: two classes have the same name: {some(twice)}")


def _images(
    place: Place, described: _Description, prefix: str, listed: frozenset[str] | None
) -> tuple[list[AnnotatedImage], list[str]]:
    """Return the images of a place, of a list only those in it, and remarks."""
    images = by_key(place.images, walk(place.images) if listed is None else sorted(listed))
    if not images:
        raise DataError(f"{place.images} has no image")
    texts = {}
    if place.annotations.is_dir():
        files = walk(place.annotations, lambda name: name.lower().endswith(".txt"))
        names = [name for name in files if name not in _NO_BOXES]
        texts = by_key(place.annotations, names)
    without_image = sorted(path for key, path in texts.items() if key not in images and listed is None)
    if without_image:
        raise DataError(
            f"{place.annotations}: {len(without_image):,} of {counted(len(texts), 'text file')} without an image: "
            f"{some(list(map(printable, without_image)))}",
            f"Looked for images of the same names in {place.images}",
        )
    found, unknown = [], []
    for key, name in sorted(images.items()):
        file = place.images / name
        size = size_in_file(file)
        rows: list[dict[str, Any]] = []
        if key in texts:
            if not all(size):
                unknown.append(str(file))
                continue
            path = place.annotations / texts[key]
            lines = [(i, line.split()) for i, line in enumerate(read_text(path)[0].splitlines(), 1)]
            rows = [_row(f"{path}, line {i}", words, size, described) for i, words in lines if words]
        found.append(AnnotatedImage(f"{prefix}{printable(name)}", file, size, rows, sized=False))
    if unknown:
        raise DataError(
            f"{place.images}: the size of {counted(len(unknown), 'image')} cannot be read, and boxes are shares of it: "
            f"{some(unknown)}"
        )
    background = [image.id for image in found if not image.rows]
    notes = []
    if background:
        notes.append(f"{place.images}: {counted(len(background), 'image')} without objects: {some(background)}")
    return found, notes


def _row(where: str, words: list[str], size: tuple[int, int], described: _Description) -> dict[str, Any]:
    try:
        values = [float(word) for word in words]
    except ValueError:
        values = []
    label = values[0] if values else -1.0
    pose = described.keypoints
    behind = values[_BOX:]
    if pose is not None and values:
        if len(behind) not in (0, pose.columns):
            raise DataError(
                f"{where}: {counted(len(behind), 'number')} behind the box, and kpt_shape asks for {pose.columns}: "
                f"{pose.numbers} for each of {counted(len(pose.places[0]), 'keypoint')}"
            )
        values = values[:_BOX]
    is_polygon = len(values) >= _POLYGON and len(values) % 2 == 1
    if len(values) != _BOX and not is_polygon:
        extra = " (a sixth number is a score: these are predictions)" if len(values) == _BOX + 1 else ""
        raise DataError(
            f"{where}: {' '.join(words)[:80]!r} is neither a box, `class cx cy w h`, nor a polygon with three corners "
            f"or more, `class x1 y1 x2 y2 x3 y3`{extra}"
        )
    if not (0 <= label < len(described.names) and label == int(label)):
        raise DataError(
            f"{where}: the class is {words[0][:20]}, and there are {counted(len(described.names), 'class')}"
        )
    shares = values[1:]
    if odd := next((v for v in shares if not (math.isfinite(v) and -_SLACK <= v <= 1 + _SLACK)), None):
        raise DataError(
            f"{where}: {odd:g} is no share of the image, from 0 to 1",
            "YOLO divides x and widths by the width of the image, y and heights by its height.",
        )
    height, width = size
    mask = area = None
    if is_polygon:
        xs, ys = [x * width for x in shares[0::2]], [y * height for y in shares[1::2]]
        box = (min(xs), min(ys), max(xs), max(ys))
        # By the shoelace formula; xs[-1] is the last corner, which closes the polygon.
        area = abs(sum(xs[i - 1] * ys[i] - xs[i] * ys[i - 1] for i in range(len(xs)))) / 2
        mask = [[value for pair in zip(xs, ys, strict=True) for value in pair]]
    else:
        cx, cy, w, h = shares
        box = ((cx - w / 2) * width, (cy - h / 2) * height, (cx + w / 2) * width, (cy + h / 2) * height)
    points = {} if pose is None else {"keypoints": pose.points(where, behind, int(label), size)}
    return {
        **points,
        "name": where,
        "class": described.names[int(label)],
        "box": box,
        "crowd": False,
        "difficult": False,
        "area": area,
        "mask": mask,
        "given": (math.inf,) * 4,  # shares were expected, so boxes of a pixel need no warning
    }


FORMAT = box_format(__doc__, recognises, open_objects)
