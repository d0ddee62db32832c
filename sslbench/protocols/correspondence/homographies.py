"""Cells of pairs of images under a homography, matched by features."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from sslbench.arrays import FloatArray, IntArray
from sslbench.data.groups import inseparable
from sslbench.data.image_pairs import in_pixels
from sslbench.data.source import Source
from sslbench.metrics.dense.correspondence import PIXELS, MatchErrors, apply_homography, match_measure
from sslbench.metrics.intervals import Units
from sslbench.metrics.summary import with_intervals
from sslbench.protocols._parts.images import fitted_maps
from sslbench.protocols._parts.untrained import Fitted, MapRun, pixel_floors
from sslbench.results import Outcome
from sslbench.solvers.correspondence import ratio_matches
from sslbench.targets.pairs import Homographies, HomographyPair

_RESAMPLES = 1000
# Place of an image in the input, and its maps by name.
_Encoded = tuple[Fitted, Mapping[str, torch.Tensor]]
_FREE = ("position only", "ceiling")


def match_homographies(run: MapRun[Any], pairs: Homographies) -> dict[str, Outcome]:
    """Return the outcome of each input of the encoder."""
    settings, inputs, report, errors = run.settings, run.encoder.inputs, run.report, _Errors()
    by_source: dict[int, list[int]] = defaultdict(list)
    for number, pair in enumerate(pairs.pairs):
        by_source[pair.source].append(number)
    rows = [row for source, numbers in by_source.items() for row in (source, *(pairs.pairs[i].target for i in numbers))]
    floor_of: dict[str, str] = {}

    def encoded() -> Iterator[_Encoded]:
        for done, (_, fitted, maps) in enumerate(fitted_maps(run, rows, settings.size, settings.shape), start=1):
            yield fitted, maps
            if report is not None:
                report(done, len(rows))

    images = encoded()
    for numbers in by_source.values():
        source = next(images)
        floor_of = floor_of or pixel_floors({each.name: _grid(source[1][each.name]) for each in inputs})
        for number in numbers:
            pair = pairs.pairs[number]
            if isinstance(pair, HomographyPair):
                _match(number, pair, source, next(images), settings, errors, set(floor_of.values()))
    for _ in images:
        raise RuntimeError("images were left over")
    return {each.name: _outcome(each.name, floor_of[each.name], errors, run.test, run.seed) for each in inputs}


class _Errors:
    """Errors of the matches of all pairs: of maps by their name, and of answers that need no features.

    Attributes:
        of: name -> number of the pair and its errors, for each pair.
        random: name of a map -> for each pair its number, and for each cell the share of cells within each of `PIXELS`.
    """

    def __init__(self) -> None:
        self.of: dict[str, list[tuple[int, FloatArray]]] = defaultdict(list)
        self.random: dict[str, list[tuple[int, FloatArray]]] = defaultdict(list)

    def joined(self, name: str) -> tuple[FloatArray, IntArray]:
        """Return the errors (M,) and the number of the pair of each."""
        parts = self.of[name]
        pairs = [np.full(len(errors), number, dtype=np.int64) for number, errors in parts]
        return np.concatenate([errors for _, errors in parts]), np.concatenate(pairs)


def _match(
    number: int,
    pair: HomographyPair,
    source: _Encoded,
    target: _Encoded,
    settings: Any,
    errors: _Errors,
    floors: set[str],
) -> None:
    """Match the cells of a pair by each of the maps; `settings`: those of the protocol."""
    (own, maps), (other, other_maps) = source, target
    homography = in_pixels(pair.homography, *own.original) if pair.unit_square else pair.homography
    # Pixels of the resized target image, scaled to a longer side of exactly `size`.
    unit = np.array(other.size[::-1]) / np.array(other.original[::-1]) * settings.size / max(other.size)
    for name, value in maps.items():
        centres, candidates = own.centres(_grid(value)), other.centres(_grid(other_maps[name]))
        true = apply_homography(homography, centres)
        kept = _inside(centres, own.original) & (settings.outside | _inside(true, other.original))
        cells = np.flatnonzero(kept)
        matches = ratio_matches(
            _vectors(value)[cells],
            _vectors(other_maps[name]),
            ratio=None if settings.ratio == 1 else settings.ratio,
            most=settings.matches or None,
            mutual=settings.mutual,
        )
        true = true[cells[matches.source]]
        errors.of[name].append((number, np.linalg.norm((true - candidates[matches.target]) * unit, axis=1)))
        if name in floors:
            same = centres[cells[matches.source]] / np.array(own.original[::-1]) * np.array(other.original[::-1])
            errors.of[f"position only {name}"].append((number, np.linalg.norm((true - same) * unit, axis=1)))
            nearest, within = _cells_near(true, other, _grid(other_maps[name]), unit)
            errors.of[f"ceiling {name}"].append((number, nearest))
            errors.random[name].append((number, within / len(candidates)))


def _cells_near(
    points: FloatArray, fitted: Fitted, grid: tuple[int, int], unit: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the distance (K,) of points from the nearest cell centre, and the centres (K, L) within each of `PIXELS`.

    Only the cells around each point are looked at.

    Args:
        points: (K, 2) in pixels of the image; not finite ones are near no cell.
        fitted: place of the image.
        grid: rows and columns of cells.
        unit: (2,) factors from pixels of the image to pixels of errors, along x and y.
    """
    last = np.array(grid[::-1]) - 1
    side = np.abs(np.diff(fitted.from_cells(np.array([[0.0, 0.0], [1.0, 1.0]]), grid), axis=0)[0]) * unit
    reach_x, reach_y = (math.ceil(PIXELS[-1] / length) for length in side)
    # A homography may send points to infinity, of which no number of a cell can be made.
    position = np.nan_to_num(fitted.to_cells(points, grid), posinf=1e6, neginf=-1e6)
    centre = np.clip(np.round(position), 0, last)
    nearest, counts = np.full(len(points), np.inf), np.zeros((len(points), len(PIXELS)))
    for dy in range(-reach_y, reach_y + 1):
        for dx in range(-reach_x, reach_x + 1):
            cells = centre + np.array([dx, dy])
            distance = np.linalg.norm((fitted.from_cells(cells, grid) - points) * unit, axis=1)
            distance[((cells < 0) | (cells > last)).any(axis=1)] = np.inf
            nearest = np.minimum(nearest, distance)
            counts += distance[:, None] <= PIXELS
    return nearest, counts


