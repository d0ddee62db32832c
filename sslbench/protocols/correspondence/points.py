"""Keypoints of pairs of images, matched by features."""

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sslbench.arrays import FloatArray
from sslbench.data.source import Source
from sslbench.metrics.dense.correspondence import (
    ALPHAS,
    PCK_PER_CLASS,
    PCK_PER_IMAGE,
    PCK_PER_POINT,
    PairHits,
    hits,
    pck_with_intervals,
    swaps,
)
from sslbench.metrics.intervals import Values
from sslbench.protocols._parts.images import fitted_maps
from sslbench.protocols._parts.untrained import Fitted, MapRun, pixel_floors
from sslbench.results import Outcome
from sslbench.solvers.correspondence import nearest_cells, sample, similarity_maps, soft_argmax
from sslbench.targets.pairs import PointPair, Points

# Name of an input of the encoder, or of pixels -> (D, h, w).
Maps = Mapping[str, torch.Tensor]
# Function from the similarities (K, h, w) of keypoints to their matches (K, 2), columns and rows.
Find = Callable[[torch.Tensor], torch.Tensor]
_ALPHA = ALPHAS.index(0.1)
_BYTES = 1e9


def match_points(run: MapRun[Any], pairs: Points) -> dict[str, Outcome]:
    """Return the outcome of each input of the encoder."""
    settings, report = run.settings, run.report
    points = [pair for pair in pairs.pairs if isinstance(pair, PointPair)]
    find: Find = nearest_cells
    if settings.matcher == "soft":
        find = functools.partial(soft_argmax, temperature=settings.temperature, radius=settings.radius or None)
    matcher = _PointMatcher(points, find, settings.max_memory)
    # In the order of the pairs, so that images of a pair are encoded soon after one another.
    images = list(dict.fromkeys(row for pair in points for row in (pair.source, pair.target)))
    todo, done = images, 0
    while todo:
        again = []
        for row, fitted, maps in fitted_maps(run, todo, settings.size, settings.shape):
            if not matcher.take(row, fitted, maps):
                again.append(row)
            done += 1
            if report is not None:
                report(done, len(images) + len(again))
        # Ends after one more round: by then every source has come, so no map has to wait.
        todo = again
    return {each.name: _outcome(each.name, matcher, run.test) for each in run.encoder.inputs}


