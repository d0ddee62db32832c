"""Drawn textures, for the tests that run over every format; see `sample_data`."""

LABELS = "single"
WRITE = {}  # its images are arrays


def make(root):
    return "textures:images"