def _inside(points: FloatArray, size: tuple[int, int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which points (K, 2) lie on an image of a height and width."""
    # Centres of pixels are whole numbers, so the image begins half a pixel before the first.
    limits = np.array(size[::-1]) - 0.5
    return np.asarray(((points >= -0.5) & (points <= limits)).all(axis=1))


def _grid(value: torch.Tensor) -> tuple[int, int]:
    return int(value.shape[1]), int(value.shape[2])


def _vectors(value: torch.Tensor) -> FloatArray:
    return value.flatten(1).T.float().cpu().numpy()


def _outcome(name: str, floor: str, errors: _Errors, test: Source, seed: int) -> Outcome:
    each, of_pair = errors.joined(name)
    units = Units.of(len(test), inseparable(test))  # pairs of one scene share an image
    metrics = with_intervals(match_measure(MatchErrors(each, of_pair)), units, seed, _RESAMPLES)
    counts = [np.bincount(of_pair[each <= limit], minlength=len(test)) for limit in PIXELS]
    rows = np.column_stack([*counts, np.bincount(of_pair, minlength=len(test))]).astype(np.float32)
    shares = np.concatenate([shares for _, shares in errors.random[floor]]).mean(axis=0)
    empty = int((rows[:, -1] == 0).sum())
    notes = [f"{len(each):,} matches in {len(test):,} pairs."]
    if empty:
        notes.append(f"{empty:,} pairs have no match and count for nothing.")
    return Outcome(
        metrics=metrics,
        headline=Homographies.metric,
        scores=rows,
        per_class={},
        variants={key: _named(errors, f"{key} {floor}", len(test)) for key in _FREE},
        chance={f"match_recall@{limit}px": float(share) for limit, share in zip(PIXELS, shares, strict=True)},
        floors={"pixels": _named(errors, floor, len(test))},
        notes=tuple(notes),
    )


def _named(errors: _Errors, name: str, number: int) -> dict[str, float]:
    """Return recall and AUC of some matches by name, without intervals."""
    measure = match_measure(MatchErrors(*errors.joined(name)))
    return dict(zip(measure.names, measure.statistic(np.ones((1, number)))[0].tolist(), strict=True))