class _PointMatcher:
    """Scores of all pairs, filled as images come.

    The features of the keypoints of an image are taken as a source at once. As a target, its maps are kept until the
    sources of all of its pairs have come, within the memory allowed; otherwise the image has to come a second time.
    """

    def __init__(self, pairs: Sequence[PointPair], find: Find, max_memory: float) -> None:
        self.pairs, self.find, self.most_bytes = pairs, find, max_memory * _BYTES
        self.found: dict[str, FloatArray] = defaultdict(lambda: np.zeros((len(pairs), len(ALPHAS))))
        self.swapped: dict[str, FloatArray] = defaultdict(lambda: np.zeros(len(pairs)))
        self.free: dict[str, dict[str, FloatArray]] = defaultdict(
            lambda: {name: np.zeros((len(pairs), len(ALPHAS))) for name in ("chance", "position only", "ceiling")}
        )
        self.floor_of: dict[str, str] = {}
        self._as_source: dict[int, list[int]] = defaultdict(list)
        self._as_target: dict[int, set[int]] = defaultdict(set)
        for number, pair in enumerate(pairs):
            self._as_source[pair.source].append(number)
            self._as_target[pair.target].add(number)
        self._queries: dict[int, dict[str, torch.Tensor]] = {}
        self._places: dict[int, FloatArray] = {}  # keypoints of the source as shares of its width and height
        self._kept: dict[int, tuple[Fitted, Maps]] = {}
        self._bytes = 0

    def take(self, row: int, fitted: Fitted, maps: Maps) -> bool:
        """Take an image and score the pairs that are complete; return False if it has to come again."""
        grids = {name: (int(value.shape[1]), int(value.shape[2])) for name, value in maps.items()}
        if not self.floor_of:
            self.floor_of = pixel_floors({n: grid for n, grid in grids.items() if not n.startswith("pixels ")})
        for number in self._as_source.pop(row, []):
            own = self.pairs[number].source_points
            self._places[number] = (own + 0.5) / np.array(fitted.original[::-1])
            self._queries[number] = {
                name: sample(value, torch.from_numpy(fitted.to_cells(own, grids[name])).to(value.device, value.dtype))
                for name, value in maps.items()
            }
        here = {row: (fitted, maps)} | self._kept
        for target, (place, own_maps) in here.items():
            for number in sorted(self._as_target[target] & self._queries.keys()):
                self._score(number, place, own_maps)
                self._as_target[target].discard(number)
            if not self._as_target[target] and target in self._kept:
                self._bytes -= _size(self._kept.pop(target)[1])
        if not self._as_target[row]:
            return True
        if self._bytes + _size(maps) > self.most_bytes:
            return False
        self._kept[row] = fitted, maps
        self._bytes += _size(maps)
        return True

    def _score(self, number: int, fitted: Fitted, maps: Maps) -> None:
        pair, queries, place = self.pairs[number], self._queries.pop(number), self._places.pop(number)
        for name, value in maps.items():
            grid = (int(value.shape[1]), int(value.shape[2]))
            cells = self.find(similarity_maps(queries[name], value))
            predicted = fitted.from_cells(cells.cpu().numpy().astype(np.float64), grid)
            self.found[name][number] = hits(predicted, pair.target_points, pair.side).sum(axis=0)
            self.swapped[name][number] = float("nan")  # where points are dense
            if pair.keypoints:
                visible, near = np.ones(len(pair.target_points), dtype=np.bool_), ALPHAS[_ALPHA] * pair.side
                alike = np.zeros(len(pair.target_points), dtype=np.int64)
                self.swapped[name][number] = swaps(predicted, pair.target_points, alike, visible, near).sum()
        for name in set(self.floor_of.values()):
            grid = (int(maps[name].shape[1]), int(maps[name].shape[2]))
            free, centres = self.free[name], fitted.centres(grid)
            limits = np.array(ALPHAS) * pair.side
            for point in pair.target_points:
                within = np.linalg.norm(centres - point, axis=1)[:, None] <= limits
                free["chance"][number] += within.mean(axis=0)
                free["ceiling"][number] += within.any(axis=0)
            same = place * np.array(fitted.original[::-1]) - 0.5
            free["position only"][number] = hits(same, pair.target_points, pair.side).sum(axis=0)


def _size(maps: Maps) -> int:
    return sum(value.numel() * value.element_size() for value in maps.values())


def _outcome(name: str, matcher: _PointMatcher, test: Source) -> Outcome:
    pairs = matcher.pairs
    points = np.array([len(pair.target_points) for pair in pairs], dtype=np.int64)
    images = np.array([(pair.source, pair.target) for pair in pairs], dtype=np.int64)
    classes, floor = test.target.values, matcher.floor_of[name]
    swapped = matcher.swapped[name]
    found = PairHits(matcher.found[name], points, classes, None if np.isnan(swapped).any() else swapped)
    rows = np.column_stack([found.found, swapped, points]).astype(np.float32)
    metrics: Values = pck_with_intervals(found, images)
    free = {key: _named(PairHits(value, points, classes)) for key, value in matcher.free[floor].items()}
    own = found.of_classes(np.ones((1, len(pairs))))[0, :, _ALPHA]
    several = len(images.ravel()) - len(np.unique(images))
    notes = [f"{points.sum():,} points of {len(pairs):,} pairs of {len(np.unique(images)):,} images."]
    if several:
        notes.append("Intervals take pairs that share an image as dependent.")
    return Outcome(
        metrics=metrics,
        headline=Points.metric,
        scores=rows,
        per_class=dict(zip(test.target.classes, own.tolist(), strict=False)),
        variants={"position only": free["position only"], "ceiling": free["ceiling"]},
        chance=free["chance"],
        floors={"pixels": _named(dataclasses.replace(found, found=matcher.found[floor], swapped=None))},
        notes=tuple(notes),
    )


def _named(pairs: PairHits) -> dict[str, float]:
    """Return PCK by name, without intervals."""
    once = np.ones((1, len(pairs.points)))
    parts = zip(
        (PCK_PER_IMAGE, PCK_PER_POINT, PCK_PER_CLASS),
        (pairs.per_image(once), pairs.per_point(once), pairs.per_class(once)),
        strict=True,
    )
    return {m.name: float(v) for metrics, values in parts for m, v in zip(metrics, values[0], strict=True)}
