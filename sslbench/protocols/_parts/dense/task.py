"""Dense task: targets of a protocol with trained heads for every pixel, its loss, its scores and its metrics.

Shapes: B images; k values of a target and H x W pixels; K values of an output; R numbers of an image's score.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, ByteArray, FloatArray
from sslbench.config import build_partial, other_default, setting
from sslbench.data.groups import source_groups
from sslbench.data.source import Source
from sslbench.data.views import MapColours
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.metrics import catalog
from sslbench.metrics.intervals import Values
from sslbench.metrics.summary import summarise, without_intervals
from sslbench.preprocessing import Preprocessing
from sslbench.protocols.protocol import ProtocolSettings
from sslbench.results import Outcome
from sslbench.solvers.dense import resized
from sslbench.targets.pixel_values import ReadValues
from sslbench.targets.target import Target
from sslbench.train.optimizers.optimizer import OPTIMIZERS, find, refuse_unknown

if TYPE_CHECKING:
    from torch import Tensor

    from sslbench.data.loading.joint import PixelTarget


HeadName = Literal["linear", "conv", "dpt", "fpn", "upernet"]

RateSchedule = Literal["poly", "cosine", "constant", "steps"]

Enlarge = Literal["none", "trained", "size"]

RawBlocks = Literal["none", "last", "last4", "spread4"]


@dataclasses.dataclass(frozen=True)
class HeadSettings(ProtocolSettings):
    """Inputs, head, training and inference of dense heads."""

    head: HeadName = setting(
        "linear",
        "linear: 1x1 convolution; conv: two of 3x3 before it; dpt, fpn and upernet: fusion of layers at several scales",
    )
    width: int | None = setting(
        None,
        "channels inside of other heads than linear; null: 256, or 512 of upernet",
        within="[2, inf)",
        added_later=True,
    )
    blocks: tuple[int, ...] = setting(
        (),
        "vision transformers, instead of --layers: join the patches of the last n blocks after the last norm; each n "
        "has a row of its own",
        within="[1, inf)",
        distinct=True,
    )
    raw_blocks: RawBlocks = setting(
        "none",
        "vision transformers, instead of --layers: outputs of blocks before the last norm: the last, the last4, or "
        "spread4 over the depth ([2, 5, 8, 11] of 12)",
    )
    cls: bool = setting(False, "join the class token of each layer to its patches")
    upsample: int = setting(
        1, "factor by which the maps are enlarged before the head, to cells of 3 pixels at least", within="[1, inf)"
    )
    norm: bool = setting(True, "BatchNorm before the head")
    dropout: float = setting(0.0, "share of the channels dropped before the head in training", within="[0, 1)")
    lr: tuple[float, ...] = setting(
        (5e-4, 1e-3, 2e-3),
        "learning rates; a head is trained with each and the best is selected",
        within="(0, inf)",
        filled=True,
        distinct=True,
    )
    optimizer: str = setting("adamw", OPTIMIZERS, added_later=True)
    weight_decay: float = setting(1e-4, "weight decay", within="[0, inf)")
    betas: tuple[float, float] = setting((0.9, 0.999), "adamw: decay rates of its averages")
    clip_norm: float | None = setting(None, "largest norm of a head's gradient; null: any", within="(0, inf)")
    steps: int = setting(40_000, "updates, at most", unit="updates", within="[1, inf)")
    max_epochs: float | None = setting(
        50,
        "epochs, at most: small data get fewer updates, with a shorter warm-up; null: any number",
        unit="epochs",
        within="(0, inf)",
    )
    batch_size: int = setting(16, "crops per update", unit="crops", within="[2, inf)")
    warmup_steps: int = setting(
        1500, "updates of linear warm-up, of `steps`", unit="updates", part_of="steps", within="[0, inf)"
    )
    schedule: RateSchedule = setting(
        "poly",
        "schedule of lr: poly, cosine, constant, or steps: a tenth from 60 %, a hundredth from 90 % of the updates",
    )
    power: float = setting(1.0, "power of schedule=poly", within="(0, inf)", needs="schedule=poly")
    size: int | None = setting(
        512, "short side of the resized images; null: their own", unit="pixels", within="[1, inf)"
    )
    enlarge: Enlarge = setting(
        "none",
        "small images: none: size, crop, window and stride shrink to the data's short side; trained: but not below the "
        "side of the images that the backbone was trained on; size: images are enlarged to size",
        needs="size",
    )
    resize_range: tuple[float, float] = setting(
        (0.5, 2.0), "range of a random factor of the size in training", within="(0, inf)"
    )
    crop: tuple[int, int] = setting((512, 512), "height and width of the crops", unit="pixels", within="[1, inf)")
    flip: float = setting(0.5, "probability of a horizontal flip in training", within="[0, 1]")
    colours: MapColours = setting(
        "photometric", "photometric: brightness, contrast, saturation, hue as SSD; gamma: as BTS; none"
    )
    rotation: float = setting(
        0.0, "largest rotation in training, of half of the crops", unit="degrees", within="[0, 180]"
    )
    window: tuple[int, int] | None = setting(
        (512, 512),
        "height and width of the sliding window in scoring; null: the whole image",
        unit="pixels",
        within="[1, inf)",
    )
    stride: tuple[int, int] = setting(
        (341, 341), "step of the sliding window", unit="pixels", within="[1, inf)", needs="window"
    )
    scales: tuple[float, ...] = setting(
        (1.0,), "factors of the size over which scores are averaged", within="(0, inf)", filled=True, distinct=True
    )
    flip_test: bool = setting(False, "average scores with those of the mirrored image")
    holdout: float = setting(0.1, "share of train held out to select a head, if there are several", within="(0, 1)")

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        name, usual = self.protocol(), type(self)
        if self.warmup_steps >= self.steps:
            raise UsageError(f"{name}: warmup_steps={self.warmup_steps} should be below steps={self.steps}; give both")
        if self.width is not None and self.head == "linear":
            raise UsageError(f"{name}: width has no effect with head=linear", "Give head=conv, dpt, fpn or upernet.")
        refuse_unknown(self.optimizer)
        if self.betas != usual.betas and "betas" not in find(self.optimizer).uses:
            raise UsageError(f"{name}: betas has no effect with optimizer={self.optimizer}")
        if self.resize_range[0] > self.resize_range[1]:
            raise UsageError(f"{name}: resize_range should ascend, not {list(self.resize_range)}")
        if self.window is not None and any(step > side for step, side in zip(self.stride, self.window, strict=True)):
            raise UsageError(
                f"{name}: stride={list(self.stride)} would leave gaps between windows of {list(self.window)}"
            )


@dataclasses.dataclass(frozen=True)
class SurfaceSettings(HeadSettings):
    """Settings that depth and normals share: those of DINOv2 and probe3d on NYUv2."""

    upsample: int = other_default(HeadSettings, "upsample", 4)
    steps: int = other_default(HeadSettings, "steps", 38_400)
    schedule: RateSchedule = other_default(HeadSettings, "schedule", "cosine")
    size: int | None = other_default(HeadSettings, "size", 480)
    enlarge: Enlarge = other_default(HeadSettings, "enlarge", "trained")
    resize_range: tuple[float, float] = other_default(HeadSettings, "resize_range", (1.0, 1.0))
    colours: MapColours = other_default(HeadSettings, "colours", "gamma")
    window: tuple[int, int] | None = other_default(HeadSettings, "window", None)


S = TypeVar("S", bound=HeadSettings)

# Sums (K, h, w) and numbers (h, w) in the cells of a grid.
Cells = tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]

# Reason why no pixel of label maps counts.
ALL_IGNORED = "all are ignored; `sslbench check-data` shows which values are classes"


@dataclasses.dataclass(frozen=True)
class DenseRow:
    """Result of one row.

    Attributes:
        rows: (N, R), scores of the test images in order.
        floors: 'pixels', 'position only', 'constant' and other constants -> (N, R), scores of the same images.
        train: value on training images.
        train_mean: (K,), mean of the best output over all known pixels of train.
        selected: chosen settings, as records hold them, with values.
        picture: PNG of the best, median and worst test images with truth and prediction.
    """

    rows: FloatArray
    floors: dict[str, FloatArray]
    train: float
    train_mean: FloatArray
    selected: dict[str, Any]
    notes: tuple[str, ...]
    picture: bytes = b""


@dataclasses.dataclass(frozen=True)
class DenseTask(Generic[S]):
    """Task with a target for every pixel; each protocol with trained heads extends it.

    Methods that are here and not only declared fit values of pixels: one row of sums or means per image, whose first
    number is 0 where no pixel counts. Workers get a copy of the task, so it is small and can be pickled.

    Attributes:
        name: that of the protocol, for messages.
        takes: kind of the targets of samples.
        needs: words between the name and "and these samples have ...", for data with other targets.
        advice: data to give instead of those.
        no_value: reason why a pixel does not count, for the message about parts without one that does.
        stored: names of the fields beside the settings that the file of a head holds, for predictions.
    """

    name: ClassVar[str]
    takes: ClassVar[type[Target]]
    needs: ClassVar[str]
    advice: ClassVar[str | None] = None
    no_value: ClassVar[str] = ALL_IGNORED
    stored: ClassVar[tuple[str, ...]] = ()

    settings: S

    @classmethod
    def check(cls, settings: S, train: Target) -> None:
        """Refuse settings and labels that cannot work, before anything else is opened."""
        if not isinstance(train, cls.takes):
            raise DataError(f"{cls.name} {cls.needs}, and these samples have {train.title}", cls.advice)

    @classmethod
    def of(cls, settings: S, train: Source, preprocessing: Preprocessing, seed: int) -> Self:
        """Return the task of a training part, for a backbone with that preprocessing."""
        return cls(settings)

    @classmethod
    def restored(cls, settings: S, facts: Mapping[str, Any], preprocessing: Preprocessing) -> Self:
        """Return the task of a head in a file, from the `stored` facts; it can predict, and not score."""
        return cls(settings, **build_partial(cls, facts, cls.name))

    @property
    def outputs(self) -> int:
        """Channels of a head: classes, or bins of depth."""
        raise NotImplementedError

    @property
    def region(self) -> tuple[int, int, int, int] | None:
        """Left, top, right and bottom of the part of training images that crops are from; None: all."""
        return None

    @property
    def most_of_one(self) -> float:
        """Share of the known pixels of a crop above which, if one value fills it, the crop is drawn again."""
        return 1.0

    def read(self, source: Source, index: int, size: tuple[int, int] | None = None) -> "PixelTarget":
        """Return the target of an image of that height and width, float32 (k, H, W), nan where unknown."""
        return read_pixel_values(source, index, size)

    def cells(self, target: "PixelTarget", grid: tuple[int, int]) -> Cells:
        """Return sums of what the best output would be over the known pixels of each cell, and their numbers.

        The floors 'constant' and 'position only' output the means.

        >>> target = np.array([[[1.0, 3.0, np.nan, 5.0]]], dtype=np.float32)
        >>> sums, numbers = DenseTask(HeadSettings()).cells(target, (1, 2))
        >>> sums.tolist(), numbers.tolist()
        ([[[4.0, 5.0]]], [[2.0, 1.0]])
        """
        (rows, columns), (height, width) = grid, target.shape[1:]
        cells = (np.arange(height) * rows // height)[:, None] * columns + np.arange(width) * columns // width
        known = ~np.isnan(target).any(axis=0)
        numbers = np.bincount(cells[known], minlength=rows * columns)
        sums = [np.bincount(cells[known], weights=each[known], minlength=rows * columns) for each in target]
        return np.stack(sums).astype(np.float64).reshape(-1, *grid), numbers.astype(np.float64).reshape(grid)

    def check_totals(self, part: str, sums: FloatArray) -> None:
        """Refuse a part, 'train' or 'test', in which nothing can be learnt or scored.

        `sums`: (K,), those of `cells` over all images.
        """

    def constants(self) -> dict[str, FloatArray]:
        """Return outputs (K, 1, 1) that chance may be beside the mean of train: the best for each metric."""
        return {}

    def activated(self, channels: "Tensor") -> "Tensor":
        """Return outputs (B, K, h, w) of a head's channels (B, outputs, h, w), before they are enlarged."""
        return channels

    def loss(self, outputs: "Tensor", targets: "Tensor", update: int) -> "Tensor":
        """Return the loss of outputs (B, K, H, W) at the size of the targets (B, k, H, W)."""
        raise NotImplementedError

    def averaged(self, outputs: "Tensor") -> "Tensor":
        """Return the quantity that is averaged over flips and scales, of outputs (B, K, H, W)."""
        return outputs

    def mirrored(self, x: "Tensor") -> "Tensor":
        """Return the corrected values of a flipped map, targets and outputs alike: normals change the sign of x."""
        return x

    def row(self, output: "Tensor", target: "PixelTarget") -> FloatArray:
        """Return the score of an image (R,), from an output (K, h, w) of any size and the target (k, H, W)."""
        raise NotImplementedError

    def predicted(self, output: "Tensor", target: "PixelTarget") -> npt.NDArray[Any]:
        """Return the map to be written for an output (K, h, w), at the size of a target: (H, W), or (H, W, values).

        Whole numbers are classes, which become a picture with a palette.
        """
        values = np.moveaxis(enlarged(output, target).numpy(), 0, 2)
        return values[..., 0] if values.shape[2] == 1 else np.ascontiguousarray(values)

    def drawn(self, output: "Tensor", target: "PixelTarget") -> tuple[ByteArray, ByteArray]:
        """Return pictures (H, W, 3) of the truth and of an output (K, h, w), at the size of the target."""
        raise NotImplementedError

    def caption(self, value: float) -> str:
        """Return the text below the pictures of an image, from the `value` of its row."""
        raise NotImplementedError

    @property
    def sign(self) -> int:
        """Direction of the leading metric: 1 if more is better, else -1."""
        return catalog.find(self.takes.metric).sign

    def value(self, rows: FloatArray) -> float:
        """Return the leading metric of rows (N, R) with `sign`, so that more is better; heads are chosen by it."""
        return self.sign * self.takes.headline(np.zeros((len(rows), 0), dtype=np.int8), rows)

    def known(self, rows: FloatArray) -> BoolArray:
        """Return True for the images that have a pixel to score, (N,)."""
        return rows[:, 0] > 0

    def measured(self, rows: FloatArray) -> BoolArray:
        """Return True for the images that metrics are computed of, (N,)."""
        return self.known(rows)

    def metrics(self, rows: FloatArray, test: Source, seed: int) -> tuple[Values, str, dict[str, float]]:
        """Return metrics with intervals over images, the name of the leading one, and values of classes."""
        scores, groups = self.scores(rows), source_groups(test)
        used = self.measured(rows)
        return summarise(
            self.takes,
            (),
            test.target.values[used],
            scores[used],
            seed=seed,
            groups=None if groups is None else np.unique(groups[used], return_inverse=True)[1],
        )

    def values(self, rows: FloatArray) -> dict[str, float]:
        """Return the metrics of rows (N, R), without intervals."""
        used = rows[self.measured(rows)]
        return without_intervals(self.takes, np.zeros((len(used), 0), dtype=np.int8), used)

    def scores(self, rows: FloatArray) -> npt.NDArray[np.float32]:
        """Return the numbers of each image that are stored."""
        return rows.astype(np.float32)

    def notes(self, row: DenseRow, test: Source) -> Sequence[str]:
        """Return remarks of the task, one sentence each: here on test images without a scored pixel."""
        absent = [test.ids[index] for index in np.flatnonzero(~self.known(row.rows)).tolist()]
        if not absent:
            return ()
        verb = "has" if len(absent) == 1 else "have"
        return (
            f"{counted(len(absent), 'test image')} {verb} no pixel to score, left out of all means: {some(absent, 5)}.",
        )

    def outcome(self, row: DenseRow, test: Source, seed: int) -> Outcome:
        """Return metrics with intervals over images, and floors, of the scores of a row."""
        metrics, leading, per_class = self.metrics(row.rows, test, seed)
        floors = {name: self.values(rows) for name, rows in row.floors.items()}
        constants = [floors.pop(name) for name in ("constant", *self.constants())]
        chance = {}
        for name in constants[0]:
            sign = catalog.find(name).sign
            chance[name] = sign * max(sign * values[name] for values in constants)
        selected = row.selected
        if selected:
            # Heads were chosen by values of which more is better; a record holds the metric itself.
            tried = {name: self.sign * value for name, value in selected["tried"].items()}
            selected = {**selected, "score": self.sign * selected["score"], "tried": tried}
        return Outcome(
            metrics=metrics,
            headline=leading,
            scores=self.scores(row.rows),
            per_class=per_class,
            train=self.sign * row.train,
            selected=selected,
            chance=chance,
            floors=floors,
            notes=(*row.notes, *self.notes(row, test)),
            picture=row.picture,
            scored=int(self.known(row.rows).sum()),
        )


