"""Weights: open a file safely, recognise whose key names it has, rename them, fill a module strictly.

This package knows tensors and names, not networks.
"""
