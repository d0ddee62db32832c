"""PF-Pascal (JPEGImages/, Annotations/, a list test_pairs*.csv): pairs of images with corresponding keypoints.

Ham et al. 2017. A list has the columns source_image, target_image, class and, unless Annotations/CLASS/NAME.mat has
them, XA, YA, XB, YB with coordinates separated by ';'. The thresholds of PCK refer to the longer side of the box in the
target's .mat file, without .mat files to that of the target image, as SCNet's lists are scored; a note says which.
"""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.image_pairs import check_points, pairs_source
from sslbench.data.images import Files
from sslbench.data.objects.boxes import size_in_file
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.targets.pairs import PointPair, Points

_LISTS = {"train": "trn_pairs*.csv", "val": "val_pairs*.csv", "test": "test_pairs*.csv"}
_COORDINATES = ("XA", "YA", "XB", "YB")
_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def recognises(spec: str) -> bool:
    """Return whether the location is a folder with JPEGImages/ and a list test_pairs*.csv."""
    root = Path(spec)
    return (root / "JPEGImages").is_dir() and bool(matching(root, _LISTS["test"]))


def open(spec: str) -> dict[str, Source]:
    """Return the pairs of each list; the classes are those of Pascal VOC."""
    root = Path(spec)
    lists = {split: matching(root, pattern) for split, pattern in _LISTS.items()}
    if several := next((files for files in lists.values() if len(files) > 1), None):
        raise DataError(f"{spec} has several lists of one split: {', '.join(file.name for file in several)}")
    return {split: _list(f"{spec} ({split})", root, files[0]) for split, files in lists.items() if files}


def _list(name: str, root: Path, file: Path) -> Source:
    with file.open(encoding="utf-8-sig", newline="") as text:
        lines = list(csv.DictReader(text))
    names = sorted({Path(line.get(key) or "").name for line in lines for key in ("source_image", "target_image")})
    sizes = [size_in_file(root / "JPEGImages" / each) for each in names]
    if missing := [each for each, size in zip(names, sizes, strict=True) if size == (0, 0)]:
        raise DataError(f"{file} lists images that {root / 'JPEGImages'} lacks: {', '.join(missing[:5])}")
    place = {each: i for i, each in enumerate(names)}
    pairs, ids, classes, boxes = [], [], [], 0
    for number, line in enumerate(lines):
        source, target = (Path(line[key]).name for key in ("source_image", "target_image"))
        given = str(line.get("class", "")).strip()
        category = _CLASSES[int(given) - 1] if given.isdecimal() and 0 < int(given) <= len(_CLASSES) else given
        annotated = [_annotation(root, category, each) for each in (source, target)]
        points = _listed(file, number, line) if line.get("XA") else _annotated(file, number, annotated)
        side = float(max(sizes[place[target]]))
        if annotated[1] is not None and "bbox" in annotated[1]:
            left, top, right, bottom = np.asarray(annotated[1]["bbox"], dtype=np.float64).ravel()[:4]
            side, boxes = float(max(right - left, bottom - top)), boxes + 1
        pairs.append(PointPair(place[source], place[target], *points, side))
        ids.append(f"{number:05d} {Path(source).stem}-{Path(target).stem}:{category}")
        classes.append(category)
    if boxes not in (0, len(pairs)):
        raise DataError(f"{root / 'Annotations'} has the boxes of {boxes:,} of {len(pairs):,} target images of {file}")
    check_points(name, ids, pairs, sizes)
    of = "box in the .mat files" if boxes else "image, since there are no .mat files"
    note = (
        f"{name}: thresholds refer to the longer side of the target's {of}; coordinates are of the images as published"
    )
    return pairs_source(name, ids, Files(tuple(names), str(root / "JPEGImages")), pairs, classes=classes, notes=(note,))


def _annotation(root: Path, category: str, image: str) -> dict[str, Any] | None:
    """Return the content of an image's .mat file; None if there is none."""
    file = root / "Annotations" / category / f"{Path(image).stem}.mat"
    if not file.is_file():
        return None
    from scipy.io import loadmat

    try:
        found: dict[str, Any] = loadmat(file)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    return found


def _listed(file: Path, number: int, line: dict[str, str]) -> tuple[FloatArray, FloatArray]:
    try:
        x, y, u, v = (np.array([float(part) for part in line[c].split(";")]) for c in _COORDINATES)
        return np.column_stack([x, y]), np.column_stack([u, v])
    except (ValueError, KeyError) as error:
        raise DataError(f"{file}, row {number + 1}: XA, YA, XB, YB should be equally many numbers: {error}") from error


def _annotated(file: Path, number: int, both: list[dict[str, Any] | None]) -> tuple[FloatArray, FloatArray]:
    points = [np.asarray(each["kps"], dtype=np.float64) for each in both if each is not None and "kps" in each]
    if len(points) < 2 or points[0].shape != points[1].shape or points[0].ndim != 2 or points[0].shape[1] != 2:
        raise DataError(
            f"{file}, row {number + 1} has no coordinates, and Annotations/ no 'kps' (K, 2) of both images",
            "The list needs the columns XA, YA, XB, YB, or Annotations/CLASS/NAME.mat.",
        )
    # Keypoints that an image does not show are NaN in its .mat file.
    seen = np.isfinite(points[0]).all(axis=1) & np.isfinite(points[1]).all(axis=1)
    return points[0][seen], points[1][seen]


FORMAT = SourceFormat(__doc__, readers={Points: plain_reader(recognises, open)})
