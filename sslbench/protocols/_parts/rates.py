"""Schedule of the learning rates of protocols that train on images, without torch."""

import logging
import math
from typing import Any, Literal

from sslbench.config import in_proportion
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.train import schedules

log = logging.getLogger("sslbench")

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
    published_epochs: float | None = None,
    protocol: str,
) -> schedules.Schedule:
    """Return the schedule: from the position in [0, 1] to the factor of the learning rates.

    Args:
        spec: 'cosine', 'linear', 'constant', or a mapping as for `schedules.build`.
        per: interval at which the factor changes.
        warmup_epochs: epochs of linear warm-up from 0.
        epochs: of the whole training.
        published_epochs: its length where a number of updates replaces it: warm-up and milestones that no longer fit
            are shortened in proportion.
        protocol: for messages.

    Raises:
        UsageError: no such schedule, or the warm-up is longer than training.
    """
    if isinstance(spec, str) and spec not in _SCHEDULES:
        raise UsageError(f"{protocol}: there is no schedule '{spec}'", did_you_mean(spec, _SCHEDULES))
    rule = _SCHEDULES[spec] if isinstance(spec, str) else spec
    if published_epochs is not None:
        given = rule, warmup_epochs
        rule = in_proportion(rule, published_epochs, epochs)
        warmup_epochs = in_proportion(warmup_epochs, published_epochs, epochs)
        if (rule, warmup_epochs) != given:
            log.info(
                f"{protocol}: warmup_epochs={warmup_epochs:g}, schedule={rule}, in proportion to {epochs:g} epochs"
            )
    factor = schedules.build_with_warmup(
        rule, warmup_epochs=warmup_epochs, warmup_start=0.0, where="schedule", epochs=epochs
    )
    if per == "update":
        return factor
    return lambda progress: factor(math.floor(progress * epochs + 1e-6) / epochs)
