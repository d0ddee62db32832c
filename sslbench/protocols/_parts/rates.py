"""Schedule of the learning rates of protocols that train on images, without torch."""

import math
from typing import Any, Literal

from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.train import schedules

_SCHEDULES: dict[str, dict[str, Any]] = {
    "cosine": {"name": "cosine", "start": 1.0, "end": 0.0},
    "linear": {"name": "linear", "start": 1.0, "end": 0.0},
    "constant": {"name": "constant", "value": 1.0},
}


def rate_schedule(
    spec: dict[str, Any] | str,
    *,
    per: Literal["update", "epoch"],
    warmup_epochs: float,
    epochs: float,
    passes: float,
    protocol: str,
) -> schedules.Schedule:
    """Return the schedule: from the position in [0, 1] to the factor of the learning rates."""
    if isinstance(spec, str) and spec not in _SCHEDULES:
        raise UsageError(f"{protocol}: there is no schedule '{spec}'", did_you_mean(spec, _SCHEDULES))
    factor = schedules.build_with_warmup(
        _SCHEDULES[spec] if isinstance(spec, str) else spec,
        warmup_epochs=warmup_epochs,
        warmup_start=0.0,
        where="schedule",
        epochs=epochs,
    )
    if per == "update":
        return factor
    # By rounding, the first update of an epoch may lie just before it.
    return lambda progress: factor(math.floor(progress * passes + 1e-6) / passes)
