"""Small toy data, for the tests that run over every format; see `sample_data`."""

LABELS = "multi"
WRITE = {}  # COCO manifests


def make(root):
    return "kwcoco:shapes8-32"
