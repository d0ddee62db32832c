"""Depth from single images by heads trained on frozen features, as DINOv2, DINOv3 and probe3d report it.

Oquab et al., "DINOv2", 2023, section 7.4: the maps of the last layer (lin. 1) or of four (lin. 4), enlarged four times,
a 1 x 1 convolution to 256 bins of depth, whose expectation is the depth (AdaBins, Bhat et al., CVPR 2021); SigLoss;
AdamW, 38,400 updates of 16 crops; depths averaged with those of the mirrored image. Errors are means over images.

Differences from their code, each a setting or the right way by default: predictions are clipped after they are enlarged
to the size of the true depth; padding to whole patches is cut off exactly; logarithmic bins lie between the limits; the
learning rate is chosen on a held-out part of train; images without depth are left out of all means and listed.
"""

import dataclasses
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, ByteArray, FloatArray
from sslbench.config import other_default, setting
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.maps.types import size_and_turn
from sslbench.data.maps.values import implausible_unit
from sslbench.data.source import Source
from sslbench.errors import DataError, SslbenchError, UsageError
from sslbench.metrics.dense import depth
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense import DenseProtocol
from sslbench.protocols._parts.dense.task import DenseRow, SurfaceSettings, coloured, enlarged, read_pixel_values
from sslbench.protocols.protocol import Protocol
from sslbench.solvers.dense import Normalisation, Spacing, depth_bins, depth_from_bins
from sslbench.solvers.dense.losses import gradient_loss, sig_loss
from sslbench.targets import pixel_values

if TYPE_CHECKING:
    from torch import Tensor

    from sslbench.data.loading.joint import PixelTarget

Scored = Literal["all", "nyu", "garg", "eigen", "garg_kitti", "eigen_kitti"]
Align = Literal["none", "median", "affine"]

# Training images at most whose depths say the range and the median.
_SAMPLE = 500


@dataclasses.dataclass(frozen=True)
class Settings(SurfaceSettings):
    """Settings of depth by trained heads."""

    lr: tuple[float, ...] = other_default(SurfaceSettings, "lr", (1e-4, 3e-4, 1e-3))
    betas: tuple[float, float] = other_default(SurfaceSettings, "betas", (0.9, 0.99))
    clip_norm: float | None = other_default(SurfaceSettings, "clip_norm", 35.0)
    warmup_steps: int = other_default(SurfaceSettings, "warmup_steps", 12_800)
    crop: tuple[int, int] = other_default(SurfaceSettings, "crop", (416, 416))
    rotation: float = other_default(SurfaceSettings, "rotation", 2.5)
    flip_test: bool = other_default(SurfaceSettings, "flip_test", True)
    min_depth: float | None = setting(
        None,
        "smallest depth of bins and of scored pixels; null: bins from the smallest of train, all scored",
        unit="m",
        within="(0, inf)",
    )
    max_depth: float | None = setting(
        None,
        "largest depth of bins and of scored pixels; null: bins to the largest of train, all scored",
        unit="m",
        within="(0, inf)",
    )
    bins: int = setting(256, "depth bins of a head, whose expectation is the depth", within="[2, inf)")
    spacing: Spacing = setting("uniform", "distances of the bins: uniform or logarithmic")
    shares: Normalisation = setting("linear", "shares of the bins: linear (relu + 0.1), softmax or sigmoid")
    gradient: float = setting(0.0, "weight of the gradient loss beside SigLoss", within="[0, inf)")
    mean_steps: int = setting(
        0,
        "first updates, of `steps`, in which SigLoss has only its mean term",
        unit="updates",
        part_of="steps",
        within="[0, inf)",
    )
    train_region: tuple[int, int, int, int] | None = setting(
        None, "left, top, right and bottom of the part of training images that is used", unit="pixels"
    )
    scored: Scored = setting(
        "all",
        "region of scored pixels: all; nyu (45:471, 41:601 of 480 x 640); garg or eigen of the whole image, or of "
        "KITTI's 352 x 1216 in it (garg_kitti, eigen_kitti)",
    )
    align: Align = setting(
        "none",
        "median or affine: metrics after alignment to the true depth of each image, too, under names of their own",
    )

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        if self.mean_steps >= self.steps:
            raise UsageError(f"depth: mean_steps should be below steps={self.steps}, not {self.mean_steps}")
        if self.max_depth is not None and self.max_depth <= (self.min_depth or 0):
            raise UsageError(f"depth: max_depth should be above min_depth, not {self.max_depth}")
        if self.train_region is not None:
            left, top, right, bottom = self.train_region
            if not (0 <= left < right and 0 <= top < bottom):
                raise UsageError(f"depth: train_region={list(self.train_region)} is no left, top, right, bottom")


