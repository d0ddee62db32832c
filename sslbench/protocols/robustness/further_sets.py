"""Further test sets: their classes matched with train's by name, and the classes that compete on each."""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench import paths
from sslbench.arrays import FloatArray
from sslbench.config import read_yaml
from sslbench.data import changed
from sslbench.data.changed import ByteImage, ImageChange, without_border
from sslbench.data.corruptions import SMALLEST, code_of, corrupt
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.data.splits import choose_test, match_classes, name_numbered
from sslbench.data.wording import some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.preprocessing import Preprocessing
from sslbench.protocols.robustness.settings import OBJECTNET, REAL, Settings, corruption_name, corruptions
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import OfClasses, Target

_VALIDATION = re.compile(r"ILSVRC2012_val_(\d{8})")
_LARGEST = 100_000_000  # bytes of a file of labels


def open_test_set(name: str, location: str, train: Source) -> Source:
    """Return a further test set, its labels among the classes that compete on it.

    These are the published list of a known set (benchmarks/classes), else those that the set has images of. A set whose
    classes are numbers numbers train's sorted classes, as the folders of ImageNet-V2 do.
    """
    source = choose_test(location, open_data(location))
    if isinstance(source.target, Classes):
        names = set(source.target.classes)
        if all(each.isdecimal() for each in names) and not names <= set(train.target.classes):
            source = name_numbered(train, source)
    _, matched = match_classes(train, source)
    competing = competing_classes(name, matched.target)
    if unknown := [each for each in competing if each not in set(train.target.classes)]:
        raise DataError(
            f"{name}: {len(unknown)} of its {len(competing)} classes are unknown to {train.name}: {some(unknown)}",
            "The classes of train should be named as those of ImageNet-1k, by synset: n01440764.",
        )
    number = {each: i for i, each in enumerate(competing)}
    places = np.array([number.get(each, -1) for each in train.target.classes], dtype=np.int64)
    values = places[matched.target.values]
    if (values < 0).any():
        odd = sorted({train.target.classes[i] for i in matched.target.values[values < 0].tolist()})
        raise DataError(
            f"{name}: {location} has images of classes that do not belong to {name}: {some(odd)}",
            "Give the set another name to score all of its classes.",
        )
    return dataclasses.replace(matched, target=Classes(competing, values))


def competing_classes(name: str, labels: Target) -> tuple[str, ...]:
    """Return the classes that compete on a set, in the order of their names."""
    file = _lists().get(name)
    if file is None:
        present = OfClasses.of(labels).present()
        return tuple(sorted(each for each, has in zip(labels.classes, present.tolist(), strict=True) if has))
    return classes_of(file)


def classes_of(file: Path) -> tuple[str, ...]:
    """Return the list of classes in a file of benchmarks/classes."""
    classes = read_yaml(file).get("classes")
    if not isinstance(classes, list) or not all(isinstance(each, str) for each in classes):
        raise UsageError(f"{file}: 'classes' should be a list of names")
    return tuple(classes)


def _lists() -> dict[str, Path]:
    """Return the lists in benchmarks/classes by the names of their sets: 'imagenet-a'."""
    roots = reversed(paths.search_path("benchmarks"))  # the user's own come last and win
    files = (file for root in roots for file in (root / "classes").glob("_*.yaml"))
    return {file.stem[1:].replace("_", "-"): file for file in files}


def missing_classes(name: str, labels: Target) -> str:
    """Return a note on the competing classes without an image, '' if there are none."""
    absent = [
        each for each, has in zip(labels.classes, OfClasses.of(labels).present().tolist(), strict=True) if not has
    ]
    if not absent:
        return ""
    return f"{name}: {len(absent)} of its {len(labels.classes)} classes have no image: {some(absent)}."


def open_corrupted(location: str, name: str, severity: int, test: Source) -> Source:
    """Return the corrupted versions of the test images, found by their ids in LOCATION/CORRUPTION/SEVERITY."""
    folder = Path(location) / name / str(severity)
    if not folder.is_dir():
        raise UsageError(
            f"corrupted={location} has no folder {name}/{severity}",
            "Corrupted images lie in CORRUPTION/SEVERITY/CLASS/, as those of ImageNet-C; see corrupt= and severities=.",
        )
    source = choose_test(str(folder), open_data(str(folder)))
    place = {each: row for row, each in enumerate(source.ids)}
    missing = [each for each in test.ids if each not in place]
    if missing:
        raise DataError(
            f"{folder}: {len(missing):,} of {len(test):,} test images have no corrupted version: {some(missing)}",
            "They are found by their path below the class folders, such as n01440764/ILSVRC2012_val_00000293.JPEG.",
        )
    chosen = source.select([place[each] for each in test.ids], f"{source.name}, {name} {severity}")
    return dataclasses.replace(chosen, target=Unlabelled(len(chosen)))


