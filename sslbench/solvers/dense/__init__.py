"""Heads, losses and sliding windows of dense tasks, as functions and modules on tensors (N, C, H, W)."""

from typing import Literal

Average = Literal["scored", "all"]
"""Pixels over which a loss is averaged."""
Normalisation = Literal["linear", "softmax", "sigmoid"]
"""Function from outputs to weights of bins."""
Spacing = Literal["uniform", "logarithmic"]
"""Distances of the centres of bins."""
