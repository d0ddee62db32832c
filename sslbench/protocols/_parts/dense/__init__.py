"""Training and scoring of heads on maps of frozen features: many heads in one pass, for any dense task.

A protocol on dense targets has a `Settings(HeadSettings)`, a check of its own settings and labels, and a function that
returns its `Plan`: the `DenseTask`, the augmentation, and the `Outcome` of a `DenseRow`. `trained_heads` does the rest.
"""

from sslbench.protocols._parts.dense.on_images import Plan, trained_heads
from sslbench.protocols._parts.dense.run import DenseRow
from sslbench.protocols._parts.dense.settings import HeadSettings
from sslbench.protocols._parts.dense.task import DenseTask

__all__ = ["DenseRow", "DenseTask", "HeadSettings", "Plan", "trained_heads"]
