"""An evaluation from end to end: weights and data in, one result record per protocol and layer out.

`prepare` finds everything that can be wrong before the first image is decoded; `evaluate` extracts, scores and writes.
"""

from sslbench.evaluation.encode import extract_only, extract_several
from sslbench.evaluation.prepare import InMemoryData, Prepared, has_own_classes, needs_labels, prepare
from sslbench.evaluation.request import Request, RunSettings, Task, make_task
from sslbench.evaluation.run import evaluate, evaluate_features
from sslbench.runtime.folders import check_writable

__all__ = [
    "InMemoryData",
    "Prepared",
    "Request",
    "RunSettings",
    "Task",
    "check_writable",
    "evaluate",
    "evaluate_features",
    "extract_only",
    "extract_several",
    "has_own_classes",
    "make_task",
    "needs_labels",
    "prepare",
]
