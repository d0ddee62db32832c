"""Heads, losses and sliding windows of dense tasks, as functions and modules on tensors (N, C, H, W)."""
