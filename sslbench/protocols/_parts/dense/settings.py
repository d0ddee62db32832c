"""Settings that all protocols with trained dense heads share; a protocol's `Settings` extends them."""

import dataclasses
import math
from typing import Literal

from sslbench.config import setting
from sslbench.data.views import MapColours
from sslbench.errors import UsageError
from sslbench.train.optimizers.optimizer import find, refuse_unknown

HeadName = Literal["linear", "conv", "dpt"]
Enlarge = Literal["none", "trained", "size"]
RawBlocks = Literal["none", "last", "last4", "spread4"]


@dataclasses.dataclass(frozen=True)
class HeadSettings:
    """Inputs, head, training and inference of dense heads."""

    head: HeadName = setting("linear", "linear: 1x1 convolution; conv: two of 3x3 before it; dpt: fusion of the layers")
    blocks: tuple[int, ...] = setting(
        (),
        "vision transformers, instead of --layers: join the patches of the last n blocks after the last norm; each n "
        "has a row of its own",
    )
    raw_blocks: RawBlocks = setting(
        "none",
        "vision transformers, instead of --layers: outputs of blocks before the last norm: the last, the last4, or "
        "spread4 over the depth ([2, 5, 8, 11] of 12)",
    )
    cls: bool = setting(False, "join the class token of each layer to its patches")
    upsample: int = setting(1, "factor by which the maps are enlarged before the head, to cells of 3 pixels at least")
    norm: bool = setting(True, "BatchNorm before the head")
    dropout: float = setting(0.0, "share of the channels dropped before the head in training")
    lr: tuple[float, ...] = setting(
        (5e-4, 1e-3, 2e-3), "learning rates; a head is trained with each and the best is selected"
    )
    optimizer: str = setting(
        "adamw", "sgd, adamw, lars, larc, timm:NAME, or your own my_pkg.my_optimizer", added_later=True
    )
    weight_decay: float = setting(1e-4, "weight decay")
    betas: tuple[float, float] = setting((0.9, 0.999), "adamw: decay rates of its averages")
    clip_norm: float | None = setting(None, "largest norm of a head's gradient; null: any")
    steps: int = setting(40_000, "updates, at most", unit="updates")
    max_epochs: float | None = setting(
        50, "epochs, at most: small data get fewer updates, with a shorter warm-up; null: any number", unit="epochs"
    )
    batch_size: int = setting(16, "crops per update", unit="crops")
    warmup_steps: int = setting(1500, "updates of linear warm-up, of `steps`", unit="updates", part_of="steps")
    schedule: Literal["poly", "cosine", "constant"] = setting("poly", "schedule of lr: poly, cosine or constant")
    power: float = setting(1.0, "power of schedule=poly")
    size: int | None = setting(512, "short side of the resized images; null: their own", unit="pixels")
    enlarge: Enlarge = setting(
        "none",
        "small images: none: size, crop, window and stride shrink to the data's short side; trained: but not below the "
        "side of the images that the backbone was trained on; size: images are enlarged to size",
    )
    resize_range: tuple[float, float] = setting((0.5, 2.0), "range of a random factor of the size in training")
    crop: tuple[int, int] = setting((512, 512), "height and width of the crops", unit="pixels")
    flip: float = setting(0.5, "probability of a horizontal flip in training")
    colours: MapColours = setting(
        "photometric", "photometric: brightness, contrast, saturation, hue as SSD; gamma: as BTS; none"
    )
    rotation: float = setting(0.0, "largest rotation in training, of half of the crops", unit="degrees")
    window: tuple[int, int] | None = setting(
        (512, 512), "height and width of the sliding window in scoring; null: the whole image", unit="pixels"
    )
    stride: tuple[int, int] = setting((341, 341), "step of the sliding window", unit="pixels")
    scales: tuple[float, ...] = setting((1.0,), "factors of the size over which scores are averaged")
    flip_test: bool = setting(False, "average scores with those of the mirrored image")
    holdout: float = setting(0.1, "share of train held out to select a head, if there are several")