def enlarged(output: "Tensor", target: "PixelTarget") -> "Tensor":
    """Return an output (K, h, w) at the size of a target (k, H, W), bilinear, float32 (K, H, W) in main memory."""
    return resized(output[None].float(), (target.shape[1], target.shape[2]))[0].cpu()


def coloured(values: npt.NDArray[np.floating], low: float, high: float) -> ByteArray:
    """Return numbers (H, W) as a picture (H, W, 3), from dark blue at `low` to yellow at `high`; NaN is white."""
    from matplotlib import colormaps

    shares = (values - low) / max(high - low, 1e-12)
    colours = colormaps["viridis"](np.nan_to_num(shares).clip(0, 1), bytes=True)[..., :3]
    return np.asarray(np.where(np.isnan(shares)[..., None], np.uint8(255), colours), dtype=np.uint8)


def grey(values: npt.NDArray[np.floating], low: float, high: float) -> ByteArray:
    """Return numbers (H, W) as a picture (H, W, 3), black at `low` and white at `high`; NaN is black."""
    shares = np.nan_to_num((values - low) / max(high - low, 1e-12)).clip(0, 1)
    return np.repeat((255 * shares).round().astype(np.uint8)[..., None], 3, axis=2)


def read_pixel_values(source: Source, index: int, size: tuple[int, int] | None = None) -> "PixelTarget":
    """Return the values of the pixels of an image, float32 (k, H, W), nan where unknown."""
    target = source.target
    if not isinstance(target, ReadValues):
        raise DataError(f"{source.name} has no values of pixels")
    values = target.pixels.read_values(index, size=size)
    return np.ascontiguousarray(np.moveaxis(values, 2, 0))
