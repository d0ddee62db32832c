"""Keypoints of a COCO or kwcoco manifest.

COCO's categories list the names of their keypoints, and its annotations hold x, y and visibility of each in that order.
kwcoco also has a table `keypoint_categories`, and annotations that list only the labelled keypoints.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.metrics.detection.keypoints import Skeleton

Row = dict[str, Any]
_FARTHEST = 1e9
"""Largest coordinate, in pixels."""
_VISIBLE = 2
"""Visibility of kwcoco's keypoints that have none."""


def read_skeleton(spec: str, categories: Sequence[Row], kinds: object) -> Skeleton | None:
    """Return the keypoints of all categories together, joined by their names; None if no category has any.

    Args:
        spec: the manifest, for messages.
        categories: rows of the manifest.
        kinds: its table `keypoint_categories`, None if there is none.

    Raises:
        DataError: names, edges or sigmas of a category are not what they should be.
    """
    having = sorted((row for row in categories if row.get("keypoints")), key=lambda row: int(row["id"]))
    if not having:
        return None
    names: dict[str, int] = {}
    edges: dict[tuple[int, int], None] = {}
    sigmas: dict[str, float] = {}
    for row in having:
        own = _names(spec, row)
        for name in own:
            names.setdefault(name, len(names))
        for a, b in _edges(spec, row, len(own)):
            edges[names[own[a]], names[own[b]]] = None
        for name, sigma in zip(own, _sigmas(spec, row, len(own)), strict=False):
            if sigmas.setdefault(name, sigma) != sigma:
                raise DataError(f"{spec}: the keypoint '{name}' has the sigmas {sigmas[name]} and {sigma}")
    known = tuple(sigmas[name] for name in names) if set(sigmas) == set(names) else ()
    return Skeleton(tuple(names), tuple(edges), _mirrors(spec, names, kinds), known)


def _names(spec: str, row: Row) -> list[str]:
    names = row["keypoints"]
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"{spec}, category {row['id']}: keypoints is {names!r:.80}, not a list of names")
    if len(set(names)) < len(names):
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        raise DataError(f"{spec}, category {row['id']}: the keypoint {some(twice)} is listed twice")
    return names


def _edges(spec: str, row: Row, number: int) -> list[tuple[int, int]]:
    """Return the edges as positions; in the file they count from 1."""
    edges = row.get("skeleton") or []
    right = isinstance(edges, list) and all(
        isinstance(edge, list) and len(edge) == 2 and all(type(end) is int and 1 <= end <= number for end in edge)
        for edge in edges
    )
    if not right:
        raise DataError(
            f"{spec}, category {row['id']}: skeleton is {edges!r:.80}, not pairs of numbers from 1 to {number}"
        )
    return [(a - 1, b - 1) for a, b in edges]


def _sigmas(spec: str, row: Row, number: int) -> list[float]:
    sigmas = row.get("sigmas") or []
    numbers = isinstance(sigmas, list) and all(type(s) in (int, float) and 0 < s < _FARTHEST for s in sigmas)
    if not numbers or len(sigmas) not in (0, number):
        raise DataError(f"{spec}, category {row['id']}: sigmas is {sigmas!r:.80}, not {number} numbers above 0")
    return [float(sigma) for sigma in sigmas]


def keypoint_kinds(spec: str, kinds: object) -> dict[Any, str]:
    """Return the names of kwcoco's table of keypoints by their ids.

    Raises:
        DataError: it is no list of mappings with id and name.
    """
    rows = kinds or []
    if not isinstance(rows, list) or not all(
        isinstance(row, dict)
        and type(row.get("id")) is int
        and isinstance(row.get("name"), str)
        and isinstance(row.get("reflection_id"), int | None)
        for row in rows
    ):
        raise DataError(
            f"{spec}: keypoint_categories is not a list of mappings with id, name and perhaps reflection_id, an id"
        )
    return {row["id"]: row["name"] for row in rows}


def _mirrors(spec: str, names: dict[str, int], kinds: object) -> tuple[tuple[str, str], ...]:
    name_of = keypoint_kinds(spec, kinds)
    rows = [row for row in (kinds if isinstance(kinds, list) else []) if row["name"] in names]
    if all(row.get("reflection_id") is None for row in rows):
        return ()
    pairs = {tuple(sorted((row["name"], name_of.get(row.get("reflection_id"), row["name"])))) for row in rows}
    return tuple((a, b) for a, b in sorted(pairs) if {a, b} <= set(names))


def read_points(
    spec: str, annotation: Row, own: Sequence[str], skeleton: Skeleton, kinds: dict[Any, str]
) -> npt.NDArray[np.float64]:
    """Return the keypoints of an annotation, (K, 3); zeros for those that are not labelled.

    Args:
        spec: the manifest, for messages.
        annotation: its row.
        own: names of its category's keypoints.
        skeleton: keypoints of the manifest.
        kinds: kwcoco's names of keypoints by id.

    Raises:
        DataError: it has another number of them than its category, or one is no keypoint.
    """
    where = f"{spec}, annotation {annotation['id']}"
    points = np.zeros((len(skeleton), 3))
    given = annotation.get("keypoints") or []
    if isinstance(given, list) and given and all(isinstance(one, dict) for one in given):
        triples = [_of_kwcoco(where, one, skeleton, kinds) for one in given]
    else:
        triples = _of_coco(where, given, own)
    for name, x, y, seen in triples:
        if type(seen) not in (int, float) or seen not in (0, 1, 2):
            raise DataError(
                f"{where}: the visibility of '{name}' is {seen!r:.40}",
                "It is 0 (not labelled), 1 (labelled and hidden) or 2 (visible).",
            )
        if not all(type(v) in (int, float) and abs(v) < _FARTHEST for v in (x, y)):  # NaN is not
            raise DataError(f"{where}: the place of '{name}' is {x!r:.40}, {y!r:.40}, not two numbers of pixels")
        if seen:
            points[skeleton.names.index(name)] = x, y, seen
    return points


def _of_coco(where: str, given: object, own: Sequence[str]) -> list[tuple[str, Any, Any, Any]]:
    if not isinstance(given, list) or len(given) not in (0, 3 * len(own)):
        length = f"{len(given)} numbers" if isinstance(given, list) else f"{given!r:.60}"
        raise DataError(
            f"{where}: its keypoints are {length}, and its category has {len(own)} keypoints",
            "COCO's keypoints are x, y, visibility of each keypoint of the category: 3 numbers for each.",
        )
    return [(name, *given[3 * i : 3 * i + 3]) for i, name in enumerate(own)] if given else []


def _of_kwcoco(where: str, one: Row, skeleton: Skeleton, kinds: dict[Any, str]) -> tuple[str, Any, Any, Any]:
    number = one.get("keypoint_category_id")
    name = one.get("keypoint_category", kinds.get(number) if isinstance(number, int) else None)
    place = one.get("xy")
    if name not in skeleton.names or not isinstance(place, list) or len(place) != 2:
        raise DataError(
            f"{where}: {one!r:.80} is no keypoint",
            f"It needs xy, and keypoint_category or keypoint_category_id of {some(skeleton.names, 6)}.",
        )
    return str(name), place[0], place[1], one.get("visible", _VISIBLE)
