"""An evaluation from end to end: weights and data in, one result record per protocol and layer out.

`prepare` finds everything that can be wrong before the first image is decoded; `evaluate` extracts, scores and writes.
Names are imported on first use: the arguments of an evaluation (`request`) are checked without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sslbench.evaluation.encode import extract_only, extract_several
    from sslbench.evaluation.opening import InMemoryData
    from sslbench.evaluation.preparation import Prepared, has_own_classes, prepare
    from sslbench.evaluation.request import Request, Task, make_task
    from sslbench.evaluation.run import check_features_for, evaluate, evaluate_features
    from sslbench.evaluation.settings import RunSettings
    from sslbench.runtime.folders import check_writable

__all__ = [
    "InMemoryData",
    "Prepared",
    "Request",
    "RunSettings",
    "Task",
    "check_features_for",
    "check_writable",
    "evaluate",
    "evaluate_features",
    "extract_only",
    "extract_several",
    "has_own_classes",
    "make_task",
    "prepare",
]

_HOME = {
    **dict.fromkeys(("Request", "Task", "make_task"), "sslbench.evaluation.request"),
    **dict.fromkeys(("extract_only", "extract_several"), "sslbench.evaluation.encode"),
    **dict.fromkeys(("check_features_for", "evaluate", "evaluate_features"), "sslbench.evaluation.run"),
    "InMemoryData": "sslbench.evaluation.opening",
    "RunSettings": "sslbench.evaluation.settings",
    "check_writable": "sslbench.runtime.folders",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME.get(name, "sslbench.evaluation.preparation")), name)
