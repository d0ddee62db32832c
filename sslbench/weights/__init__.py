"""Weights: safe reading of files, recognition of their format, renaming of keys, strict loading into a module.

This package knows tensors and names, not networks.
"""
