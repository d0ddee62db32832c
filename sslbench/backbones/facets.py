"""Vectors that a block of a vision transformer computes for each token, without torch."""

from typing import Literal

Facet = Literal["token", "query", "key", "value"]
"""Output of a block, or one of the three parts of what its attention computes from a token."""
