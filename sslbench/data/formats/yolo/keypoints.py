"""Keypoints of a YOLO data.yaml: `kpt_shape`, `flip_idx` and `kpt_names`, as Ultralytics documents them.

`kpt_shape: [K, 3]` says that K times x, y, visibility stand behind the box of a line, `[K, 2]` that K times x, y do; x
and y are shares of the image's width and height. In Ultralytics's conversion of COCO these are COCO's coordinates,
in which the centre of the first pixel is 0, 0.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.metrics.detection.keypoints import COCO_SIGMAS, Skeleton

_MOST = 10_000
_SLACK = 0.01  # as Ultralytics allows
_COCO_FLIP = [0, *itertools.chain.from_iterable((i + 1, i) for i in range(1, 17, 2))]
"""`flip_idx` of COCO's persons: the nose, then pairs of left and right."""

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

        Raises:
            DataError: a labelled keypoint is no share of the image, or a visibility is not 0, 1 or 2.
        """
        found: list[Point] = [(0.0, 0.0, 0.0)] * len(self.skeleton)
        height, width = size
        places = self.places[label] if values else ()
        for i, place in enumerate(places):
            x, y, *rest = values[self.numbers * i : self.numbers * (i + 1)]
            seen = rest[0] if rest else _visibility(x, y)
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


def _visibility(x: float, y: float) -> float:
    """Return the visibility of a keypoint without one: labelled unless a coordinate is negative, as in Ultralytics."""
    return 0.0 if x < 0 or y < 0 else 2.0


def read_keypoints(file: Path, content: Mapping[str, Any], classes: Sequence[str]) -> Keypoints | None:
    """Return the keypoints that a data.yaml describes; None if it describes none.

    Keypoints without `kpt_names` are called 'keypoint 0', 'keypoint 1', ...; 17 of them with COCO's `flip_idx` are
    taken for COCO's persons, with a note.

    Raises:
        DataError: one of the three keys is not what it should be.
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
