"""Folder with COCO manifests: annotations/instances_train2017.json beside train2017/, or Roboflow's train/, valid/.

Also CVAT's (`annotations/instances_default.json`), FiftyOne's (`labels.json` beside `data/`) and Label Studio's
(`result.json` beside `images/`). Of COCO's own files those of instances are read; the others are given by name.
"""

import dataclasses
import re
from pathlib import Path

from sslbench.data.containers.exports import export_of
from sslbench.data.containers.members import split_rank
from sslbench.data.containers.sniff import head_text, is_clutter, is_json_table
from sslbench.data.formats import coco
from sslbench.data.formats._parts.layout import split_of
from sslbench.data.objects import ObjectSource
from sslbench.data.objects.boxes import box_format
from sslbench.data.wording import some
from sslbench.errors import DataError

# Names of the manifest of a folder, or of each of its splits.
_NAMES = ("_annotations.coco.json", "annotations.json", "labels.json", "result.json", "coco.json")
# Beginnings of COCO's files without boxes.
_OTHERS = ("captions", "panoptic", "stuff", "image_info")
_MANIFEST = re.compile(r'"(images|annotations|categories|licenses|info)"\s*:')
_SPLIT_FOLDERS = ("train", "training", "valid", "val", "validation", "test", "testing")


def recognises(spec: str) -> bool:
    """Return whether the string is a folder with manifests in it, in annotations/ or in its splits."""
    root = Path(spec)
    try:
        return root.is_dir() and bool(_manifests(root))
    except DataError:  # recognised, and opening says what is wrong
        return True
    except OSError:
        return False


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """Return the images of all manifests; all splits have the same classes."""
    found: dict[str, ObjectSource] = {}
    for split, file in _manifests(Path(spec)).items():
        opened = coco.open_objects(str(file))
        if list(opened) != ["all"] and split != "all":
            raise DataError(
                f"{file} is the {split} split of {spec}, but its images have a key 'split' themselves",
                "Give that file as --data, or remove the key.",
            )
        for own, source in opened.items():
            name = split if own == "all" else own
            found[name] = dataclasses.replace(source, name=spec if name == "all" else f"{spec} ({name})")
    # By their numbers in the manifests, where these agree.
    numbers: dict[str, int] = {}
    for part in found.values():
        for label, number in zip(part.target.classes, part.target.class_numbers, strict=True):
            numbers.setdefault(label, number)
    if len(set(numbers.values())) == len(numbers):
        classes = tuple(sorted(numbers, key=numbers.__getitem__))
        order = tuple(numbers[label] for label in classes)
    else:
        classes, order = tuple(numbers), tuple(range(1, len(numbers) + 1))
    return {split: part.with_classes(classes, order) for split, part in found.items()}


def _manifests(root: Path) -> dict[str, Path]:
    """Return split -> manifest, {"all": manifest} without splits; empty if there are none."""
    below = root / "annotations"
    if below.is_dir():
        files = [path for path in below.iterdir() if path.suffix.lower() == ".json" and not is_clutter(path.name)]
        if chosen := _of_one_kind(below, [file for file in files if _is_manifest(file)]):
            return chosen
    if own := _named(root):
        return {"all": own}
    splits: dict[str, Path] = {}
    for name in _SPLIT_FOLDERS:
        split, file = str(split_of(name)), _named(root / name)
        if file is not None and split in splits:
            raise DataError(f"{root} has two manifests of the {split} split: {splits[split]} and {file}")
        if file is not None:
            splits[split] = file
    return splits


def _named(folder: Path) -> Path | None:
    return next((folder / name for name in _NAMES if _is_manifest(folder / name)), None)


def _is_manifest(file: Path) -> bool:
    """Return whether a file begins like a COCO manifest."""
    if not file.is_file() or is_json_table(str(file)) or export_of(file) is not None:
        return False
    return _MANIFEST.search(head_text(str(file))) is not None


def _of_one_kind(folder: Path, files: list[Path]) -> dict[str, Path]:
    """Return split -> file of instances_train2017.json, instances_val2017.json and the like."""
    kinds: dict[str, dict[str, Path]] = {}
    for file in sorted(files):
        kind, _, part = file.stem.rpartition("_")
        split = split_of(part)
        kind, split = (kind, split) if split else (file.stem, "all")
        if kind.startswith(_OTHERS):
            continue
        of_kind = kinds.setdefault(kind, {})
        if split in of_kind:
            raise DataError(
                f"{folder} has two manifests of the {split} split: {of_kind[split].name} and {file.name}",
                "Give the files themselves: --data TRAIN.json --test-data TEST.json.",
            )
        of_kind[split] = file
    if "instances" in kinds:  # person_keypoints has one class of them
        kinds = {"instances": kinds["instances"]}
    if len(kinds) > 1:
        names = [file.name for of_kind in kinds.values() for file in of_kind.values()]
        raise DataError(
            f"{folder} has several kinds of manifests: {some(names, 6)}",
            "Give the file itself as --data, and another one as --test-data.",
        )
    (chosen,) = kinds.values() or [{}]
    return {split: chosen[split] for split in sorted(chosen, key=split_rank)}


FORMAT = box_format(__doc__, recognises, open_objects)
