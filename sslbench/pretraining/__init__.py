"""Pretraining from end to end: from a method, data and a backbone to checkpoints, a log and weights."""

from sslbench.pretraining.prepare import PreparedPretraining, prepare
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
