"""Anomalies without training: distance of patches to the nearest patches of good images of the same category.

A memory holds the features of the patches of a category's good training images. The distance of a test patch to it is
its anomaly score; the map of distances, enlarged and smoothed, scores pixels, and the largest ones score the image.

- AnomalyDINO (Damm et al., WACV 2025), the defaults: cosine distance, all patches, the mean of the largest 1 %. Of few
  images (preset `anomaly_dino_few`) with their turns in memory, and without the background of some categories.
- PatchCore (Roth et al., CVPR 2022), preset `patchcore`: layers 2 and 3, each averaged over 3 x 3 patches, a greedy
  coreset, Euclidean distance, and the largest distance times 1 - softmax over the b neighbours of its nearest patch.

Metrics are those of each category, and their means over categories: `metrics.dense.anomaly`. Of MVTec LOCO there are
also those of each kind of anomaly beside all good images, and the mean over kinds, as its authors evaluate. Floors: the
same memory of the colours of patches, the untrained network, and equal scores of all images and pixels.

Memory: that of one category at a time, and twice that while it is built. Time: 2 * patches * memory * D operations of
the search; a coreset of M of N patches takes M passes over its projection.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray, Matrix
from sslbench.config import setting
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.groups import source_groups
from sslbench.data.source import Source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.metrics.dense.anomaly import (
    OF_KINDS,
    PixelCurves,
    image_measures,
    pixel_measure,
    pixel_metrics,
    region_shares,
    right_sides,
    saturated_shares,
)
from sslbench.metrics.intervals import Units, Values
from sslbench.metrics.summary import with_intervals
from sslbench.protocols._parts.search import FOUND, TRUE, with_heat, with_mask
from sslbench.protocols._parts.untrained import MapRun, pixel_floors
from sslbench.protocols.protocol import Cost, Part, Protocol, ProtocolSettings, Shapes
from sslbench.results import Outcome
from sslbench.runtime.progress import stage_progress
from sslbench.solvers.foreground import foreground, turned
from sslbench.solvers.patch_memory import Distance, Map, PatchMemory, greedy_coreset, pixel_scores
from sslbench.targets.anomalies import Anomalies

if TYPE_CHECKING:
    from torch import Tensor

    from sslbench.protocols._parts.pictures import Drawing

log = logging.getLogger("sslbench")
T = TypeVar("T")
_RESAMPLES = 1000  # half-samples of intervals


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of the detection of anomalies."""

    size: int = setting(448, "shorter side of the resized image", unit="pixels", within="[1, inf)")
    scored_at: Literal["image", "input"] = setting(
        "image", "pixels that are scored: image, all of its file; input, those of the network's input"
    )
    crop: int = setting(
        0, "side of the central square that is used; 0: all", unit="pixels", within="[0, inf)", needs="scored_at=input"
    )
    neighbourhood: int = setting(1, "odd side of the square of patches that are averaged", within="[1, inf)")
    distance: Distance = setting("cosine", "distance of patches: 1 - cosine, or Euclidean")
    shots: int = setting(0, "good images of each category in memory, drawn by the seed; 0: all", within="[0, inf)")
    rotations: int = setting(
        1,
        "turns of each good image in memory, by equal angles; 8: every 45 degrees",
        within="[1, inf)",
        added_later=True,
    )
    masked: tuple[str, ...] = setting(
        (), "categories whose test images lose their background; *: all", distinct=True, added_later=True
    )
    mask_threshold: float = setting(
        10.0,
        "masked: first principal component of a patch's features above which it is foreground",
        within="[0, inf)",
        added_later=True,
    )
    coreset: float = setting(1.0, "share of the patches that a greedy coreset keeps in memory", within="(0, 1]")
    k: int = setting(1, "number of nearest patches whose distances are averaged", within="[1, inf)")
    top: float = setting(
        0.01, "share of the patches of an image whose mean distance is its score; 0: the largest alone", within="[0, 1]"
    )
    reweight: int = setting(
        0, "neighbours b of the nearest patch that weigh an image's score; 0: none", within="[0, inf)"
    )
    smoothing: float = setting(
        4.0, "standard deviation of the Gaussian over scored pixels; 0: none", unit="pixels", within="[0, inf)"
    )
    max_memory: float = setting(1.0, "working memory of the search", unit="GB", changes_result=False, within="(0, inf)")

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        if self.neighbourhood % 2 == 0:
            raise UsageError(f"anomaly: neighbourhood={self.neighbourhood} has no patch in its centre", "Give 1 or 3.")
        if self.crop > self.size:
            raise UsageError(f"anomaly: crop={self.crop} is larger than the resized image, size={self.size}")
        if self.masked and self.reweight:
            raise UsageError("anomaly: reweight weighs the largest distance of all patches", "Give masked or reweight.")
        if self.mask_threshold != type(self).mask_threshold and not self.masked:
            raise UsageError("anomaly: mask_threshold has no effect without masked", "Give masked='[*]'.")
        if self.reweight == 1:
            raise UsageError("anomaly: reweight=1 makes every score 0", "Give 9 as in PatchCore, or 0.")
        if self.reweight and (self.top or self.distance == "cosine" or self.k > 1):
            raise UsageError("anomaly: reweight weighs the largest Euclidean distance", "Give top=0 distance=l2 k=1.")


