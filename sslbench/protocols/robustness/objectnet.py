"""ObjectNet (Barbu et al., NeurIPS 2019): its images, and the ImageNet classes that each of its classes stands for.

The mapping is read from the folder `mappings/` of its archive: folder_to_objectnet_label.json (folder -> class),
objectnet_to_imagenet_1k.json (class -> labels of ImageNet, joined by '; '), imagenet_to_label_2012_v2 (the label of
class i of ILSVRC2012's numbering in line i) and pytorch_to_imagenet_2012_id.json (place among the sorted synsets ->
number in ILSVRC2012's numbering).
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.data.changed import without_border
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.data.splits import choose_test
from sslbench.errors import DataError, UsageError
from sslbench.protocols.robustness.checks import OBJECTNET
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel

_LARGEST = 10_000_000  # bytes of a file of the mapping
_REMEDY = "Give the folder of the unpacked archive, which holds images/ and mappings/."


def open_objectnet(location: str, train: Source) -> Source:
    """Return the images without their red border, each with the classes of train that are right for it.

    Labels are 1 for these, 0 for classes that stand for another class of ObjectNet, and -1 for the others, which do not
    compete where only shared classes do. Images of classes that ImageNet lacks have no right class.

    Raises:
        UsageError: the folder has other contents than the archive.
        DataError: train does not have ImageNet's 1,000 classes.
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
    """Return the folder of each class shared with ImageNet -> places of its classes among the sorted synsets.

    Raises:
        UsageError: a file is missing, or does not fit the others.
    """
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
        if file.stat().st_size > _LARGEST:
            raise UsageError(f"{file} is too large for a mapping of ObjectNet", _REMEDY)
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}", _REMEDY) from error
