"""Picture with depth that scikit-image bundles; see `sample_data`."""

LABELS = "depth"
WRITE = {}  # bundled arrays


def make(root):
    return "skimage:motorcycle"