@dataclasses.dataclass(frozen=True)
class _Ranking:
    """Scores by one map of features.

    Attributes:
        scores: (N,) of the test images.
        maps: distances of the patches of each, (h, w).
        curves: of the pixels of each category, and of each kind of its anomalies: `Anomaly._together`.
        patches: number of patches in the memories of all categories.
    """

    scores: FloatArray
    maps: dict[int, Map] = dataclasses.field(default_factory=dict)
    curves: list[PixelCurves] = dataclasses.field(default_factory=list)
    patches: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Views:
    """Means of metrics: over categories, of each kind of anomaly as METRIC(KIND), and over the kinds as METRIC(kinds).

    Attributes:
        values: (N, 2) of the test images, as `Anomalies.values`.
        units: of intervals.
        together: number of the category, kind of anomaly or '', and rows of the images that are ranked together.
    """

    values: IntArray
    units: Units
    together: Sequence[tuple[int, str, IntArray]]

    def _named(self, of: Callable[[list[int]], dict[str, T]], category: int | None = None) -> dict[str, T]:
        """Return the metrics of all views; `of`: from positions in `together` to the means of metrics."""
        kinds, metrics = sorted({kind for _, kind, _ in self.together} - {""}), dict[str, T]()
        for suffix, wanted in {"": [""], **{f"({kind})": [kind] for kind in kinds}, "(kinds)": kinds}.items():
            own = [i for i, (c, kind, _) in enumerate(self.together) if kind in wanted and category in (None, c)]
            if own:
                metrics |= {f"{key}{suffix}": v for key, v in of(own).items() if not suffix or key in OF_KINDS}
        return metrics

    def values_of(self, scores: Matrix, pixels: Sequence[FloatArray], category: int | None = None) -> dict[str, float]:
        """Return the metrics of scores (N, 1) and of pixels, as `PixelCurves.values` of each of `together`."""

        def means(own: list[int]) -> dict[str, float]:
            (images,) = image_measures(self.values, scores, self.units, [self.together[i][2] for i in own])
            metrics = images.statistic(np.ones((1, len(scores))))[0].tolist()
            return dict(zip(images.names, metrics, strict=True)) | pixel_metrics([pixels[i] for i in own])

        return self._named(means, category)

    def measured(
        self, scores: Matrix, curves: Sequence[PixelCurves], pixels: Sequence[FloatArray], seed: int
    ) -> Values:
        """Return the same metrics with their intervals."""

        def intervals(own: list[int]) -> Values:
            rows = [self.together[i][2] for i in own]
            (measure,) = image_measures(self.values, scores, self.units, rows)
            metrics = with_intervals(measure, self.units, seed, _RESAMPLES)
            if exact := pixel_metrics([pixels[i] for i in own]):
                measure = pixel_measure([curves[i] for i in own], rows, self.units)
                ends = with_intervals(measure, self.units, seed, _RESAMPLES)
                # Of the curves in fewer steps there are the ends alone.
                metrics |= {key: (v, min(v, ends[key][1]), max(v, ends[key][2])) for key, v in exact.items()}
            return metrics

        return self._named(intervals)


