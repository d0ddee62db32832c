"""Pretraining from end to end: from a method, data and a backbone to checkpoints, a log and weights.

Names are imported on first use: the settings of a run are checked without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sslbench.pretraining.preparation import PreparedPretraining, prepare
    from sslbench.pretraining.run import PretrainingOutcome, pretrain
    from sslbench.pretraining.settings import PretrainRequest, PretrainSettings, ScheduleSettings
    from sslbench.train.observers import Observer

__all__ = [
    "Observer",
    "PreparedPretraining",
    "PretrainRequest",
    "PretrainSettings",
    "PretrainingOutcome",
    "ScheduleSettings",
    "prepare",
    "pretrain",
]

_HOME = {
    **dict.fromkeys(("PreparedPretraining", "prepare"), "sslbench.pretraining.preparation"),
    **dict.fromkeys(("PretrainingOutcome", "pretrain"), "sslbench.pretraining.run"),
    **dict.fromkeys(("PretrainRequest", "PretrainSettings", "ScheduleSettings"), "sslbench.pretraining.settings"),
    "Observer": "sslbench.train.observers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)
