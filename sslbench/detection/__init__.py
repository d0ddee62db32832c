"""Detection: recipes, detectors on a backbone, their training and evaluation, pictures of predictions."""

VERSION = 8
"""Version of the protocol `detection`; raised whenever a number changes for the same input."""
