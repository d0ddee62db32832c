"""Optimizers, found by file name: `NAME.py` defines OPTIMIZER; `optimizer.py` has their settings and builds them."""
