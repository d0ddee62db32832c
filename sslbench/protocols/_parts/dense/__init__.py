"""Training and scoring of heads on maps of frozen features: many heads in one pass, for any dense task.

A protocol on dense targets has a `Settings(HeadSettings)` and a class of its `DenseTask[Settings]`: targets, loss,
scores. `trained_heads` does the rest. None of these names loads torch before a run starts.
"""

from sslbench.protocols._parts.dense.on_images import trained_heads
from sslbench.protocols._parts.dense.settings import HeadSettings
from sslbench.protocols._parts.dense.task import DenseTask

__all__ = ["DenseTask", "HeadSettings", "trained_heads"]
