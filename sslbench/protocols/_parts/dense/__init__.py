"""Training and scoring of heads on maps of frozen features: many heads in one pass, for any dense task.

A protocol on dense targets has a `DenseTask`, a `Settings(HeadSettings)`, `check_settings` in its check, `checked_rows`
as its rows, and makes an `Outcome` of each `DenseRow` that `train_and_score` returns.
"""

from sslbench.protocols._parts.dense.run import DenseRow, check_settings, checked_rows, train_and_score
from sslbench.protocols._parts.dense.settings import HeadSettings
from sslbench.protocols._parts.dense.task import DenseTask

__all__ = ["DenseRow", "DenseTask", "HeadSettings", "check_settings", "checked_rows", "train_and_score"]
