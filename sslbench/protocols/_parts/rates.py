"""Schedule of the learning rates and augmentation of protocols that train on images, without torch."""

import math
from typing import Any, Literal

from sslbench.data.views import View
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.protocols.protocol import ProtocolSettings
from sslbench.train import schedules

_SCHEDULES: dict[str, dict[str, Any]] = {
    "cosine": {"name": "cosine", "start": 1.0, "end": 0.0},
    "linear": {"name": "linear", "start": 1.0, "end": 0.0},
    "constant": {"name": "constant", "value": 1.0},
}


class ViewSettings(ProtocolSettings):
    """Settings of protocols that train on augmented views; their `Settings` declare these fields."""

    epochs: float
    updates: int | None
    schedule: dict[str, Any] | str
    schedule_per: Literal["update", "epoch"]
    warmup_epochs: float
    scale: tuple[float, float]
    ratio: tuple[float, float]
    interpolation: Literal["bilinear", "bicubic"]
    flip: float

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