def open_unknown(location: str, train: Source, known_list: str) -> Source:
    """Return images of unknown classes: none is right for them; label 0 for classes that are known, -1 for the others.

    `known_list`: name of a list in benchmarks/classes; '': all classes of train. Folders may have the names of its
    classes: those of ImageNet-O are named after the class that a network took its images for.
    """
    classes, listed = np.array(train.target.classes), train.target.classes
    if known_list:
        lists = _lists()
        if known_list not in lists:
            raise UsageError(f"there is no list of classes called '{known_list}'", did_you_mean(known_list, lists))
        listed = classes_of(lists[known_list])
    competing = np.isin(classes, listed)
    if competing.sum() < len(listed):
        raise DataError(
            f"known={known_list}: {len(listed) - int(competing.sum())} of its {len(listed)} classes are unknown to "
            f"{train.name}",
            "The classes of train should be named as those of ImageNet-1k, by synset: n01440764.",
        )
    source = choose_test(location, open_data(location))
    known = set(train.target.classes)
    present = source.target.present().tolist() if isinstance(source.target, Classes | MultiLabel) else []
    shared = [
        each
        for each, has in zip(source.target.classes, present, strict=False)
        # Folders called 0, 1, ... are numbered, and not named as classes of train.
        if has and each in known and not each.isdecimal()
    ]
    if shared and not (known_list and set(shared) <= set(listed)):
        raise DataError(
            f"unknown={location}: classes of {train.name} are not unknown: {some(shared)}",
            "Give images of other classes, or leave these out.",
        )
    row = np.where(competing, 0, -1).astype(np.int8)
    labels = MultiLabel(train.target.classes, np.broadcast_to(row, (len(source), len(row))))
    return dataclasses.replace(source, target=labels)


def with_real_labels(test: Source, file: str, train: Source) -> Source:
    """Return ImageNet's validation images with all right labels of each: the content of real.json, a list of lists.

    The i-th list has the class numbers of ILSVRC2012_val_<i + 1>; images with an empty one are not scored.
    """
    sets = _read_real(Path(file))
    if len(train.target.classes) != 1000:
        raise DataError(f"{REAL} has labels of 1,000 classes, {train.name} has {len(train.target.classes):,}")
    order = np.argsort(np.array(train.target.classes))  # class numbers are places among the sorted synsets
    values = np.zeros((len(test), 1000), dtype=np.int8)
    for row, name in enumerate(test.ids):
        found = _VALIDATION.search(name)
        if found is None or not 1 <= int(found[1]) <= len(sets):
            raise DataError(
                f"{REAL}: {name} is not one of the {len(sets):,} validation images that {file} has labels of",
                "Give ImageNet's validation images as --test-data, named ILSVRC2012_val_00000001.JPEG and so on.",
            )
        values[row, order[sets[int(found[1]) - 1]]] = 1
    return dataclasses.replace(test, target=MultiLabel(train.target.classes, values))


def _read_real(file: Path) -> list[list[int]]:
    try:
        if file.stat().st_size > _LARGEST:
            raise UsageError(f"{file} is larger than {_LARGEST:,} bytes, too large for {REAL}")
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    # JSON that is nested too deeply raises a RecursionError.
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not valid JSON", f"{REAL} is the file real.json of its authors.") from error
    lists = content if isinstance(content, list) else None
    # `type`, not `isinstance`: true and false are instances of int.
    if not lists or not all(
        isinstance(each, list) and all(type(i) is int and 0 <= i < 1000 for i in each) for each in lists
    ):
        raise UsageError(
            f"{file} should be a list with one list of class numbers (0 to 999) per validation image",
            f"{REAL} is the file real.json of its authors.",
        )
    return lists


_MAPPING_BYTES = 10_000_000  # bytes of a file of the mapping
_REMEDY = "Give the folder of the unpacked archive, which holds images/ and mappings/."


def open_objectnet(location: str, train: Source) -> Source:
    """Return the images without their red border, each with the classes of train that are right for it.

    The mapping is read from the folder `mappings/` of its archive: folder_to_objectnet_label.json (folder -> class),
    objectnet_to_imagenet_1k.json (class -> labels of ImageNet, joined by '; '), imagenet_to_label_2012_v2 (the label of
    class i of ILSVRC2012's numbering in line i) and pytorch_to_imagenet_2012_id.json (place among the sorted synsets ->
    number in ILSVRC2012's numbering).

    Labels are 1 for these, 0 for classes that stand for another class of ObjectNet, and -1 for the others, which do not
    compete where only shared classes do. Images of classes that ImageNet lacks have no right class.
    """
    root = Path(location)
    mapping = classes_of_folders(root / "mappings")
    if len(train.target.classes) != 1000:
        raise DataError(f"{OBJECTNET} is scored by 1,000 classes, and {train.name} has {len(train.target.classes):,}")
    if not (root / "images").is_dir():
        raise UsageError(f"{location} has no folder images", _REMEDY)
    source = choose_test(str(root / "images"), open_data(str(root / "images")))
    if not isinstance(source.target, Classes):
        raise UsageError(f"{location}/images has no folder for each class", _REMEDY)
    order = np.argsort(np.array(train.target.classes))
    shared = order[sorted({place for places in mapping.values() for place in places})]
    of_class = np.full((len(source.target.classes), 1000), -1, dtype=np.int8)
    of_class[:, shared] = 0
    for row, folder in enumerate(source.target.classes):
        of_class[row, order[list(mapping.get(folder, ()))]] = 1
    labels = MultiLabel(train.target.classes, of_class[source.target.values])
    return without_border(dataclasses.replace(source, target=labels))


