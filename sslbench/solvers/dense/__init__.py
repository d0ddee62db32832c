"""Heads, losses and sliding windows of dense tasks, as functions and modules on tensors (N, C, H, W)."""

from typing import Literal

# Pixels over which a loss is averaged.
Average = Literal["scored", "all"]
# Function from outputs to weights of bins.
Normalisation = Literal["linear", "softmax", "sigmoid"]
# Distances of the centres of bins.
Spacing = Literal["uniform", "logarithmic"]