@dataclasses.dataclass(frozen=True)
class SurfaceSettings(HeadSettings):
    """Settings that depth and normals share: those of DINOv2 and probe3d on NYUv2."""

    upsample: int = setting(4, "factor by which the maps are enlarged before the head, to cells of 3 pixels at least")
    steps: int = setting(38_400, "updates, at most", unit="updates")
    schedule: Literal["poly", "cosine", "constant"] = setting("cosine", "schedule of lr: poly, cosine or constant")
    size: int | None = setting(480, "short side of the resized images; null: their own", unit="pixels")
    enlarge: Enlarge = setting(
        "trained",
        "small images: none: size and crop shrink to the data's short side; trained: but not below the side of the "
        "images that the backbone was trained on; size: images are enlarged to size",
    )
    resize_range: tuple[float, float] = setting((1.0, 1.0), "range of a random factor of the size in training")
    colours: MapColours = setting(
        "gamma", "photometric: brightness, contrast, saturation, hue as SSD; gamma: as BTS; none"
    )
    window: tuple[int, int] | None = setting(
        None, "height and width of the sliding window in scoring; null: the whole image", unit="pixels"
    )


def check_heads(settings: HeadSettings, *, protocol: str) -> None:
    """Refuse settings that are not possible, whatever the data and the backbone.

    Raises:
        UsageError: a setting is not possible.
    """

    def need(right: bool, message: str) -> None:
        if not right:
            raise UsageError(f"{protocol}: {message}")

    def positive(value: float) -> bool:
        return math.isfinite(value) and value > 0

    need(bool(settings.lr) and all(map(positive, settings.lr)), f"lr should be above 0, not {list(settings.lr)}")
    for name in ("lr", "blocks", "scales"):
        values = getattr(settings, name)
        need(len(set(values)) == len(values), f"{name} holds a value twice: {list(values)}")
    need(all(n >= 1 for n in settings.blocks), f"blocks should be 1 or more, not {list(settings.blocks)}")
    for name in ("steps", "batch_size", "upsample"):
        need(getattr(settings, name) >= 1, f"{name} should be at least 1, not {getattr(settings, name)}")
    need(settings.batch_size > 1, "batch_size should be at least 2: BatchNorm needs it")
    warm, steps = settings.warmup_steps, settings.steps
    need(0 <= warm < steps, f"warmup_steps={warm} should be below steps={steps}; give both")
    need(positive(settings.power), f"power should be above 0, not {settings.power}")
    need(settings.max_epochs is None or positive(settings.max_epochs), "max_epochs should be above 0")
    need(settings.power == 1 or settings.schedule == "poly", f"power has no effect with schedule={settings.schedule}")
    refuse_unknown(settings.optimizer)
    if settings.betas != type(settings)().betas:
        need("betas" in find(settings.optimizer).uses, f"betas has no effect with optimizer={settings.optimizer}")
    need(settings.weight_decay >= 0, f"weight_decay should be 0 or more, not {settings.weight_decay}")
    need(settings.clip_norm is None or positive(settings.clip_norm), "clip_norm should be above 0")
    for name in ("dropout", "flip"):
        need(0 <= getattr(settings, name) <= 1, f"{name} should lie between 0 and 1, not {getattr(settings, name)}")
    need(settings.dropout < 1, "dropout should be below 1")
    need(0 < settings.holdout < 1, f"holdout should lie between 0 and 1, not {settings.holdout}")
    need(0 <= settings.rotation <= 180, f"rotation should lie between 0 and 180, not {settings.rotation}")
    low, high = settings.resize_range
    need(0 < low <= high, f"resize_range should ascend from above 0, not {[low, high]}")
    need(bool(settings.scales) and all(map(positive, settings.scales)), f"scales: {list(settings.scales)}")
    sizes = [
        ("size", (1 if settings.size is None else settings.size,)),
        ("crop", settings.crop),
        ("stride", settings.stride),
    ]
    for name, values in [*sizes, ("window", settings.window or (1, 1))]:
        need(min(values) >= 1, f"{name} should be at least 1 pixel, not {list(values)}")
    if settings.window is not None:
        fits = all(step <= side for step, side in zip(settings.stride, settings.window, strict=True))
        need(fits, f"stride={list(settings.stride)} would leave gaps between windows of {list(settings.window)}")
    own_stride = settings.stride != type(settings)().stride
    need(settings.window is not None or not own_stride, "stride has no effect without a window: give window=H,W")
    enlarged = settings.enlarge != type(settings)().enlarge
    need(not enlarged or settings.size is not None, f"enlarge={settings.enlarge} has no effect without size")