class Anomaly(MapRun[Settings]):
    """Memory of the patches of good images, and distances to it."""

    name = "anomaly"
    takes = (Anomalies,)
    needs = "needs good images for training, and good and anomalous ones for test"
    advice = "Give a folder in the layout of MVTec AD, or VisA."
    joins: ClassVar[bool] = True

    @classmethod
    def part(cls, settings: Settings) -> Part | None:
        """Return None: train is the memory."""
        return None

    def score(self) -> dict[str, Outcome]:
        """Score the test images of each category by the memory of its training images."""
        parts, found, floor_of = self._parts(), dict[str, _Ranking](), dict[str, str]()
        for rows, tested in parts:
            self._rank(rows, tested, found, floor_of)
        return {row: self._outcome(found[row], found[floor_of[row]], [own for _, own in parts]) for row in floor_of}

    def _parts(self) -> list[tuple[IntArray, IntArray]]:
        """Return the rows of the images in memory and of the test images of each category; refuse unusable data."""
        settings, multiple = self.settings, self.encoder.multiple
        if settings.crop % multiple:
            raise UsageError(f"anomaly: crop={settings.crop} is no multiple of the patches of {multiple} pixels")
        train, test = Anomalies.of(self.train.target), Anomalies.of(self.test.target)
        if len(wrong := np.flatnonzero(train.values[:, 1])):
            raise DataError(
                f"anomaly: {len(wrong):,} of {counted(len(train), 'training image')} are anomalous, "
                f"{self.train.ids[wrong[0]]} first",
                "The memory is of good images: move them to test.",
            )
        anomalous = np.flatnonzero(test.values[:, 1])
        if not np.intersect1d(test.values[anomalous, 0], np.delete(test.values, anomalous, axis=0)[:, 0]).size:
            raise DataError(f"anomaly: no category of {self.test.name} has both good and anomalous images")
        # By name: train may be another location.
        parts, names = [], np.array(train.classes)[train.values[:, 0]]
        for number in np.unique(test.values[:, 0]).tolist():
            category = test.classes[number]
            rows = np.flatnonzero(names == category)
            if not len(rows):
                raise DataError(f"anomaly: {category} has test images, and none for training in {self.train.name}")
            if settings.shots > len(rows):
                raise UsageError(f"anomaly: shots={settings.shots}, but {category} has {len(rows)} good images")
            if settings.shots:
                generator = np.random.default_rng([self.seed, number])
                rows = np.sort(generator.choice(rows, settings.shots, replace=False))
            parts.append((rows, np.flatnonzero(test.values[:, 0] == number)))
        categories = [test.classes[test.values[own[0], 0]] for _, own in parts]
        if settings.masked and not {"*", *categories} & {*settings.masked}:
            log.warning(f"anomaly: masked names none of the categories of {self.test.name}: {some(categories)}")
        # A mask that cannot be used ends the run before an image is encoded.
        if empty := [self.test.ids[row] for row in anomalous.tolist() if not self._truth(row).any()]:
            log.warning(
                f"{counted(len(empty), 'anomalous image')} without a defect among the scored pixels: {some(empty)}"
            )
        return parts

    def _resized(self, picture: "Tensor", **changes: Any) -> "Tensor":
        """Return a picture or mask (C, H, W) as the network takes it; sides are multiples of the patch."""
        from sslbench.data.decode.transforms import resize_and_crop

        crop = self.settings.crop
        multiple, scale = 1 if crop else self.encoder.multiple, self.settings.size / min(picture.shape[1:])
        height, width = (max(multiple, round(side * scale / multiple) * multiple) for side in picture.shape[1:])
        changes |= {"squash": None, "resize": (height, width), "crop": (crop, crop) if crop else None}
        return resize_and_crop(picture, dataclasses.replace(self.preprocessing, **changes))

    def _embedded(
        self, source: Source, rows: IntArray, floor_of: dict[str, str], rotations: int = 1
    ) -> "Iterator[dict[str, Map]]":
        """Yield the maps (B, h, w, C) of images of one shape and their turns, of the rows of results and of pixels."""
        import torch

        from sslbench.protocols._parts.images import maps_and_pixels, pictures, stacked_input

        waiting: list[torch.Tensor] = []
        report = stage_progress(self.progress, f"{self.backbone.name} on {source.ids[rows[0]]} and others")
        read = pictures(source, rows.tolist(), self.preprocessing, self.engine)
        for number, (_, picture) in enumerate(read, start=1):
            turns = [picture, *(turned(picture.numpy(), 360 * i / rotations) for i in range(1, rotations))]
            waiting += [self._resized(torch.as_tensor(each)) for each in turns]
            if number < len(rows) and len(waiting) < self.engine.batch_size:
                continue
            for _, alike in itertools.groupby(waiting, key=lambda image: image.shape):
                images = stacked_input([*alike], self.preprocessing).to(self.encoder.device)
                maps = self._joined(maps_and_pixels(self.encoder, images), floor_of)
                if not all(value.isfinite().all() for value in maps.values()):
                    raise DataError(
                        f"anomaly: features of {source.name} are not finite numbers",
                        "The backbone overflowed (try --precision fp32) or its weights are damaged (sslbench inspect).",
                    )
                yield {name: value.permute(0, 2, 3, 1).cpu().numpy() for name, value in maps.items()}
            waiting.clear()
            if report is not None:
                report(number, len(rows))

    def _joined(self, maps: "Mapping[str, Tensor]", floor_of: dict[str, str]) -> "dict[str, Tensor]":
        """Return the averaged maps (B, C, h, w) of each row of results, and of the pixels on its grid."""
        import torch
        from torch.nn import functional

        side, found = self.settings.neighbourhood, dict[str, torch.Tensor]()
        # As published, zeros beyond the border are averaged as well.
        near = {name: functional.avg_pool2d(value, side, 1, side // 2) for name, value in maps.items()}
        pixels = pixel_floors(
            {each.name: (maps[each.name].shape[2], maps[each.name].shape[3]) for each in self.encoder.inputs}
        )
        for row, inputs in self.maps(self.backbone, self.layers, self.settings).items():
            finest = max((each.name for each in inputs), key=lambda name: near[name][0, 0].numel())
            grid, floor_of[row] = near[finest].shape[2:], pixels[finest]
            # A map of the same grid stays as it is.
            each = [functional.interpolate(near[own.name], grid, mode="bilinear") for own in inputs]
            found[row], found[pixels[finest]] = torch.cat(each, dim=1), near[pixels[finest]]
        return found

    def _rank(self, train: IntArray, test: IntArray, found: dict[str, _Ranking], floor_of: dict[str, str]) -> None:
        """Score the test images of one category at these rows, by the memory of its training images at those."""
        patches: dict[str, list[Matrix]] = {}
        for maps in self._embedded(self.train, train, floor_of, self.settings.rotations):
            for name, value in maps.items():
                patches.setdefault(name, []).append(value.reshape(-1, value.shape[-1]))
        settings, device, memories = self.settings, str(self.encoder.device), dict[str, PatchMemory]()
        for name in list(patches):
            x = np.concatenate(patches.pop(name))
            if settings.coreset < 1:
                number = max(1, int(len(x) * settings.coreset))
                x = x[greedy_coreset(x, number, seed=self.seed, device=device)]
            memories[name] = PatchMemory(x, settings.distance, device, settings.max_memory)
            found.setdefault(name, _Ranking(np.zeros(len(self.test)))).patches.append(len(x))
        chosen = {name: getattr(settings, name) for name in ("k", "top", "reweight")}
        target = Anomalies.of(self.test.target)
        masked = {"*", target.classes[target.values[test[0], 0]]} & {*settings.masked}
        rows = iter(test.tolist())
        for maps in self._embedded(self.test, test, floor_of):
            own = list(itertools.islice(rows, len(next(iter(maps.values())))))
            for name, memory in memories.items():
                # Colours, which are the floor, have no background.
                shown = (
                    [foreground(each, settings.mask_threshold) for each in maps[name]]
                    if masked and name in floor_of
                    else None
                )
                scored = memory.scored([*maps[name]], **chosen, foregrounds=shown)
                for row, (distances, score) in zip(own, scored, strict=True):
                    found[name].maps[row], found[name].scores[row] = distances, score
        for name in memories:
            found[name].curves.extend(self._curves(own, found[name].maps) for own in self._together(test).values())

    def _together(self, rows: IntArray) -> dict[str, IntArray]:
        """Return the rows of a category that are ranked together: '' -> all, kind -> its anomalies and all good images.

        Data without regions that saturate have no kinds.
        """
        regions, found = Anomalies.of(self.test.target).regions, {"": rows}
        if regions is not None and len({*regions.kinds} - {""}) > 1:
            kinds = np.array(regions.kinds)[rows]
            found |= {kind: rows[(kinds == "") | (kinds == kind)] for kind in np.unique(kinds[kinds != ""]).tolist()}
        return found

    def _truth(self, row: int) -> npt.NDArray[np.int8]:
        """Return the scored pixels of a test image: 1 in a defect, 0 elsewhere, -1 where it is not known."""
        import torch

        target = Anomalies.of(self.test.target)
        assert target.maps is not None  # noqa: S101 - only targets of stored values have none
        try:
            semantic = target.maps.read_map(row).semantic.astype(np.int8)
        except UnreadableImage as error:
            raise DataError(f"anomaly: {error.path}: {error.reason}") from error
        if self.settings.scored_at == "image":
            return semantic
        # Bytes, as pictures are resized.
        stored = torch.from_numpy((semantic + 1).astype(np.uint8))[None]
        return np.asarray(self._resized(stored, interpolation="nearest")[0].numpy().astype(np.int8) - 1)

    def _curves(self, rows: IntArray, maps: Mapping[int, Map]) -> PixelCurves:
        """Return the curves of the pixels of test images; their scores are computed twice, not kept."""
        defects, shares = [np.zeros(0, np.float32)] * len(rows), [np.zeros(0)] * len(rows)
        sigma, saturated = self.settings.smoothing, [np.zeros(0)] * len(rows)
        # Their pixels are those of the files.
        regions = Anomalies.of(self.test.target).regions if self.settings.scored_at == "image" else None
        for i, row in enumerate(rows.tolist()):
            if self.test.target.values[row, 1]:
                truth = self._truth(row)
                scores = pixel_scores(maps[row], truth.shape, sigma)
                defects[i], shares[i] = scores[truth == 1], region_shares(truth == 1)
                if regions is not None:
                    saturated[i] = saturated_shares(scores, regions.read_regions(row))[truth == 1]
        curves = PixelCurves(defects, shares, None if regions is None else saturated)
        for i, row in enumerate(rows.tolist()):
            truth = self._truth(row)
            curves.add(i, pixel_scores(maps[row], truth.shape, sigma)[truth == 0])
        return curves

    def _outcome(self, found: _Ranking, floor: _Ranking, parts: Sequence[IntArray]) -> Outcome:
        from sslbench.protocols._parts.pictures import chosen_by_score, sheet

        target, groups = Anomalies.of(self.test.target), source_groups(self.test)
        values, classes, units = target.values, target.classes, Units.of(len(target), groups)
        scores, number = found.scores[:, None].astype(np.float32), sorted({*found.patches})
        each = [(i, *one) for i, rows in enumerate(parts) for one in self._together(rows).items()]
        views, exact = _Views(values, units, each), [own.values() for own in found.curves]
        shown = chosen_by_score(right_sides(values, found.scores))
        captions = {row: target.text(row).partition(": ")[2] for rows in shown.values() for row in rows}
        return Outcome(
            metrics=views.measured(scores, found.curves, exact, self.seed),
            headline=Anomalies.metric,
            scores=scores,
            per_class=dict(zip(classes, Anomalies.per_class(values, scores, len(classes)), strict=True)),
            notes=(f"Memories of {' to '.join(f'{n:,}' for n in (number[0], number[-1])[: len(number)])} patches.",),
            variants={
                classes[values[rows[0], 0]]: views.values_of(scores, exact, i)
                for i, rows in enumerate(parts)
                if len(parts) > 1
            },
            chance=views.values_of(0 * scores, [own.constant() for own in found.curves]),
            floors={"pixels": views.values_of(floor.scores[:, None], [own.values() for own in floor.curves])},
            picture=sheet(self.test, shown, captions, self._drawing(found, parts), self.preprocessing),
        )

    def _drawing(self, found: _Ranking, parts: Sequence[IntArray]) -> "Drawing":
        """Return the function that draws the distances of patches in red, and the true defects beside them in green."""
        from PIL import Image

        target, settings, ends = Anomalies.of(self.test.target), self.settings, dict[int, tuple[float, float]]()
        for rows in parts:
            own = np.concatenate([found.maps[row].ravel() for row in rows.tolist()])
            ends |= dict.fromkeys(rows.tolist(), (float(own.min()), max(float(np.ptp(own)), 1e-12)))

        def draw(picture: Image.Image, index: int, factor: float) -> Image.Image:
            side = round(min(picture.size) * settings.crop / settings.size)
            width, height = (side, side) if side else picture.size
            heat = pixel_scores((found.maps[index] - ends[index][0]) / ends[index][1], (height, width), 0.0)
            both = Image.new("RGB", (2 * picture.width, picture.height))
            both.paste(with_heat(picture, heat, FOUND), (0, 0))
            assert target.maps is not None  # noqa: S101 - only targets of stored values have none
            both.paste(with_mask(picture, target.maps.read_map(index).semantic == 1, TRUE), (picture.width, 0))
            return both

        return draw


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Return one pass per image."""
    return Cost(images=shapes.train + shapes.test, rest="coresets, the search for the nearest patches, maps of pixels")


PROTOCOL = Protocol(
    version=1,
    summary="anomalies without training: distances of patches to those of good images.",
    settings=Settings,
    kind=Anomaly.kind(cost),
)
