"""Settings that all protocols with trained dense heads share; a protocol's `Settings` extends them."""

import dataclasses
from typing import Literal

from sslbench.config import setting
from sslbench.data.loading.joint import Colours

HeadName = Literal["linear", "conv", "dpt"]


@dataclasses.dataclass(frozen=True)
class HeadSettings:
    """Inputs, head, training and inference of dense heads."""

    head: HeadName = setting("linear", "linear: 1x1 convolution; conv: two of 3x3 before it; dpt: fusion of the layers")
    blocks: tuple[int, ...] = setting(
        (),
        "vision transformers, instead of --layers: join the patches of the last n blocks after the last norm; each n "
        "has a row of its own",
    )
    cls: bool = setting(False, "join the class token of each layer to its patches")
    upsample: int = setting(1, "factor by which the maps are enlarged before the head")
    norm: bool = setting(True, "BatchNorm before the head")
    dropout: float = setting(0.0, "share of the channels dropped before the head in training")
    lr: tuple[float, ...] = setting(
        (5e-4, 1e-3, 2e-3), "learning rates; a head is trained with each and the best is selected"
    )
    weight_decay: float = setting(1e-4, "weight decay of AdamW")
    betas: tuple[float, float] = setting((0.9, 0.999), "decay rates of AdamW's averages")
    clip_norm: float | None = setting(None, "largest norm of a head's gradient; null: any")
    steps: int = setting(40_000, "updates, at most", unit="updates")
    max_epochs: float | None = setting(
        50, "epochs, at most: small data get fewer updates, with a shorter warm-up; null: any number", unit="epochs"
    )
    batch_size: int = setting(16, "crops per update", unit="crops")
    warmup_steps: int = setting(1500, "updates of linear warm-up, of `steps`", unit="updates")
    schedule: Literal["poly", "cosine", "constant"] = setting("poly", "schedule of lr: poly, cosine or constant")
    power: float = setting(1.0, "power of schedule=poly")
    size: int | None = setting(512, "short side of the resized images; null: their own", unit="pixels")
    enlarge: bool = setting(
        False, "enlarge small images to size; false: size, crop, window and stride shrink to the data's short side"
    )
    resize_range: tuple[float, float] = setting((0.5, 2.0), "range of a random factor of the size in training")
    crop: tuple[int, int] = setting((512, 512), "height and width of the crops", unit="pixels")
    flip: float = setting(0.5, "probability of a horizontal flip in training")
    colours: Colours = setting(
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
