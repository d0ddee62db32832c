"""Further test sets: their classes matched with train's by name, and the classes that compete on each."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np

from sslbench import paths
from sslbench.config import read_yaml
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.data.splits import choose_test, match_classes, name_numbered
from sslbench.data.wording import some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.protocols.robustness.checks import REAL
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

    Args:
        name: of the set, 'imagenet-a'.
        location: as for --data.
        train: train part, with the classes of the classifier.

    Raises:
        DataError: it has no labels, or classes that train lacks.
        UsageError: the location cannot be used, or names a class in other words.
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
    """Return the list of classes in a file of benchmarks/classes.

    Raises:
        UsageError: the file has no such list.
    """
    classes = read_yaml(file).get("classes")
    if not isinstance(classes, list) or not all(isinstance(each, str) for each in classes):
        raise UsageError(f"{file}: 'classes' should be a list of names")
    return tuple(classes)


def _list_file(name: str) -> Path:
    lists = _lists()
    if name not in lists:
        raise UsageError(f"there is no list of classes called '{name}'", did_you_mean(name, lists))
    return lists[name]


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
    """Return the corrupted versions of the test images, found by their ids in LOCATION/CORRUPTION/SEVERITY.

    Raises:
        UsageError: there is no such folder.
        DataError: some test images have no corrupted version there.
    """
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

    Args:
        location: as for --data.
        train: train part, with the classes of the classifier.
        known_list: name of a list in benchmarks/classes; '': all classes of train. Folders may have the names of its
            classes: those of ImageNet-O are named after the class that a network took its images for.

    Raises:
        DataError: another class is one of train's by name, or train lacks a class of the list.
        UsageError: there is no such list.
    """
    classes = np.array(train.target.classes)
    listed = classes_of(_list_file(known_list)) if known_list else train.target.classes
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

    Raises:
        DataError: the test images are not those of the list, or train does not have 1,000 classes.
        UsageError: the file cannot be read.
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
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not valid JSON", f"{REAL} is the file real.json of its authors.") from error
    lists = content if isinstance(content, list) else None
    if not lists or not all(
        isinstance(each, list) and all(type(i) is int and 0 <= i < 1000 for i in each) for each in lists
    ):
        raise UsageError(
            f"{file} should be a list with one list of class numbers (0 to 999) per validation image",
            f"{REAL} is the file real.json of its authors.",
        )
    return lists
