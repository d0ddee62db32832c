"""Pretraining and benchmarks of image representations.

Public names are imported on first use, so `import sslbench` is fast.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from sslbench.text import hide_secrets

if TYPE_CHECKING:
    from sslbench.api import (
        compare,
        evaluate,
        evaluate_checkpoints,
        export,
        extract,
        extract_features,
        load_backbone,
        make_leaderboard,
        predict,
        pretrain,
    )
    from sslbench.api.detection import evaluate_detection, load_detector
    from sslbench.errors import SslbenchError
    from sslbench.evaluation.estimators import KNNProbe, LinearProbe
    from sslbench.names import list_names

__all__ = [
    "KNNProbe",
    "LinearProbe",
    "SslbenchError",
    "compare",
    "evaluate",
    "evaluate_checkpoints",
    "evaluate_detection",
    "export",
    "extract",
    "extract_features",
    "list_names",
    "load_backbone",
    "load_detector",
    "make_leaderboard",
    "predict",
    "pretrain",
]

_HOME = dict.fromkeys(__all__, "sslbench.api") | {
    "KNNProbe": "sslbench.evaluation.estimators",
    "LinearProbe": "sslbench.evaluation.estimators",
    "SslbenchError": "sslbench.errors",
    "evaluate_detection": "sslbench.api.detection",
    "list_names": "sslbench.names",
    "load_detector": "sslbench.api.detection",
}


logging.getLogger("sslbench").addFilter(hide_secrets)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sslbench' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
