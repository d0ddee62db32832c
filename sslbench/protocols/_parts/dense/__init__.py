"""Training and scoring of heads on maps of frozen features: many heads in one pass, for any dense task.

A protocol on dense targets is a `DenseTask`, a `Settings(HeadSettings)` and an `Outcome` from the rows of scores.
"""

from sslbench.protocols._parts.dense.settings import HeadSettings
from sslbench.protocols._parts.dense.task import DenseTask

__all__ = ["DenseTask", "HeadSettings"]
