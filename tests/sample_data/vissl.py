"""Small VISSL lists, for the tests that run over every format; see `sample_data`."""

import numpy as np
from helpers import containers

from sample_data import write_splits

LABELS = "single"
WRITE = {"vissl": containers.write_vissl}


def make(root):
    """VISSL's folder of lists, with the images of both splits beside it."""
    write_splits(root)
    for split in ("train", "test"):
        files = sorted((root / split).rglob("*.png"))
        np.save(root / f"{split}_images.npy", np.array([str(f.relative_to(root)) for f in files]))
        np.save(root / f"{split}_labels.npy", np.array(["ab".index(f.parent.name) for f in files]))
    return f"vissl:{root}"
