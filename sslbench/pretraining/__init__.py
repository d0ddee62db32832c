"""Pretraining from end to end: a method, data and a backbone in; a folder with checkpoints, a log and weights out."""

from sslbench.pretraining.prepare import Prepared, prepare
from sslbench.pretraining.run import About, Observer, Outcome, pretrain
from sslbench.pretraining.settings import PretrainRequest, PretrainSettings, ScheduleSettings

__all__ = [
    "About",
    "Observer",
    "Outcome",
    "Prepared",
    "PretrainRequest",
    "PretrainSettings",
    "ScheduleSettings",
    "prepare",
    "pretrain",
]
