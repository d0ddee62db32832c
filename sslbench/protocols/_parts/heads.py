"""Heads that are trained on views of images, without torch: their settings, and their files beside the record."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from sslbench.config import setting
from sslbench.data.views import View
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.protocols.protocol import ProtocolSettings
from sslbench.results import NetworkWeights
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target
from sslbench.train import schedules
from sslbench.train.optimizers.optimizer import OPTIMIZERS

# Settings that each kind of head uses; it ignores the others.
_USED = {
    "linear": (),
    "attentive": ("tokens", "queries", "attention_heads"),
    "map": ("tokens", "queries", "attention_heads", "mlp_ratio"),
    "block": ("tokens", "queries", "attention_heads", "mlp_ratio", "depth"),
}
_SCHEDULES: dict[str, dict[str, Any]] = {
    "cosine": {"name": "cosine", "start": 1.0, "end": 0.0},
    "linear": {"name": "linear", "start": 1.0, "end": 0.0},
    "constant": {"name": "constant", "value": 1.0},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadedSettings(ProtocolSettings):
    """Settings of protocols that train a head on views, which is linear or attends to the tokens of the layer."""

    epochs: float = setting(30, "epochs, in full batches", unit="epochs", within="(0, inf)")
    updates: int | None = setting(
        None,
        "total number of updates, instead of epochs; parts in epochs (warm-up, milestones) keep their share",
        within="[1, inf)",
    )
    optimizer: str = setting("sgd", OPTIMIZERS)
    lr_scaling: Literal["linear", "sqrt", "none"] = setting(
        "linear", "scaling of lr, given for 256 images per update, with batch_size"
    )
    schedule: dict[str, Any] | str = setting(
        "cosine",
        "schedule of lr: cosine or linear (to 0), constant, or a mapping of factors as in configs/schedule",
        part_of="epochs",
    )
    schedule_per: Literal["update", "epoch"] = setting("update", "interval at which the schedule changes lr")
    warmup_epochs: float = setting(0.0, "epochs of linear warm-up from 0", unit="epochs", part_of="epochs")
    augment: Literal["crop", "none"] = setting("crop", "crop: random resized crop; none: the evaluation transform")
    scale: tuple[float, float] = setting((0.08, 1.0), "range of the crop's area, as a share of the image's")
    ratio: tuple[float, float] = setting((3 / 4, 4 / 3), "range of the crop's width / height")
    interpolation: Literal["bilinear", "bicubic"] = setting("bilinear", "resampling filter of the crop")
    flip: float = setting(0.5, "probability of a horizontal flip")
    size: int | None = setting(
        None, "side of the crop in pixels; null: that of the evaluation transform", unit="pixels", needs="augment=crop"
    )
    head: Literal["linear", "attentive", "map", "block"] = setting(
        "linear",
        "linear: on pooled features; over the tokens of the layer: attentive (learnt queries, as AIM and CAPI), map "
        "(with a projection and an MLP, as SigLIP and PE), block (a transformer block, as V-JEPA 2)",
        added_later=True,
    )
    tokens: Literal["patches", "all"] = setting(
        "patches", "tokens that the queries attend to: all includes class and register tokens", added_later=True
    )
    queries: int = setting(
        1, "learnt queries of the head; their outputs are averaged", within="[1, inf)", added_later=True
    )
    attention_heads: int | None = setting(
        None, "heads of its attention; null: one per 64 features", within="[1, inf)", added_later=True
    )
    mlp_ratio: float = setting(
        4.0, "hidden features of its MLP, relative to the layer's (map, block)", within="(0, inf)", added_later=True
    )
    depth: int = setting(
        1,
        "blocks of head=block: depth - 1 of self-attention over the tokens, then that of the queries",
        within="[1, inf)",
        added_later=True,
    )

    def __post_init__(self) -> None:
        """Refuse settings that the kind of head does not use."""
        super().__post_init__()
        fields = {name: field for name, field in self.__dataclass_fields__.items() if name in _USED["block"]}
        for name, field in fields.items():
            if name not in _USED[self.head] and getattr(self, name) != field.default:
                able = " or ".join(f"head={kind}" for kind, used in _USED.items() if name in used)
                raise UsageError(f"{self.protocol()}: {name} has no effect with head={self.head}", f"Give {able}.")

    def rate_schedule(self, passes: float) -> schedules.Schedule:
        """Return the schedule: from the position in [0, 1] to the factor of the learning rates.

        `passes`: epochs of the training; with `updates`, parts of the schedule keep their share of `epochs`.
        """
        spec = self.schedule
        if isinstance(spec, str) and spec not in _SCHEDULES:
            raise UsageError(f"{self.protocol()}: there is no schedule '{spec}'", did_you_mean(spec, _SCHEDULES))
        factor = schedules.build_with_warmup(
            _SCHEDULES[spec] if isinstance(spec, str) else spec,
            warmup_epochs=self.warmup_epochs,
            warmup_start=0.0,
            where="schedule",
            epochs=passes if self.updates is None else self.epochs,
        )
        if self.schedule_per == "update":
            return factor
        # By rounding, the first update of an epoch may lie just before it.
        return lambda progress: factor(math.floor(progress * passes + 1e-6) / passes)

    def view(self, size: int) -> View:
        """Return the recipe of the augmented view of an image."""
        return View(size=size, scale=self.scale, ratio=self.ratio, interpolation=self.interpolation, flip=self.flip)


def built_in_kind(labels: Target) -> str | None:
    """Return the name of the kind that weights files give to labels: the built-in one that theirs is or extends."""
    return next((kind.name for kind in (Classes, MultiLabel, Numbers) if isinstance(labels, kind)), None)


def probe(heads: Mapping[str, Any], labels: Target, **facts: Any) -> NetworkWeights | None:
    """Return a trained head of a frozen backbone for its file; None for labels that no weights file has.

    `heads`: name -> tensor or array of a `ClassifierHead`; `facts`: of its `ClassifierInfo`, where they differ.
    """
    kind = built_in_kind(labels)
    if kind is None:
        return None
    return NetworkWeights(heads, {"norm": "none", "labels": kind, "classes": labels.classes, **facts})