@dataclasses.dataclass(frozen=True)
class Range:
    """Depths of train, from up to 500 of its images.

    Attributes:
        median: of the images' medians.
    """

    low: float
    high: float
    median: float


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of depths in metres.

    Attributes:
        bins: ends of the bins, to which predictions are clipped.
        scored: exclusive ends of the scored depths.
    """

    bins: tuple[float, float]
    scored: tuple[float, float]


def range_of(train: Source, seed: int) -> Range | None:
    """Return the range of train's depths; None if none is known. Files that cannot be read are listed later."""
    rows = np.arange(len(train))
    if len(rows) > _SAMPLE:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _SAMPLE, replace=False))
    found: list[tuple[float, float, float]] = []
    for index in rows.tolist():
        try:
            values = read_pixel_values(train, index)
        except (SslbenchError, UnreadableImage):
            continue
        if (known := values[~np.isnan(values)]).size:
            found.append((float(known.min()), float(known.max()), float(np.median(known))))
    if not found:
        return None
    lows, highs, medians = zip(*found, strict=True)
    median = float(np.median(medians))
    if wrong := implausible_unit(min(lows), max(highs), median):
        raise DataError(
            f"depth: {train.name} has {wrong}",
            "Say which stored number is one metre: DATA?depth_scale=1000 for millimetres.",
        )
    return Range(min(lows), max(highs), median)


def check_region(train: Source, region: tuple[int, int, int, int] | None) -> None:
    """Refuse a region that does not lie in the training images; up to 500 of them are looked at."""
    if region is None:
        return
    _, _, right, bottom = region
    for index in range(min(len(train), _SAMPLE)):
        size = size_and_turn(train.images, index)[0]
        if size is not None and (size[0] < bottom or size[1] < right):
            raise DataError(
                f"depth: train_region={list(region)} reaches beyond {train.images.path(index)} of "
                f"{size[1]} x {size[0]} pixels",
                "Leave it out with train_region=null: the region is that of NYUv2's images of 640 x 480.",
            )


def limits_of(settings: Settings, known: Range | None) -> Limits:
    """Return the limits of bins and scored depths."""
    low, high = (settings.min_depth or 0.0), (np.inf if settings.max_depth is None else settings.max_depth)
    if known is None:  # the survey of the targets says so
        return Limits((low or 1e-3, 10.0 if high == np.inf else high), (low, high))
    if known.low >= high or known.high <= low:
        raise DataError(
            f"depth: train has depths of {known.low:.3g} to {known.high:.3g} m, "
            f"none between min_depth={low:g} and max_depth={high:g}",
            "Give other limits, or another DATA?depth_scale=.",
        )
    bins = (low if settings.min_depth else known.low, high if settings.max_depth else known.high)
    # Where all known depths are equal there is no range to divide into bins.
    return Limits(bins if bins[0] < bins[1] else (0.5 * bins[0], 2 * bins[1]), (low, high))


def scored_region(target: npt.NDArray[np.floating], limits: tuple[float, float], scored: Scored) -> BoolArray:
    """Return True for the pixels (H, W) that are scored."""
    low, high = limits
    if scored == "all" or scored == "nyu":
        return depth.valid_depth(target, low=low, high=high, crop="none" if scored == "all" else "nyu")
    crop: depth.Crop = "garg" if scored.startswith("garg") else "eigen"
    if not scored.endswith("_kitti"):
        return depth.valid_depth(target, low=low, high=high, crop=crop)
    valid = np.zeros(target.shape, dtype=np.bool_)
    part = depth.kitti_benchmark_crop(*target.shape)
    valid[part] = depth.valid_depth(target[part], low=low, high=high, crop=crop)
    return valid


