"""Training and scoring of heads on maps of frozen features: many heads in one pass, for any dense task.

A protocol on dense targets has a `Settings(HeadSettings)`, a check of its own settings and labels, and a function that
returns its `Plan`: the `DenseTask`, the augmentation, and the `Outcome` of a `DenseRow`. `trained_heads` does the rest.
None of these names loads torch before a run starts.
"""

from sslbench.protocols._parts.dense.on_images import trained_heads
from sslbench.protocols._parts.dense.settings import HeadSettings, check_heads

__all__ = ["HeadSettings", "check_heads", "trained_heads"]