def classes_of_folders(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the folder of each class shared with ImageNet -> places of its classes among the sorted synsets."""
    labels_of = _read_mapping(folder / "objectnet_to_imagenet_1k.json")
    class_of = _read_mapping(folder / "folder_to_objectnet_label.json")
    numbers = _read_mapping(folder / "pytorch_to_imagenet_2012_id.json")
    place_of = {number: int(place) for place, number in numbers.items() if place.isdecimal()}
    lines = _read(folder / "imagenet_to_label_2012_v2").splitlines()
    places = {text.strip(): place_of.get(number, -1) for number, text in enumerate(lines)}
    found = {}
    for name, own in class_of.items():
        if own not in labels_of:
            continue
        chosen = [places.get(label.strip(), -1) for label in str(labels_of[own]).split("; ")]
        if not all(0 <= place < 1000 for place in chosen):
            raise UsageError(f"{folder}: the labels of '{own}' are not all in imagenet_to_label_2012_v2", _REMEDY)
        found[name] = tuple(chosen)
    if not found:
        raise UsageError(f"{folder}: no class is shared with ImageNet", _REMEDY)
    return found


def _read_mapping(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(_read(file))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not valid JSON", _REMEDY) from error
    if not isinstance(content, dict) or not all(isinstance(value, str | int) for value in content.values()):
        raise UsageError(f"{file} should map names to texts or numbers", _REMEDY)
    return content


def _read(file: Path) -> str:
    try:
        if file.stat().st_size > _MAPPING_BYTES:
            raise UsageError(f"{file} is too large for a mapping of ObjectNet", _REMEDY)
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}", _REMEDY) from error


def corruption_changes(settings: Settings) -> dict[tuple[str, int], ImageChange]:
    """Return the change of each corruption and severity; {} where the corrupted images are files."""
    if settings.corrupted:
        return {}
    return {
        (name, severity): ImageChange(
            corruption_name(name, severity), functools.partial(_corrupt, name=name, severity=severity), code_of(name)
        )
        for name in corruptions(settings)
        for severity in settings.severities
    }


def geometric_changes(settings: Settings) -> dict[str, ImageChange]:
    """Return the rotations, scales and crops by their names in metrics: 'rotation,15'."""
    code = f"geometry {changed.GEOMETRY_VERSION}"
    found = {}
    for name, values, apply in (
        ("rotation", settings.rotations, _rotate),
        ("scale", settings.scales, _rescale),
        ("crop", settings.crops, _crop),
    ):
        for value in values:
            change = ImageChange(f"{name}-{value:g}", functools.partial(apply, value=value), code)
            found[f"{name},{value:g}"] = change
    return found


def _corrupt(image: ByteImage, rng: np.random.Generator, *, name: str, severity: int) -> ByteImage:
    return corrupt(image, name, severity, rng)


def _rotate(image: ByteImage, rng: np.random.Generator, *, value: float) -> ByteImage:
    return changed.rotate(image, value)


def _rescale(image: ByteImage, rng: np.random.Generator, *, value: float) -> ByteImage:
    return changed.rescale(image, value)


def _crop(image: ByteImage, rng: np.random.Generator, *, value: float) -> ByteImage:
    return changed.crop(image, value, rng)


def check_pictures(settings: Settings, preprocessing: Preprocessing) -> None:
    """Refuse images that the changes cannot be applied to."""
    if preprocessing.channels not in (1, 3):
        raise UsageError(
            f"robustness: images are changed in RGB, and the backbone takes {preprocessing.channels} bands"
        )
    size = preprocessing.output_size
    if corruption_changes(settings) and size is not None and min(size) < SMALLEST:
        raise UsageError(
            f"robustness: corruptions need {SMALLEST} pixels a side, and the backbone takes {size[0]}x{size[1]}",
            f"Give --resize {SMALLEST} --crop {SMALLEST} or more, or 'corrupt=[]'.",
        )


def reference_errors(settings: Settings, named: Sequence[str]) -> tuple[FloatArray | None, float | None]:
    """Return the errors (C, S) of the reference for corruptions at the severities asked for, and on clean images."""
    if settings.reference is None:
        return None, None
    places = [severity - 1 for severity in settings.severities]
    errors = np.array([settings.reference[name] for name in named])[:, places]
    return errors, settings.reference["clean"][0] if "clean" in settings.reference else None