@dataclasses.dataclass(frozen=True)
class Depth(DenseProtocol[Settings]):
    """Depth of pixels between limits.

    An output is a depth (1, h, w); an image's row has the sums `metrics.dense.depth.COLUMNS`.

    Attributes:
        limits: of bins and scored depths.
        median: that of train; None if no depth is known.
    """

    name = "depth"
    takes = pixel_values.Depth
    needs = "needs a depth for every pixel"
    stored = ("limits",)
    advice = "Give images/ with depth/, a list or a table of pairs, nyu_depth_v2_labeled.mat, or skimage:motorcycle."
    no_value = "a depth of 0 or NaN is unknown"

    limits: Limits
    median: float | None = None

    @classmethod
    def of(cls, settings: Settings, train: Source, preprocessing: Preprocessing, seed: int) -> Self:
        """Return the task between limits of the settings, or of train."""
        check_region(train, settings.train_region)
        known = range_of(train, seed)
        return cls(settings, limits_of(settings, known), None if known is None else known.median)

    @property
    def outputs(self) -> int:
        """Bins."""
        return self.settings.bins

    @property
    def region(self) -> tuple[int, int, int, int] | None:
        """Part of training images that crops are from."""
        return self.settings.train_region

    def read(self, source: Source, index: int, size: tuple[int, int] | None = None) -> "PixelTarget":
        """Return the depth (1, H, W) of an image, nan outside the limits."""
        target = super().read(source, index, size)
        low, high = self.limits.scored
        try:
            # Called for its error: a crop that does not fit the map is found in the survey, before the training.
            scored_region(target[0], (low, high), self.settings.scored)
        except ValueError as error:
            raise DataError(f"{source.name}: {source.images.path(index)}: {error}") from error
        # Comparisons with NaN, an unknown depth, would warn.
        with np.errstate(invalid="ignore"):
            return np.where((target > low) & (target < high), target, np.float32(np.nan))

    def constants(self) -> dict[str, FloatArray]:
        """Return the median of train."""
        return {} if self.median is None else {"median": np.full((1, 1, 1), self.median)}

    def activated(self, channels: "Tensor") -> "Tensor":
        """Return the expectations of the bins."""
        bins = depth_bins(self.settings.bins, *self.limits.bins, spacing=self.settings.spacing)
        return depth_from_bins(channels, bins=bins, normalisation=self.settings.shares)

    def loss(self, outputs: "Tensor", targets: "Tensor", update: int) -> "Tensor":
        """Return SigLoss, and the gradient loss with its weight, of the known pixels."""
        valid, weight = ~targets.isnan(), self.settings.gradient
        # A number with a finite logarithm, for the loss; `valid` leaves these pixels out.
        target = targets.nan_to_num(nan=1.0)
        loss = sig_loss(outputs, target, valid, mean_only=update < self.settings.mean_steps)
        return loss + weight * gradient_loss(outputs, target, valid) if weight else loss

    def row(self, output: "Tensor", target: "PixelTarget") -> FloatArray:
        """Return the sums of an image's errors; the depth is enlarged to the target, then clipped."""
        settings, (low, high) = self.settings, self.limits.bins
        alignment: depth.Alignment = "scale_shift" if settings.align == "affine" else settings.align
        valid = scored_region(target[0], self.limits.scored, settings.scored)
        predicted = enlarged(output, target)[0].numpy()
        return depth.depth_row(predicted, target[0], valid, low=low, high=high, alignment=alignment)

    def drawn(self, output: "Tensor", target: "PixelTarget") -> tuple[ByteArray, ByteArray]:
        """Return the true and the predicted depth in the colours of one range, that of both."""
        predicted = enlarged(output, target).numpy()
        both = np.concatenate([target.ravel(), predicted.ravel()])
        low, high = float(np.nanmin(both)), float(np.nanmax(both))
        return coloured(target[0], low, high), coloured(predicted[0], low, high)

    def caption(self, value: float) -> str:
        """Return the error of an image."""
        return f"RMSE {-value:.2f} m"

    def notes(self, row: DenseRow, test: Source) -> list[str]:
        """Return remarks on images without depth, on the limits and on the alignment."""
        aligned = {"none": (), "median": ("medians",), "affine": ("scale and shift, never a negative scale",)}
        low, high = self.limits.bins
        return [
            *super().notes(row, test),
            f"Depths of {low:.3g} to {high:.3g} m are predicted; chance is the better of the mean and the median of "
            "train, for each metric.",
            *(
                f"Metrics in brackets are after alignment to the true depth of each image: {how}."
                for how in aligned[self.settings.align]
            ),
        ]


PROTOCOL = Protocol(
    version=3,
    summary="depth from single images: heads trained on frozen features of patches.",
    settings=Settings,
    kind=Depth.kind(),
)
