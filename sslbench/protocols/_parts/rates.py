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
    """Return the schedule: from the position in [0, 1] to the factor of the learning rates.

    Args:
        spec: 'cosine', 'linear', 'constant', or a mapping as for `schedules.build`.
        per: interval at which the factor changes.
        warmup_epochs: epochs of linear warm-up from 0.
        epochs: length of the training in which `warmup_epochs` and milestones are counted.
        passes: over the data in the training, which are others where a number of updates replaces the epochs.
        protocol: for messages.

    Raises:
        UsageError: no such schedule, or the warm-up is longer than training.
    """
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
    return lambda progress: factor(math.floor(progress * passes + 1e-6) / passes)
